// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Ownable, Ownable2Step} from "@openzeppelin/contracts/access/Ownable2Step.sol";

/// @title Ownership that changes hands in two steps, a fixed time apart.
/// @notice The delay outlasts every open request and every dispute, so all of it happens under the owner that was known
/// when it began.
abstract contract TimelockedOwnable is Ownable2Step {
    uint40 public constant OWNERSHIP_DELAY = 3 days;

    uint40 private _acceptableAt; // shares the pending owner's slot

    /// @notice `newOwner` may accept from `acceptableAt` on.
    event OwnershipTransferTimed(address indexed newOwner, uint40 acceptableAt);

    error OwnershipTimelocked(uint40 acceptableAt, uint256 blockTimestamp);

    /// @inheritdoc Ownable2Step
    function transferOwnership(address newOwner) public virtual override {
        super.transferOwnership(newOwner);
        _acceptableAt = uint40(block.timestamp) + OWNERSHIP_DELAY;
        emit OwnershipTransferTimed(newOwner, _acceptableAt);
    }

    /// @inheritdoc Ownable2Step
    function acceptOwnership() public virtual override {
        if (block.timestamp < _acceptableAt) revert OwnershipTimelocked(_acceptableAt, block.timestamp);
        super.acceptOwnership();
    }
}
