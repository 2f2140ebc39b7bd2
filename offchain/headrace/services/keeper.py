"""Keeps the payload store within bounds: what nobody asked anything with is thrown out, and new prompts need room.

Prompts are handed in before their requests are on the chain, by anybody, and cost nothing until then. So their bytes
are bounded together; when they are too many, the oldest go that had time enough to be posted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from headrace.core.errors import NoRoom
from headrace.ports import Clock, Metrics, Store

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """Bounds.

    Args:
        most_unused_bytes: of prompts that no request names.
        keep_unused_s: how long such a prompt is kept at least, if there is room: a request lives a day.
        posting_s: how long it is kept in any case, so that its request can be posted.
        keep_ended_s: how long prompt and answer of a request are kept after it ended.
        period_s: between two looks.
    """

    most_unused_bytes: int = 256 * 1024**2
    keep_unused_s: int = 90_000
    posting_s: int = 600
    keep_ended_s: int = 30 * 86_400
    period_s: int = 60


class Keeper:
    """The loop that throws out, and the room for prompts that are handed in."""

    def __init__(self, store: Store, clock: Clock, metrics: Metrics, settings: KeeperSettings | None = None) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._settings = settings or KeeperSettings()
        self._unused_bytes = 0

    def take(self, payload_bytes: int) -> None:
        """Room for a prompt that is handed in. What is used meanwhile counts until the next look.

        Raises:
            NoRoom: there is none.
        """
        if self._unused_bytes + payload_bytes > self._settings.most_unused_bytes:
            raise NoRoom("prompts were handed in that nobody posts, and there is no room for more now: try again later")
        self._unused_bytes += payload_bytes

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(self._settings.period_s)

    async def step(self) -> None:
        """Throw out what is not kept any longer, and count what is unused."""
        now_ms, settings = self._clock.now_ms(), self._settings
        ended = await self._store.prune_ended_payloads(now_ms - settings.keep_ended_s * 1000)
        unused = await self._store.prune_unused_prompts(now_ms - settings.keep_unused_s * 1000)
        self._unused_bytes = await self._store.unused_prompt_bytes()
        # Half of the room is made, so that it is not made prompt by prompt.
        while self._unused_bytes > settings.most_unused_bytes // 2:
            pruned = await self._store.prune_unused_prompts(now_ms - settings.posting_s * 1000, at_most=1_000)
            if not pruned:
                break
            unused += pruned
            self._unused_bytes = await self._store.unused_prompt_bytes()
        self._metrics.gauge("headrace_unused_prompt_bytes", self._unused_bytes)
        if ended or unused:
            self._metrics.count("headrace_payloads_pruned_total", ended + unused)
            log.info("payloads_pruned", ended=ended, unused=unused)
