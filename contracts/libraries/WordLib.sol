// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {ResultRef, Status} from "../Types.sol";

/// @title The one word that a market keeps of a request.
/// @notice The top byte is the Status and is never zero again. PENDING: bits 0-95 added priority fee, 96-135 effective
/// deadline. All other: the low 248 bits of a digest that names the status, so no word of one state passes for one of
/// another.
library WordLib {
    function statusIn(uint256 word) internal pure returns (Status) {
        return Status(word >> 248);
    }

    function isPending(uint256 word) internal pure returns (bool) {
        return word >> 248 == uint256(Status.PENDING);
    }

    function feeAddedIn(uint256 word) internal pure returns (uint256) {
        return uint96(word);
    }

    function deadlineIn(uint256 word) internal pure returns (uint40) {
        return uint40(word >> 96);
    }

    function pending(uint256 feeAdded, uint40 deadline) internal pure returns (uint256) {
        return (uint256(Status.PENDING) << 248) | (uint256(deadline) << 96) | feeAdded;
    }

    function tagged(Status status, bytes32 digest) internal pure returns (uint256) {
        return (uint256(status) << 248) | uint248(uint256(digest));
    }

    /// @param deadline The effective deadline that passed: earlier than the request's own when it was cancelled before.
    function expired(bytes32 requestId, uint40 deadline) internal pure returns (uint256) {
        return tagged(Status.EXPIRED, keccak256(abi.encode(Status.EXPIRED, requestId, deadline)));
    }

    function cancelled(bytes32 requestId) internal pure returns (uint256) {
        return tagged(Status.CANCELLED, keccak256(abi.encode(Status.CANCELLED, requestId)));
    }

    function fulfilled(Status status, bytes32 requestId, ResultRef calldata ref) internal pure returns (uint256) {
        return tagged(status, keccak256(abi.encode(status, requestId, ref)));
    }

    /// abi.encode(status, requestId, ResultRef), of a result that is settled now, with zeros for what `fulfilledFrom` fills
    /// in: status, requestId, resultHash.
    function preimage(address relayer, uint64 round, address[] memory nodes) internal view returns (bytes memory) {
        // The third and seventh words are offsets: of the reference, and in it of its nodes.
        return abi.encodePacked(
            bytes32(0),
            bytes32(0),
            uint256(0x60),
            bytes32(0),
            uint256(uint160(relayer)),
            uint256(round),
            uint256(0xa0),
            block.timestamp,
            nodes.length,
            nodes
        );
    }

    /// As `fulfilled`, for many results of one set.
    /// @param encoded From `preimage`; the fields that differ from item to item are written over.
    function fulfilledFrom(bytes memory encoded, Status status, bytes32 requestId, bytes32 resultHash)
        internal
        pure
        returns (uint256)
    {
        bytes32 digest;
        assembly ("memory-safe") {
            mstore(add(encoded, 0x20), status)
            mstore(add(encoded, 0x40), requestId)
            mstore(add(encoded, 0x80), resultHash)
            digest := keccak256(add(encoded, 0x20), mload(encoded))
        }
        return tagged(status, digest);
    }
}
