"""Re-computes recorded rounds from their snapshots and compares them with the chain. Pure: the caller fetches.

What is checked, for each round: the record follows on the one before (its chained head); every snapshot is there and is
what was recorded; re-planned decisions give the recorded root, counts and policy; node facts are the nodes' own signed
heartbeats, their owners the chain's; request facts are the chain's; a quorum is listed in order, and with all nodes
that it was listed with before; and no request that was eligible at a cycle's anchor is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from eth_abi.abi import encode
from eth_abi.exceptions import EncodingError

from headrace.core import typed_data
from headrace.core.errors import InvalidInput, SignatureMismatch
from headrace.core.events import BlockRef, ChainEvent, request_from_event
from headrace.core.fields import from_json
from headrace.core.gas import required_answer_bytes
from headrace.core.keccak import keccak
from headrace.core.nesting import read_json
from headrace.core.rounds import close_round, hash_snapshots, merge_decisions
from headrace.core.scheduling import Carried, CycleInputs, CyclePlan, Engine, NodeView, WaitingRequest
from headrace.core.snapshot import SnapshotReader, Withheld, policy_hash
from headrace.core.tasks import Heartbeat
from headrace.core.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Decision,
    DecisionKind,
    Hash32,
    MarketTerms,
    Reason,
    Request,
    RoundRecord,
)
from headrace.core.work import expected_work

# How far a node's clock and the relayer's may differ before a heartbeat counts as an old one shown again.
CLOCK_TOLERANCE_MS = 60_000
_HEAD_MASK = ~((1 << 40) - 1)
_Row = TypeVar("_Row")


class Severity(StrEnum):
    """What a finding means."""

    VIOLATION = "violation"  # data that must be served was withheld, or is not what was recorded
    DIFFERENCE = "difference"  # the data says something else than the record, the chain or a signature
    VOID = "void"  # the anchor was orphaned by a reorg: nothing can be concluded, and nobody is at fault


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold."""

    severity: Severity
    round: int
    field: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class RecordedRound:
    """A round as the chain has it."""

    record: RoundRecord
    head: Hash32
    block: int


@dataclass(frozen=True, slots=True)
class ServedRound:
    """A round as its relayer serves it: the hashes of its cycles' snapshots, and those that could be had.

    `snapshots` has those, and those that they are based on, as far back as a full one or one of an earlier round.
    """

    snapshot_hashes: tuple[Hash32, ...]
    snapshots: Mapping[Hash32, bytes]


@dataclass
class _OnChain:
    """A request by its events."""

    request: Request
    block: int
    is_owed: bool  # it names the relayer; one that names none may be served by any, and is owed by none
    closed_block: int | None = None
    fees_added: list[tuple[int, int]] = field(default_factory=list)  # (block, total)
    deadlines: list[tuple[int, int]] = field(default_factory=list)  # (block, effective deadline)


@dataclass(frozen=True)
class Evidence:
    """What an audit holds a relayer's word against.

    Args:
        chain_id: of the chain.
        market: whose requests these are, and under whose domain heartbeats are signed.
        relayer: who recorded the rounds.
        terms: the market's immutable numbers.
        events: of the market, from before the first request that may be concerned up to the last record.
        blocks: those of anchors and of requests, by number.
        confirmations: blocks that the relayer waits before a request is eligible.
        owners: of the registered nodes, by key.
        complexities: of the registered models, in thousandths of a 7B class.
    """

    chain_id: int
    market: Address
    relayer: Address
    terms: MarketTerms
    events: Sequence[ChainEvent]
    blocks: Mapping[int, BlockRef]
    confirmations: int
    owners: Mapping[Address, Address]
    complexities: Mapping[Hash32, int] = field(default_factory=dict)


def recorded_round(event: ChainEvent) -> RecordedRound:
    """A `RoundRecorded` event as a round."""
    args: Any = event.args["record"]
    record = RoundRecord(
        round=int(args["round"]),
        decisions_root=args["decisionsRoot"],
        snapshot_hash=args["snapshotHash"],
        policy_hash=args["policyHash"],
        anchor_block=int(args["anchorBlock"]),
        anchor_hash=args["anchorHash"],
        assigned=int(args["assigned"]),
        skipped=int(args["skipped"]),
        too_late=int(args["tooLate"]),
    )
    return RecordedRound(record, event.args["head"], event.block_number)


def chained_head(previous: Hash32, relayer: Address, record: RoundRecord) -> Hash32:
    """The head after a record, as `ScheduleLog._chain` has it: without its low 40 bits."""
    values = (
        record.round,
        bytes.fromhex(record.decisions_root[2:]),
        bytes.fromhex(record.snapshot_hash[2:]),
        bytes.fromhex(record.policy_hash[2:]),
        record.anchor_block,
        bytes.fromhex(record.anchor_hash[2:]),
        record.assigned,
        record.skipped,
        record.too_late,
    )
    kinds = tuple(kind for _, kind in typed_data.TYPES["RoundRecord"])
    encoded = encode(("bytes32", "address", *kinds), (bytes.fromhex(previous[2:]), relayer, *values))
    head = int.from_bytes(keccak(encoded), "big") & _HEAD_MASK
    return "0x" + head.to_bytes(32, "big").hex()


def audit_rounds(
    rounds: Sequence[tuple[RecordedRound, ServedRound | None]],
    evidence: Evidence,
    previous_head: Hash32 = ZERO_HASH,
    settled_before: Iterable[Hash32] = (),
) -> list[Finding]:
    """Check consecutive rounds.

    Args:
        rounds: in order; None for one that the relayer does not serve.
        evidence: the chain's side.
        previous_head: of the round before the first; zero before round 1.
        settled_before: requests that earlier rounds assigned or found too late. A request is demanded in snapshots
            until then: whether a later attempt is due depends on leases, which no record holds.
    """
    audit = _Audit(evidence, set(settled_before))
    for recorded, served in rounds:
        audit.check_head(previous_head, recorded)
        audit.check_round(recorded, served)
        previous_head = recorded.head
    return audit.findings


class _Audit:
    def __init__(self, evidence: Evidence, decided: set[Hash32]) -> None:
        self._evidence = evidence
        self._decided = decided
        self._decided_before = frozenset(decided)
        self._listings: dict[Hash32, list[tuple[int, frozenset[Address]]]] = {}
        self._gap_block = -1  # up to which something was listed that is not known
        self._requests = _requests_of(evidence)
        self._next: Carried | None = None
        self._reader = SnapshotReader()
        self._engine = Engine()
        self._rows: dict[str, dict[str, Any]] = {}  # of the last cycle, by the name of their key
        self._reasons: dict[Hash32, Reason] = {}  # of the last decision on each request, as far as it is known
        self._last_now_ms = 0
        self._round = 0
        self.findings: list[Finding] = []

    def check_head(self, previous: Hash32, recorded: RecordedRound) -> None:
        self._round = recorded.record.round
        self._compare("head", chained_head(previous, self._evidence.relayer, recorded.record), recorded.head)

    def check_round(self, recorded: RecordedRound, served: ServedRound | None) -> None:
        record = recorded.record
        cycles = self._cycles(record, served)
        if cycles is None:
            self._pass_over(recorded)
            return
        anchor = self._evidence.blocks.get(record.anchor_block)
        if anchor is None or anchor.hash != record.anchor_hash:
            self._find(Severity.VOID, "anchor_hash", anchor.hash if anchor else "no such block", record.anchor_hash)
            self._pass_over(recorded)
            return
        hashes = served.snapshot_hashes if served else ()
        try:
            leaves = merge_decisions(list(self._replayed(*cycle, recorded)) for cycle in enumerate(cycles))
            rebuilt = close_round(record.round, leaves, hashes, policy_hash(cycles[0].policy), cycles[-1].anchor)
        except (InvalidInput, EncodingError, ArithmeticError) as exc:
            # Whatever a relayer serves, it must not keep the rest of its rounds from being checked.
            self._find(Severity.VIOLATION, "snapshot", "a snapshot that can be replayed", str(exc))
            self._pass_over(recorded)
            return
        for each in fields(RoundRecord):
            self._compare(each.name, getattr(rebuilt, each.name), getattr(record, each.name))

    def _pass_over(self, recorded: RecordedRound) -> None:
        """Whatever comes next cannot be held against what is not known."""
        self._next = None
        self._reasons = {}
        self._gap_block = recorded.block

    # Snapshots

    def _cycles(self, record: RoundRecord, served: ServedRound | None) -> list[CycleInputs] | None:
        if served is None or not served.snapshot_hashes:
            self._find(Severity.VIOLATION, "snapshots", "served for at least 30 days", "withheld")
            return None
        listed = hash_snapshots(served.snapshot_hashes)
        if listed != record.snapshot_hash:
            self._find(Severity.VIOLATION, "snapshot_hash", record.snapshot_hash, listed)
            return None
        cycles = []
        for hash_ in served.snapshot_hashes:
            try:
                cycles.append(self._reader.read(hash_, served.snapshots))
            except Withheld as exc:
                self._find(Severity.VIOLATION, "snapshot", exc.snapshot_hash, exc.got)
                return None
            except (InvalidInput, ValueError) as exc:
                self._find(Severity.VIOLATION, "snapshot", "a snapshot that can be read", str(exc))
                return None
        return cycles

    # Cycles

    def _replayed(self, index: int, inputs: CycleInputs, recorded: RecordedRound) -> Iterator[Decision]:
        self._check_frame(index, inputs, recorded)
        for node in self._new_rows("node", inputs.nodes):
            self._check_node(node, inputs)
        for request in self._new_rows("request_id", inputs.requests):
            self._check_request(request, inputs, recorded.block)
        self._check_completeness(inputs)
        plan = self._engine.plan(inputs)
        self._note_listings(plan, inputs.round)
        self._next = plan.carried
        self._last_now_ms = inputs.now_ms
        for planned in plan.decisions:
            if planned.decision.kind is not DecisionKind.SKIPPED:
                self._decided.add(planned.decision.request_id)
            self._reasons[planned.decision.request_id] = planned.decision.reason
            yield planned.decision

    def _new_rows(self, key: str, rows: Sequence[_Row]) -> Iterator[_Row]:
        """Those that are not as they were in the cycle before: what was found true of a row stays so. But for requests
        whose fee or deadline changes, or that are listed again."""
        before, now = self._rows.get(key, {}), {getattr(row, key): row for row in rows}
        self._rows[key] = now
        for row in rows:
            id_ = getattr(row, key)
            known = self._requests.get(id_)
            is_moving = known is not None and bool(known.fees_added or known.deadlines or known.request.k)
            if before.get(id_) is not row or is_moving:
                yield row

    def _check_frame(self, index: int, inputs: CycleInputs, recorded: RecordedRound) -> None:
        """What surrounds a cycle's requests and nodes."""
        evidence = self._evidence
        at = f"cycle {index} "
        self._compare(f"{at}chain_id", evidence.chain_id, inputs.chain_id)
        self._compare(f"{at}market", evidence.market, inputs.market)
        self._compare(f"{at}relayer", evidence.relayer, inputs.relayer)
        self._compare(f"{at}round", recorded.record.round, inputs.round)
        self._compare(f"{at}cycle", index, inputs.cycle)
        self._compare(f"{at}terms", evidence.terms, inputs.terms)
        self._compare(f"{at}policy", recorded.record.policy_hash, policy_hash(inputs.policy))
        for each in fields(Carried) if self._next is not None else ():
            self._compare(f"{at}{each.name}", getattr(self._next, each.name), getattr(inputs, each.name))
        if inputs.now_ms < self._last_now_ms:
            self._find(Severity.DIFFERENCE, f"{at}now_ms", f"at least {self._last_now_ms}", str(inputs.now_ms))
        anchor = evidence.blocks.get(inputs.anchor.block)
        if anchor is not None and anchor.hash == inputs.anchor.hash:
            self._compare(f"{at}anchor timestamp_s", anchor.timestamp_s, inputs.anchor.timestamp_s)
        for name, ids in (
            ("requests", [request.request_id for request in inputs.requests]),
            ("nodes", [node.node for node in inputs.nodes]),
        ):
            if ids != sorted(set(ids)):
                self._find(Severity.DIFFERENCE, f"{at}{name}", "ascending, each once", "another order")

    def _check_node(self, view: NodeView, inputs: CycleInputs) -> None:
        at = f"node {view.node} "
        self._compare(f"{at}owner", self._evidence.owners.get(view.node, "not registered"), view.owner)
        beat = self._heartbeat(view, inputs, at)
        if beat is None:
            return
        self._compare(f"{at}free_memory_mb", beat.free_memory_mb, view.free_memory_mb)
        self._compare(f"{at}max_in_flight", beat.max_in_flight, view.max_in_flight)
        self._compare(f"{at}avg_latency_ms", beat.avg_latency_ms, view.avg_latency_ms)
        self._compare(f"{at}verifiers", beat.verifiers, view.verifiers)
        # The relayer adds what it assigned since the heartbeat, so it may only be more.
        if view.in_flight < beat.in_flight:
            self._find(Severity.DIFFERENCE, f"{at}in_flight", f"at least {beat.in_flight}", str(view.in_flight))
        for offer in view.offers:
            if offer.model_id not in beat.models:
                self._find(Severity.DIFFERENCE, f"{at}offers", "models of its heartbeat", offer.model_id)
            self._compare(f"{at}{offer.model_id} is_warm", offer.model_id in beat.warm_models, offer.is_warm)
        if abs(view.heartbeat_at_ms - beat.sent_at_ms) > CLOCK_TOLERANCE_MS or view.heartbeat_at_ms > inputs.now_ms:
            expected = f"near {beat.sent_at_ms} and not after {inputs.now_ms}"
            self._find(Severity.DIFFERENCE, f"{at}heartbeat_at_ms", expected, str(view.heartbeat_at_ms))

    def _heartbeat(self, view: NodeView, inputs: CycleInputs, at: str) -> Heartbeat | None:
        """The heartbeat of a node, if the node signed it."""
        content_hash = "0x" + keccak(view.heartbeat.encode()).hex()
        domain = typed_data.Domain(self._evidence.chain_id, self._evidence.market)
        struct_hash = typed_data.hash_heartbeat(view.node, inputs.relayer, content_hash)
        try:
            signature = bytes.fromhex(view.heartbeat_signature.removeprefix("0x"))
            signer = typed_data.signer_of(typed_data.digest(domain, struct_hash), signature)
        except (SignatureMismatch, ValueError) as exc:
            self._find(Severity.DIFFERENCE, f"{at}heartbeat_signature", f"signed by {view.node}", str(exc))
            return None
        if signer != view.node:
            self._find(Severity.DIFFERENCE, f"{at}heartbeat_signature", f"signed by {view.node}", f"by {signer}")
            return None
        try:
            beat = from_json(Heartbeat, read_json(view.heartbeat))
        except (InvalidInput, ValueError) as exc:
            self._find(Severity.DIFFERENCE, f"{at}heartbeat", "a heartbeat that can be read", str(exc))
            return None
        self._compare(f"{at}heartbeat node", view.node, beat.node)
        return beat

    def _check_request(self, view: WaitingRequest, inputs: CycleInputs, recorded_block: int) -> None:
        at = f"request {view.request_id} "
        known = self._requests.get(view.request_id)
        if known is None:
            self._find(Severity.DIFFERENCE, f"{at}existence", "a request of this market for this relayer", "none")
            return
        request = known.request
        for name in (
            "model_id",
            "lane",
            "prompt_bytes",
            "max_output_tokens",
            "batchable",
            "max_reward_wei",
            "gas_budget_wei",
            "callback_gas",
            "verifier",
            "k",
            "n",
            "requester",
        ):
            self._compare(f"{at}{name}", getattr(request, name), getattr(view, name))
        complexity_milli = self._evidence.complexities.get(request.model_id, 1_000)
        work = expected_work(request.prompt_bytes, request.max_output_tokens, complexity_milli)
        self._compare(f"{at}complexity_milli", complexity_milli, view.complexity_milli)
        self._compare(f"{at}work", work, view.work)
        if view.request_id in self._reasons:
            self._compare(f"{at}last_reason", self._reasons[view.request_id], view.last_reason)
        self._compare(f"{at}answer_bytes", required_answer_bytes(request), view.answer_bytes)
        # What a verifier uses is the relayer's guess, within what the market gives it.
        most_gas = 0 if request.verifier == ZERO_ADDRESS else inputs.terms.verifier_gas
        if not min(1, most_gas) <= view.verifier_gas <= most_gas:
            expected = f"{min(1, most_gas)} to {most_gas}"
            self._find(Severity.DIFFERENCE, f"{at}verifier_gas", expected, str(view.verifier_gas))
        block = self._evidence.blocks.get(known.block)
        if block is not None:
            self._compare(f"{at}included_at_s", block.timestamp_s, view.included_at_s)
        # A relayer may already know what is newer than its anchor, so any value up to the record's block is true.
        span = (inputs.anchor.block, recorded_block)
        fees = [request.priority_fee_wei + added for added in _values(0, known.fees_added, *span)]
        self._compare_any(f"{at}priority_fee_wei", fees, view.priority_fee_wei)
        self._compare_any(f"{at}deadline_s", _values(request.deadline_s, known.deadlines, *span), view.deadline_s)
        if view.k and view.request_id not in self._decided_before and known.block > self._gap_block:
            self._check_quorum(view, at)

    def _check_quorum(self, view: WaitingRequest, at: str) -> None:
        """That a quorum goes on from its last listing, with none of its nodes forgotten: n bounds them all.

        Not for one that may have been listed in a round that is not audited.
        """
        listings = self._listings.get(view.request_id, [])
        listed = sorted({node for _, nodes in listings for node in nodes})
        owners = sorted({self._evidence.owners.get(node, "not registered") for node in listed})
        self._compare(f"{at}assignments", len(listings), view.assignments)
        self._compare(f"{at}supersedes_round", listings[-1][0] if listings else 0, view.supersedes_round)
        self._compare(f"{at}listed nodes", listed, sorted({*view.kept_nodes, *view.excluded_nodes}))
        self._compare(f"{at}tried_owners", owners, list(view.tried_owners))

    def _note_listings(self, plan: CyclePlan, round_: int) -> None:
        listed: dict[Hash32, set[Address]] = {}
        for planned in plan.of_kind(DecisionKind.ASSIGNED):
            listed.setdefault(planned.decision.request_id, set()).add(planned.decision.node)
        for request_id, nodes in listed.items():
            self._listings.setdefault(request_id, []).append((round_, frozenset(nodes)))

    def _check_completeness(self, inputs: CycleInputs) -> None:
        """Every request that was eligible at the anchor is in the snapshot."""
        present = {request.request_id for request in inputs.requests}
        confirmed = inputs.anchor.block - self._evidence.confirmations
        for request_id, known in self._requests.items():
            is_closed = known.closed_block is not None and known.closed_block <= inputs.anchor.block
            deadline_s = _values(known.request.deadline_s, known.deadlines, inputs.anchor.block, inputs.anchor.block)[0]
            is_due = known.is_owed and known.block <= confirmed and not is_closed and deadline_s * 1000 > inputs.now_ms
            if is_due and request_id not in self._decided | present:
                self._find(Severity.DIFFERENCE, "completeness", f"request {request_id} in a snapshot", "left out")
                self._decided.add(request_id)

    # Findings

    def _compare(self, name: str, expected: object, got: object) -> None:
        if expected != got:
            self._find(Severity.DIFFERENCE, name, str(expected), str(got))

    def _compare_any(self, name: str, expected: Sequence[int], got: int) -> None:
        if got not in expected:
            self._find(Severity.DIFFERENCE, name, " or ".join(str(value) for value in expected), str(got))

    def _find(self, severity: Severity, name: str, expected: str, got: str) -> None:
        self.findings.append(Finding(severity, self._round, name, expected, got))


def _requests_of(evidence: Evidence) -> dict[Hash32, _OnChain]:
    """The requests that the relayer may serve, by the market's events."""
    requests: dict[Hash32, _OnChain] = {}
    for event in evidence.events:
        if event.contract != evidence.market or "requestId" not in event.args:
            continue
        request_id = event.args["requestId"]
        if event.name == "InferenceRequested" and event.args["relayer"] in (evidence.relayer, ZERO_ADDRESS):
            is_owed = event.args["relayer"] == evidence.relayer
            requests[request_id] = _OnChain(request_from_event(event.args), event.block_number, is_owed)
        known = requests.get(request_id)
        if known is None:
            continue
        if event.name == "PriorityFeeRaised":
            known.fees_added.append((event.block_number, int(event.args["total"])))
        elif event.name == "CancelAnnounced":
            known.deadlines.append((event.block_number, int(event.args["effectiveDeadline"])))
        elif event.name in ("ResultFulfilled", "RequestClosed"):
            known.closed_block = event.block_number
    return requests


def _values(first: int, changes: Sequence[tuple[int, int]], from_block: int, to_block: int) -> list[int]:
    """The value at `from_block`, then those that it took up to `to_block`."""
    value, later = first, []
    for block, changed in changes:
        if block <= from_block:
            value = changed
        elif block <= to_block:
            later.append(changed)
    return [value, *later]
