"""Holds a relayer's store against the chain, request by request: once, or again and again beside the other loops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import structlog

from headrace.core.errors import ChainUnavailable
from headrace.core.events import BlockRef
from headrace.core.reconciliation import Discrepancy, Finding, InStore, OnChain, Slack, compare, ledger
from headrace.core.types import Address, Hash32, MarketTerms
from headrace.ports import Chain, Metrics, Store, StoredResult
from headrace.services.together import together

log = structlog.get_logger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ReconcilerSettings:
    """Pace and bounds. Ranges are small and requests looked up some at a time: the other loops go on between them."""

    range_blocks: int = 25
    chunk_requests: int = 200
    period_s: int = 300
    slack: Slack = field(default_factory=Slack)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What was compared and what differs. `open_from`: block of the oldest request that is not ended."""

    first_block: int
    last_block: int
    requests: int
    fulfilled: int
    expired: int
    cancelled: int
    open: int
    findings: tuple[Finding, ...]
    open_from: int

    @property
    def underpaid_wei(self) -> int:
        """What nodes lack."""
        return sum(each.wei for each in self.findings if each.kind is Discrepancy.UNPAID)

    def count(self, kind: Discrepancy) -> int:
        """How many requests differ in this way."""
        return len({each.request_id for each in self.findings if each.kind is kind})


class Reconciler:
    """Compares chain and store. It only reads."""

    def __init__(
        self,
        chain: Chain,
        store: Store,
        metrics: Metrics,
        relayer: Address,
        first_block: int,
        terms: MarketTerms,
        settings: ReconcilerSettings | None = None,
    ) -> None:
        self._chain = chain
        self._store = store
        self._metrics = metrics
        self._relayer = relayer
        self._next_block = first_block
        self._terms = terms
        self._settings = settings or ReconcilerSettings()

    async def run(self) -> None:
        """Compare until cancelled: each time what is new, and what had not ended the last time."""
        while True:
            await asyncio.sleep(self._settings.period_s)
            try:
                await self.step()
            except ChainUnavailable as exc:
                log.warning("reconciling_postponed", error=str(exc))

    async def step(self) -> Reconciliation | None:
        """Compare all that may have changed since the last step. None when the store has no block yet."""
        last = await self._store.last_block()
        if last is None or last.number < self._next_block:
            return None
        done = await self.compare(self._next_block, last.number)
        self._next_block = done.open_from
        for kind in Discrepancy:
            self._metrics.gauge("headrace_discrepancies", done.count(kind), kind=str(kind))
        for each in done.findings:
            log.error("discrepancy", kind=str(each.kind), requestId=each.request_id, why=each.why, wei=str(each.wei))
        return done

    async def compare(
        self, first: int, last: int, on_progress: Callable[[int], None] = lambda _: None
    ) -> Reconciliation:
        """Compare the requests that were posted in a closed range of blocks.

        Args:
            first: the range's first block.
            last: its last, at most the store's.
            on_progress: is told the blocks that were read.

        Raises:
            ChainUnavailable: the chain did not answer, or changed meanwhile.
        """
        reached = await self._store.last_block()
        if reached is None:
            return Reconciliation(first, last, 0, 0, 0, 0, 0, (), first)
        known = {
            id_: each
            for id_, each in (await self._ledger(first, reached, on_progress)).items()
            if each.block_number <= last
        }
        findings: list[Finding] = []
        for some in _chunks(known.items(), self._settings.chunk_requests):
            found = await together(self._compare(request_id, each, reached) for request_id, each in some)
            findings += [finding for each in found for finding in each]
        ends = Counter("fulfilled" if each.payments else _end_of(each) for each in known.values())
        open_from = min((each.block_number for each in known.values() if each.is_open), default=last + 1)
        return Reconciliation(
            first,
            last,
            len(known),
            ends["fulfilled"],
            ends["expired"],
            ends["cancelled"],
            ends["open"],
            tuple(findings),
            open_from,
        )

    async def _ledger(self, first: int, reached: BlockRef, on_progress: Callable[[int], None]) -> dict[Hash32, OnChain]:
        found: dict[Hash32, OnChain] = {}
        for start in range(first, reached.number + 1, self._settings.range_blocks):
            end = min(reached.number, start + self._settings.range_blocks - 1)
            found = ledger(await self._chain.events(start, end), self._relayer, found)
            on_progress(end - start + 1)
        block = await self._chain.block(reached.number)
        if block is None or block.hash != reached.hash:
            raise ChainUnavailable(f"the chain has left block {reached.number} behind: try again")
        return found

    async def _compare(self, request_id: Hash32, chain: OnChain, reached: BlockRef) -> list[Finding]:
        in_store = await self._in_store(request_id)
        found = compare(request_id, chain, in_store, self._terms, reached.timestamp_s, self._settings.slack)
        if not found:
            return []
        # The store may be further on than the events that were read.
        now = await self._store.last_block()
        if now is None or now == reached:
            return found
        (status,) = await self._chain.statuses([request_id])
        stored = await self._store.request(request_id)
        moved = stored is not None and in_store is not None and stored.state != in_store.state
        settled_since = chain.is_open and int(status) > 1
        return [] if moved or settled_since else found

    async def _in_store(self, request_id: Hash32) -> InStore | None:
        stored = await self._store.request(request_id)
        if stored is None:
            return None
        results: list[StoredResult] = await self._store.results(request_id)
        # Of a quorum the one that its nodes agree on, if they do; single requests have one at most.
        first = await self._store.result(request_id) if stored.request.k else next(iter(results), None)
        if first is None:
            return InStore(stored.state)
        agreed = [each for each in results if each.result.result_hash == first.result.result_hash]
        paid = [each for each in agreed if each.result.round == first.result.round]
        answered_at_s = max(each.received_at_ms for each in paid) // 1000
        return InStore(stored.state, first.result.reward_wei, len(paid), answered_at_s)


def _chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Lists of so many, in order."""
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield some


def _end_of(each: OnChain) -> str:
    return each.closings[0].name.lower() if each.closings else "open"
