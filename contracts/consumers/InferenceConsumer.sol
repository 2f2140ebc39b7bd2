// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {RequestParams} from "../Types.sol";
import {IInferenceMarket} from "../interfaces/IInferenceMarket.sol";
import {IInferenceReceiver} from "../interfaces/IInferenceReceiver.sol";
import {IERC165} from "@openzeppelin/contracts/utils/introspection/IERC165.sol";

/// @title Base of contracts that ask a market and are told the answers.
/// @notice Ask with `_ask`; answers come to `_onAnswer`, each once, from the market and to a question of one's own only.
/// What is left of an escrow is credited in the market: `_collect` takes it out.
abstract contract InferenceConsumer is IInferenceReceiver, IERC165 {
    IInferenceMarket public immutable MARKET;

    mapping(bytes32 requestId => bool) private _isOpen;

    error NotTheMarket(address caller);
    error NotAsked(bytes32 requestId);

    constructor(IInferenceMarket market) {
        MARKET = market;
    }

    /// @inheritdoc IInferenceReceiver
    function onInferenceResult(bytes32 requestId, bytes32 resultHash, bytes calldata result) external {
        if (msg.sender != address(MARKET)) revert NotTheMarket(msg.sender);
        if (!_isOpen[requestId]) revert NotAsked(requestId);
        _isOpen[requestId] = false;
        _onAnswer(requestId, resultHash, result);
    }

    /// @notice Whether an answer to this request is still waited for.
    function isOpen(bytes32 requestId) public view returns (bool) {
        return _isOpen[requestId];
    }

    function supportsInterface(bytes4 interfaceId) public view virtual returns (bool) {
        return interfaceId == type(IInferenceReceiver).interfaceId || interfaceId == type(IERC165).interfaceId;
    }

    /// @param value Wei to send along: the escrow, or less when the contract has credit in the market.
    function _ask(RequestParams memory params, bytes memory prompt, uint256 value)
        internal
        returns (bytes32 requestId)
    {
        requestId = MARKET.requestInference{value: value}(params, prompt);
        _isOpen[requestId] = true;
    }

    /// Takes all of the contract's credit in the market. The contract must be able to receive it.
    function _collect() internal returns (uint256 amount) {
        (amount,) = MARKET.accountOf(address(this));
        if (amount != 0) MARKET.withdraw(address(this), amount);
    }

    /// @param result The answer's bytes when the request asked for inline delivery, else empty.
    function _onAnswer(bytes32 requestId, bytes32 resultHash, bytes calldata result) internal virtual;
}
