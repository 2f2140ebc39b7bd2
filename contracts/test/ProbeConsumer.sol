// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {RequestParams} from "../Types.sol";
import {InferenceConsumer} from "../consumers/InferenceConsumer.sol";
import {IInferenceMarket} from "../interfaces/IInferenceMarket.sol";

/// Test helper: a consumer that notes its answers, and does on one what it is told to.
contract ProbeConsumer is InferenceConsumer {
    enum Behaviour {
        NOTES,
        REVERTS,
        ASKS_AGAIN // with `next`, out of its own wei
    }

    error NotNow();

    Behaviour public behaviour;
    RequestParams private _next;
    uint256 public answers;
    bytes32 public lastId;
    bytes32 public lastHash;
    bytes public lastResult;
    bytes32 public askedAgain;

    constructor(IInferenceMarket market) payable InferenceConsumer(market) {}

    receive() external payable {}

    function set(Behaviour value) external {
        behaviour = value;
    }

    function setNext(RequestParams calldata params) external {
        (behaviour, _next) = (Behaviour.ASKS_AGAIN, params);
    }

    function ask(RequestParams calldata params, bytes calldata prompt) external payable returns (bytes32) {
        return _ask(params, prompt, msg.value);
    }

    function collect() external returns (uint256) {
        return _collect();
    }

    function _onAnswer(bytes32 requestId, bytes32 resultHash, bytes calldata result) internal override {
        if (behaviour == Behaviour.REVERTS) revert NotNow();
        answers += 1;
        (lastId, lastHash, lastResult) = (requestId, resultHash, result);
        if (behaviour != Behaviour.ASKS_AGAIN) return;
        RequestParams memory next = _next;
        uint256 escrow = uint256(next.maxReward) + next.gasBudget + next.priorityFee;
        behaviour = Behaviour.NOTES;
        askedAgain = _ask(next, "", escrow);
    }
}
