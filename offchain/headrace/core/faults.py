"""Faults of nodes and relayers: what is known of a request, and which faults it proves. Pure: the caller fetches.

Every fault is about one request, so all that is known of one is put into a `Dossier`. What is found comes with a proof
that `contracts/interfaces/IFaults.sol` takes; signatures are checked here first, so that nobody's lie is sent on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import combinations
from typing import TypeAlias

from headrace.core import typed_data
from headrace.core.errors import SignatureMismatch
from headrace.core.fees import BPS
from headrace.core.merkle import leaf_of, proof_of, root_of
from headrace.core.types import (
    ZERO_ADDRESS,
    Address,
    Assignment,
    Decision,
    DecisionKind,
    GasQuote,
    Hash32,
    Mode,
    Request,
    Result,
    ResultRef,
    RoundRecord,
)


class Fault(IntEnum):
    """What a node or a relayer did wrong (`IFaults.Fault`)."""

    MISSED = 0
    EQUIVOCATION = 1
    UNDECIDED = 2
    CONTRADICTED = 3
    DOUBLE_ASSIGNMENT = 4
    RELEASED = 5

    @property
    def is_nodes(self) -> bool:
        """Whether it is a node's; the others are relayers'."""
        return self in (Fault.MISSED, Fault.EQUIVOCATION)


class Ending(StrEnum):
    """How a request ended, as far as faults go."""

    OPEN = "open"
    SETTLED = "settled"
    EXPIRED = "expired"  # and it was not cancelled before
    EXPIRED_CANCELLED = "expired_cancelled"
    RELEASED = "released"  # cancelled on its relayer's release


# What was said and recorded


@dataclass(frozen=True, slots=True)
class SignedAccept:
    """A node's word that it will answer by the deadline."""

    request_id: Hash32
    node: Address
    relayer: Address
    round: int
    deadline_s: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class SignedAssignment:
    """A relayer's word that a node shall serve a request."""

    assignment: Assignment
    signature: bytes


@dataclass(frozen=True, slots=True)
class SignedResult:
    """A result as a node signed it: alone or, given the struct hashes of a set's results, within that set."""

    node: Address
    result: Result
    signature: bytes
    set_hashes: tuple[bytes, ...] = ()


class WatchedRound:
    """A recorded round with its leaves, which must be those of its record (`is_record_of`)."""

    def __init__(self, relayer: Address, record: RoundRecord, recorded_at_s: int, leaves: Sequence[Decision]) -> None:
        self.relayer = relayer
        self.record = record
        self.recorded_at_s = recorded_at_s
        self.leaves = tuple(leaves)
        self._of_request: defaultdict[Hash32, list[int]] = defaultdict(list)
        for index, leaf in enumerate(self.leaves):
            self._of_request[leaf.request_id].append(index)

    def proven(self, index: int) -> ProvenDecision:
        """A decision with its place in the round."""
        return ProvenDecision(self.record, self.leaves[index], index, self._proof(index))

    def assigned(self, request_id: Hash32) -> list[int]:
        """The indexes of the leaves that assign a request."""
        indexes = self._of_request.get(request_id, ())
        return [index for index in indexes if self.leaves[index].kind is DecisionKind.ASSIGNED]

    def absent(self, request_id: Hash32, node: Address) -> Absence | None:
        """That no leaf is about a request and a node; None when one is."""
        if any(self.leaves[index].node == node for index in self._of_request.get(request_id, ())):
            return None
        key = (request_id, node)
        keys = [(leaf.request_id, leaf.node) for leaf in self.leaves]
        # Between leaves in any order there is such a place: the first before one that is greater.
        return self._absence(next((index for index, each in enumerate(keys) if key < each), len(keys)))

    def _absence(self, index: int) -> Absence:
        left = index - 1 if index > 0 else None
        right = index if index < len(self.leaves) else None
        return Absence(
            record=self.record,
            index=index,
            left=None if left is None else self.leaves[left],
            left_proof=() if left is None else self._proof(left),
            right=None if right is None else self.leaves[right],
            right_proof=() if right is None else self._proof(right),
        )

    def _proof(self, index: int) -> tuple[Hash32, ...]:
        return tuple(proof_of([leaf_of(leaf) for leaf in self.leaves], index))


def is_record_of(record: RoundRecord, leaves: Sequence[Decision]) -> bool:
    """Whether these are the leaves that a round was recorded with."""
    count = record.assigned + record.skipped + record.too_late
    return len(leaves) == count and root_of([leaf_of(leaf) for leaf in leaves]) == record.decisions_root


@dataclass(frozen=True, slots=True)
class Dossier:
    """All that is known of a request.

    Args:
        request_id: whose.
        request: its terms.
        relayer: whose rounds are looked at.
        ending: how it ended.
        paid: what the market settled in a round of this relayer, if it did.
        rounds: recorded rounds of this relayer, by number: all that assign the request, and those that `paid` and
            `assignments` name, as far as they could be had.
        accepts: of nodes, for these rounds.
        assignments: of this relayer.
        results: of nodes.
    """

    request_id: Hash32
    request: Request
    relayer: Address
    ending: Ending
    paid: ResultRef | None
    rounds: Mapping[int, WatchedRound]
    accepts: Sequence[SignedAccept] = ()
    assignments: Sequence[SignedAssignment] = ()
    results: Sequence[SignedResult] = ()


# Proofs, as IFaults takes them


@dataclass(frozen=True, slots=True)
class ProvenDecision:
    """A decision and its place in a recorded round."""

    record: RoundRecord
    decision: Decision
    index: int
    proof: tuple[Hash32, ...]


@dataclass(frozen=True, slots=True)
class Absence:
    """That a decision is not in a recorded round: the leaves it would lie between. `index` is the right one's."""

    record: RoundRecord
    index: int
    left: Decision | None
    left_proof: tuple[Hash32, ...]
    right: Decision | None
    right_proof: tuple[Hash32, ...]


@dataclass(frozen=True, slots=True)
class Missed:
    """`proveMissed`."""

    relayer: Address
    accept_deadline_s: int
    accept_signature: bytes
    assigned: ProvenDecision


@dataclass(frozen=True, slots=True)
class Equivocation:
    """`proveEquivocation`."""

    node: Address
    first: SignedResult
    second: SignedResult


@dataclass(frozen=True, slots=True)
class PaidUndecided:
    """`provePaidUndecided`."""

    paid: ResultRef
    node_index: int
    absence: Absence


@dataclass(frozen=True, slots=True)
class AssignedUndecided:
    """`proveAssignedUndecided`."""

    assigned: SignedAssignment
    absence: Absence


@dataclass(frozen=True, slots=True)
class Contradicted:
    """`proveContradicted`."""

    assigned: SignedAssignment
    decided: ProvenDecision


@dataclass(frozen=True, slots=True)
class DoubleAssignment:
    """`proveDoubleAssignment`."""

    relayer: Address
    first: ProvenDecision
    second: ProvenDecision


@dataclass(frozen=True, slots=True)
class ReleasedAssignment:
    """`proveReleasedAssignment`."""

    assigned: SignedAssignment


@dataclass(frozen=True, slots=True)
class ReleasedDecision:
    """`proveReleasedDecision`."""

    assigned: ProvenDecision


Proof: TypeAlias = (
    Missed
    | Equivocation
    | PaidUndecided
    | AssignedUndecided
    | Contradicted
    | DoubleAssignment
    | ReleasedAssignment
    | ReleasedDecision
)


@dataclass(frozen=True, slots=True)
class FoundFault:
    """A fault and what proves it. `culprit` is a node's signing key, or a relayer."""

    fault: Fault
    culprit: Address
    request_id: Hash32
    round: int
    request: Request
    proof: Proof

    @property
    def node(self) -> Address:
        """The node that a relayer's fault was done to: each is a fault of its own. The zero address if to none."""
        match self.proof:
            case AssignedUndecided(signed) | Contradicted(signed) | ReleasedAssignment(signed):
                return signed.assignment.node
            case ReleasedDecision(assigned):
                return assigned.decision.node
            case _:
                return ZERO_ADDRESS

    @property
    def key(self) -> tuple[Fault, Address, Address]:
        """What tells it from the request's other faults: more proofs of one cost nobody more."""
        return self.fault, self.culprit, self.node


def find_faults(dossier: Dossier, domain: typed_data.Domain) -> list[FoundFault]:
    """The faults that a dossier proves: of each kind, culprit and wronged node one, since more cost nobody more.

    Args:
        dossier: what is known.
        domain: the market's, under which all was signed.
    """
    looks = (_missed, _equivocated, _paid_undecided, _assigned_otherwise, _assigned_twice, _released)
    found: dict[tuple[Fault, Address, Address], FoundFault] = {}
    for look in looks:
        for fault, culprit, round_, proof in look(dossier, domain):
            each = FoundFault(fault, culprit, dossier.request_id, round_, dossier.request, proof)
            found.setdefault(each.key, each)
    return list(found.values())


_Finds: TypeAlias = Iterator[tuple[Fault, Address, int, Proof]]


def _missed(dossier: Dossier, domain: typed_data.Domain) -> _Finds:
    """Nodes that accepted and were silent. One whose result is known did answer, whatever became of that."""
    deadline_s = dossier.request.deadline_s
    if dossier.ending is not Ending.EXPIRED or dossier.request.mode is not Mode.SIGNATURE:
        return
    if dossier.request.relayer != dossier.relayer:
        return  # in an open race a node cannot see to it that it is paid
    answered = {each.node for each in dossier.results}
    for round_, index in _decisions(dossier):
        node = round_.leaves[index].node
        if round_.recorded_at_s > deadline_s or node in answered:
            continue
        for accept in dossier.accepts:
            fits = (accept.node, accept.round, accept.relayer) == (node, round_.record.round, dossier.relayer)
            if fits and accept.deadline_s <= deadline_s and is_accept_signed(accept, domain):
                proof = Missed(dossier.relayer, accept.deadline_s, accept.signature, round_.proven(index))
                yield Fault.MISSED, node, round_.record.round, proof
                break


def _equivocated(dossier: Dossier, domain: typed_data.Domain) -> _Finds:
    by_node: dict[Address, list[SignedResult]] = {}
    for each in dossier.results:
        if is_result_signed(each, domain):
            by_node.setdefault(each.node, []).append(each)
    for node, results in by_node.items():
        first = results[0]
        for other in results[1:]:
            if other.result.result_hash != first.result.result_hash:
                yield Fault.EQUIVOCATION, node, first.result.round, Equivocation(node, first, other)
                break


def _paid_undecided(dossier: Dossier, _: typed_data.Domain) -> _Finds:
    paid = dossier.paid
    round_ = None if paid is None else dossier.rounds.get(paid.round)
    if paid is None or round_ is None or paid.relayer != dossier.relayer:
        return
    for index, node in enumerate(paid.nodes):
        absence = round_.absent(dossier.request_id, node)
        if absence is not None:
            yield Fault.UNDECIDED, paid.relayer, paid.round, PaidUndecided(paid, index, absence)
            return


def _assigned_otherwise(dossier: Dossier, domain: typed_data.Domain) -> _Finds:
    """What the relayer signed, against what it recorded."""
    for signed in _signed_assignments(dossier, domain):
        word = signed.assignment
        round_ = dossier.rounds.get(word.round)
        if round_ is None:
            continue
        absence = round_.absent(dossier.request_id, word.node)
        if absence is not None:
            yield Fault.UNDECIDED, word.relayer, word.round, AssignedUndecided(signed, absence)
        for index in round_.assigned(dossier.request_id):
            leaf = round_.leaves[index]
            if leaf.node == word.node and leaf.reward_wei != word.reward_wei:
                yield Fault.CONTRADICTED, word.relayer, word.round, Contradicted(signed, round_.proven(index))


def _assigned_twice(dossier: Dossier, _: typed_data.Domain) -> _Finds:
    decisions = _decisions(dossier)
    for (early, i), (late, j) in combinations(decisions, 2):
        if _is_double(dossier.request, early.record.round, early.leaves[i], late.record.round, late.leaves[j]):
            proof = DoubleAssignment(dossier.relayer, early.proven(i), late.proven(j))
            yield Fault.DOUBLE_ASSIGNMENT, dossier.relayer, late.record.round, proof
            return


def _is_double(request: Request, early: int, first: Decision, late: int, second: Decision) -> bool:
    """Whether the second decision stands beside the first instead of superseding it."""
    if first.node == second.node:
        return False
    if early < late:
        return not early <= second.supersedes_round <= late
    # The nodes of a quorum are assigned together.
    return request.mode is not Mode.QUORUM and early not in (first.supersedes_round, second.supersedes_round)


def _released(dossier: Dossier, domain: typed_data.Domain) -> _Finds:
    """An open race has no relayer whose release would count."""
    if dossier.ending is not Ending.RELEASED or dossier.request.relayer != dossier.relayer:
        return
    for round_, index in _decisions(dossier):
        yield Fault.RELEASED, dossier.relayer, round_.record.round, ReleasedDecision(round_.proven(index))
    for signed in _signed_assignments(dossier, domain):
        yield Fault.RELEASED, dossier.relayer, signed.assignment.round, ReleasedAssignment(signed)


def _decisions(dossier: Dossier) -> list[tuple[WatchedRound, int]]:
    """Where the request was assigned, in the order of rounds."""
    rounds = [dossier.rounds[number] for number in sorted(dossier.rounds)]
    return [(round_, index) for round_ in rounds for index in round_.assigned(dossier.request_id)]


def _signed_assignments(dossier: Dossier, domain: typed_data.Domain) -> Iterator[SignedAssignment]:
    for signed in dossier.assignments:
        word = signed.assignment
        if (word.request_id, word.relayer) == (dossier.request_id, dossier.relayer) and is_assignment_signed(
            signed, domain
        ):
            yield signed


# Signatures


def is_accept_signed(accept: SignedAccept, domain: typed_data.Domain) -> bool:
    """Whether its node signed an accept."""
    struct_hash = typed_data.hash_accept(accept.request_id, accept.relayer, accept.round, accept.deadline_s)
    return _is_signed(accept.node, struct_hash, accept.signature, domain)


def is_assignment_signed(signed: SignedAssignment, domain: typed_data.Domain) -> bool:
    """Whether its relayer signed an assignment."""
    struct_hash = typed_data.hash_assignment(signed.assignment)
    return _is_signed(signed.assignment.relayer, struct_hash, signed.signature, domain)


def is_result_signed(signed: SignedResult, domain: typed_data.Domain) -> bool:
    """Whether its node signed a result, alone or within its set."""
    struct_hash = typed_data.hash_result(signed.result)
    if signed.set_hashes:
        if struct_hash not in signed.set_hashes:
            return False
        struct_hash = typed_data.hash_result_set(signed.result.relayer, signed.result.round, signed.set_hashes)
    return _is_signed(signed.node, struct_hash, signed.signature, domain)


def _is_signed(signer: Address, struct_hash: bytes, signature: bytes, domain: typed_data.Domain) -> bool:
    try:
        return typed_data.signer_of(typed_data.digest(domain, struct_hash), signature) == signer != ZERO_ADDRESS
    except SignatureMismatch:
        return False


# What a proof brings in


@dataclass(frozen=True, slots=True)
class FaultTerms:
    """The faults contract's immutable numbers."""

    missed_wei: int
    equivocation_wei: int
    relayer_wei: int
    bounty_bps: int
    proof_gas: int
    tip_cap_wei: int

    def amount_wei(self, fault: Fault) -> int:
        """What a fault costs, if so much is staked."""
        if fault is Fault.MISSED:
            return self.missed_wei
        return self.equivocation_wei if fault is Fault.EQUIVOCATION else self.relayer_wei


def bounty_wei(terms: FaultTerms, fault: Fault, held_wei: int, quote: GasQuote) -> int:
    """What the reporter of a fault is credited.

    Args:
        terms: the faults contract's numbers.
        fault: which.
        held_wei: the culprit's stake or bond.
        quote: what the transaction pays for gas.
    """
    slashed = min(terms.amount_wei(fault), held_wei)
    gas_price_wei = min(quote.price_wei, quote.base_fee_wei + terms.tip_cap_wei)
    return min(slashed * terms.bounty_bps // BPS + terms.proof_gas * gas_price_wei, slashed // 2)


def pays(bounty: int, gas_used: int, quote: GasQuote, min_return_bps: int) -> bool:
    """Whether a proof brings in what is asked of it: 10,000 = as much as its gas costs."""
    return bounty * BPS >= gas_used * quote.price_wei * min_return_bps
