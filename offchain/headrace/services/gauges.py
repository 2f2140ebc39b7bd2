"""Measures now and then what no event tells: how many nodes are linked and what the relayer can pay gas with."""

from __future__ import annotations

import asyncio

import structlog

from headrace.core.errors import ChainUnavailable
from headrace.core.types import Address
from headrace.ports import Chain, Metrics, NodeLink

log = structlog.get_logger(__name__)


class Gauges:
    """The measuring loop.

    Args:
        chain: tells the balance.
        link: tells the nodes.
        metrics: takes both.
        relayer: whose balance.
        poll_ms: time between two looks.
    """

    def __init__(
        self, chain: Chain, link: NodeLink, metrics: Metrics, relayer: Address, *, poll_ms: int = 5_000
    ) -> None:
        self._chain = chain
        self._link = link
        self._metrics = metrics
        self._relayer = relayer
        self._poll_ms = poll_ms

    async def run(self) -> None:
        """Measure until cancelled. A chain that does not answer leaves the balance as it was."""
        while True:
            try:
                await self.step()
            except ChainUnavailable as exc:
                log.debug("balance_unknown", error=str(exc))
            await asyncio.sleep(self._poll_ms / 1000)

    async def step(self) -> None:
        """Measure once.

        Raises:
            ChainUnavailable: the balance cannot be had.
        """
        self._metrics.gauge("headrace_linked_nodes", len(self._link.linked()))
        self._metrics.gauge("headrace_relayer_balance_wei", await self._chain.balance_wei(self._relayer))
