// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {RequestParams} from "../Types.sol";
import {IInferenceMarket} from "../interfaces/IInferenceMarket.sol";
import {IInferenceReceiver} from "../interfaces/IInferenceReceiver.sol";

/// Test helper: a requester with code that does on a callback what it is told to.
contract Receiver is IInferenceReceiver {
    enum Behaviour {
        NOTES,
        REVERTS,
        BURNS_ALL_GAS,
        RETURNS_MUCH,
        REVERTS_WITH_MUCH,
        CALLS_BACK // the market, with `reentry`
    }

    error Refused(uint256 value);

    IInferenceMarket public immutable MARKET;
    Behaviour public behaviour;
    bytes public reentry;
    bool public reentryWorked;
    bytes public reentryAnswer;
    uint256 public calls;
    bytes32 public lastId;
    bytes32 public lastHash;
    bytes public lastResult;
    uint256 public lastGas;
    uint256 public creditSeen;

    constructor(IInferenceMarket market) payable {
        MARKET = market;
    }

    receive() external payable {}

    function set(Behaviour value, bytes calldata data) external {
        (behaviour, reentry) = (value, data);
    }

    function ask(RequestParams calldata params, bytes calldata prompt) external payable returns (bytes32) {
        return MARKET.requestInference{value: msg.value}(params, prompt);
    }

    function forward(bytes calldata data) external payable {
        (bool ok, bytes memory answer) = address(MARKET).call{value: msg.value}(data);
        if (!ok) {
            assembly ("memory-safe") {
                revert(add(answer, 0x20), mload(answer))
            }
        }
    }

    function onInferenceResult(bytes32 requestId, bytes32 resultHash, bytes calldata result) external {
        uint256 gas = gasleft();
        Behaviour b = behaviour;
        if (b == Behaviour.REVERTS) revert Refused(7);
        if (b == Behaviour.BURNS_ALL_GAS) {
            while (true) {}
        }
        if (b == Behaviour.RETURNS_MUCH) {
            assembly ("memory-safe") {
                return(0, 200000)
            }
        }
        if (b == Behaviour.REVERTS_WITH_MUCH) {
            assembly ("memory-safe") {
                revert(0, 200000)
            }
        }
        if (b == Behaviour.CALLS_BACK) (reentryWorked, reentryAnswer) = address(MARKET).call(reentry);
        calls += 1;
        (lastId, lastHash, lastResult, lastGas) = (requestId, resultHash, result, gas);
        (creditSeen,) = MARKET.accountOf(address(this));
    }
}
