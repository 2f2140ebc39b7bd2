// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Assignment, Decision, Mode, Status} from "../../../contracts/Types.sol";
import {IFaults} from "../../../contracts/interfaces/IFaults.sol";
import {IStakeManager} from "../../../contracts/interfaces/IStakeManager.sol";
import {VM} from "../Vm.sol";
import {NodeMoves} from "./NodeMoves.sol";

/// What watchers do: they accuse, rightly or not. What is proven costs once and is shared as the rule says; all else is
/// refused.
abstract contract WatcherMoves is NodeMoves {
    struct Accusation {
        IFaults.Fault fault;
        address culprit;
        bool isNode;
        address key; // of the node that is slashed
        bytes32 id;
        address wronged; // the node, of a relayer's fault against one
        address victim;
        uint256 loss;
        bool isTrue;
        bytes data;
    }

    /// A node that accepted, was assigned on record, and let a request expire.
    function accuseOfMissing(uint256 seed) external chosenBy(seed) {
        (address account,) = _anyRelayer();
        if (entries.length == 0 || rounds[account].length == 0) return;
        (Round storage round, uint256 index) = _anyDecision(account);
        // Of one that expired, if a few glances find one.
        for (uint256 i = 0; i < 12 && !_isOfExpired(round.decisions[index].requestId); ++i) {
            round = rounds[account][_pick(rounds[account].length)];
            index = _pick(round.decisions.length);
        }
        Decision memory d = round.decisions[index];
        if (entryOf[d.requestId] == 0) return;
        Entry storage entry = entries[entryOf[d.requestId] - 1];
        uint256 key = _keyOf(d.node);
        if (key == 0) return;
        uint40 deadline = uint40(entry.request.terms >> 64);
        uint40 until = _oneIn(5) ? deadline + 1 : deadline;
        bytes32 accept = _hashAccept(entry.id, account, round.record.round, until);
        bool isSigned = !_oneIn(5);
        Accusation memory a;
        (a.fault, a.isNode, a.culprit, a.key) = (IFaults.Fault.MISSED, true, canonical[d.node], d.node);
        (a.id, a.victim, a.loss) = (entry.id, entry.request.requester, d.reward);
        a.isTrue = isSigned && until == deadline && entry.status == Status.EXPIRED && entry.deadline == deadline
            && _modeOf(entry.request) == Mode.SIGNATURE && round.recordedAt <= deadline
            && entry.request.relayer == account && _isPayable(d.node, d.reward, round.recordedAt);
        a.data = abi.encodeCall(
            IFaults.proveMissed,
            (
                entry.request,
                account,
                until,
                _sign(isSigned ? key : relayerKey, address(market), accept),
                _provenOf(round, index)
            )
        );
        _accuse(a);
    }

    function _isPayable(address node, uint256 reward, uint256 recordedAt) private view returns (bool) {
        (address payee, uint40 joinedAt) = stakes.membershipOf(node, address(market));
        (, uint64 settled) = market.accountOf(payee);
        bool onProbation = settled < PROBATION_COUNT || recordedAt < joinedAt + PROBATION_TIME;
        return payee != address(0) && (!onProbation || reward <= PROBATION_CAP);
    }

    /// A node that signs two results, or one twice.
    function accuseOfEquivocation(uint256 seed) external chosenBy(seed) {
        if (entries.length == 0) return;
        Entry storage entry = entries[_anyEntry()];
        Operator storage operator = operators[_pick(operators.length)];
        IFaults.SignedResult[2] memory results;
        uint256 twice = _pick(3);
        for (uint256 i = 0; i < 2; ++i) {
            bytes32 hash = bytes32(twice == 0 ? uint256(7) : i);
            bytes32 structHash = _hashResult(entry.id, hash, 1, relayer, 1);
            bytes memory signature = _sign(operator.key, address(market), structHash);
            results[i] = IFaults.SignedResult(hash, 1, relayer, 1, new bytes32[](0), signature);
        }
        Accusation memory a;
        (a.fault, a.isNode) = (IFaults.Fault.EQUIVOCATION, true);
        (a.culprit, a.key) = (canonical[operator.node], operator.node);
        (a.id, a.victim, a.loss) = (entry.id, entry.request.requester, uint80(entry.request.amounts));
        a.isTrue = twice != 0;
        a.data = abi.encodeCall(IFaults.proveEquivocation, (entry.request, operator.node, results));
        _accuse(a);
    }

    /// A relayer whose round lacks the decision for a node that it had paid.
    function accuseOfPayingUndecided(uint256 seed) external chosenBy(seed) {
        if (entries.length == 0) return;
        Entry storage entry = entries[_anyEntry()];
        bool isPaid = entry.status == Status.FULFILLED || entry.status == Status.FULFILLED_CALLBACK_FAILED;
        if (!isPaid || entry.ref.round > rounds[entry.ref.relayer].length) return;
        Round storage round = rounds[entry.ref.relayer][entry.ref.round - 1];
        uint256 node = _pick(entry.ref.nodes.length);
        (IFaults.Absence memory absence, bool isAbsent) = _absenceOf(round, entry.id, entry.ref.nodes[node]);
        Accusation memory a;
        (a.fault, a.culprit, a.id) = (IFaults.Fault.UNDECIDED, entry.ref.relayer, entry.id);
        (a.victim, a.loss, a.isTrue) = (entry.request.requester, uint80(entry.request.amounts), isAbsent);
        a.data = abi.encodeCall(IFaults.provePaidUndecided, (entry.request, entry.ref, node, absence));
        _accuse(a);
    }

    /// A relayer that signed an assignment: which its round lacks, or has with another reward, or of a released request.
    function accuseByAssignment(uint256 seed) external chosenBy(seed) {
        (address account, uint256 key) = _anyRelayer();
        if (entries.length == 0 || rounds[account].length == 0) return;
        (Round storage round, uint256 index) = _anyDecision(account);
        Decision memory d = round.decisions[index];
        if (entryOf[d.requestId] == 0) return;
        Entry storage entry = _oneIn(2) ? entries[entryOf[d.requestId] - 1] : entries[_anyEntry()];
        uint96 reward = _oneIn(2) ? d.reward : d.reward + 1;
        Assignment memory signed = Assignment(entry.id, account, d.node, round.record.round, reward, entry.deadline);
        bytes memory signature = _sign(key, address(market), _hashAssignment(signed));
        Accusation memory a;
        (a.culprit, a.id, a.loss, a.wronged) = (account, entry.id, reward, d.node);
        a.victim = stakes.payeeOf(d.node, address(market));
        uint256 kind = _pick(3);
        if (kind == 0) {
            IFaults.Absence memory absence;
            (absence, a.isTrue) = _absenceOf(round, entry.id, d.node);
            a.fault = IFaults.Fault.UNDECIDED;
            a.data = abi.encodeCall(IFaults.proveAssignedUndecided, (entry.request, signed, signature, absence));
        } else if (kind == 1) {
            a.fault = IFaults.Fault.CONTRADICTED;
            a.isTrue = entry.id == d.requestId && reward != d.reward;
            a.data =
                abi.encodeCall(IFaults.proveContradicted, (entry.request, signed, signature, _provenOf(round, index)));
        } else {
            a.fault = IFaults.Fault.RELEASED;
            a.isTrue = entry.status == Status.CANCELLED && entry.request.relayer == account;
            a.data = abi.encodeCall(IFaults.proveReleasedAssignment, (entry.request, signed, signature));
        }
        _accuse(a);
    }

    /// A relayer that recorded: an assignment of a released request, or two that do not supersede each other.
    function accuseByRecord(uint256 seed) external chosenBy(seed) {
        (address account,) = _anyRelayer();
        if (entries.length == 0 || rounds[account].length == 0) return;
        (Round storage round, uint256 index) = _anyDecision(account);
        Decision memory d = round.decisions[index];
        if (entryOf[d.requestId] == 0) return;
        Entry storage entry = entries[entryOf[d.requestId] - 1];
        Accusation memory a;
        (a.culprit, a.id) = (account, entry.id);
        if (_oneIn(2)) {
            a.fault = IFaults.Fault.RELEASED;
            a.isTrue = entry.status == Status.CANCELLED && entry.request.relayer == account;
            (a.wronged, a.victim, a.loss) = (d.node, stakes.payeeOf(d.node, address(market)), d.reward);
            // Of the relayer that the request names only.
            if (entry.request.relayer != account) a.culprit = entry.request.relayer;
            a.data = abi.encodeCall(IFaults.proveReleasedDecision, (entry.request, _provenOf(round, index)));
            return _accuse(a);
        }
        (Round storage other, uint256 place) = _anyDecision(account);
        // Of the same request, if a few glances find one.
        for (uint256 i = 0; i < 12 && other.decisions[place].requestId != d.requestId; ++i) {
            (other, place) = _anyDecision(account);
        }
        Decision memory e = other.decisions[place];
        a.fault = IFaults.Fault.DOUBLE_ASSIGNMENT;
        uint64 early = round.record.round;
        uint64 late = other.record.round;
        bool isTwice = d.requestId == e.requestId && d.node != e.node;
        bool isSuperseded = early == late
            ? d.supersedesRound == early || e.supersedesRound == early || _modeOf(entry.request) == Mode.QUORUM
            : e.supersedesRound >= early && e.supersedesRound <= late;
        a.isTrue = isTwice && early <= late && !isSuperseded;
        a.data = abi.encodeCall(
            IFaults.proveDoubleAssignment, (entry.request, account, _provenOf(round, index), _provenOf(other, place))
        );
        _accuse(a);
    }

    /* JUDGEMENT */

    function _accuse(Accusation memory a) private {
        VM.txGasPrice(1 gwei + _pick(3 gwei));
        bytes32 once = keccak256(abi.encode(a.fault, a.culprit, a.id, a.wronged));
        if (!a.isTrue) return _mustRefuse(watcher, address(faults), 0, a.data, IFaults.NotProven.selector);
        if (proven[once]) return _mustRefuse(watcher, address(faults), 0, a.data, IFaults.AlreadyProven.selector);
        if (a.isNode && stakes.payeeOf(a.key, address(market)) == address(0)) {
            return _mustRefuse(watcher, address(faults), 0, a.data, IStakeManager.NotJoined.selector);
        }
        uint256 held = a.isNode ? stakes.nodeOf(a.key).stake : stakes.relayerOf(a.culprit).bond;
        uint256 most = a.fault == IFaults.Fault.MISSED ? MISSED_WEI : a.isNode ? EQUIVOCATION_WEI : RELAYER_WEI;
        uint256 slashed = held < most ? held : most;
        uint256 total = _totalCredit();
        uint256 ashes = address(0).balance;
        uint256 stakeBefore = address(stakes).balance;
        uint256[2] memory credits = [_credit(watcher), _credit(a.victim)];
        _mustCall(watcher, address(faults), 0, a.data);
        proven[once] = true;
        VM.assertTrue(faults.isProven(a.fault, a.culprit, a.id, a.wronged), "I33: proven");
        VM.assertEq(stakeBefore - address(stakes).balance, slashed, "I33: at most what is held");
        uint256 burning = address(0).balance - ashes;
        VM.assertGe(2 * burning, slashed, "I33: at least half is burnt");
        VM.assertEq(_totalCredit() - total + burning, slashed, "I33: all of it is accounted for");
        uint256 bounty = _credit(watcher) - credits[0];
        if (a.victim != address(0) && a.victim != watcher) {
            uint256 loss = _credit(a.victim) - credits[1];
            VM.assertLe(loss, a.loss, "I33: the victim has its loss at most");
            VM.assertEq(bounty + loss + burning, slashed, "I33: bounty, loss and ashes");
        }
        VM.assertEq(address(faults).balance, 0, "I33: nothing stays");
        burnt += burning;
        seen[keccak256(abi.encode("fault", a.fault))] += 1;
    }

    /* EVIDENCE */

    function _anyDecision(address account) private returns (Round storage round, uint256 index) {
        uint256 count = rounds[account].length;
        round = rounds[account][count - 1 - _pick(count < 6 ? count : 6)];
        index = _pick(round.decisions.length);
    }

    function _isOfExpired(bytes32 id) private view returns (bool) {
        return entryOf[id] != 0 && entries[entryOf[id] - 1].status == Status.EXPIRED;
    }

    /// 0 when the key was rotated away: nobody keeps it here.
    function _keyOf(address node) private view returns (uint256) {
        for (uint256 i = 0; i < operators.length; ++i) {
            if (operators[i].node == node) return operators[i].key;
        }
        return 0;
    }

    function _provenOf(Round storage round, uint256 index) private view returns (IFaults.ProvenDecision memory) {
        Decision[] memory decisions = round.decisions;
        return IFaults.ProvenDecision(round.record, decisions[index], index, _proof(decisions, index));
    }

    /// Where a decision would be; or, when it is there, the places beside it.
    function _absenceOf(Round storage round, bytes32 id, address node)
        private
        view
        returns (IFaults.Absence memory absence, bool isAbsent)
    {
        Decision[] memory decisions = round.decisions;
        Decision memory sought;
        (sought.requestId, sought.node) = (id, node);
        uint256 index = 0;
        while (index < decisions.length && _comesBefore(decisions[index], sought)) ++index;
        isAbsent = index == decisions.length || _comesBefore(sought, decisions[index]);
        (absence.record, absence.index) = (round.record, index);
        if (index > 0) (absence.left, absence.leftProof) = (decisions[index - 1], _proof(decisions, index - 1));
        if (index == decisions.length) return (absence, isAbsent);
        (absence.right, absence.rightProof) = (decisions[index], _proof(decisions, index));
    }
}
