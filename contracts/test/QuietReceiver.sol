// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {RequestParams} from "../Types.sol";
import {IInferenceMarket} from "../interfaces/IInferenceMarket.sol";
import {IInferenceReceiver} from "../interfaces/IInferenceReceiver.sol";

/// Test helper: a requester whose callback does nothing, to measure what a callback costs beside its consumer.
contract QuietReceiver is IInferenceReceiver {
    IInferenceMarket public immutable MARKET;

    constructor(IInferenceMarket market) {
        MARKET = market;
    }

    function ask(RequestParams[] calldata params, bytes[] calldata prompts) external payable {
        MARKET.requestInferenceBatch{value: msg.value}(params, prompts);
    }

    function onInferenceResult(bytes32, bytes32, bytes calldata) external {}
}
