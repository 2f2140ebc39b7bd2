"""Gathers what an audit needs, the relayer's side and the chain's, and has `core.audit` compare them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.client.errors import ApiRefused
from headrace.client.http import ApiCalls
from headrace.core.audit import (
    Evidence,
    Finding,
    RecordedRound,
    ServedRound,
    Severity,
    audit_rounds,
    recorded_round,
)
from headrace.core.errors import InvalidInput, NotFound, Unavailable
from headrace.core.events import BlockRef, ChainEvent
from headrace.core.merkle import leaf_of, root_of
from headrace.core.snapshot import MOST_DELTAS, base_of
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Address, Decision, DecisionKind, Hash32, Reason
from headrace.ports import Chain, Store

EVENT_WINDOW = 2_000
LEAVES_PAGE = 1_000


class RoundSource(Protocol):
    """Where a relayer's rounds are served."""

    async def served(self, round_: int) -> ServedRound | None:
        """A round's snapshots, or None when there is no such round."""
        ...

    async def leaves(self, round_: int) -> list[Decision] | None:
        """A round's leaves in their order, or None when they cannot be had."""
        ...


class _Texts:
    """Snapshots and what they are based on, each fetched once: those of a round are based on the round before."""

    def __init__(self, fetch: Callable[[Hash32], Awaitable[bytes | None]]) -> None:
        self._fetch = fetch
        self._known: dict[Hash32, bytes] = {}

    async def of(self, hashes: Sequence[Hash32]) -> dict[Hash32, bytes]:
        """The texts of these and of their bases, as far as they can be had."""
        found: dict[Hash32, bytes] = {}
        for hash_ in hashes:
            wanted: Hash32 | None = hash_
            # More bases than there may be are not fetched: the audit says so.
            for _ in range(MOST_DELTAS + 2):
                if wanted is None or wanted in found:
                    break
                data = self._known.get(wanted) or await self._fetch(wanted)
                if data is None:
                    break
                found[wanted] = data
                wanted = base_of(data)
        self._known = found
        return found


class ApiRounds:
    """Rounds from a relayer's API."""

    def __init__(self, calls: ApiCalls) -> None:
        self._calls = calls
        self._texts = _Texts(self._snapshot)

    async def served(self, round_: int) -> ServedRound | None:
        """See RoundSource."""
        try:
            body = await self._calls.json("GET", f"/v1/rounds/{round_}")
            hashes = tuple(str(cycle["snapshot_hash"]) for cycle in body["cycles"])
        except (ApiRefused, KeyError, TypeError):
            return None
        return ServedRound(hashes, await self._texts.of(hashes))

    async def _snapshot(self, snapshot_hash: Hash32) -> bytes | None:
        try:
            return await self._calls.bytes(f"/v1/snapshots/{snapshot_hash}")
        except ApiRefused:
            return None  # the audit says that it is withheld

    async def leaves(self, round_: int) -> list[Decision] | None:
        """See RoundSource."""
        found: list[Decision] = []
        offset: int | None = 0
        while offset is not None:
            query = {"limit": str(LEAVES_PAGE), "offset": str(offset)}
            try:
                page = await self._calls.json("GET", f"/v1/rounds/{round_}/decisions", query=query)
                found += [decision_of(leaf) for leaf in page["leaves"]]
                offset = page["next_offset"]
            except (ApiRefused, LookupError, TypeError, ValueError):
                return None
        return found


class StoreRounds:
    """Rounds from a relayer's own store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._texts = _Texts(store.snapshot)

    async def served(self, round_: int) -> ServedRound | None:
        """See RoundSource."""
        hashes = tuple(cycle.snapshot_hash for cycle in await self._store.cycles(round_))
        return ServedRound(hashes, await self._texts.of(hashes)) if hashes else None

    async def leaves(self, round_: int) -> list[Decision] | None:
        """See RoundSource."""
        return await self._store.leaves(round_) or None


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found."""

    relayer: Address
    first: int
    last: int
    findings: tuple[Finding, ...]

    @property
    def is_withheld(self) -> bool:
        """Whether data that must be served was not, or is not what was recorded."""
        return any(finding.severity is Severity.VIOLATION for finding in self.findings)

    @property
    def differs(self) -> bool:
        """Whether something else was recorded than the data gives."""
        return any(finding.severity is Severity.DIFFERENCE for finding in self.findings)


async def audit(
    chain: Chain,
    source: RoundSource,
    relayer: Address,
    *,
    first: int | None,
    last: int | None,
    first_block: int,
    confirmations: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> AuditReport:
    """Audit a relayer's recorded rounds.

    Args:
        chain: for records, requests and blocks.
        source: where the relayer's snapshots are.
        relayer: whose rounds.
        first: the first round, 1 unless given.
        last: the last round, the last recorded one unless given.
        first_block: of the deployment.
        confirmations: that the relayer waits for.
        on_progress: is told what is being done.

    Raises:
        InvalidInput: one of the rounds is not recorded; the message says which are.
        NotFound: none is.
        Unavailable: the chain or the relayer does not answer.
    """
    on_progress("reading the chain")
    events = await _events(chain, first_block)
    recorded = _recorded(events, chain, relayer)
    chosen = _chosen(recorded, relayer, first, last)
    blocks = await _blocks(chain, events, chosen, relayer)
    evidence = Evidence(
        chain.chain_id,
        chain.market,
        relayer,
        await chain.market_terms(),
        events,
        blocks,
        confirmations,
        _owners(events, chain.stake_manager),
        {model.model_id: model.complexity_milli for model in await chain.models()},
    )
    rounds: list[tuple[RecordedRound, ServedRound | None]] = []
    for each in chosen:
        on_progress(f"fetching the snapshots of round {each.record.round}")
        rounds.append((each, await source.served(each.record.round)))
    before = [each for each in recorded.values() if each.record.round < chosen[0].record.round]
    on_progress("reading what earlier rounds decided")
    settled_before, withheld = await _settled_before(source, before, events, chosen[0], relayer)
    previous_head = before[-1].head if before else ZERO_HASH
    on_progress("replaying")
    findings = audit_rounds(rounds, evidence, previous_head, settled_before)
    return AuditReport(relayer, chosen[0].record.round, chosen[-1].record.round, (*withheld, *findings))


def parse_rounds(text: str) -> tuple[int | None, int | None]:
    """`3..9`, `3..`, `..9` or `5`.

    Raises:
        InvalidInput: it is none of these.
    """
    low, dots, high = text.partition("..")
    parts = [low, high if dots else low]
    if not any(parts) or not all(
        part == "" or (part.isascii() and part.isdecimal() and int(part) > 0) for part in parts
    ):
        raise InvalidInput(f"{text!r} names no rounds: write a..b, such as 1..20, with numbers from 1")
    first, last = (int(part) if part else None for part in parts)
    if first is not None and last is not None and first > last:
        raise InvalidInput(f"{text!r} names no rounds: the first comes after the last")
    return first, last


async def _events(chain: Chain, first_block: int) -> list[ChainEvent]:
    head = await chain.head()
    events: list[ChainEvent] = []
    for start in range(first_block, head.number + 1, EVENT_WINDOW):
        events += await chain.events(start, min(start + EVENT_WINDOW - 1, head.number))
    return events


def _owners(events: Sequence[ChainEvent], stake_manager: Address) -> dict[Address, Address]:
    """Owners of all keys that were ever registered; a key that took over from another has the other's."""
    owners: dict[Address, Address] = {}
    for event in events:
        if event.contract != stake_manager:
            continue
        if event.name == "NodeRegistered":
            owners[event.args["key"]] = event.args["owner"]
        elif event.name == "KeyRotated":
            owners[event.args["newKey"]] = owners[event.args["oldKey"]]
    return owners


def _recorded(events: Sequence[ChainEvent], chain: Chain, relayer: Address) -> dict[int, RecordedRound]:
    found = [
        recorded_round(event)
        for event in events
        if event.name == "RoundRecorded" and event.contract == chain.schedule_log and event.args["relayer"] == relayer
    ]
    return {each.record.round: each for each in sorted(found, key=lambda each: each.record.round)}


def _chosen(
    recorded: dict[int, RecordedRound], relayer: Address, first: int | None, last: int | None
) -> list[RecordedRound]:
    if not recorded:
        raise NotFound(
            f"the relayer {relayer} has recorded no round on this chain yet, so there is nothing to audit: one is "
            "recorded once a request was assigned. If there should be some, check --relayer"
        )
    numbers = range(first or 1, (last or max(recorded)) + 1)
    if not numbers or numbers[-1] not in recorded:
        raise InvalidInput(f"the relayer {relayer} has recorded rounds 1..{max(recorded)} so far: choose among these")
    missing = [number for number in numbers if number not in recorded]
    if missing:
        raise Unavailable(f"the chain's endpoint does not show the record of round {missing[0]}: use one with all logs")
    return [recorded[number] for number in numbers]


async def _blocks(
    chain: Chain, events: Sequence[ChainEvent], chosen: Sequence[RecordedRound], relayer: Address
) -> dict[int, BlockRef]:
    """Blocks of anchors and of requests that may be in these rounds."""
    last = chosen[-1].block
    wanted = {each.record.anchor_block for each in chosen}
    wanted |= {
        event.block_number
        for event in events
        if event.name == "InferenceRequested"
        and event.args["relayer"] in (relayer, ZERO_ADDRESS)
        and event.block_number <= last
    }
    found = [await chain.block(number) for number in sorted(wanted)]
    return {block.number: block for block in found if block is not None}


async def _settled_before(
    source: RoundSource,
    before: Sequence[RecordedRound],
    events: Sequence[ChainEvent],
    first: RecordedRound,
    relayer: Address,
) -> tuple[set[Hash32], list[Finding]]:
    """Requests that earlier rounds assigned or gave up, as far back as one that was open at the first anchor."""
    closed = {
        event.args["requestId"]
        for event in events
        if event.name in ("ResultFulfilled", "RequestClosed") and event.block_number <= first.record.anchor_block
    }
    open_blocks = [
        event.block_number
        for event in events
        if event.name == "InferenceRequested"
        and event.args["relayer"] == relayer
        and event.block_number <= first.record.anchor_block
        and event.args["requestId"] not in closed
    ]
    settled: set[Hash32] = set()
    findings = []
    for each in reversed(before):
        if not open_blocks or each.block < min(open_blocks):
            break
        leaves = await source.leaves(each.record.round)
        if leaves is None or root_of([leaf_of(leaf) for leaf in leaves]) != each.record.decisions_root:
            got = "withheld" if leaves is None else root_of([leaf_of(leaf) for leaf in leaves])
            root = each.record.decisions_root
            findings.append(Finding(Severity.VIOLATION, each.record.round, "decisions", root, got))
            continue
        settled |= {leaf.request_id for leaf in leaves if leaf.kind is not DecisionKind.SKIPPED}
    return settled, findings


def decision_of(leaf: Any) -> Decision:
    """A leaf as the API gives it."""
    return Decision(
        request_id=str(leaf["request_id"]),
        node=str(leaf["node"] or ZERO_ADDRESS),
        kind=DecisionKind[str(leaf["kind"]).upper()],
        reason=Reason[str(leaf["reason"])],
        reward_wei=int(leaf["reward_wei"]),
        supersedes_round=int(leaf["supersedes_round"]),
    )
