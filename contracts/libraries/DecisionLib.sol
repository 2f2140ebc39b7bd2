// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Decision} from "../Types.sol";

/// @title Leaves and proofs of a round's decisions.
/// @notice Leaves are sorted by (requestId, node), hashed twice (so that no inner node can pass for a leaf), padded with
/// zero leaves to a power of two, and proven by index. Neighbouring indexes prove that a request is absent.
library DecisionLib {
    function leafOf(Decision calldata decision) internal pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(decision))));
    }

    /// @param count number of real leaves; an index beyond it, or a proof of another depth, proves nothing.
    function isProven(bytes32 root, bytes32 leaf, uint256 index, uint256 count, bytes32[] calldata proof)
        internal
        pure
        returns (bool)
    {
        if (index >= count || proof.length != depthOf(count)) return false;
        bytes32 node = leaf;
        for (uint256 i = 0; i < proof.length; ++i) {
            node = (index >> i) & 1 == 0 ? _hashPair(node, proof[i]) : _hashPair(proof[i], node);
        }
        return node == root;
    }

    /// Height of the tree over `count` leaves padded to a power of two.
    function depthOf(uint256 count) internal pure returns (uint256 depth) {
        while ((uint256(1) << depth) < count) ++depth;
    }

    function _hashPair(bytes32 left, bytes32 right) private pure returns (bytes32 hash) {
        assembly ("memory-safe") {
            mstore(0x00, left)
            mstore(0x20, right)
            hash := keccak256(0x00, 0x40)
        }
    }
}
