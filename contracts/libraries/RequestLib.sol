// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Mode, Request, RequestParams} from "../Types.sol";

/// @title Packing and identity of requests.
/// @notice `terms`, low to high bits: salt 64, deadline 40, promptBytes 32, maxOutputTokens 24, callbackGas 24, lane 8,
/// mode 8, k 8, n 8, flags 8 (bit 0 batchable, bit 1 inlineResult). `amounts`: maxReward 80, gasBudget 80,
/// priorityFee 80. Unused high bits are zero.
library RequestLib {
    uint256 internal constant BATCHABLE = 1;
    uint256 internal constant INLINE_RESULT = 2;

    function pack(RequestParams calldata p, address requester) internal pure returns (Request memory) {
        return Request({
            requester: requester,
            relayer: p.relayer,
            modelId: p.modelId,
            promptHash: p.promptHash,
            amounts: uint256(p.maxReward) | (uint256(p.gasBudget) << 80) | (uint256(p.priorityFee) << 160),
            terms: _packTerms(p),
            verifier: p.verifier
        });
    }

    /// keccak256(chain id ‖ market ‖ the request's seven words).
    function idOf(Request memory request, address market) internal view returns (bytes32 id) {
        // Words are copied one by one: no allocation, and no second validation of what `pack` made.
        assembly ("memory-safe") {
            let ptr := mload(0x40)
            mstore(ptr, chainid())
            mstore(add(ptr, 0x20), market)
            mcopy(add(ptr, 0x40), request, 0xe0)
            id := keccak256(ptr, 0x120)
        }
    }

    /// As `idOf`, from calldata. Dirty high bits are hashed as they are, so they only make an unknown id.
    function idOfCalldata(Request calldata request, address market) internal view returns (bytes32 id) {
        assembly ("memory-safe") {
            let ptr := mload(0x40)
            mstore(ptr, chainid())
            mstore(add(ptr, 0x20), market)
            calldatacopy(add(ptr, 0x40), request, 0xe0)
            id := keccak256(ptr, 0x120)
        }
    }

    function escrowOf(RequestParams calldata p) internal pure returns (uint256) {
        return uint256(p.maxReward) + p.gasBudget + p.priorityFee;
    }

    function amountsOf(uint256 amounts)
        internal
        pure
        returns (uint256 maxReward, uint256 gasBudget, uint256 priorityFee)
    {
        return (uint80(amounts), uint80(amounts >> 80), uint80(amounts >> 160));
    }

    function escrowOf(Request calldata request) internal pure returns (uint256) {
        (uint256 maxReward, uint256 gasBudget, uint256 priorityFee) = amountsOf(request.amounts);
        return maxReward + gasBudget + priorityFee;
    }

    function flagsOf(uint256 terms) internal pure returns (uint256) {
        return uint8(terms >> 216);
    }

    function _packTerms(RequestParams calldata p) private pure returns (uint256) {
        uint256 flags = (p.batchable ? BATCHABLE : 0) | (p.inlineResult ? INLINE_RESULT : 0);
        return uint256(p.salt) | (uint256(p.deadline) << 64) | (uint256(p.promptBytes) << 104)
            | (uint256(p.maxOutputTokens) << 136) | (uint256(p.callbackGas) << 160) | (uint256(p.lane) << 184)
            | (uint256(uint8(p.mode)) << 192) | (uint256(p.k) << 200) | (uint256(p.n) << 208) | (flags << 216);
    }
}
