// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Mode, Request, RequestParams} from "../Types.sol";
import {IInferenceMarket} from "../interfaces/IInferenceMarket.sol";

/// @title Packing and identity of requests.
/// @notice `terms`, low to high bits: salt 64, deadline 40, promptBytes 32, maxOutputTokens 24, callbackGas 24, lane 8,
/// mode 8, k 8, n 8, flags 8 (bit 0 batchable, bit 1 inlineResult). `amounts`: maxReward 80, gasBudget 80,
/// priorityFee 80. Unused high bits are zero.
library RequestLib {
    uint256 internal constant BATCHABLE = 1;
    uint256 internal constant INLINE_RESULT = 2;
    uint256 internal constant INLINE_TERM = INLINE_RESULT << 216;
    /// callbackGas, the upper bits of lane, mode, k and n: zero in a plain request.
    uint256 internal constant EXTRA_TERMS = ((1 << 56) - 1 - (1 << 24)) << 160;

    function pack(RequestParams calldata params, address requester) internal pure returns (Request memory) {
        (uint256 amounts, uint256 terms,) = packWords(params);
        return Request({
            requester: requester,
            relayer: params.relayer,
            modelId: params.modelId,
            promptHash: params.promptHash,
            amounts: amounts,
            terms: terms,
            verifier: params.verifier
        });
    }

    /// Refuses bits beyond a field's width, as the ABI decoder would.
    function packWords(RequestParams calldata params)
        internal
        pure
        returns (uint256 amounts, uint256 terms, uint256 escrow)
    {
        // p[i] is the i-th field as a word: one check of all together costs a quarter of the decoder's check of each.
        uint256[18] calldata p;
        assembly ("memory-safe") {
            p := params
        }
        uint256 beyond = (p[3] >> 64) | (p[4] >> 40) | (p[5] >> 32) | ((p[6] | p[7]) >> 24)
            | ((p[8] | p[12] | p[13]) >> 8) | ((p[9] | p[10]) >> 1) | (p[11] >> 2) | ((p[15] | p[16] | p[17]) >> 80);
        if (beyond != 0) revert IInferenceMarket.InvalidTerms();
        amounts = p[15] | (p[16] << 80) | (p[17] << 160);
        // salt, deadline, promptBytes, maxOutputTokens, callbackGas, lane, mode, k, n, batchable, inlineResult
        terms = p[3] | (p[4] << 64) | (p[5] << 104) | (p[6] << 136) | (p[7] << 160) | (p[8] << 184) | (p[11] << 192)
            | (p[12] << 200) | (p[13] << 208) | (p[9] << 216) | (p[10] << 217);
        unchecked {
            escrow = p[15] + p[16] + p[17]; // three numbers of 80 bits
        }
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

    function escrowOf(RequestParams calldata params) internal pure returns (uint256) {
        return uint256(params.maxReward) + params.gasBudget + params.priorityFee;
    }

    function deadlineOf(uint256 terms) internal pure returns (uint40) {
        return uint40(terms >> 64);
    }

    function promptBytesOf(uint256 terms) internal pure returns (uint32) {
        return uint32(terms >> 104);
    }

    function maxOutputTokensOf(uint256 terms) internal pure returns (uint24) {
        return uint24(terms >> 136);
    }

    function callbackGasOf(uint256 terms) internal pure returns (uint24) {
        return uint24(terms >> 160);
    }

    function laneOf(uint256 terms) internal pure returns (uint8) {
        return uint8(terms >> 184);
    }

    function modeOf(uint256 terms) internal pure returns (Mode) {
        return Mode(uint8(terms >> 192));
    }

    function kOf(uint256 terms) internal pure returns (uint8) {
        return uint8(terms >> 200);
    }

    function nOf(uint256 terms) internal pure returns (uint8) {
        return uint8(terms >> 208);
    }

    function flagsOf(uint256 terms) internal pure returns (uint8) {
        return uint8(terms >> 216);
    }

    function isInline(uint256 terms) internal pure returns (bool) {
        return terms & INLINE_TERM != 0;
    }

    function isVerified(uint256 terms) internal pure returns (bool) {
        return uint8(terms >> 192) == uint8(Mode.VERIFIER);
    }
}
