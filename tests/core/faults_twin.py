"""What `contracts/Faults.sol` and `contracts/libraries/DecisionLib.sol` check of a proof, in Python.

Written from the contracts, with no help of the code that makes the proofs but the hashes that golden vectors hold to
the contracts. `tests/adapters/test_web3_faults.py` has the contracts themselves check the same proofs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eth_utils.crypto import keccak

from headrace.core import typed_data
from headrace.core.faults import (
    Absence,
    AssignedUndecided,
    Contradicted,
    DoubleAssignment,
    Ending,
    Equivocation,
    Fault,
    FoundFault,
    Missed,
    PaidUndecided,
    ProvenDecision,
    ReleasedAssignment,
    ReleasedDecision,
    SignedAssignment,
    SignedResult,
)
from headrace.core.merkle import leaf_of
from headrace.core.types import ZERO_ADDRESS, Address, Decision, Hash32, Mode, ResultRef, RoundRecord


class NotProven(Exception):
    """As the contract's error, with its reason."""


@dataclass(frozen=True)
class OnChain:
    """What the chain knows: records and their times by relayer and round; how requests ended; what was paid."""

    domain: typed_data.Domain
    records: Mapping[tuple[Address, int], tuple[RoundRecord, int]]
    endings: Mapping[Hash32, Ending]
    paid: Mapping[Hash32, ResultRef]


def culprit_of(found: FoundFault, chain: OnChain) -> tuple[Fault, Address]:
    """Whom the contract would punish, and for what.

    Raises:
        NotProven: nobody.
    """
    match found.proof:
        case Missed():
            return Fault.MISSED, _missed(found, found.proof, chain)
        case Equivocation():
            return Fault.EQUIVOCATION, _equivocated(found, found.proof, chain)
        case PaidUndecided():
            return Fault.UNDECIDED, _paid_undecided(found, found.proof, chain)
        case AssignedUndecided():
            return Fault.UNDECIDED, _assigned_undecided(found, found.proof, chain)
        case Contradicted():
            return Fault.CONTRADICTED, _contradicted(found, found.proof, chain)
        case DoubleAssignment():
            return Fault.DOUBLE_ASSIGNMENT, _assigned_twice(found, found.proof, chain)
        case ReleasedAssignment():
            word = _require_assignment(found, found.proof.assigned, chain)
            _require(word == found.request.relayer, "another relayer")
            _require(chain.endings[found.request_id] is Ending.RELEASED, "not released")
            return Fault.RELEASED, word
        case ReleasedDecision():
            _require_assigned(found, found.request.relayer, found.proof.assigned, chain)
            _require(chain.endings[found.request_id] is Ending.RELEASED, "not released")
            return Fault.RELEASED, found.request.relayer


def is_leaf(root: Hash32, leaf: bytes, index: int, count: int, proof: Sequence[Hash32]) -> bool:
    """`DecisionLib.isProven`."""
    depth = 0
    while 1 << depth < count:
        depth += 1
    if index >= count or len(proof) != depth:
        return False
    node = leaf
    for height, sibling in enumerate(bytes.fromhex(each[2:]) for each in proof):
        node = keccak(node + sibling) if (index >> height) & 1 == 0 else keccak(sibling + node)
    return "0x" + node.hex() == root


def require_absent(relayer: Address, request_id: Hash32, node: Address, absence: Absence, chain: OnChain) -> None:
    """`Faults._requireAbsent`, for records that have leaves."""
    record, index = absence.record, absence.index
    count = record.assigned + record.skipped + record.too_late
    _require(count != 0, "an empty record")
    _require(index <= count, "beyond the record")
    key = (request_id, node)
    if index != 0:
        assert absence.left is not None
        _require_decided(relayer, record, absence.left, index - 1, absence.left_proof, chain)
        _require((absence.left.request_id, absence.left.node) < key, "left is not before")
    if index != count:
        assert absence.right is not None
        _require_decided(relayer, record, absence.right, index, absence.right_proof, chain)
        _require(key < (absence.right.request_id, absence.right.node), "right is not after")


def _missed(found: FoundFault, proof: Missed, chain: OnChain) -> Address:
    deadline_s = found.request.deadline_s
    _require(chain.endings[found.request_id] is Ending.EXPIRED, "not expired uncancelled")
    _require(found.request.mode is Mode.SIGNATURE, "not of signature mode")
    _require_assigned(found, proof.relayer, proof.assigned, chain)
    round_ = proof.assigned.record.round
    _require(chain.records[proof.relayer, round_][1] <= deadline_s, "recorded too late")
    _require(proof.accept_deadline_s <= deadline_s, "accepted for later")
    node = proof.assigned.decision.node
    struct_hash = typed_data.hash_accept(found.request_id, proof.relayer, round_, proof.accept_deadline_s)
    _require_signed(node, struct_hash, proof.accept_signature, chain)
    return node


def _equivocated(found: FoundFault, proof: Equivocation, chain: OnChain) -> Address:
    _require(proof.first.result.result_hash != proof.second.result.result_hash, "one result")
    for each in (proof.first, proof.second):
        _require(each.result.request_id == found.request_id, "another request")
        _require_result(proof.node, each, chain)
    return proof.node


def _paid_undecided(found: FoundFault, proof: PaidUndecided, chain: OnChain) -> Address:
    _require(chain.paid.get(found.request_id) == proof.paid, "not the paid result")
    _require(proof.paid.round == proof.absence.record.round, "another round")
    require_absent(proof.paid.relayer, found.request_id, proof.paid.nodes[proof.node_index], proof.absence, chain)
    return proof.paid.relayer


def _assigned_undecided(found: FoundFault, proof: AssignedUndecided, chain: OnChain) -> Address:
    relayer = _require_assignment(found, proof.assigned, chain)
    _require(proof.assigned.assignment.round == proof.absence.record.round, "another round")
    require_absent(relayer, found.request_id, proof.assigned.assignment.node, proof.absence, chain)
    return relayer


def _contradicted(found: FoundFault, proof: Contradicted, chain: OnChain) -> Address:
    relayer, word = _require_assignment(found, proof.assigned, chain), proof.assigned.assignment
    _require_assigned(found, relayer, proof.decided, chain)
    _require(word.round == proof.decided.record.round, "another round")
    _require(word.node == proof.decided.decision.node, "another node")
    _require(word.reward_wei != proof.decided.decision.reward_wei, "the same reward")
    return relayer


def _assigned_twice(found: FoundFault, proof: DoubleAssignment, chain: OnChain) -> Address:
    first, second = proof.first, proof.second
    for each in (first, second):
        _require_assigned(found, proof.relayer, each, chain)
    _require(first.decision.node != second.decision.node, "one node")
    early, late = first.record.round, second.record.round
    if early == late:
        _require(found.request.mode is not Mode.QUORUM, "a quorum's round")
        superseded = early in (first.decision.supersedes_round, second.decision.supersedes_round)
        _require(not superseded, "superseded")
    else:
        _require(early < late, "not in order")
        _require(not early <= second.decision.supersedes_round <= late, "superseded")
    return proof.relayer


def _require_assigned(found: FoundFault, relayer: Address, proven: ProvenDecision, chain: OnChain) -> None:
    _require(proven.decision.request_id == found.request_id, "another request")
    _require(int(proven.decision.kind) == 0, "not assigned")
    _require_decided(relayer, proven.record, proven.decision, proven.index, proven.proof, chain)


def _require_decided(
    relayer: Address, record: RoundRecord, decision: Decision, index: int, proof: Sequence[Hash32], chain: OnChain
) -> None:
    known = chain.records.get((relayer, record.round))
    _require(known is not None and known[0] == record, "not in the record")
    count = record.assigned + record.skipped + record.too_late
    _require(is_leaf(record.decisions_root, leaf_of(decision), index, count, proof), "not in the record")


def _require_assignment(found: FoundFault, signed: SignedAssignment, chain: OnChain) -> Address:
    word = signed.assignment
    _require(word.request_id == found.request_id, "another request")
    _require_signed(word.relayer, typed_data.hash_assignment(word), signed.signature, chain)
    return word.relayer


def _require_result(node: Address, signed: SignedResult, chain: OnChain) -> None:
    struct_hash = typed_data.hash_result(signed.result)
    if signed.set_hashes:
        _require(struct_hash in signed.set_hashes, "not in the set")
        struct_hash = typed_data.hash_result_set(signed.result.relayer, signed.result.round, signed.set_hashes)
    _require_signed(node, struct_hash, signed.signature, chain)


def _require_signed(signer: Address, struct_hash: bytes, signature: bytes, chain: OnChain) -> None:
    recovered = typed_data.signer_of(typed_data.digest(chain.domain, struct_hash), signature)
    _require(recovered == signer != ZERO_ADDRESS, "not signed so")


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise NotProven(reason)
