// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {RequestParams} from "../Types.sol";
import {IInferenceMarket} from "../interfaces/IInferenceMarket.sol";
import {InferenceConsumer} from "./InferenceConsumer.sol";

/// @notice Who hears what the market said of an entry.
interface IBountyJudge {
    function judge(bytes32 requestId, bytes calldata result) external;
}

/// @title One entry's question: see JudgedBounty, which clones it.
/// @notice The market adds up what comes back to a requester, and does not say of which request it is. So each entry asks
/// through a contract of its own, and all that this one has is its author's.
contract BountyQuestion is InferenceConsumer {
    IBountyJudge public immutable BOUNTY;

    address public author;

    error NotTheBounty(address caller);
    error TransferFailed(address to, uint256 amount);

    constructor(IInferenceMarket market) InferenceConsumer(market) {
        BOUNTY = IBountyJudge(msg.sender);
    }

    /// Credit comes out of the market through here.
    receive() external payable {}

    function ask(address author_, RequestParams calldata params, bytes calldata prompt)
        external
        payable
        returns (bytes32 requestId)
    {
        if (msg.sender != address(BOUNTY)) revert NotTheBounty(msg.sender);
        author = author_;
        return _ask(params, prompt, msg.value);
    }

    /// @notice Pays what is left of the escrow to the author. Anyone may.
    function collect() external returns (uint256 amount) {
        _collect();
        amount = address(this).balance;
        address to = author;
        (bool ok,) = to.call{value: amount}("");
        if (!ok) revert TransferFailed(to, amount);
    }

    function _onAnswer(bytes32 requestId, bytes32, bytes calldata result) internal override {
        BOUNTY.judge(requestId, result);
    }
}
