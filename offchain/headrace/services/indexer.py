"""Follows the chain: every block by its hash, its events with it, and back again when the chain changes its mind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import structlog

from headrace.core.errors import ChainUnavailable, HeadraceError, InvalidInput
from headrace.core.events import BlockRef, ChainEvent
from headrace.core.types import Address
from headrace.ports import Chain, Clock, Metrics, Store

log = structlog.get_logger(__name__)


_FIRST_RANGE_BLOCKS = 32


class ReorgTooDeep(HeadraceError):
    """The chain has left more blocks behind than the relayer may undo by itself."""

    code = "REORG_TOO_DEEP"


@dataclass(frozen=True, slots=True)
class IndexerSettings:
    """Pace and bounds of the indexer."""

    poll_ms: int = 250
    range_blocks: int = 500  # at most, of one step
    range_events: int = 2_000  # of one step, about: a step is one transaction, and holds up the other loops
    confirmations: int = 1  # blocks on top of a request's own before it is served
    max_rewind: int = 256
    max_backoff_ms: int = 10_000
    reread_blocks: int = 32  # at the head, whose logs are asked for once more
    reread_every_blocks: int = 16


class Indexer:
    """The indexing loop. Back-filling and following the head are the same steps.

    `head` is the chain's last block as the node told it. `caught_up` is set once all events up to the head are stored
    for the first time: what is eligible before that may long be settled. `halted` says why it does not go on, if so.
    """

    def __init__(
        self,
        chain: Chain,
        store: Store,
        clock: Clock,
        metrics: Metrics,
        relayer: Address,
        first_block: int,
        on_change: Callable[[], None],
        settings: IndexerSettings | None = None,
    ) -> None:
        """
        Args:
            chain: what is followed.
            store: where blocks and events go.
            clock: dates the moves of requests.
            metrics: what is counted.
            relayer: whose requests and rounds these are.
            first_block: the block of the deployment: there is nothing before it.
            on_change: called after every change of the store.
            settings: pace and bounds.
        """
        self.head: BlockRef | None = None
        self.caught_up = asyncio.Event()
        self.halted = ""
        self._chain = chain
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._relayer = relayer
        self._first_block = first_block
        self._on_change = on_change
        self._settings = settings or IndexerSettings()
        self._confirmed: BlockRef | None = None
        self._reread_at: int | None = None
        self._range_blocks = min(self._settings.range_blocks, _FIRST_RANGE_BLOCKS)

    async def run(self) -> None:
        """Index until cancelled.

        Raises:
            ReorgTooDeep: the operator must look; nothing was undone.
        """
        backoff_ms = self._settings.poll_ms
        while True:
            try:
                moved = await self.step()
            except (ChainUnavailable, InvalidInput) as exc:
                # An error says nothing of the chain: what is stored stays, and the question is asked again.
                log.warning("indexing_postponed", error=str(exc), retry_ms=backoff_ms)
                await asyncio.sleep(backoff_ms / 1000)
                backoff_ms = min(2 * backoff_ms, self._settings.max_backoff_ms)
                continue
            backoff_ms = self._settings.poll_ms
            if not moved or self._is_at_head:
                await asyncio.sleep(self._settings.poll_ms / 1000)

    async def run_or_halt(self, acting: Collection[asyncio.Task[None]]) -> None:
        """Index until cancelled. When more is to be undone than may be, end the tasks that act on what is stored, and
        wait for the operator: the doors stay open, and `halted` is told by them.

        Args:
            acting: the tasks, which may become more as time goes by.
        """
        try:
            await self.run()
        except ReorgTooDeep as exc:
            self.halted = str(exc)
            log.critical("relayer_halted", reason=str(exc))
            for task in acting:
                task.cancel()
            await asyncio.Event().wait()

    async def step(self) -> bool:
        """Take one step towards the head: undo what is not on the chain any more, or store the next range of blocks.

        Returns:
            Whether the store changed.

        Raises:
            ChainUnavailable: the node did not answer; nothing changed.
            ReorgTooDeep: the store has no common block with the chain within `max_rewind`; nothing changed.
        """
        head = await self._chain.head()
        self.head = head
        last = await self._store.last_block()
        if last is not None and not await self._is_canonical(last, head):
            await self._rewind(last, head)
            return True
        next_number = self._first_block if last is None else last.number + 1
        if next_number > head.number:
            return last is not None and last == head and (await self._reread(head) or await self._confirm(head))
        return await self._index(last, next_number, head)

    # Forward

    async def _index(self, last: BlockRef | None, start: int, head: BlockRef) -> bool:
        end = min(head.number, start + self._range_blocks - 1)
        # Headers first: the node is held to them when it lists the events.
        blocks = await self._chain.blocks(start, end)
        events = await self._chain.events(start, end)
        if len(blocks) != end - start + 1 or not _fit(last, blocks, events):
            # The chain moved between the questions, or they went to nodes that differ. The next step sees what holds.
            log.info("range_inconsistent", start=start, end=end)
            return False
        self._fit_range(len(blocks), len(events))
        await self._store.add_blocks(blocks, events, self._relayer)
        self._metrics.count("headrace_blocks_indexed_total", len(blocks))
        self._metrics.count("headrace_events_indexed_total", len(events))
        self._metrics.gauge("headrace_head_block", end)
        if events:
            log.info("blocks_indexed", start=start, end=end, events=len(events))
        if blocks[-1] == head:
            await self._confirm(head)
        self._on_change()
        return True

    def _fit_range(self, blocks: int, events: int) -> None:
        """Make the next range as long as is right for what this one had in it."""
        fitting = blocks * self._settings.range_events // events if events else self._settings.range_blocks
        self._range_blocks = max(1, min(fitting, 2 * self._range_blocks, self._settings.range_blocks))

    async def _reread(self, head: BlockRef) -> bool:
        """Now and then, look whether the last blocks have events that were not told when they were read: a node may
        have had a block without its logs yet, and have denied them by the block's hash as well."""
        if self._reread_at is None:
            self._reread_at = head.number  # it has all just been read
        if head.number - self._reread_at < self._settings.reread_every_blocks:
            return False
        start = max(self._first_block, head.number - self._settings.reread_blocks + 1)
        told = await self._chain.events(start, head.number)
        known = await self._store.event_places(start, head.number)
        self._reread_at = head.number
        missed = [event for event in told if (event.block_hash, event.log_index) not in known]
        stored = {number: await self._store.block(number) for number in {event.block_number for event in missed}}
        numbers = [number for number, block in stored.items() if block and _has_events_of(block, missed)]
        if not numbers:
            return False
        log.error("events_missed", blocks=sorted(numbers), hint="the endpoint told too late what is in them")
        self._metrics.count("headrace_blocks_reread_total", len(numbers))
        await self._store.rewind_to(min(numbers) - 1)
        self._confirmed = None
        self._on_change()
        return True

    async def _confirm(self, head: BlockRef) -> bool:
        """Let requests be served that are deep enough, now that everything up to the head is known."""
        self.caught_up.set()
        if self._confirmed == head:
            return False
        confirmed = await self._store.confirm_up_to(head.number - self._settings.confirmations, self._clock.now_ms())
        self._confirmed = head
        if confirmed:
            log.info("requests_confirmed", requests=confirmed, head=head.number)
            self._on_change()
        return confirmed > 0

    @property
    def _is_at_head(self) -> bool:
        return self._confirmed is not None and self._confirmed == self.head

    # Back

    async def _is_canonical(self, last: BlockRef, head: BlockRef) -> bool:
        """Whether the last stored block is on the chain, as far as this node can tell."""
        if head.number == last.number + 1:
            return head.parent_hash == last.hash
        if head.number >= last.number:
            block = head if head.number == last.number else await self._chain.block(last.number)
            return block is None or block.hash == last.hash
        # A lower head is a node that lags, unless it has another block where there is one in the store.
        stored = await self._store.block(head.number)
        return stored is None or stored.hash == head.hash

    async def _rewind(self, last: BlockRef, head: BlockRef) -> None:
        ancestor = await self._common_ancestor(last, head)
        depth = last.number - ancestor.number
        touched = await self._store.rewind_to(ancestor.number)
        self._confirmed = None
        log.warning("chain_reorganised", depth=depth, ancestor=ancestor.number, requests=len(touched))
        self._metrics.count("headrace_reorgs_total")
        self._metrics.gauge("headrace_head_block", ancestor.number)
        self._on_change()

    async def _common_ancestor(self, last: BlockRef, head: BlockRef) -> BlockRef:
        """The newest stored block that is on the chain.

        Raises:
            ReorgTooDeep: it is more than `max_rewind` back, or there is none.
            ChainUnavailable: the node has no block where it must have one.
        """
        number = min(last.number, head.number) - 1
        while last.number - number <= self._settings.max_rewind:
            stored = await self._store.block(number)
            if stored is None:
                break
            block = await self._chain.block(number)
            if block is None:
                raise ChainUnavailable(f"the node's head is {head.number}, but it has no block {number}")
            if block.hash == stored.hash:
                return stored
            number -= 1
        raise ReorgTooDeep(
            f"the chain and the store have no block in common from {last.number} down to {number + 1}: the reorg is "
            f"deeper than {self._settings.max_rewind} blocks, or this is another chain. Nothing was undone; check the "
            "node, then raise HEADRACE_CHAIN__MAX_REWIND or start with an empty store"
        )


def _has_events_of(block: BlockRef, events: Sequence[ChainEvent]) -> bool:
    """Whether events are of this very block. Those of another at its height are for the parent check."""
    return any(event.block_hash == block.hash for event in events)


def _fit(last: BlockRef | None, blocks: Sequence[BlockRef], events: Sequence[ChainEvent]) -> bool:
    """Whether blocks follow on the last one and on each other, and events are of these very blocks."""
    chained = blocks if last is None else [last, *blocks]
    if any(child.parent_hash != parent.hash for parent, child in pairwise(chained)):
        return False
    hashes = {block.number: block.hash for block in blocks}
    return all(hashes.get(event.block_number) == event.block_hash for event in events)
