// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {VM} from "./Vm.sol";
import {Handler} from "./invariant/Handler.sol";

/// All that is done at random.
function _movesOf(Handler handler) pure returns (bytes4[] memory moves) {
    bytes4[27] memory all = [
        handler.post.selector,
        handler.postMore.selector,
        handler.postFor.selector,
        handler.resend.selector,
        handler.raise.selector,
        handler.cancel.selector,
        handler.release.selector,
        handler.expire.selector,
        handler.bank.selector,
        handler.record.selector,
        handler.recordOutOfOrder.selector,
        handler.settle.selector,
        handler.settleMore.selector,
        handler.settleAlone.selector,
        handler.retry.selector,
        handler.bond.selector,
        handler.register.selector,
        handler.rotate.selector,
        handler.stake.selector,
        handler.member.selector,
        handler.wait.selector,
        handler.own.selector,
        handler.accuseOfMissing.selector,
        handler.accuseOfEquivocation.selector,
        handler.accuseOfPayingUndecided.selector,
        handler.accuseByAssignment.selector,
        handler.accuseByRecord.selector
    ];
    moves = new bytes4[](all.length);
    for (uint256 i = 0; i < all.length; ++i) {
        moves[i] = all[i];
    }
}

/// Named, so that its code is compiled once and not again into each test.
function newHandler(uint256 suite, bool checksEachMove) returns (Handler) {
    return Handler(VM.deployCode("Handler.sol:Handler", abi.encode(suite, checksEachMove)));
}

/// The world at random. Each suite makes other choices of the same moves; both must never see a revert that the books do
/// not foresee.
abstract contract Suite {
    Handler internal _handler;

    function _setUp(uint256 suite) internal {
        _handler = newHandler(suite, true);
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
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(_handler), _movesOf(_handler));
    }

    /// Each move checks in itself, and must not revert: what a check notes of the move before would be lost here.
    function invariant_whatMustHoldHolds() external view {
        VM.assertEq(_handler.checkedMoves(), _handler.moves(), "a move was not checked");
    }

    function afterInvariant() external {
        _handler.I45_everythingComesOut();
    }
}

/// That the moves get anywhere: each ending, status and fault comes about.
contract MovesTest {
    uint256 private constant MOVES = 5000;

    Handler private _handler;

    function test_movesReachEverything() external {
        _handler = newHandler(3, false);
        bytes4[] memory moves = _movesOf(_handler);
        for (uint256 i = 0; i < MOVES; ++i) {
            uint256 seed = uint256(keccak256(abi.encode(i)));
            (bool ok, bytes memory why) =
                address(_handler).call(abi.encodeWithSelector(moves[seed % moves.length], seed));
            VM.assertTrue(ok, string(why));
        }
        _handler.checkAll();
        for (uint256 status = 0; status < 12; ++status) {
            _assertSeen(keccak256(abi.encode("item", status)), string.concat("status ", VM.toString(status)));
        }
        for (uint256 fault = 0; fault < 6; ++fault) {
            _assertSeen(keccak256(abi.encode("fault", fault)), string.concat("fault ", VM.toString(fault)));
        }
        for (uint256 mode = 0; mode < 4; ++mode) {
            if (mode != 2) _assertSeen(keccak256(abi.encode("mode", mode)), string.concat("mode ", VM.toString(mode)));
        }
        _assertSeen("failed callback", "failed callback");
        _assertSeen("retried callback", "retried callback");
        _assertSeen("request from a callback", "request from a callback");
        _assertSeen("settled by its node", "settled by its node");
        _assertSeen("signed by a wallet", "signed by a wallet");
        _assertSeen("signed by a key", "signed by a key");
        _assertSeen("released", "released");
        _assertSeen("expired", "expired");
        _assertSeen("key rotated", "key rotated");
        _assertSeen("stake withdrawn", "stake withdrawn");
        _assertSeen("bond withdrawn", "bond withdrawn");
        _handler.I45_everythingComesOut();
    }

    function _assertSeen(bytes32 what, string memory name) private view {
        VM.assertGe(_handler.seen(what), 1, name);
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
