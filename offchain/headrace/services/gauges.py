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
        payers: whose balances: the relayer's, or its submitters'.
        poll_ms: time between two looks.
    """

    def __init__(self, chain: Chain, link: NodeLink, metrics: Metrics, *payers: Address, poll_ms: int = 5_000) -> None:
        self._chain = chain
        self._link = link
        self._metrics = metrics
        self._payers = payers
        self._poll_ms = poll_ms
        self.balance_wei: int | None = None  # of who has most; None before it was measured

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
        balances_wei = [await self._chain.balance_wei(payer) for payer in self._payers]
        self.balance_wei = max(balances_wei)
        self._metrics.gauge("headrace_relayer_balance_wei", min(balances_wei))
