"""Comes to the truth after an old copy of the store was put back, which knows nothing of what was signed since
(decision 0022)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import structlog

from headrace.core.errors import ChainUnavailable, Unavailable
from headrace.core.lost import LOST_ROUNDS, lost_record
from headrace.core.types import Address, Hash32
from headrace.ports import Chain, Clock, RecoveryStore, StoredRound

log = structlog.get_logger(__name__)

Hold: TypeAlias = Callable[[Hash32, int], Awaitable[bool]]
"""Keeps a request from being assigned until a time in milliseconds; False when it is assigned."""

_RETRY_S = 1.0
# A block that was the last one then may have moved its requests to later ones.
_MARGIN_BLOCKS = 256


class Recovery:
    """Sees at the start whether the store is behind what its relayer did, and keeps the relayer from contradicting it.

    Args:
        chain: tells the next round.
        store: the relayer's.
        clock: dates the recovery.
        relayer: whose rounds they are.
        hold_s: how long nothing is assigned: until each release and each lease that may be forgotten is over.
    """

    def __init__(
        self,
        chain: Chain,
        store: RecoveryStore,
        clock: Clock,
        relayer: Address,
        hold_s: int,
    ) -> None:
        self._chain = chain
        self._store = store
        self._clock = clock
        self._relayer = relayer
        self._hold_ms = hold_s * 1000
        self._lost: StoredRound | None = None
        self._is_known = False

    async def run_once(self) -> None:
        """Take the step, however long the chain does not answer."""
        while not self._is_known:
            try:
                await self.step()
            except ChainUnavailable as exc:
                log.warning("recovery_postponed", error=str(exc))
                await asyncio.sleep(_RETRY_S)

    async def step(self) -> bool:
        """Once the store has caught up with the chain, and before anything is decided or sent. True if it is behind:
        each number that may have been signed for is then a lost round, which the settler records."""
        is_behind = await self._store.is_behind()
        if is_behind:
            await self._seal()
        self._lost = await self._store.last_lost_round()
        self._is_known = True
        return is_behind

    @property
    def held_until_ms(self) -> int:
        """When assigning begins again; 0 = nothing was lost."""
        return self._lost.opened_at_ms + self._hold_ms if self._lost else 0

    def may_assign(self) -> bool:
        """Whether nothing that may be forgotten still counts."""
        return self._is_known and self._clock.now_ms() >= self.held_until_ms

    def why_not_ready(self) -> list[str]:
        """What keeps the relayer from serving, as sentences."""
        left_s = -(-(self.held_until_ms - self._clock.now_ms()) // 1000)
        if not self._is_known or left_s <= 0:
            return []
        return [f"an old copy of the store was put back: nothing is assigned for {left_s} seconds"]

    def guarding(self, hold: Hold) -> Hold:
        """`hold` for requests that nobody who is forgotten can have assigned; the others are never released.

        What it gives raises Unavailable as long as it is not known whether anything was forgotten.
        """

        async def guarded(request_id: Hash32, until_ms: int) -> bool:
            if not self._is_known:
                raise Unavailable("the relayer is starting, and gives no releases yet: try again")
            if self._lost is not None and self._lost.record is not None:
                stored = await self._store.request(request_id)
                if stored is None or stored.block_number <= self._lost.record.anchor_block + _MARGIN_BLOCKS:
                    return False
            return await hold(request_id, until_ms)

        return guarded

    async def _seal(self) -> None:
        first, anchor = await self._chain.next_round(self._relayer), await self._store.last_block()
        if anchor is None:
            raise ChainUnavailable("no block is indexed yet")
        numbers = range(first, first + LOST_ROUNDS)
        records = [lost_record(self._relayer, number, anchor.number, anchor.hash) for number in numbers]
        await self._store.seal_lost_rounds(records, self._clock.now_ms())
        log.error(
            "store_is_behind",
            rounds=[numbers[0], numbers[-1]],
            hold_s=self._hold_ms // 1000,
            hint="an old copy of the store, or another one: see docs/operations.md, Back-up",
        )
