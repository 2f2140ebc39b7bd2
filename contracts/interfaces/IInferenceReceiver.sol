// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

/// @title A contract that is told the answers to its requests.
interface IInferenceReceiver {
    /// @notice Called by the market after a result was paid, with the request's `callbackGas`. A revert does not undo the
    /// payment; the call can be made again with `retryCallback`.
    /// @param result The answer's bytes when the request asked for inline delivery, else empty.
    function onInferenceResult(bytes32 requestId, bytes32 resultHash, bytes calldata result) external;
}
