"""Proves faults that were found: each once, simulated first, and only when the bounty pays for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from headrace.core.errors import ExpiredContext, Refused, SignerUnavailable
from headrace.core.faults import FaultTerms, bounty_wei, pays
from headrace.core.types import ZERO_HASH, Address, Hash32
from headrace.ports import Clock, FaultChain, Metrics, StoredFault, WatchStore
from headrace.services.sender import Draft, Sender

log = structlog.get_logger(__name__)

_REASON = re.compile(r"NotProven\(reason=0x([0-9a-f]{64})\)")


@dataclass(frozen=True, slots=True)
class ProverSettings:
    """`min_return_bps`: what a bounty must bring in for the gas of its proof, 10,000 = as much; 0 = whatever it is."""

    min_return_bps: int = 10_000
    confirmations: int = 1
    retry_ms: int = 15_000
    max_faults: int = 50


class ProofSender(Protocol):
    """Who sends proofs."""

    @property
    def address(self) -> Address:
        """Whom the bounties go to."""
        ...

    async def is_under_way(self, fault: StoredFault) -> bool:
        """Whether a transaction of this fault may still be included."""
        ...

    async def send(self, fault: StoredFault, gas_used: int) -> Hash32:
        """Send the call that proves a fault; returns its transaction if that is known.

        Raises:
            Refused, ExpiredContext: it is not sent.
        """
        ...


class RelayersProofs:
    """Proofs among a relayer's other transactions."""

    def __init__(self, store: WatchStore, sender: Sender, address: Address) -> None:
        self._store = store
        self._sender = sender
        self._address = address

    @property
    def address(self) -> Address:
        """See ProofSender."""
        return self._address

    async def is_under_way(self, fault: StoredFault) -> bool:
        """See ProofSender."""
        return any(intent.key == key_of(fault) for intent in await self._store.open_intents())

    async def send(self, fault: StoredFault, gas_used: int) -> Hash32:
        """See ProofSender."""
        detail = {"fault": fault.fault.name, "culprit": fault.culprit, "request_ids": [fault.request_id]}
        await self._sender.submit([Draft("prove_fault", key_of(fault), detail, fault.call, gas_used)])
        return ZERO_HASH


def key_of(fault: StoredFault) -> str:
    """What tells a fault from all others."""
    return f"prove_fault:{int(fault.fault)}:{fault.culprit}:{fault.request_id}:{fault.node}"


class Prover:
    """Takes found faults to the chain."""

    def __init__(
        self,
        chain: FaultChain,
        store: WatchStore,
        clock: Clock,
        metrics: Metrics,
        sender: ProofSender,
        terms: FaultTerms,
        settings: ProverSettings | None = None,
    ) -> None:
        self._chain = chain
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._sender = sender
        self._terms = terms
        self._settings = settings or ProverSettings()

    async def step(self, *, at_once: bool = False) -> None:
        """Look after the faults that are not proven yet: those that were not tried for a while or, `at_once`, all."""
        now_ms = self._clock.now_ms()
        for fault in await self._store.faults(("found", "sent"), self._settings.max_faults):
            if at_once or fault.tried_at_ms == 0 or now_ms - fault.tried_at_ms >= self._settings.retry_ms:
                with structlog.contextvars.bound_contextvars(requestId=fault.request_id):
                    await self._pursue(replace(fault, tried_at_ms=now_ms))

    async def _pursue(self, fault: StoredFault) -> None:
        head = (await self._chain.head()).number
        safe = max(0, head - self._settings.confirmations)
        if await self._is_proven(fault, safe):
            await self._store.set_fault(replace(fault, state="proven", detail=""))
            self._metrics.count("headrace_faults_proven_total", fault=fault.fault.name)
            log.info("fault_proven", fault=fault.fault.name, culprit=fault.culprit)
        elif await self._sender.is_under_way(fault) or await self._is_proven(fault, head):
            await self._store.set_fault(fault)
        else:
            await self._try(fault)

    async def _is_proven(self, fault: StoredFault, at_block: int) -> bool:
        return await self._chain.is_proven(fault.fault, fault.culprit, fault.request_id, fault.node, at_block)

    async def _try(self, fault: StoredFault) -> None:
        (outcome,) = await self._chain.simulate(self._sender.address, [fault.call])
        if not outcome.succeeded:
            await self._store.set_fault(replace(fault, state="refused", detail=in_words(outcome.error)))
            log.error("proof_refused", fault=fault.fault.name, culprit=fault.culprit, error=in_words(outcome.error))
            return
        quote = await self._chain.gas_quote()
        held_wei = await self._chain.held_wei(fault.fault, fault.culprit)
        bounty = bounty_wei(self._terms, fault.fault, held_wei, quote)
        if not pays(bounty, outcome.gas_used, quote, self._settings.min_return_bps):
            cost_wei = outcome.gas_used * quote.price_wei
            detail = f"its bounty of {bounty} wei does not pay for gas of {cost_wei} wei"
            await self._store.set_fault(replace(fault, state="found", detail=detail))
            return
        await self._store.set_fault(replace(fault, state="sent", detail="", transaction_hash=ZERO_HASH))
        try:
            transaction_hash = await self._sender.send(fault, outcome.gas_used)
        except (Refused, ExpiredContext, SignerUnavailable) as exc:
            await self._store.set_fault(replace(fault, state="found", detail=str(exc)))
            log.warning("proof_not_sent", fault=fault.fault.name, culprit=fault.culprit, error=str(exc))
            return
        await self._store.set_fault(replace(fault, state="sent", detail="", transaction_hash=transaction_hash))
        log.info("proof_sent", fault=fault.fault.name, culprit=fault.culprit, bounty_wei=bounty)


def in_words(error: str) -> str:
    """What the faults contract says, with the reason of `NotProven` as text."""
    match = _REASON.fullmatch(error)
    return f"not proven: {bytes.fromhex(match[1]).rstrip(bytes(1)).decode(errors='replace')}" if match else error
