// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Assignment, Decision, Mode, Request, ResultRef, RoundRecord} from "./Types.sol";
import {IFaults} from "./interfaces/IFaults.sol";
import {IInferenceMarket} from "./interfaces/IInferenceMarket.sol";
import {IScheduleLog} from "./interfaces/IScheduleLog.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {RequestLib} from "./libraries/RequestLib.sol";
import {SignatureLib} from "./libraries/SignatureLib.sol";
import {TypedDataLib} from "./libraries/TypedDataLib.sol";
import {WordLib} from "./libraries/WordLib.sol";
import {MessageHashUtils} from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";

/// @notice See IFaults.
contract Faults is IFaults {
    using RequestLib for Request;

    uint256 public constant BOUNTY_BPS = 1000;
    /// What proving a fault costs, paid at no more than TIP_CAP above the base fee, and at most half of what is slashed.
    uint256 public constant PROOF_GAS = 200_000;
    uint256 public constant TIP_CAP = 2 gwei;
    uint256 private constant BPS = 10_000;
    uint8 private constant ASSIGNED = 0; // Decision.kind

    IStakeManager public immutable STAKES;
    IScheduleLog public immutable SCHEDULE_LOG;
    IInferenceMarket public immutable MARKET;
    uint256 public immutable MISSED_WEI;
    uint256 public immutable EQUIVOCATION_WEI;
    uint256 public immutable RELAYER_WEI;

    mapping(bytes32 key => bool) private _proven;

    constructor(IStakeManager stakes, IScheduleLog scheduleLog, IInferenceMarket market, Schedule memory schedule) {
        STAKES = stakes;
        SCHEDULE_LOG = scheduleLog;
        MARKET = market;
        MISSED_WEI = schedule.missed;
        EQUIVOCATION_WEI = schedule.equivocation;
        RELAYER_WEI = schedule.relayer;
    }

    /// Slashed wei come in here, to be passed on in the same call.
    receive() external payable {
        _require(msg.sender == address(STAKES), "not the stake manager");
    }

    /* NODES */

    function proveMissed(
        Request calldata request,
        address relayer,
        uint40 acceptDeadline,
        bytes calldata acceptSignature,
        ProvenDecision calldata assigned
    ) external {
        bytes32 requestId = request.idOfCalldata(address(MARKET));
        uint40 deadline = RequestLib.deadlineOf(request.terms);
        // A request that was cancelled has an earlier one in its word: its node may have had no time.
        _require(MARKET.wordOf(requestId) == WordLib.expired(requestId, deadline), "not expired uncancelled");
        // In other modes a request can expire although its node answered: the others, or the verifier, did not agree.
        _require(RequestLib.modeOf(request.terms) == Mode.SIGNATURE, "not of signature mode");
        // In an open race nobody sees to it that a node is paid.
        _require(request.relayer == relayer, "another relayer");
        _requireAssigned(relayer, requestId, assigned);
        uint64 round = assigned.record.round;
        uint256 recordedAt = SCHEDULE_LOG.recordedAt(relayer, round);
        _require(recordedAt <= deadline, "recorded too late");
        _require(acceptDeadline <= deadline, "accepted for later");
        address node = assigned.decision.node;
        _requireSigned(node, TypedDataLib.hashAccept(requestId, relayer, round, acceptDeadline), acceptSignature);
        _requirePayable(node, assigned.decision.reward, recordedAt);
        _punishNode(Fault.MISSED, node, requestId, request.requester, assigned.decision.reward);
    }

    function proveEquivocation(Request calldata request, address node, SignedResult[2] calldata results) external {
        bytes32 requestId = request.idOfCalldata(address(MARKET));
        _require(results[0].resultHash != results[1].resultHash, "one result");
        _requireResultSigned(requestId, node, results[0]);
        _requireResultSigned(requestId, node, results[1]);
        // A key may have been rotated away because it leaked. What it signs later may name any request, also an old one.
        uint256 retiredAt = STAKES.retiredAt(node);
        _require(retiredAt == 0 || block.timestamp <= retiredAt + STAKES.UNBOND_DELAY(), "after the key's retirement");
        _punishNode(Fault.EQUIVOCATION, node, requestId, request.requester, uint80(request.amounts));
    }

    /* RELAYERS */

    function provePaidUndecided(
        Request calldata request,
        ResultRef calldata paid,
        uint256 nodeIndex,
        Absence calldata absence
    ) external {
        bytes32 requestId = request.idOfCalldata(address(MARKET));
        _require(MARKET.verifyResult(requestId, paid, ""), "not the paid result");
        _require(paid.round == absence.record.round, "another round");
        _requireAbsent(paid.relayer, requestId, paid.nodes[nodeIndex], absence);
        // The requester paid a node that was not chosen for it by the policy.
        _punishRelayer(Fault.UNDECIDED, paid.relayer, requestId, address(0), request.requester, uint80(request.amounts));
    }

    function proveAssignedUndecided(
        Request calldata request,
        Assignment calldata assignment,
        bytes calldata signature,
        Absence calldata absence
    ) external {
        bytes32 requestId = _requireAssignmentSigned(request, assignment, signature);
        _require(assignment.round == absence.record.round, "another round");
        _requireAbsent(assignment.relayer, requestId, assignment.node, absence);
        _punishRelayerForNode(Fault.UNDECIDED, requestId, assignment);
    }

    function proveContradicted(
        Request calldata request,
        Assignment calldata assignment,
        bytes calldata signature,
        ProvenDecision calldata decided
    ) external {
        bytes32 requestId = _requireAssignmentSigned(request, assignment, signature);
        _requireAssigned(assignment.relayer, requestId, decided);
        _require(assignment.round == decided.record.round, "another round");
        _require(assignment.node == decided.decision.node, "another node");
        _require(assignment.reward != decided.decision.reward, "the same reward");
        _punishRelayerForNode(Fault.CONTRADICTED, requestId, assignment);
    }

    function proveDoubleAssignment(
        Request calldata request,
        address relayer,
        ProvenDecision calldata first,
        ProvenDecision calldata second
    ) external {
        bytes32 requestId = request.idOfCalldata(address(MARKET));
        _requireAssigned(relayer, requestId, first);
        _requireAssigned(relayer, requestId, second);
        _require(first.decision.node != second.decision.node, "one node");
        uint64 early = first.record.round;
        uint64 late = second.record.round;
        if (early == late) {
            // The nodes of a quorum are assigned together; any other round has one, and then those that supersede it.
            _require(RequestLib.modeOf(request.terms) != Mode.QUORUM, "a quorum's round");
            _require(first.decision.supersedesRound != early && second.decision.supersedesRound != early, "superseded");
        } else {
            _require(early < late, "not in order");
            // Nothing supersedes what is yet to come, which would excuse any number of assignments.
            uint64 superseded = second.decision.supersedesRound;
            _require(superseded < early || superseded > late, "superseded");
        }
        _punishRelayer(Fault.DOUBLE_ASSIGNMENT, relayer, requestId, address(0), address(0), 0);
    }

    function proveReleasedAssignment(Request calldata request, Assignment calldata assignment, bytes calldata signature)
        external
    {
        bytes32 requestId = _requireAssignmentSigned(request, assignment, signature);
        _require(assignment.relayer == request.relayer, "another relayer");
        _require(MARKET.wordOf(requestId) == WordLib.cancelled(requestId), "not released");
        _punishRelayerForNode(Fault.RELEASED, requestId, assignment);
    }

    function proveReleasedDecision(Request calldata request, ProvenDecision calldata assigned) external {
        bytes32 requestId = request.idOfCalldata(address(MARKET));
        _requireAssigned(request.relayer, requestId, assigned);
        _require(MARKET.wordOf(requestId) == WordLib.cancelled(requestId), "not released");
        address node = assigned.decision.node;
        address payee = STAKES.payeeOf(node, address(MARKET));
        _punishRelayer(Fault.RELEASED, request.relayer, requestId, node, payee, assigned.decision.reward);
    }

    /* VIEWS */

    function isProven(Fault fault, address culprit, bytes32 requestId, address node) external view returns (bool) {
        return _proven[_keyOf(fault, culprit, requestId, node)];
    }

    function bountyOf(Fault fault) external view returns (uint256) {
        return _bounty(_amountOf(fault));
    }

    /* PROOFS */

    function _requireAssigned(address relayer, bytes32 requestId, ProvenDecision calldata proven) private view {
        Decision calldata decision = proven.decision;
        _require(decision.requestId == requestId, "another request");
        _require(decision.kind == ASSIGNED, "not assigned");
        _requireDecided(relayer, proven.record, decision, proven.index, proven.proof);
    }

    function _requireDecided(
        address relayer,
        RoundRecord calldata record,
        Decision calldata decision,
        uint256 index,
        bytes32[] calldata proof
    ) private view {
        _require(SCHEDULE_LOG.verifyDecision(relayer, record, decision, index, proof), "not in the record");
    }

    /// What a node could not be paid for it need not answer.
    function _requirePayable(address node, uint256 reward, uint256 recordedAt) private view {
        (address payee, uint40 joinedAt) = STAKES.membershipOf(node, address(MARKET));
        _require(payee != address(0), "not a member");
        (, uint64 settledCount) = MARKET.accountOf(payee);
        bool onProbation = settledCount < MARKET.PROBATION_SETTLED_COUNT()
            || recordedAt < uint256(joinedAt) + MARKET.PROBATION_DURATION();
        _require(!onProbation || reward <= MARKET.PROBATION_MAX_REWARD(), "a reward beyond probation");
    }

    /// Leaves are sorted by (requestId, node), so a decision that is in no leaf would lie between two neighbours. A relayer
    /// that sorts them otherwise only makes more of these proofs against itself possible.
    function _requireAbsent(address relayer, bytes32 requestId, address node, Absence calldata absence) private view {
        RoundRecord calldata record = absence.record;
        uint256 count = uint256(record.assigned) + record.skipped + record.tooLate;
        uint256 index = absence.index;
        // At least one neighbour must hold the record to what was recorded.
        _require(count != 0, "an empty record");
        _require(index <= count, "beyond the record");
        if (index != 0) {
            _requireDecided(relayer, record, absence.left, index - 1, absence.leftProof);
            _require(_isBefore(absence.left.requestId, absence.left.node, requestId, node), "left is not before");
        }
        if (index != count) {
            _requireDecided(relayer, record, absence.right, index, absence.rightProof);
            _require(_isBefore(requestId, node, absence.right.requestId, absence.right.node), "right is not after");
        }
    }

    function _isBefore(bytes32 requestA, address nodeA, bytes32 requestB, address nodeB) private pure returns (bool) {
        return requestA < requestB || (requestA == requestB && nodeA < nodeB);
    }

    function _requireAssignmentSigned(
        Request calldata request,
        Assignment calldata assignment,
        bytes calldata signature
    ) private view returns (bytes32 requestId) {
        requestId = request.idOfCalldata(address(MARKET));
        _require(assignment.requestId == requestId, "another request");
        _requireSigned(assignment.relayer, TypedDataLib.hashAssignment(assignment), signature);
    }

    function _requireResultSigned(bytes32 requestId, address node, SignedResult calldata result) private view {
        bytes32 structHash =
            TypedDataLib.hashResult(requestId, result.resultHash, result.reward, result.relayer, result.round);
        bytes32[] memory set = result.set;
        if (set.length != 0) {
            bool found = false;
            for (uint256 i = 0; i < set.length && !found; ++i) {
                found = set[i] == structHash;
            }
            _require(found, "not in the set");
            structHash = TypedDataLib.hashResultSet(result.relayer, result.round, set);
        }
        _requireSigned(node, structHash, result.signature);
    }

    /// Under the market's domain, as all that relayers and nodes say of requests.
    function _requireSigned(address signer, bytes32 structHash, bytes calldata signature) private view {
        bytes32 digest = MessageHashUtils.toTypedDataHash(_marketDomain(), structHash);
        _require(SignatureLib.isSignedBy(signer, digest, signature), "not signed so");
    }

    function _marketDomain() private view returns (bytes32) {
        return keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("Headrace"),
                keccak256("1"),
                block.chainid,
                address(MARKET)
            )
        );
    }

    function _require(bool holds, bytes32 reason) private pure {
        if (!holds) revert NotProven(reason);
    }

    /* PUNISHMENT */

    function _punishNode(Fault fault, address key, bytes32 requestId, address victim, uint256 loss) private {
        // All keys of a node are one culprit.
        _once(fault, STAKES.canonicalNodeOf(key), requestId, address(0));
        uint256 slashed = STAKES.slashNode(key, address(MARKET), _amountOf(fault), fault == Fault.MISSED);
        _share(fault, key, requestId, address(0), slashed, victim, loss);
    }

    /// @param node The one that it was done to: each is its own fault. With one for all, a relayer that is found out would
    /// prove its fault against a node of its own first, and the others would get nothing. 0 = the request itself.
    function _punishRelayer(Fault fault, address relayer, bytes32 requestId, address node, address victim, uint256 loss)
        private
    {
        _once(fault, relayer, requestId, node);
        uint256 slashed = STAKES.slashRelayer(relayer, _amountOf(fault));
        _share(fault, relayer, requestId, node, slashed, victim, loss);
    }

    function _punishRelayerForNode(Fault fault, bytes32 requestId, Assignment calldata assignment) private {
        address payee = STAKES.payeeOf(assignment.node, address(MARKET));
        _punishRelayer(fault, assignment.relayer, requestId, assignment.node, payee, assignment.reward);
    }

    function _once(Fault fault, address culprit, bytes32 requestId, address node) private {
        bytes32 key = _keyOf(fault, culprit, requestId, node);
        if (_proven[key]) revert AlreadyProven(fault, culprit, requestId, node);
        _proven[key] = true;
    }

    /// At least half is burnt: else a culprit that is its own victim would have its stake back before its time.
    /// @param victim 0 = nobody in particular.
    function _share(
        Fault fault,
        address culprit,
        bytes32 requestId,
        address node,
        uint256 slashed,
        address victim,
        uint256 loss
    ) private {
        uint256 bounty = _bounty(slashed);
        uint256 compensation = victim == address(0) ? 0 : Math.min(loss, slashed / 2 - bounty);
        emit FaultProven(fault, culprit, requestId, node, msg.sender, slashed, bounty, victim, compensation);
        if (bounty != 0) MARKET.deposit{value: bounty}(msg.sender);
        if (compensation != 0) MARKET.deposit{value: compensation}(victim);
        uint256 rest = slashed - bounty - compensation;
        (bool ok,) = address(0).call{value: rest}("");
        assert(ok); // nobody is there to refuse
    }

    function _bounty(uint256 slashed) private view returns (uint256) {
        uint256 gasPaid = PROOF_GAS * Math.min(tx.gasprice, block.basefee + TIP_CAP);
        return Math.min(slashed * BOUNTY_BPS / BPS + gasPaid, slashed / 2);
    }

    function _amountOf(Fault fault) private view returns (uint256) {
        if (fault == Fault.MISSED) return MISSED_WEI;
        return fault == Fault.EQUIVOCATION ? EQUIVOCATION_WEI : RELAYER_WEI;
    }

    function _keyOf(Fault fault, address culprit, bytes32 requestId, address node) private pure returns (bytes32) {
        return keccak256(abi.encode(fault, culprit, requestId, node));
    }
}
