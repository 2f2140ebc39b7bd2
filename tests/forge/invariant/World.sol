// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Decision, Mode, Request, RequestParams, ResultRef, RoundRecord, Status} from "../../../contracts/Types.sol";
import {MarketBase} from "../../../contracts/market/MarketBase.sol";
import {Base} from "../Base.sol";
import {Puppet, newPuppet} from "../Puppet.sol";
import {VM} from "../Vm.sol";

/// The deployment, all who act in it, and the books that are kept beside it. What is written here is what the rules say;
/// the invariants compare it with what the contracts say.
abstract contract World is Base {
    struct Entry {
        Request request;
        bytes32 id;
        uint256 escrow; // with what was raised
        uint256 added;
        uint40 deadline; // the effective one
        Status status;
        Status checkedAs; // the status when it was last looked at
        uint256 word; // as last seen
        ResultRef ref; // once it is settled
    }

    struct Round {
        RoundRecord record;
        uint40 recordedAt;
        Decision[] decisions;
    }

    uint64 internal constant PROBATION_COUNT = 3;
    uint256 internal constant PROBATION_CAP = 1e15;
    uint40 internal constant PROBATION_TIME = 1 hours;
    uint256 internal constant MAX_OPERATORS = 10;

    Entry[] internal entries;
    mapping(bytes32 id => uint256) internal entryOf; // index + 1
    mapping(address relayer => Round[]) internal rounds;
    mapping(address relayer => bytes32) internal heads;
    address[] internal accounts; // all that may come to have credit
    mapping(address account => bool) internal isListed;
    address[] internal keysSeen; // that were ever registered, in any order
    mapping(address key => address) internal canonical;
    mapping(bytes32 fault => bool) internal proven;

    address[3] internal plain = [address(0x1001), address(0x1002), address(0x1003)];
    uint256 internal signerKey = uint256(keccak256("gasless requester"));
    address internal signer = VM.addr(signerKey);
    uint256 internal attestedKey = uint256(keccak256("attested key"));
    address internal delegate = address(0xDE1E);
    address internal watcher = address(0x3A7C);
    address internal evil = address(0xE711); // whom the owner would hand the market to
    Puppet internal consumer; // asks with callbacks, and is as hostile in them as it can be
    Puppet internal wallet; // signs by ERC-1271, or says anything else

    uint256 internal forcedIn; // wei that nobody owns, of the market
    uint256 internal forcedStakes;
    uint256 internal burnt;
    uint256 internal pausedUntil;
    uint64 internal salt;
    mapping(bytes32 what => uint256) public seen; // how often it came about
    uint256 public moves;
    uint256 private _random;
    uint256 private immutable _suite;

    constructor(uint256 suite) {
        _suite = suite;
        _deploy(
            5,
            MarketBase.ProbationTerms({
                maxReward: PROBATION_CAP, settledCount: PROBATION_COUNT, duration: PROBATION_TIME
            })
        );
        VM.fee(1 gwei);
        VM.deal(address(0), 0);
        consumer = newPuppet();
        wallet = newPuppet();
        wallet.orderReadOnly(true);
        VM.prank(marketOwner);
        verifier.attest(VM.addr(attestedKey), MODEL, type(uint40).max);
        address[10] memory known = [
            plain[0], plain[1], plain[2], signer, address(consumer), address(wallet), relayer, rival, delegate, watcher
        ];
        for (uint256 i = 0; i < 10; ++i) {
            _list(known[i]);
        }
        for (uint256 i = 0; i < operators.length; ++i) {
            _listOperator(i);
        }
    }

    /* CHANCE */

    /// Each move begins with words of its own, so that all that it chooses follows from its seed.
    modifier chosenBy(uint256 seed) {
        _random = uint256(keccak256(abi.encode(seed, _suite)));
        _;
        // Else the move itself would pay a tip to the address of zero, where ashes are counted.
        VM.txGasPrice(0);
        ++moves;
        _afterMove();
    }

    /// Check what must hold.
    function _afterMove() internal virtual;

    /// A number below `count`.
    function _pick(uint256 count) internal returns (uint256 chosen) {
        chosen = _random % count;
        _random = uint256(keccak256(abi.encode(_random)));
    }

    function _oneIn(uint256 count) internal returns (bool) {
        return _pick(count) == 0;
    }

    function _amount() internal returns (uint80) {
        uint256 kind = _pick(8);
        if (kind == 0) return 0;
        if (kind == 1) return uint80(_pick(20));
        if (kind == 2) return type(uint80).max;
        return uint80(_pick(4e15));
    }

    function _anyRelayer() internal returns (address account, uint256 key) {
        return _oneIn(3) ? (rival, rivalKey) : (relayer, relayerKey);
    }

    function _anyAccount() internal returns (address) {
        return accounts[_pick(accounts.length)];
    }

    /// One of the later requests more likely than an early one, as most of those are over.
    function _anyEntry() internal returns (uint256) {
        uint256 count = entries.length;
        if (count > 8 && !_oneIn(4)) return count - 1 - _pick(8);
        return _pick(count);
    }

    /// One that may still be settled, if a few glances find one.
    function _openEntry() internal returns (uint256 index) {
        for (uint256 i = 0; i < 8; ++i) {
            index = _anyEntry();
            Entry storage entry = entries[index];
            if (entry.status == Status.PENDING && VM.getBlockTimestamp() <= entry.deadline + GRACE) return index;
        }
    }

    /* BOOKS */

    function _list(address account) internal {
        if (isListed[account]) return;
        isListed[account] = true;
        accounts.push(account);
    }

    function _listOperator(uint256 index) internal {
        Operator memory operator = operators[index];
        _list(operator.owner);
        _list(operator.payee);
        keysSeen.push(operator.node);
        canonical[operator.node] = operator.node;
    }

    /// A request that was taken.
    function _enter(RequestParams memory params, address requester) internal {
        Request memory request = _packed(params, requester);
        bytes32 id = _idOf(request);
        Entry storage entry = entries.push();
        entry.request = request;
        entry.id = id;
        entry.escrow = _escrowOf(request);
        entry.deadline = params.deadline;
        entry.status = Status.PENDING;
        entry.word = market.wordOf(id);
        entryOf[id] = entries.length;
    }

    function _totalCredit() internal view returns (uint256 total) {
        for (uint256 i = 0; i < accounts.length; ++i) {
            total += _credit(accounts[i]);
        }
    }

    function _openEscrow() internal view returns (uint256 total) {
        for (uint256 i = 0; i < entries.length; ++i) {
            if (entries[i].status == Status.PENDING) total += entries[i].escrow;
        }
    }

    function _kOf(Request memory request) internal pure returns (uint8) {
        return uint8(request.terms >> 200);
    }

    function _modeOf(Request memory request) internal pure returns (Mode) {
        return Mode(uint8(request.terms >> 192));
    }

    function _isInline(Request memory request) internal pure returns (bool) {
        return request.terms >> 217 & 1 == 1;
    }

    function _callbackGasOf(Request memory request) internal pure returns (uint256) {
        return uint24(request.terms >> 160);
    }

    function _statusIn(uint256 word) internal pure returns (Status) {
        return Status(word >> 248);
    }

    /// Calls that must go through: what stands in their way is told.
    function _mustCall(address by, address target, uint256 value, bytes memory data)
        internal
        returns (bytes memory answer)
    {
        if (value != 0) VM.deal(by, by.balance + value);
        bool ok;
        VM.prank(by);
        (ok, answer) = target.call{value: value}(data);
        if (!ok) {
            assembly ("memory-safe") {
                revert(add(answer, 0x20), mload(answer))
            }
        }
    }

    /// Calls that must be refused, and why.
    function _mustRefuse(address by, address target, uint256 value, bytes memory data, bytes4 why) internal {
        if (value != 0) VM.deal(by, by.balance + value);
        VM.prank(by);
        (bool ok, bytes memory answer) = target.call{value: value}(data);
        VM.assertTrue(!ok, "what must be refused went through");
        VM.assertEq(bytes32(bytes4(answer)), bytes32(why), "refused for another reason");
        if (value != 0) VM.deal(by, by.balance - value);
    }
}
