// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {InferenceMarket} from "../../../contracts/InferenceMarket.sol";
import {Request, Status} from "../../../contracts/Types.sol";
import {IInferenceMarket} from "../../../contracts/interfaces/IInferenceMarket.sol";
import {IStakeManager} from "../../../contracts/interfaces/IStakeManager.sol";
import {Puppet} from "../Puppet.sol";
import {VM} from "../Vm.sol";
import {WatcherMoves} from "./WatcherMoves.sol";
import {World} from "./World.sol";

/// All who act, time and the owner; and what must hold after each move. Numbers are those of docs/invariants.md.
contract Handler is WatcherMoves {
    /// What a move has not to do with is looked at again each so many moves: what is wrong there stays wrong.
    uint256 private constant LOOK_AGAIN = 8;

    bool private immutable _checksEachMove;
    uint256 public checkedMoves;

    constructor(uint256 suite, bool checksEachMove) World(suite) {
        _checksEachMove = checksEachMove;
    }

    /* TIME */

    function wait(uint256 seed) external chosenBy(seed) {
        uint256 kind = _pick(30);
        uint256 time = kind == 0 ? _pick(UNBOND_DELAY + 10) : kind < 8 ? _pick(1000) : _pick(120);
        VM.warp(VM.getBlockTimestamp() + time);
        VM.fee(1 gwei);
    }

    /* THE OWNER */

    /// What it may do: pause and resume. And what it may not: anything to others' wei.
    function own(uint256 seed) external chosenBy(seed) {
        uint256 kind = _pick(6);
        address owner = market.owner();
        if (kind == 0) {
            _mustCall(owner, address(market), 0, abi.encodeCall(InferenceMarket.setRequestsPaused, (true)));
            pausedUntil = VM.getBlockTimestamp() + 7 days;
        } else if (kind < 4) {
            _mustCall(owner, address(market), 0, abi.encodeCall(InferenceMarket.setRequestsPaused, (false)));
            pausedUntil = 0;
        } else if (kind == 4) {
            address next = owner == marketOwner ? evil : marketOwner;
            VM.prank(owner);
            market.transferOwnership(next);
            VM.prank(next);
            (bool early,) = address(market).call(abi.encodeWithSignature("acceptOwnership()"));
            VM.assertTrue(!early, "I10: not before its time");
            if (!_oneIn(5)) return;
            VM.warp(VM.getBlockTimestamp() + 3 days);
            VM.prank(next);
            market.acceptOwnership();
        } else {
            _tryAll(owner);
        }
    }

    /// Every function that moves wei, named by the owner for its own good.
    function _tryAll(address owner) private {
        uint256 total = _totalCredit();
        uint256 held = address(market).balance + address(stakes).balance;
        address victim = _anyAccount();
        bytes[7] memory tries = [
            abi.encodeCall(IInferenceMarket.withdrawTo, (owner, 1)),
            abi.encodeCall(IInferenceMarket.withdraw, (owner, 1)),
            abi.encodeCall(IStakeManager.slashRelayer, (relayer, 1)),
            abi.encodeCall(IStakeManager.slashNode, (operators[0].node, address(market), 1, true)),
            abi.encodeCall(IStakeManager.withdrawStake, (operators[0].node)),
            abi.encodeCall(IStakeManager.withdrawBond, ()),
            abi.encodeCall(IStakeManager.setPayee, (operators[0].node, address(market), owner))
        ];
        for (uint256 i = 0; i < 7; ++i) {
            VM.prank(owner);
            (bool ok,) = (i < 2 ? address(market) : address(stakes)).call(tries[i]);
            VM.assertTrue(!ok, "I10: an owner's reach");
        }
        VM.prank(owner);
        (bool paid,) = address(market).call(abi.encodeCall(IInferenceMarket.withdrawTo, (owner, _credit(victim) + 1)));
        VM.assertTrue(!paid, "I10: others' credit");
        VM.assertEq(_totalCredit(), total, "I10: credit");
        VM.assertEq(address(market).balance + address(stakes).balance, held, "I10: wei");
    }

    /* WHAT MUST HOLD */

    function I1_marketHoldsWhatItOwes() public view {
        VM.assertEq(
            address(market).balance, _totalCredit() + _openEscrow() + forcedIn, "I1: credits, escrow and forced wei"
        );
    }

    /// Also I11 and I44.
    function I2_wordsOnlyGoForward(uint256 index) public {
        Entry storage entry = entries[index];
        uint256 word = market.wordOf(entry.id);
        if (word == entry.word) return;
        Status from = _statusIn(entry.word);
        Status to = _statusIn(word);
        VM.assertTrue(word != 0, "I44: no word is zero again");
        if (from == Status.PENDING && to == Status.PENDING) {
            VM.assertGe(uint96(word), uint96(entry.word), "I2: what was raised stays");
            VM.assertLe(uint40(word >> 96), uint40(entry.word >> 96), "I2: deadlines come only nearer");
        } else {
            bool isEnding = from == Status.PENDING && uint256(to) >= uint256(Status.FULFILLED);
            bool isRetry = from == Status.FULFILLED_CALLBACK_FAILED && to == Status.FULFILLED;
            VM.assertTrue(isEnding || isRetry, "I2: a word ends once");
        }
        entry.word = word;
    }

    function I3_statusIsThatOfTheBooks(uint256 index) public view {
        Entry storage entry = entries[index];
        bytes32[] memory ids = new bytes32[](1);
        ids[0] = entry.id;
        VM.assertEq(uint256(market.statusOf(ids)[0]), uint256(entry.status), "I2, I3: status");
        if (entry.status != Status.PENDING) return;
        (uint96 added, uint40 deadline) = market.pendingOf(entry.id);
        VM.assertEq(added, entry.added, "I3: what was raised");
        VM.assertEq(deadline, entry.deadline, "I8: deadline");
    }

    /// The last settled requests, and that nothing else passes for them.
    function I11_settledWordsNameWhatWasPaid() public view {
        uint256 count = entries.length;
        for (uint256 i = count > 4 ? count - 4 : 0; i < count; ++i) {
            Entry storage entry = entries[i];
            bool isPaid = entry.status == Status.FULFILLED || entry.status == Status.FULFILLED_CALLBACK_FAILED;
            if (entry.ref.nodes.length == 0) continue;
            VM.assertTrue(market.verifyResult(entry.id, entry.ref, "") == isPaid, "I11: what was paid");
            VM.assertTrue(!market.verifyResult(entries[0].id, entry.ref, "") || i == 0, "I11: nothing else");
        }
    }

    function I10_ownersHaveNothing() public view {
        VM.assertEq(_credit(evil) + _credit(marketOwner) + evil.balance + marketOwner.balance, 0, "I10: no wei");
        VM.assertTrue(market.requestsPaused() == (VM.getBlockTimestamp() < pausedUntil), "I10: paused for a time");
    }

    function I14_stakeManagerHoldsWhatIsStaked() public view {
        uint256 total = stakes.relayerOf(relayer).bond + uint256(stakes.relayerOf(rival).bond);
        for (uint256 i = 0; i < operators.length; ++i) {
            IStakeManager.Node memory node = stakes.nodeOf(operators[i].node);
            total += node.stake;
            VM.assertLe(node.unbonding, node.stake, "I14: unbonding is part of it");
            VM.assertEq(node.owner, operators[i].owner, "I15: the owner stays");
            VM.assertEq(node.key, operators[i].node, "I15: the key is the last one");
        }
        VM.assertEq(address(stakes).balance, total + forcedStakes, "I14: stakes, bonds and forced wei");
    }

    function I15_keysBelongToOneNodeForEver() public view {
        for (uint256 i = 0; i < keysSeen.length; ++i) {
            VM.assertEq(stakes.canonicalNodeOf(keysSeen[i]), canonical[keysSeen[i]], "I15: its node");
        }
    }

    function I17_roundsAreChained() public view {
        address[2] memory both = [relayer, rival];
        for (uint256 i = 0; i < 2; ++i) {
            uint64 count = uint64(rounds[both[i]].length);
            VM.assertEq(log.headOf(both[i], count), heads[both[i]], "I17: the head covers all before it");
            VM.assertEq(log.recordedAt(both[i], count + 1), 0, "I17: nothing beyond");
            if (count == 0) continue;
            VM.assertEq(log.recordedAt(both[i], count), rounds[both[i]][count - 1].recordedAt, "I17: once");
        }
    }

    function I33_ashesAreWhatWasBurnt() public view {
        VM.assertEq(address(0).balance, burnt, "I33: burnt");
        VM.assertEq(address(faults).balance, 0, "I33: nothing stays");
    }

    /// All that must hold, of everything.
    function checkAll() public {
        I1_marketHoldsWhatItOwes();
        I10_ownersHaveNothing();
        I11_settledWordsNameWhatWasPaid();
        for (uint256 turn = 0; turn < LOOK_AGAIN; ++turn) {
            _checkInTurn(turn);
        }
    }

    /// The sums after each move, and each request that it brought to another state; the rest in turns.
    function _afterMove() internal override {
        if (!_checksEachMove) return;
        I1_marketHoldsWhatItOwes();
        I10_ownersHaveNothing();
        I11_settledWordsNameWhatWasPaid();
        for (uint256 i = 0; i < entries.length; ++i) {
            if (entries[i].status != entries[i].checkedAs) _checkEntry(i);
        }
        _checkInTurn(moves % LOOK_AGAIN);
        ++checkedMoves;
    }

    function _checkInTurn(uint256 turn) private {
        if (turn % 4 == 0) I14_stakeManagerHoldsWhatIsStaked();
        if (turn % 4 == 1) I15_keysBelongToOneNodeForEver();
        if (turn % 4 == 2) I17_roundsAreChained();
        if (turn % 4 == 3) I33_ashesAreWhatWasBurnt();
        for (uint256 i = turn; i < entries.length; i += LOOK_AGAIN) {
            _checkEntry(i);
        }
    }

    function _checkEntry(uint256 index) private {
        I2_wordsOnlyGoForward(index);
        I3_statusIsThatOfTheBooks(index);
        entries[index].checkedAs = entries[index].status;
    }

    /// I8, I45: in the end everybody gets everything out, paused or not, and only forced wei stay.
    function I45_everythingComesOut() external {
        checkAll();
        VM.prank(market.owner());
        market.setRequestsPaused(true);
        VM.warp(VM.getBlockTimestamp() + 1 days + GRACE + 1);
        for (uint256 i = 0; i < entries.length; ++i) {
            Request[] memory requests = new Request[](1);
            requests[0] = entries[i].request;
            market.expire(requests);
            VM.assertTrue(uint256(_statusOf(requests[0])) >= uint256(Status.FULFILLED), "I8: over");
        }
        consumer.orderEnding(Puppet.Ending.ANSWER, "");
        wallet.orderEnding(Puppet.Ending.ANSWER, "");
        for (uint256 i = 0; i < accounts.length; ++i) {
            uint256 credit = _credit(accounts[i]);
            uint256 before = accounts[i].balance;
            VM.prank(accounts[i]);
            market.withdraw(accounts[i], credit);
            VM.assertEq(accounts[i].balance, before + credit, "I45: credit comes out");
        }
        VM.assertEq(address(market).balance, forcedIn, "I45: the market is empty");
        _unbondAll();
        VM.warp(VM.getBlockTimestamp() + UNBOND_DELAY);
        _withdrawAll();
        VM.assertEq(address(stakes).balance, forcedStakes, "I45: the stake manager is empty");
    }

    /* HELPERS */

    function _unbondAll() private {
        for (uint256 i = 0; i < operators.length; ++i) {
            IStakeManager.Node memory node = stakes.nodeOf(operators[i].node);
            if (node.stake == node.unbonding) continue;
            VM.prank(node.owner);
            stakes.beginUnbond(operators[i].node, node.stake - node.unbonding);
        }
        address[2] memory both = [relayer, rival];
        for (uint256 i = 0; i < 2; ++i) {
            if (stakes.relayerOf(both[i]).registeredAt == 0) continue;
            VM.prank(both[i]);
            stakes.beginUnbondRelayer();
        }
    }

    function _withdrawAll() private {
        for (uint256 i = 0; i < operators.length; ++i) {
            if (stakes.nodeOf(operators[i].node).unbonding == 0) continue;
            VM.prank(operators[i].owner);
            stakes.withdrawStake(operators[i].node);
        }
        address[2] memory both = [relayer, rival];
        for (uint256 i = 0; i < 2; ++i) {
            if (stakes.relayerOf(both[i]).registeredAt == 0) continue;
            VM.prank(both[i]);
            stakes.withdrawBond();
        }
    }
}
