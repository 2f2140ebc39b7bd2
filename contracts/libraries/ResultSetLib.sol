// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {ResultItem, ResultSet} from "../Types.sol";

/// @title Lists of a set that were read before.
/// @notice The compiler checks the bounds of a list in calldata each time that it is named. Calldata does not change: once
/// `Results._requireWellFormed` has read them, these are read without.
library ResultSetLib {
    uint256 private constant SIGNATURES = 0x40; // where the set's head has the list's offset
    uint256 private constant ITEMS = 0x60;
    uint256 private constant RESULTS = 0x80;

    function itemsOf(ResultSet calldata set) internal pure returns (ResultItem[] calldata items) {
        (uint256 offset, uint256 length) = _listAt(set, ITEMS);
        assembly ("memory-safe") {
            items.offset := offset
            items.length := length
        }
    }

    function signaturesOf(ResultSet calldata set) internal pure returns (bytes[] calldata) {
        return _bytesListAt(set, SIGNATURES);
    }

    function resultsOf(ResultSet calldata set) internal pure returns (bytes[] calldata) {
        return _bytesListAt(set, RESULTS);
    }

    /// An element of a list that is empty or was found long enough. What a submitter points beyond the calldata is read as
    /// zeros.
    function elementAt(bytes[] calldata list, uint256 index) internal pure returns (bytes calldata element) {
        if (list.length == 0) return msg.data[:0];
        assembly ("memory-safe") {
            let head := add(list.offset, calldataload(add(list.offset, shl(5, index))))
            element.length := calldataload(head)
            element.offset := add(head, 0x20)
        }
    }

    function _bytesListAt(ResultSet calldata set, uint256 head) private pure returns (bytes[] calldata list) {
        (uint256 offset, uint256 length) = _listAt(set, head);
        assembly ("memory-safe") {
            list.offset := offset
            list.length := length
        }
    }

    function _listAt(ResultSet calldata set, uint256 head) private pure returns (uint256 offset, uint256 length) {
        assembly ("memory-safe") {
            let list := add(set, calldataload(add(set, head)))
            length := calldataload(list)
            offset := add(list, 0x20)
        }
    }
}
