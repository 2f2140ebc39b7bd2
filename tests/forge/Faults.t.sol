// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {
    Assignment,
    Decision,
    ItemStatus,
    Request,
    RequestParams,
    ResultRef,
    RoundRecord
} from "../../contracts/Types.sol";
import {IFaults} from "../../contracts/interfaces/IFaults.sol";
import {MarketBase} from "../../contracts/market/MarketBase.sol";
import {Base} from "./Base.sol";
import {VM} from "./Vm.sol";

/// Every proof, and what each costs and pays.
contract FaultsTest is Base {
    address private requester = address(0x4E9);
    address private watcher = address(0x3A7C);

    struct Case {
        Request request;
        Decision[] decisions;
        RoundRecord record;
    }

    function setUp() external {
        _deploy(3);
        VM.deal(address(0), 0);
    }

    /* MISSED */

    function testFuzz_proveMissed_punishesTheNode(uint96 reward, uint40 acceptDeadline, uint40 wait, uint48 price)
        external
    {
        Case memory c = _assignedCase(_params(1), reward, 0);
        acceptDeadline = uint40(_bound(acceptDeadline, 0, START + 600));
        VM.warp(START + 600 + GRACE + 1 + wait % 1 days);
        market.expire(_list(c.request));
        uint256 refunded = _credit(requester);
        VM.txGasPrice(price);
        bytes memory accept = _accept(operators[0].key, c.request, 1, acceptDeadline);
        VM.prank(watcher);
        faults.proveMissed(c.request, relayer, acceptDeadline, accept, _proven(c, 0));
        _assertShared(MISSED_WEI, requester, refunded, reward, price);
        VM.assertEq(stakes.nodeOf(operators[0].node).stake, STAKE - MISSED_WEI, "stake");
        VM.assertEq(stakes.nodeOf(operators[0].node).misses, 1, "misses");
        VM.assertTrue(faults.isProven(IFaults.Fault.MISSED, operators[0].node, _idOf(c.request), address(0)), "proven");
        VM.expectRevert(_already(IFaults.Fault.MISSED, operators[0].node, c.request, address(0)));
        faults.proveMissed(c.request, relayer, acceptDeadline, accept, _proven(c, 0));
    }

    /// Attack: a relayer that assigns what it never sends. Without the node's accept and a recorded assignment in time, of
    /// a request that expired uncancelled, nothing is proven.
    function testFuzz_proveMissed_needsAcceptRecordAndExpiry(uint8 what) external {
        what %= 11;
        RequestParams memory params = what == 8 ? _quorumParams(1, 2, 2) : _params(1);
        if (what == 9) params = _verifierParams(1, address(verifier));
        Request memory request = _post(params, requester);
        Decision[] memory decisions = new Decision[](1);
        decisions[0] = _assigned(request, 1, 0);
        if (what == 7) decisions[0].kind = 1;
        if (what == 10) VM.warp(START + 601);
        Case memory c = Case(request, decisions, _recordDecisions(relayer, decisions));
        if (what == 1) {
            VM.prank(requester);
            market.cancel(request);
        }
        VM.warp(START + 600 + GRACE + 1);
        if (what != 0) market.expire(_list(request));
        uint40 until = uint40(START + 600);
        bytes memory accept = _accept(operators[0].key, request, 1, until);
        bytes32 reason = "not expired uncancelled";
        IFaults.ProvenDecision memory assigned = _proven(c, 0);
        address by = relayer;
        if (what == 2) (accept, reason) = (_accept(relayerKey, request, 1, until), "not signed so");
        if (what == 3) (accept, reason) = (_accept(operators[0].key, request, 2, until), "not signed so");
        if (what == 4) (until, reason) = (until + 1, "accepted for later");
        if (what == 4) accept = _accept(operators[0].key, request, 1, until);
        if (what == 5) (assigned.decision.reward, reason) = (2, "not in the record");
        if (what == 6) (by, reason) = (rival, "another relayer");
        if (what == 7) reason = "not assigned";
        if (what == 8 || what == 9) reason = "not of signature mode";
        if (what == 10) reason = "recorded too late";
        VM.expectRevert(abi.encodeWithSelector(IFaults.NotProven.selector, reason));
        faults.proveMissed(request, by, until, accept, assigned);
    }

    /// What was answered cannot be missed.
    /// Attack: an assignment that the node could never be paid for, and its accept of it.
    function testFuzz_proveMissed_isNotOfWhatCouldNotBePaid(uint96 reward, uint40 age, uint8 settled) external {
        delete operators;
        _deploy(3, MarketBase.ProbationTerms({maxReward: 5e14, settledCount: 2, duration: 1 hours}));
        settled %= 4;
        for (uint64 i = 0; i < settled; ++i) {
            _submit(_one(_post(_params(100 + i), requester), 1, _record(relayer), 0));
        }
        VM.warp(START + _bound(age, 3000, 4000));
        RequestParams memory params = _params(1);
        params.maxReward = type(uint80).max;
        Case memory c = _assignedCase(params, reward, 0);
        VM.warp(params.deadline + GRACE + 1);
        market.expire(_list(c.request));
        bytes memory accept = _accept(operators[0].key, c.request, uint64(settled) + 1, params.deadline);
        bool onProbation = settled < 2 || params.deadline - 600 < START + 1 hours;
        if (onProbation && reward > 5e14) VM.expectRevert(_notProven("a reward beyond probation"));
        faults.proveMissed(c.request, relayer, params.deadline, accept, _proven(c, 0));
    }

    function test_proveMissed_isNotOfWhatWasSettled() external {
        Case memory c = _assignedCase(_params(1), 1, 0);
        _assertStatus(_submit(_one(c.request, 1, 1, 0))[0], ItemStatus.OK);
        VM.warp(START + 600 + GRACE + 1);
        market.expire(_list(c.request));
        bytes memory accept = _accept(operators[0].key, c.request, 1, uint40(START));
        VM.expectRevert(_notProven("not expired uncancelled"));
        faults.proveMissed(c.request, relayer, uint40(START), accept, _proven(c, 0));
    }

    /* EQUIVOCATION */

    /// Two results of one request that differ, each signed alone or in a set.
    function testFuzz_proveEquivocation_punishesTheNode(bytes32[2] memory hashes, uint8 sets, uint80 loss, uint48 price)
        external
    {
        RequestParams memory params = _params(1);
        params.maxReward = loss;
        Request memory request = _post(params, requester);
        IFaults.SignedResult[2] memory results;
        for (uint8 i = 0; i < 2; ++i) {
            results[i] = _signedResult(operators[0].key, request, hashes[i], i + 1, (sets >> (2 * i)) % 4);
        }
        VM.txGasPrice(price);
        if (hashes[0] == hashes[1]) VM.expectRevert(_notProven("one result"));
        VM.prank(watcher);
        faults.proveEquivocation(request, operators[0].node, results);
        if (hashes[0] == hashes[1]) return;
        _assertShared(EQUIVOCATION_WEI, requester, 0, loss, price);
        VM.assertEq(stakes.nodeOf(operators[0].node).stake, STAKE - EQUIVOCATION_WEI, "stake");
        VM.assertEq(stakes.nodeOf(operators[0].node).faults, 1, "faults");
        results[0] = _signedResult(operators[0].key, request, keccak256(abi.encode(hashes)), 9, 0);
        VM.expectRevert(_already(IFaults.Fault.EQUIVOCATION, operators[0].node, request, address(0)));
        faults.proveEquivocation(request, operators[0].node, results);
    }

    function testFuzz_proveEquivocation_needsBothSignatures(uint8 what, bool second) external {
        Request memory request = _post(_params(1), requester);
        IFaults.SignedResult[2] memory results =
            [_signedResult(operators[0].key, request, "a", 1, 0), _signedResult(operators[0].key, request, "b", 1, 2)];
        IFaults.SignedResult memory bad = results[second ? 1 : 0];
        bytes32 reason = second ? bytes32("not in the set") : bytes32("not signed so");
        if (what % 5 == 0) bad.reward += 1;
        if (what % 5 == 1) bad.round += 1;
        if (what % 5 == 2) bad.relayer = rival;
        if (what % 5 == 3) bad.resultHash = "c";
        if (what % 5 == 4) {
            results[second ? 1 : 0] =
                _signedResult(operators[1].key, request, second ? bytes32("b") : bytes32("a"), 1, 0);
            reason = "not signed so";
        }
        VM.expectRevert(_notProven(reason));
        faults.proveEquivocation(request, operators[0].node, results);
    }

    /// All keys of a node are one culprit, punished once for a request; a retired key answers for a time only, whatever
    /// request its answers name.
    function testFuzz_proveEquivocation_ofARetiredKeyIsOfItsTime(uint40 rotatedAfter, uint40 provenAfter) external {
        VM.warp(START + rotatedAfter % 3 days);
        uint256 retiredAt = _now();
        bytes memory signature = _signRegistration(77, VM.addr(77), operators[0].owner);
        address[] memory markets = new address[](1);
        markets[0] = address(market);
        VM.prank(operators[0].owner);
        stakes.rotateKey(operators[0].node, VM.addr(77), signature, markets);
        Request memory request = _post(_params(1), requester);
        VM.warp(retiredAt + provenAfter % (2 * UNBOND_DELAY));
        IFaults.SignedResult[2] memory results =
            [_signedResult(operators[0].key, request, "a", 1, 0), _signedResult(operators[0].key, request, "b", 1, 0)];
        bool isOfItsTime = _now() <= retiredAt + UNBOND_DELAY;
        if (!isOfItsTime) VM.expectRevert(_notProven("after the key's retirement"));
        faults.proveEquivocation(request, operators[0].node, results);
        results = [_signedResult(77, request, "a", 1, 0), _signedResult(77, request, "b", 1, 0)];
        if (isOfItsTime) VM.expectRevert(_already(IFaults.Fault.EQUIVOCATION, operators[0].node, request, address(0)));
        faults.proveEquivocation(request, VM.addr(77), results);
        VM.assertEq(stakes.nodeOf(VM.addr(77)).stake, STAKE - EQUIVOCATION_WEI, "once");
    }

    function test_proveEquivocation_isForMembersOfTheMarket() external {
        Request memory request = _post(_params(1), requester);
        _register(99, VM.addr(99), address(0x0E0E));
        IFaults.SignedResult[2] memory results =
            [_signedResult(99, request, "a", 1, 0), _signedResult(99, request, "b", 1, 0)];
        VM.expectRevert(abi.encodeWithSignature("NotJoined(address,address)", VM.addr(99), address(market)));
        faults.proveEquivocation(request, VM.addr(99), results);
    }

    /* UNDECIDED */

    /// A node that was paid in a round that has no decision for it: wherever it would be among any decisions.
    function testFuzz_provePaidUndecided_punishesTheRelayer(bytes32 seed, uint8 count, uint80 loss, uint48 price)
        external
    {
        RequestParams memory params = _params(1);
        params.maxReward = loss;
        Request memory request = _post(params, requester);
        Case memory c = _caseOf(request, _others(seed, _bound(count, 1, 9), request, false));
        _assertStatus(_submit(_one(request, 0, 1, 0))[0], ItemStatus.OK);
        IFaults.Absence memory absence = _absence(c, _idOf(request), operators[0].node);
        uint256 refunded = _credit(requester);
        VM.txGasPrice(price);
        VM.prank(watcher);
        faults.provePaidUndecided(request, _refOf(1, _oneKey(0)), 0, absence);
        _assertShared(RELAYER_WEI, requester, refunded, loss, price);
        VM.assertEq(stakes.relayerOf(relayer).bond, STAKE - RELAYER_WEI, "bond");
        VM.expectRevert(_already(IFaults.Fault.UNDECIDED, relayer, request, address(0)));
        faults.provePaidUndecided(request, _refOf(1, _oneKey(0)), 0, absence);
    }

    /// What was decided cannot be proven absent, with whichever neighbours.
    function testFuzz_provePaidUndecided_isNotOfWhatWasDecided(bytes32 seed, uint8 count, uint8 index, uint8 l, uint8 r)
        external
    {
        Request memory request = _post(_params(1), requester);
        Case memory c = _caseOf(request, _others(seed, _bound(count, 1, 9), request, true));
        _assertStatus(_submit(_one(request, 0, 1, 0))[0], ItemStatus.OK);
        uint256 n = c.decisions.length;
        IFaults.Absence memory absence;
        absence.record = c.record;
        absence.index = index % (n + 2);
        (absence.left, absence.leftProof) = (c.decisions[l % n], _proof(c.decisions, l % n));
        (absence.right, absence.rightProof) = (c.decisions[r % n], _proof(c.decisions, r % n));
        ResultRef memory ref = _refOf(1, _oneKey(0));
        (bool ok, bytes memory why) =
            address(faults).call(abi.encodeCall(IFaults.provePaidUndecided, (request, ref, 0, absence)));
        VM.assertTrue(!ok, "no proof");
        VM.assertEq(bytes32(bytes4(why)), bytes32(IFaults.NotProven.selector), "why");
        // Nor with the neighbours that are there.
        for (uint256 i = 0; i <= n; ++i) {
            absence.index = i;
            if (i > 0) (absence.left, absence.leftProof) = (c.decisions[i - 1], _proof(c.decisions, i - 1));
            if (i < n) (absence.right, absence.rightProof) = (c.decisions[i], _proof(c.decisions, i));
            (ok,) = address(faults).call(abi.encodeCall(IFaults.provePaidUndecided, (request, ref, 0, absence)));
            VM.assertTrue(!ok, "no proof at any place");
        }
    }

    function testFuzz_provePaidUndecided_needsThePaidResultAndItsRound(uint8 what) external {
        Request memory request = _post(_params(1), requester);
        Case memory c = _caseOf(request, _others("x", 3, request, false));
        _recordDecisions(relayer, c.decisions);
        _assertStatus(_submit(_one(request, 0, 1, 0))[0], ItemStatus.OK);
        ResultRef memory ref = _refOf(1, _oneKey(0));
        IFaults.Absence memory absence = _absence(c, _idOf(request), operators[0].node);
        bytes32 reason = "not the paid result";
        if (what % 5 == 0) ref.round = 2;
        if (what % 5 == 1) ref.nodes[0] = operators[1].node;
        if (what % 5 == 2) request.promptHash = 0;
        if (what % 5 == 3) (absence.record.round, reason) = (2, "another round");
        if (what % 5 == 4) (absence.index, reason) = (c.decisions.length + 1, "beyond the record");
        VM.expectRevert(_notProven(reason));
        faults.provePaidUndecided(request, ref, 0, absence);
    }

    /// The neighbours must stand on their sides: neither both before nor both after.
    function testFuzz_proveAbsence_checksTheSides(bytes32 seed, uint8 shift) external {
        Request memory request = _post(_params(1), requester);
        Case memory c = _caseOf(request, _others(seed, 8, request, false));
        _assertStatus(_submit(_one(request, 0, 1, 0))[0], ItemStatus.OK);
        IFaults.Absence memory right = _absence(c, _idOf(request), operators[0].node);
        uint256 place = _bound(shift, 0, 8);
        if (place == right.index) return;
        IFaults.Absence memory wrong = _absenceAt(c, place);
        VM.expectRevert(_notProven(place < right.index ? bytes32("right is not after") : bytes32("left is not before")));
        faults.provePaidUndecided(request, _refOf(1, _oneKey(0)), 0, wrong);
    }

    function testFuzz_proveAssignedUndecided_punishesTheRelayer(bytes32 seed, uint8 count, uint96 reward, uint48 price)
        external
    {
        Request memory request = _post(_params(1), requester);
        Case memory c = _caseOf(request, _others(seed, _bound(count, 1, 9), request, false));
        Assignment memory assignment = _assignment(request, reward, 1, 0);
        bytes memory signature = _sign(relayerKey, address(market), _hashAssignment(assignment));
        IFaults.Absence memory absence = _absence(c, _idOf(request), operators[0].node);
        VM.txGasPrice(price);
        VM.prank(watcher);
        faults.proveAssignedUndecided(request, assignment, signature, absence);
        _assertShared(RELAYER_WEI, operators[0].payee, 0, reward, price);
        VM.expectRevert(_already(IFaults.Fault.UNDECIDED, relayer, request, operators[0].node));
        faults.proveAssignedUndecided(request, assignment, signature, absence);
    }

    function testFuzz_proveAssignedUndecided_needsTheSignedAssignment(uint8 what) external {
        Request memory request = _post(_params(1), requester);
        Case memory c = _caseOf(request, _others("x", 3, request, false));
        Assignment memory assignment = _assignment(request, 1, 1, 0);
        bytes memory signature = _sign(relayerKey, address(market), _hashAssignment(assignment));
        IFaults.Absence memory absence = _absence(c, _idOf(request), operators[0].node);
        bytes32 reason = "not signed so";
        if (what % 4 == 0) assignment.reward = 2;
        if (what % 4 == 1) signature = _sign(rivalKey, address(market), _hashAssignment(assignment));
        if (what % 4 == 2) (request.promptHash, reason) = (0, "another request");
        if (what % 4 == 3) {
            assignment.round = 2;
            signature = _sign(relayerKey, address(market), _hashAssignment(assignment));
            reason = "another round";
        }
        VM.expectRevert(_notProven(reason));
        faults.proveAssignedUndecided(request, assignment, signature, absence);
    }

    /* CONTRADICTED */

    function testFuzz_proveContradicted_punishesTheRelayer(uint96 signed, uint96 recorded, uint48 price) external {
        Case memory c = _assignedCase(_params(1), recorded, 0);
        Assignment memory assignment = _assignment(c.request, signed, 1, 0);
        bytes memory signature = _sign(relayerKey, address(market), _hashAssignment(assignment));
        VM.txGasPrice(price);
        if (signed == recorded) VM.expectRevert(_notProven("the same reward"));
        VM.prank(watcher);
        faults.proveContradicted(c.request, assignment, signature, _proven(c, 0));
        if (signed == recorded) return;
        _assertShared(RELAYER_WEI, operators[0].payee, 0, signed, price);
        VM.expectRevert(_already(IFaults.Fault.CONTRADICTED, relayer, c.request, operators[0].node));
        faults.proveContradicted(c.request, assignment, signature, _proven(c, 0));
    }

    function testFuzz_proveContradicted_isOfOneNodeAndRound(uint8 what) external {
        Case memory c = _assignedCase(_params(1), 5, 0);
        Assignment memory assignment = _assignment(c.request, 6, what % 3 == 0 ? 2 : 1, what % 3 == 1 ? 1 : 0);
        bytes memory signature = _sign(relayerKey, address(market), _hashAssignment(assignment));
        bytes32 reason = what % 3 == 0 ? bytes32("another round") : bytes32("another node");
        if (what % 3 == 2) (signature, reason) = ("", "not signed so");
        VM.expectRevert(_notProven(reason));
        faults.proveContradicted(c.request, assignment, signature, _proven(c, 0));
    }

    /* DOUBLE ASSIGNMENT */

    /// Two nodes, of which the later does not supersede the earlier; an honest retry is none.
    function testFuzz_proveDoubleAssignment_needsTwoThatDoNotSupersede(
        uint8 gap,
        uint64 supersedes,
        bool sameNode,
        uint48 price
    ) external {
        Request memory request = _post(_params(1), requester);
        Case memory first = _caseOf(request, _single(_assigned(request, 1, 0)));
        gap = uint8(_bound(gap, 1, 4));
        for (uint256 i = 1; i < gap; ++i) {
            _record(relayer);
        }
        Decision memory retry = _assigned(request, 2, sameNode ? 0 : 1);
        // Rounds that are yet to come, the nearest and the last, among those that are not.
        retry.supersedesRound = supersedes % 16 == 15 ? type(uint64).max : supersedes % 8;
        Case memory second = _caseOf(request, _single(retry));
        bool isFault = !sameNode && (retry.supersedesRound < 1 || retry.supersedesRound > uint64(1) + gap);
        if (sameNode) VM.expectRevert(_notProven("one node"));
        else if (!isFault) VM.expectRevert(_notProven("superseded"));
        VM.txGasPrice(price);
        VM.prank(watcher);
        faults.proveDoubleAssignment(request, relayer, _proven(first, 0), _proven(second, 0));
        if (!isFault) return;
        _assertShared(RELAYER_WEI, address(0), 0, 0, price);
        VM.expectRevert(_already(IFaults.Fault.DOUBLE_ASSIGNMENT, relayer, request, address(0)));
        faults.proveDoubleAssignment(request, relayer, _proven(first, 0), _proven(second, 0));
    }

    /// In one round: a quorum's nodes are assigned together, and of others one supersedes the other.
    function testFuzz_proveDoubleAssignment_inOneRound(bool quorum, bool superseding, uint8 which) external {
        Request memory request = _post(quorum ? _quorumParams(1, 2, 2) : _params(1), requester);
        Decision[] memory decisions = new Decision[](2);
        (decisions[0], decisions[1]) = (_assigned(request, 1, 0), _assigned(request, 1, 1));
        if (superseding) decisions[which % 2].supersedesRound = 1;
        Case memory c = _caseOf(request, _sort(decisions));
        if (quorum) VM.expectRevert(_notProven("a quorum's round"));
        else if (superseding) VM.expectRevert(_notProven("superseded"));
        faults.proveDoubleAssignment(request, relayer, _proven(c, which % 2), _proven(c, 1 - which % 2));
        VM.assertTrue(
            faults.isProven(IFaults.Fault.DOUBLE_ASSIGNMENT, relayer, _idOf(request), address(0))
                == (!quorum && !superseding),
            "proven"
        );
    }

    function testFuzz_proveDoubleAssignment_needsBothInOrder(uint8 what) external {
        Request memory request = _post(_params(1), requester);
        Case memory first = _caseOf(request, _single(_assigned(request, 1, 0)));
        Case memory second = _caseOf(request, _single(_assigned(request, 2, 1)));
        if (what % 3 == 0) (first, second) = (second, first);
        if (what % 3 == 1) first.decisions[0].reward = 9;
        if (what % 3 == 2) second.decisions[0].reward = 9;
        VM.expectRevert(_notProven(what % 3 == 0 ? bytes32("not in order") : bytes32("not in the record")));
        faults.proveDoubleAssignment(request, relayer, _proven(first, 0), _proven(second, 0));
    }

    /* RELEASED */

    /// A release and a live assignment, signed or recorded; once for the request.
    function testFuzz_proveReleased_punishesTheRelayer(uint96 reward, bool bySignature, uint48 price) external {
        Case memory c = _assignedCase(_params(1), reward, 0);
        _cancelWithRelease(c.request);
        Assignment memory assignment = _assignment(c.request, reward, 1, 0);
        bytes memory signature = _sign(relayerKey, address(market), _hashAssignment(assignment));
        VM.txGasPrice(price);
        VM.prank(watcher);
        if (bySignature) faults.proveReleasedAssignment(c.request, assignment, signature);
        else faults.proveReleasedDecision(c.request, _proven(c, 0));
        _assertShared(RELAYER_WEI, operators[0].payee, 0, reward, price);
        VM.expectRevert(_already(IFaults.Fault.RELEASED, relayer, c.request, operators[0].node));
        faults.proveReleasedAssignment(c.request, assignment, signature);
        VM.expectRevert(_already(IFaults.Fault.RELEASED, relayer, c.request, operators[0].node));
        faults.proveReleasedDecision(c.request, _proven(c, 0));
    }

    function testFuzz_proveReleased_needsTheReleaseAndTheNamedRelayer(uint8 what) external {
        Case memory c = _assignedCase(_params(1), 1, 0);
        Assignment memory assignment = _assignment(c.request, 1, 1, 0);
        uint256 key = relayerKey;
        bytes32 reason = "not released";
        if (what % 4 < 2) {
            VM.prank(requester);
            market.cancel(c.request);
        } else {
            _cancelWithRelease(c.request);
        }
        if (what % 4 == 2) (assignment.relayer, key, reason) = (rival, rivalKey, "another relayer");
        if (what % 4 == 3) (key, reason) = (rivalKey, "not signed so");
        bytes memory signature = _sign(key, address(market), _hashAssignment(assignment));
        if (what % 4 == 1) {
            VM.expectRevert(_notProven(reason));
            faults.proveReleasedDecision(c.request, _proven(c, 0));
        }
        VM.expectRevert(_notProven(reason));
        faults.proveReleasedAssignment(c.request, assignment, signature);
    }

    /* MONEY */

    /// Never beyond what there is, and never twice: however little is left, bounty and loss are at most half of it.
    function testFuzz_punishment_isWithinWhatIsLeft(uint128 left, uint96 reward, uint64 price) external {
        left = uint128(_bound(left, 0, STAKE));
        VM.prank(address(faults));
        stakes.slashRelayer(relayer, STAKE - left);
        VM.deal(address(faults), 0);
        Request memory request = _post(_params(1), requester);
        _cancelWithRelease(request);
        Assignment memory assignment = _assignment(request, reward, 1, 0);
        bytes memory signature = _sign(relayerKey, address(market), _hashAssignment(assignment));
        VM.txGasPrice(price);
        VM.prank(watcher);
        faults.proveReleasedAssignment(request, assignment, signature);
        uint256 slashed = left < RELAYER_WEI ? left : RELAYER_WEI;
        _assertShared(slashed, operators[0].payee, 0, reward, price);
        VM.assertEq(stakes.relayerOf(relayer).bond, left - slashed, "bond");
        VM.assertEq(address(faults).balance, 0, "nothing stays");
    }

    function testFuzz_bountyOf_isATenthAndTheGas(uint56 price, uint56 baseFee) external {
        VM.fee(baseFee);
        VM.txGasPrice(uint256(baseFee) + price);
        for (uint8 i = 0; i < 6; ++i) {
            uint256 amount = i == 0 ? MISSED_WEI : i == 1 ? EQUIVOCATION_WEI : RELAYER_WEI;
            uint256 bounty = amount / 10 + 200_000 * (uint256(baseFee) + (price < 2 gwei ? price : 2 gwei));
            VM.assertEq(faults.bountyOf(IFaults.Fault(i)), bounty < amount / 2 ? bounty : amount / 2, "bounty");
        }
    }

    /// Wei that nobody slashed are refused.
    function testFuzz_receive_isTheStakeManagersOnly(address by, uint96 amount) external {
        VM.assume(by != address(stakes) && by != address(faults));
        VM.deal(by, amount);
        VM.prank(by);
        (bool ok, bytes memory why) = address(faults).call{value: amount}("");
        VM.assertTrue(!ok, "refused");
        VM.assertEq(why, abi.encodeWithSelector(IFaults.NotProven.selector, bytes32("not the stake manager")), "why");
    }

    /* HELPERS */

    /// Bounty to the watcher, loss to the victim, at most half together; at least half is burnt; nothing is left over.
    function _assertShared(uint256 slashed, address victim, uint256 before, uint256 loss, uint256 price) private view {
        uint256 bounty = slashed / 10 + 200_000 * (price < 2 gwei ? price : 2 gwei);
        if (bounty > slashed / 2) bounty = slashed / 2;
        uint256 compensation = victim == address(0) ? 0 : slashed / 2 - bounty;
        if (compensation > loss) compensation = loss;
        VM.assertEq(_credit(watcher), bounty, "bounty");
        if (victim != address(0)) VM.assertEq(_credit(victim) - before, compensation, "compensation");
        VM.assertEq(address(0).balance, slashed - bounty - compensation, "the rest is burnt");
        VM.assertGe(2 * address(0).balance, slashed, "at least half");
    }

    function _assignedCase(RequestParams memory params, uint96 reward, uint256 operator) private returns (Case memory) {
        Request memory request = _post(params, requester);
        return _caseOf(request, _single(_assigned(request, reward, operator)));
    }

    function _caseOf(Request memory request, Decision[] memory decisions) private returns (Case memory) {
        return Case(request, decisions, _recordDecisions(relayer, decisions));
    }

    function _single(Decision memory decision) private pure returns (Decision[] memory decisions) {
        decisions = new Decision[](1);
        decisions[0] = decision;
    }

    function _proven(Case memory c, uint256 index) private pure returns (IFaults.ProvenDecision memory) {
        return IFaults.ProvenDecision(c.record, c.decisions[index], index, _proof(c.decisions, index));
    }

    /// Decisions about others, some about the same request and other nodes; with or without the one for operator 0.
    function _others(bytes32 seed, uint256 count, Request memory request, bool withIt)
        private
        view
        returns (Decision[] memory decisions)
    {
        decisions = new Decision[](count);
        for (uint256 i = 0; i < count; ++i) {
            bytes32 word = keccak256(abi.encode(seed, i));
            decisions[i].requestId = uint256(word) % 3 == 0 ? _idOf(request) : word;
            decisions[i].node = address(uint160(uint256(word) >> 8));
        }
        if (withIt) decisions[0] = _assigned(request, 0, 0);
        return _sort(decisions);
    }

    function _absence(Case memory c, bytes32 requestId, address node) private pure returns (IFaults.Absence memory) {
        Decision memory sought;
        (sought.requestId, sought.node) = (requestId, node);
        uint256 index = 0;
        while (index < c.decisions.length && _comesBefore(c.decisions[index], sought)) ++index;
        return _absenceAt(c, index);
    }

    function _absenceAt(Case memory c, uint256 index) private pure returns (IFaults.Absence memory absence) {
        (absence.record, absence.index) = (c.record, index);
        if (index > 0) (absence.left, absence.leftProof) = (c.decisions[index - 1], _proof(c.decisions, index - 1));
        if (index == c.decisions.length) return absence;
        (absence.right, absence.rightProof) = (c.decisions[index], _proof(c.decisions, index));
    }

    function _accept(uint256 key, Request memory request, uint64 round, uint40 until)
        private
        view
        returns (bytes memory)
    {
        return _sign(key, address(market), _hashAccept(_idOf(request), relayer, round, until));
    }

    /// @param size Of the set that it is signed in; 0 = alone.
    function _signedResult(uint256 key, Request memory request, bytes32 hash, uint64 round, uint256 size)
        private
        view
        returns (IFaults.SignedResult memory result)
    {
        bytes32 structHash = _hashResult(_idOf(request), hash, 3, relayer, round);
        bytes32[] memory set = new bytes32[](size);
        for (uint256 i = 0; i < size; ++i) {
            set[i] = i == size - 1 ? structHash : keccak256(abi.encode(hash, i));
        }
        bytes32 signed = size == 0 ? structHash : _hashResultSet(relayer, round, set);
        return IFaults.SignedResult(hash, 3, relayer, round, set, _sign(key, address(market), signed));
    }

    function _cancelWithRelease(Request memory request) private {
        bytes memory release = _sign(relayerKey, address(market), _hashRelease(_idOf(request), type(uint40).max));
        VM.prank(request.requester);
        market.cancelWithRelease(request, type(uint40).max, release);
        // The refund is of no interest here.
        uint256 refund = _credit(request.requester);
        VM.prank(request.requester);
        market.withdraw(request.requester, refund);
    }

    function _already(IFaults.Fault fault, address culprit, Request memory request, address node)
        private
        view
        returns (bytes memory)
    {
        return abi.encodeWithSelector(IFaults.AlreadyProven.selector, fault, culprit, _idOf(request), node);
    }

    function _notProven(bytes32 reason) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IFaults.NotProven.selector, reason);
    }
}
