"""Gives back what nobody answered: expires requests whose deadline and grace have passed, unasked."""

from __future__ import annotations

import asyncio
import hashlib

import structlog

from headrace.core.errors import ChainUnavailable, ExpiredContext, SignerUnavailable
from headrace.core.types import ZERO_ADDRESS, Address, MarketTerms, Status
from headrace.ports import Chain, Metrics, Signer, Store, StoredRequest
from headrace.services.sender import Draft, Sender

log = structlog.get_logger(__name__)


class Reaper:
    """The expiring loop. Looks at this relayer's requests and at those that anyone may serve."""

    def __init__(
        self,
        chain: Chain,
        store: Store,
        sender: Sender,
        signer: Signer,
        metrics: Metrics,
        terms: MarketTerms,
        *,
        submitter: Address | None = None,
        poll_ms: int = 2_000,
        max_items: int = 50,
    ) -> None:
        self._chain = chain
        self._store = store
        self._sender = sender
        self._signer = signer
        self._metrics = metrics
        self._terms = terms
        self._payer = submitter or signer.address  # anyone may expire
        self._poll_ms = poll_ms
        self._max_items = max_items

    async def run(self) -> None:
        """Expire until cancelled."""
        while True:
            try:
                await self.step()
            except (ChainUnavailable, SignerUnavailable, ExpiredContext) as exc:
                log.warning("expiring_postponed", error=str(exc))
            await asyncio.sleep(self._poll_ms / 1000)

    async def step(self) -> int:
        """Send one `expire` for what is due, unless one is under way. Returns how many requests it covers."""
        if any(intent.kind == "expire" for intent in await self._store.open_intents()):
            return 0
        due = await self._due()
        if not due:
            return 0
        call = self._chain.expire_call([stored.request for stored in due])
        (outcome,) = await self._chain.simulate(self._payer, [call])
        if not outcome.succeeded:
            log.error("simulation_failed", error=outcome.error)
            return 0
        ids = [stored.request_id for stored in due]
        key = "expire:" + hashlib.sha256("".join(ids).encode()).hexdigest()
        await self._sender.submit([Draft("expire", key, {"request_ids": ids}, call, outcome.gas_used)])
        self._metrics.count("headrace_expired_total", len(ids))
        log.info("expire_sent", requests=len(ids))
        return len(ids)

    async def _due(self) -> list[StoredRequest]:
        head = await self._store.last_block()
        if head is None:
            return []
        # `expire` needs block time > deadline + grace; the next block's time is at least the last one's.
        candidates = await self._store.expirable(head.timestamp_s - self._terms.grace_s, self._max_items)
        ours = [row for row in candidates if row.request.relayer in (self._signer.address, ZERO_ADDRESS)]
        statuses = await self._chain.statuses([row.request_id for row in ours]) if ours else []
        return [row for row, status in zip(ours, statuses, strict=True) if status is Status.PENDING]
