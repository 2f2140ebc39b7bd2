// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Handler} from "./invariant/Handler.sol";

/// The world at random. Each suite makes other choices of the same moves; both must never see a revert that the books do
/// not foresee.
abstract contract Suite {
    Handler private _handler;

    function _setUp(uint256 suite) internal {
        _handler = new Handler(suite);
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(_handler);
    }

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    function targetSelectors() external view returns (FuzzSelector[] memory targets) {
        bytes4[23] memory moves = [
            _handler.post.selector,
            _handler.postFor.selector,
            _handler.resend.selector,
            _handler.raise.selector,
            _handler.cancel.selector,
            _handler.release.selector,
            _handler.expire.selector,
            _handler.bank.selector,
            _handler.record.selector,
            _handler.recordOutOfOrder.selector,
            _handler.settle.selector,
            _handler.settleMore.selector,
            _handler.settleAlone.selector,
            _handler.retry.selector,
            _handler.bond.selector,
            _handler.register.selector,
            _handler.rotate.selector,
            _handler.stake.selector,
            _handler.member.selector,
            _handler.wait.selector,
            _handler.own.selector,
            _handler.accuseOfMissing.selector,
            _handler.accuseOfEquivocation.selector
        ];
        targets = new FuzzSelector[](1);
        targets[0].addr = address(_handler);
        targets[0].selectors = new bytes4[](26);
        for (uint256 i = 0; i < 23; ++i) {
            targets[0].selectors[i] = moves[i];
        }
        targets[0].selectors[23] = _handler.accuseOfPayingUndecided.selector;
        targets[0].selectors[24] = _handler.accuseByAssignment.selector;
        targets[0].selectors[25] = _handler.accuseByRecord.selector;
    }

    function invariant_whatMustHoldHolds() external {
        _handler.afterEachMove();
    }

    function afterInvariant() external {
        _handler.I35_everythingComesOut();
    }
}

contract FirstInvariantsTest is Suite {
    function setUp() external {
        _setUp(1);
    }
}

contract SecondInvariantsTest is Suite {
    function setUp() external {
        _setUp(2);
    }
}
