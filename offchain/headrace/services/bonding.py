"""Sees now and then whether the relayer's bond counts. Without it no round can be recorded, so nothing new is begun;
what is recorded is still settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from headrace.core.errors import ChainUnavailable
from headrace.core.types import Address
from headrace.ports import Chain, Metrics

log = structlog.get_logger(__name__)


class Bonding:
    """The looking loop. Until the first look the bond is taken to count.

    Args:
        chain: tells.
        metrics: is told.
        relayer: whose bond.
        on_back: called when it counts again.
        poll_ms: time between two looks.
    """

    def __init__(
        self, chain: Chain, metrics: Metrics, relayer: Address, on_back: Callable[[], None], *, poll_ms: int = 2_000
    ) -> None:
        self._chain = chain
        self._metrics = metrics
        self._relayer = relayer
        self._on_back = on_back
        self._poll_ms = poll_ms
        self._holds = True

    def holds(self) -> bool:
        """Whether it counts, as of the last look."""
        return self._holds

    async def run(self) -> None:
        """Look until cancelled. A chain that does not answer leaves it as it was."""
        while True:
            try:
                await self.step()
            except ChainUnavailable as exc:
                log.debug("bond_unknown", error=str(exc))
            await asyncio.sleep(self._poll_ms / 1000)

    async def step(self) -> None:
        """Look once.

        Raises:
            ChainUnavailable: the chain does not tell.
        """
        holds = await self._chain.is_bonded(self._relayer)
        self._metrics.gauge("headrace_relayer_bonded", int(holds))
        if holds == self._holds:
            return
        self._holds = holds
        if holds:
            log.warning("bond_back", relayer=self._relayer, detail="requests are taken and assigned again")
            self._on_back()
        else:
            log.warning(
                "bond_gone",
                relayer=self._relayer,
                detail="nothing new is drafted, posted or assigned; results of recorded rounds are settled, and those "
                "of others left to their nodes",
                hint="`headrace bond show` says why: add to the bond, or register anew once it is withdrawn",
            )
