// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Assignment, Decision, Request, ResultRef, RoundRecord} from "../Types.sol";

/// @title Proofs of what nodes and relayers did wrong, and what each costs them.
/// @notice Every fault is proven by the culprit's own signature or record against the chain. Anyone may prove one; each is
/// punished once (a relayer's once for each node that it wronged), by a fixed amount and never beyond what is staked. Whoever proves it is paid a tenth and the gas, a victim
/// its loss, both together at most half of it, and the rest is burnt.
interface IFaults {
    enum Fault {
        MISSED, // a node accepted an assignment, it was recorded, and the request expired
        EQUIVOCATION, // a node signed two different results of one request
        UNDECIDED, // a relayer had a node paid, or signed its assignment, and recorded no such decision
        CONTRADICTED, // a relayer signed an assignment and recorded another reward
        DOUBLE_ASSIGNMENT, // a relayer assigned a request twice, the second not superseding the first
        RELEASED // a relayer released a request that it had assigned
    }

    /// @notice A decision and its place in a recorded round.
    struct ProvenDecision {
        RoundRecord record;
        Decision decision;
        uint256 index;
        bytes32[] proof;
    }

    /// @notice That a node's decision is not in a recorded round: the two leaves that it would lie between.
    struct Absence {
        RoundRecord record;
        uint256 index; // where the decision would be: the right neighbour's index, or the number of leaves
        Decision left; // ignored when index is 0
        bytes32[] leftProof;
        Decision right; // ignored when index is the number of leaves
        bytes32[] rightProof;
    }

    /// @notice A result as a node signed it: alone, or within a ResultSet.
    struct SignedResult {
        bytes32 resultHash;
        uint96 reward;
        address relayer;
        uint64 round;
        bytes32[] set; // struct hashes of the results of the signed set; empty = signed alone
        bytes signature;
    }

    /// @notice Wei that each kind of fault costs.
    struct Schedule {
        uint96 missed;
        uint96 equivocation;
        uint96 relayer; // each fault of a relayer's
    }

    event FaultProven(
        Fault indexed fault,
        address indexed culprit,
        bytes32 indexed requestId,
        address node, // see isProven
        address reporter,
        uint256 slashed,
        uint256 bounty,
        address victim,
        uint256 compensation
    );

    error AlreadyProven(Fault fault, address culprit, bytes32 requestId, address node);
    /// @notice What was shown does not prove the fault; `reason` names the first thing that does not hold.
    error NotProven(bytes32 reason);

    /// @notice A node's miss: its Accept, the recorded assignment, and a request that expired uncancelled. It could have had
    /// itself paid until the end, so it did not answer.
    function proveMissed(
        Request calldata request,
        address relayer,
        uint40 acceptDeadline,
        bytes calldata acceptSignature,
        ProvenDecision calldata assigned
    ) external;

    /// @notice A node's two signatures on different results of one request.
    function proveEquivocation(Request calldata request, address node, SignedResult[2] calldata results) external;

    /// @notice A relayer's round that lacks the decision for a node that was paid in it.
    function provePaidUndecided(
        Request calldata request,
        ResultRef calldata paid,
        uint256 nodeIndex,
        Absence calldata absence
    ) external;

    /// @notice A relayer's round that lacks the decision for an assignment that the relayer signed.
    function proveAssignedUndecided(
        Request calldata request,
        Assignment calldata assignment,
        bytes calldata signature,
        Absence calldata absence
    ) external;

    /// @notice A relayer's round whose decision has another reward than the assignment that the relayer signed.
    function proveContradicted(
        Request calldata request,
        Assignment calldata assignment,
        bytes calldata signature,
        ProvenDecision calldata decided
    ) external;

    /// @notice Two recorded decisions for a request and different nodes, of which the later does not supersede the earlier.
    function proveDoubleAssignment(
        Request calldata request,
        address relayer,
        ProvenDecision calldata first,
        ProvenDecision calldata second
    ) external;

    /// @notice A request that was cancelled on its relayer's release, and the relayer's signed assignment of it.
    function proveReleasedAssignment(Request calldata request, Assignment calldata assignment, bytes calldata signature)
        external;

    /// @notice A request that was cancelled on its relayer's release, and the relayer's recorded assignment of it.
    function proveReleasedDecision(Request calldata request, ProvenDecision calldata assigned) external;

    /// @param node Of a relayer's fault the assigned node that it was done to; 0 for a double assignment, for pay without a
    /// decision, and for a node's fault.
    function isProven(Fault fault, address culprit, bytes32 requestId, address node) external view returns (bool);
    /// @notice Wei that the next proof of a fault would pay its reporter, at the call's gas price.
    function bountyOf(Fault fault) external view returns (uint256);
}
