// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Request} from "../Types.sol";

/// @title What decides whether a result of a VERIFIER request is paid.
interface IResultVerifier {
    /// @notice Called by the market, read-only and with capped gas. Must bind the proof to `requestId` (which covers the
    /// chain, the market and every field of `request`), to `node` and to `resultHash`: else a proof of one result passes
    /// for another.
    /// @return magic This function's selector when the proof holds. Anything else, a revert, or running out of gas: the
    /// result is not paid and the request stays open.
    function verifyInference(
        Request calldata request,
        bytes32 requestId,
        address node,
        bytes32 resultHash,
        bytes calldata proof
    ) external view returns (bytes4 magic);
}
