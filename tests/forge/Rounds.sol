// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Decision} from "../../contracts/Types.sol";

/// Trees over a round's decisions, built as a relayer builds them.
abstract contract Rounds {
    /// By (requestId, node), in place.
    function _sort(Decision[] memory decisions) internal pure returns (Decision[] memory) {
        for (uint256 i = 1; i < decisions.length; ++i) {
            for (uint256 j = i; j > 0 && _comesBefore(decisions[j], decisions[j - 1]); --j) {
                (decisions[j], decisions[j - 1]) = (decisions[j - 1], decisions[j]);
            }
        }
        return decisions;
    }

    function _comesBefore(Decision memory a, Decision memory b) internal pure returns (bool) {
        return a.requestId < b.requestId || (a.requestId == b.requestId && a.node < b.node);
    }

    function _root(Decision[] memory decisions) internal pure returns (bytes32) {
        bytes32[] memory level = _leaves(decisions);
        while (level.length > 1) level = _parents(level);
        return level[0];
    }

    function _proof(Decision[] memory decisions, uint256 index) internal pure returns (bytes32[] memory proof) {
        bytes32[] memory level = _leaves(decisions);
        uint256 depth = 0;
        while (uint256(1) << depth < level.length) ++depth;
        proof = new bytes32[](depth);
        for (uint256 i = 0; i < depth; ++i) {
            proof[i] = level[index ^ 1];
            level = _parents(level);
            index >>= 1;
        }
    }

    function _leaf(Decision memory decision) internal pure returns (bytes32) {
        return keccak256(abi.encode(keccak256(abi.encode(decision))));
    }

    function _leaves(Decision[] memory decisions) private pure returns (bytes32[] memory leaves) {
        uint256 width = 1;
        while (width < decisions.length) width *= 2;
        leaves = new bytes32[](width);
        for (uint256 i = 0; i < decisions.length; ++i) {
            leaves[i] = _leaf(decisions[i]);
        }
    }

    function _parents(bytes32[] memory level) private pure returns (bytes32[] memory parents) {
        parents = new bytes32[](level.length / 2);
        for (uint256 i = 0; i < parents.length; ++i) {
            parents[i] = keccak256(abi.encode(level[2 * i], level[2 * i + 1]));
        }
    }
}
