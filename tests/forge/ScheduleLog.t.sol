// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Decision, RoundRecord} from "../../contracts/Types.sol";
import {IScheduleLog} from "../../contracts/interfaces/IScheduleLog.sol";
import {Base} from "./Base.sol";
import {VM, Vm} from "./Vm.sol";

/// recordRound, verifyDecision and the views.
contract ScheduleLogTest is Base {
    function setUp() external {
        _deploy(0);
    }

    /* RECORD */

    /// I17: whatever they hold, rounds come one after the other, and each head covers all before it.
    function testFuzz_recordRound_chainsRounds(RoundRecord[4] memory records, uint40[4] memory waits) external {
        bytes32 head = 0;
        for (uint64 i = 0; i < 4; ++i) {
            records[i].round = i + 1;
            if (records[i].assigned == 0) records[i].assigned = 1;
            VM.warp(_now() + waits[i] % 1 days);
            VM.recordLogs();
            VM.prank(relayer);
            log.recordRound(relayer, records[i], "");
            Vm.Log[] memory logs = VM.getRecordedLogs();
            head = keccak256(abi.encode(head, relayer, records[i])) & ~bytes32(uint256(type(uint40).max));
            VM.assertEq(log.headOf(relayer, i + 1), head, "head");
            VM.assertEq(log.recordedAt(relayer, i + 1), _now(), "time");
            VM.assertEq(log.nextRound(relayer), i + 2, "next");
            VM.assertEq(log.headOf(rival, i + 1), 0, "of each relayer its own");
            VM.assertEq(logs.length, 1, "one event");
            VM.assertEq(logs[0].topics[0], IScheduleLog.RoundRecorded.selector, "event");
            VM.assertEq(logs[0].topics[1], bytes32(uint256(uint160(relayer))), "relayer");
            VM.assertEq(logs[0].topics[2], bytes32(uint256(i + 1)), "round");
            VM.assertEq(logs[0].data, abi.encode(records[i], head), "record and head");
        }
        VM.assertEq(log.recordedAt(relayer, 5), 0, "not yet");
        VM.assertEq(log.nextRound(rival), 1, "the rival's first");
    }

    /// Neither a gap, nor a second time, nor the round of zero.
    function testFuzz_recordRound_keepsTheOrder(uint8 recorded, uint64 round) external {
        recorded %= 6;
        for (uint256 i = 0; i < recorded; ++i) {
            _record(relayer);
        }
        if (round > 20) round %= 20;
        RoundRecord memory record;
        (record.round, record.assigned) = (round, 1);
        if (round != 0 && round <= recorded) {
            VM.expectRevert(abi.encodeWithSelector(IScheduleLog.RoundAlreadyRecorded.selector, relayer, round));
        } else if (round != recorded + 1) {
            VM.expectRevert(abi.encodeWithSelector(IScheduleLog.RoundOutOfOrder.selector, relayer, round));
        }
        VM.prank(relayer);
        log.recordRound(relayer, record, "");
        VM.assertEq(log.nextRound(relayer), round == recorded + 1 ? round + 1 : recorded + 1, "next");
    }

    function test_recordRound_refusesARoundOfNothing() external {
        RoundRecord memory record;
        (record.round, record.skipped, record.tooLate) = (1, 5, 5);
        VM.expectRevert(abi.encodeWithSelector(IScheduleLog.NothingAssigned.selector, 1));
        VM.prank(relayer);
        log.recordRound(relayer, record, "");
    }

    /// Anyone brings it in with the relayer's signature; nobody without, nor with another's or of another record.
    function testFuzz_recordRound_isTheRelayersOrOnItsSignature(uint8 what, address by, RoundRecord memory record)
        external
    {
        (record.round, record.assigned) = (1, 1);
        bytes memory signature = _sign(relayerKey, address(log), _hashRecord(record));
        if (what % 5 == 1) signature = _sign(rivalKey, address(log), _hashRecord(record));
        if (what % 5 == 2) record.snapshotHash ^= bytes32(uint256(1));
        if (what % 5 == 3) signature = "";
        if (what % 5 == 4) signature = _sign(relayerKey, address(market), _hashRecord(record));
        bool ok = what % 5 == 0 || (what % 5 == 3 && by == relayer);
        if (!ok) VM.expectRevert(abi.encodeWithSelector(IScheduleLog.InvalidSignature.selector, relayer));
        VM.prank(by);
        log.recordRound(relayer, record, signature);
        VM.assertEq(log.recordedAt(relayer, 1), ok ? _now() : 0, "recorded");
    }

    /// The relayer itself with a bad signature is taken at its word: what it hands in must hold.
    function test_recordRound_checksASignatureAlsoOfTheRelayerItself() external {
        RoundRecord memory record = _recordOf(relayer);
        bytes memory bad = _sign(rivalKey, address(log), _hashRecord(record));
        VM.expectRevert(abi.encodeWithSelector(IScheduleLog.InvalidSignature.selector, relayer));
        VM.prank(relayer);
        log.recordRound(relayer, record, bad);
    }

    function testFuzz_recordRound_needsABond(address by, bool leaving) external {
        VM.assume(by != relayer && by != rival);
        if (leaving) {
            by = relayer;
            VM.prank(relayer);
            stakes.beginUnbondRelayer();
        }
        RoundRecord memory record = _recordOf(by);
        VM.expectRevert(abi.encodeWithSelector(IScheduleLog.NotBonded.selector, by));
        VM.prank(by);
        log.recordRound(by, record, "");
    }

    /// Bits beyond a field's width would make a record that no event can show.
    function testFuzz_recordRound_refusesBitsBeyondAField(uint8 field, uint8 bit) external {
        uint16[9] memory width = [64, 256, 256, 256, 64, 256, 32, 32, 32];
        field %= 9;
        VM.assume(width[field] < 256);
        bytes memory data = abi.encodeCall(IScheduleLog.recordRound, (relayer, _recordOf(relayer), ""));
        uint256 mask = uint256(1) << _bound(bit, width[field], 255);
        assembly ("memory-safe") {
            let word := add(add(data, 0x44), mul(field, 0x20))
            mstore(word, or(mload(word), mask))
        }
        VM.prank(relayer);
        (bool ok, bytes memory why) = address(log).call(data);
        VM.assertTrue(!ok, "refused");
        // The decoder reads two of them before.
        bool isRead = field == 0 || field == 6;
        VM.assertEq(why, isRead ? bytes("") : abi.encodeWithSelector(IScheduleLog.MalformedRecord.selector), "why");
        VM.assertEq(log.recordedAt(relayer, 1), 0, "not recorded");
    }

    function testFuzz_nextRound_isFoundHoweverMany(uint8 count) external {
        count %= 70;
        for (uint256 i = 0; i < count; ++i) {
            RoundRecord memory record;
            (record.round, record.assigned) = (uint64(i + 1), 1);
            VM.prank(relayer);
            log.recordRound(relayer, record, "");
        }
        VM.assertEq(log.nextRound(relayer), uint256(count) + 1, "next");
    }

    /* PROOFS */

    /// I18: each leaf is proven at its own index, and at no other.
    function testFuzz_verifyDecision_provesEachLeafAtItsIndex(bytes32 seed, uint8 count, uint8 index) external {
        Decision[] memory decisions = _decisions(seed, uint8(_bound(count, 1, 17)));
        RoundRecord memory record = _recordDecisions(relayer, decisions);
        for (uint256 i = 0; i < decisions.length; ++i) {
            bytes32[] memory proof = _proof(decisions, i);
            VM.assertTrue(log.verifyDecision(relayer, record, decisions[i], i, proof), "a leaf");
            uint256 other = index % 32;
            if (other != i) {
                VM.assertTrue(!log.verifyDecision(relayer, record, decisions[i], other, proof), "another place");
            }
        }
    }

    /// I18: nothing else is: another decision, relayer or record, padding, an inner node, a longer or shorter proof.
    function testFuzz_verifyDecision_provesNothingElse(bytes32 seed, uint8 count, uint8 what) external {
        Decision[] memory decisions = _decisions(seed, uint8(_bound(count, 3, 17)));
        RoundRecord memory record = _recordDecisions(relayer, decisions);
        Decision memory decision = decisions[1];
        bytes32[] memory proof = _proof(decisions, 1);
        address by = relayer;
        uint256 index = 1;
        if (what % 10 == 0) decision.reward ^= 1;
        if (what % 10 == 1) decision.node = address(uint160(decision.node) ^ 1);
        if (what % 10 == 2) decision.supersedesRound ^= 1;
        if (what % 10 == 3) decision.kind ^= 1;
        if (what % 10 == 4) by = rival;
        if (what % 10 == 5) record.snapshotHash ^= bytes32(uint256(1));
        if (what % 10 == 6) record.round = 2;
        if (what % 10 == 7) record.skipped += 1; // another number of leaves
        if (what % 10 == 8) {
            bytes32[] memory shorter = new bytes32[](proof.length - 1);
            for (uint256 i = 0; i < shorter.length; ++i) {
                shorter[i] = proof[i + 1];
            }
            (proof, index) = (shorter, 0);
        }
        if (what % 10 == 9) {
            bytes32[] memory longer = new bytes32[](proof.length + 1);
            for (uint256 i = 0; i < proof.length; ++i) {
                longer[i] = proof[i];
            }
            proof = longer;
        }
        VM.assertTrue(!log.verifyDecision(by, record, decision, index, proof), "nothing else");
    }

    /// An index beyond the leaves proves nothing, although the padding is in the tree.
    function testFuzz_verifyDecision_isBoundedByTheNumberOfLeaves(bytes32 seed, uint8 count) external {
        count = uint8(_bound(count, 1, 16));
        Decision[] memory decisions = _decisions(seed, count);
        // A relayer that hides a decision behind the number of leaves that it records.
        RoundRecord memory record = _recordOf(relayer);
        record.decisionsRoot = _root(decisions);
        record.assigned = count - 1;
        if (record.assigned == 0) return;
        VM.prank(relayer);
        log.recordRound(relayer, record, "");
        bytes32[] memory proof = _proof(decisions, count - 1);
        VM.assertTrue(!log.verifyDecision(relayer, record, decisions[count - 1], count - 1, proof), "hidden");
    }

    function testFuzz_verifyDecision_knowsNoRoundThatWasNotRecorded(Decision memory decision, uint64 round)
        external
        view
    {
        Decision[] memory decisions = new Decision[](1);
        decisions[0] = decision;
        RoundRecord memory record;
        record.round = uint64(_bound(round, 1, type(uint64).max));
        record.assigned = 1;
        record.decisionsRoot = _root(decisions);
        VM.assertTrue(!log.verifyDecision(relayer, record, decision, 0, new bytes32[](0)), "not recorded");
    }

    /* HELPERS */

    function _decisions(bytes32 seed, uint8 count) private pure returns (Decision[] memory decisions) {
        decisions = new Decision[](count);
        for (uint256 i = 0; i < count; ++i) {
            bytes32 word = keccak256(abi.encode(seed, i));
            decisions[i].requestId = keccak256(abi.encode(word, i % 3));
            decisions[i].node = address(uint160(uint256(word)));
            decisions[i].kind = uint8(uint256(word) % 3);
            decisions[i].reward = uint96(uint256(word) >> 8);
            decisions[i].supersedesRound = uint64(uint256(word) >> 104);
        }
        return _sort(decisions);
    }
}
