"""The keys that send for a relayer, side by side: each a lane with its own nonces, which no other waits for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog

from headrace.core.errors import ChainUnavailable, ExpiredContext, SignerUnavailable
from headrace.core.types import Address
from headrace.ports import Clock, Metrics, Store, StoredIntent
from headrace.services.sender import Sender

log = structlog.get_logger(__name__)

_PASSED_OVER_MS = 10_000
"""How long a lane that could send nothing comes last."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One key: its sender, and its address when it is not the relayer's own."""

    sender: Sender
    submitter: Address | None = None

    @property
    def address(self) -> Address:
        """Whose nonces these are."""
        return self.sender.address


class Lanes:
    """A relayer's lanes. The first also follows what keys that do not send any more left open.

    Args:
        lanes: one or more, each of another key. Of several, each sender takes its own key's intents only.
        store: tells what is open in a lane that could not be asked.
        clock: tells how long ago a lane could send nothing.
        metrics: tells how much is open in each of several.
    """

    def __init__(self, lanes: Sequence[Lane], store: Store, clock: Clock, metrics: Metrics) -> None:
        self._lanes = tuple(lanes)
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._failed_at_ms: dict[Address, int] = {}
        own = {lane.address for lane in self._lanes}
        for lane in self._lanes:
            lane.sender.leave(own - {lane.address}, and_strangers=lane is not self._lanes[0])

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    async def confirm(self) -> list[StoredIntent]:
        """Have each lane look after its intents. One that fails keeps no other from it.

        Returns:
            What is still open, in all of them.
        """
        if len(self._lanes) == 1:
            return await self._lanes[0].sender.confirm()
        done = await asyncio.gather(*(lane.sender.confirm() for lane in self._lanes), return_exceptions=True)
        failed = {}
        for lane, each in zip(self._lanes, done, strict=True):
            if isinstance(each, ChainUnavailable | SignerUnavailable | ExpiredContext):
                failed[lane.address] = each
                log.warning("lane_postponed", sender=lane.address, error=str(each))
            elif isinstance(each, BaseException):
                raise each
        if len(failed) == len(self._lanes):
            raise failed[self._lanes[0].address]
        still_open = await self._store.open_intents()
        counts = Counter(intent.sender for intent in still_open)
        for lane in self._lanes:
            self._metrics.gauge("headrace_lane_open_transactions", counts[lane.address], sender=lane.address)
        return still_open

    def free(self, still_open: Sequence[StoredIntent], most_batches: int) -> list[Lane]:
        """Lanes that may take another batch, the one with the fewest open intents first. To a lone one all that is open
        counts."""
        batches = Counter(intent.sender for intent in still_open if intent.kind == "submit_results")
        if len(self._lanes) == 1:
            return [*self._lanes] if batches.total() < most_batches else []
        counts = Counter(intent.sender for intent in still_open)
        lanes = [lane for lane in self._lanes if batches[lane.address] < most_batches]
        return sorted(lanes, key=lambda lane: (self._is_passed_over(lane), counts[lane.address]))

    def carrier(self, still_open: Sequence[StoredIntent]) -> Lane | None:
        """The lane in which the newest record is on its way: the next one, and what needs it, must come after it."""
        records = [intent for intent in still_open if intent.kind == "record_round"]
        newest = max(records, key=lambda intent: intent.detail["round"], default=None)
        return next((lane for lane in self._lanes if newest is not None and lane.address == newest.sender), None)

    def pass_over(self, lane: Lane, why: str) -> None:
        """Have a lane that cannot send come last for a while."""
        self._failed_at_ms[lane.address] = self._clock.now_ms()
        log.warning("lane_passed_over", sender=lane.address, reason=why)

    def _is_passed_over(self, lane: Lane) -> bool:
        failed_at_ms = self._failed_at_ms.get(lane.address)
        # A clock that was set back must not keep it out.
        return failed_at_ms is not None and 0 <= self._clock.now_ms() - failed_at_ms < _PASSED_OVER_MS
