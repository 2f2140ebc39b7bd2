"""Puts intents on the chain: one nonce each for ever, attempts stored before they are sent, ended by receipts only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from headrace.core.errors import HeadraceError, Refused, Unknown
from headrace.core.fees import BPS
from headrace.core.guard import MAX_TRANSACTION_GAS, GuardPolicy, Unsigned, require_signable
from headrace.core.types import GasQuote, ItemStatus
from headrace.ports import Call, Chain, Clock, Metrics, Receipt, Signer, Store, StoredAttempt, StoredIntent

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """How transactions are priced and pushed."""

    gas_margin_bps: int = 12_500
    gas_headroom: int = 20_000
    rebroadcast_ms: int = 4_000
    give_up_blocks: int = 3  # after which a nonce that another transaction took is believed to be gone


@dataclass(frozen=True, slots=True)
class Draft:
    """A transaction to be made into an intent.

    Args:
        kind: of the intent.
        key: of the intent.
        detail: of the intent.
        call: what is sent.
        gas_used: what its simulation used.
        call_out_gas: what its call-outs may use beyond that, and what must be left for them.
    """

    kind: str
    key: str
    detail: Mapping[str, Any]
    call: Call
    gas_used: int
    call_out_gas: int = 0


class Sender:
    """The only user of a key for transactions: the relayer's own, or its submitter's."""

    def __init__(
        self,
        chain: Chain,
        store: Store,
        clock: Clock,
        signer: Signer,
        metrics: Metrics,
        guard: GuardPolicy,
        settings: SenderSettings | None = None,
    ) -> None:
        self._chain = chain
        self._store = store
        self._clock = clock
        self._signer = signer
        self._metrics = metrics
        self._guard = guard
        self._settings = settings or SenderSettings()
        self._sent_at_ms: dict[int, int] = {}
        self._passed_since: dict[int, int] = {}  # intent → block in which the chain was first seen beyond its nonce
        # Nonces are given and first broadcast in one order; settler and reaper share this key.
        self._lock = asyncio.Lock()

    async def submit(self, drafts: Sequence[Draft]) -> list[StoredIntent]:
        """Store, sign and send drafts in their order.

        Raises:
            Refused, ExpiredContext: the guard does not let one be signed; none is stored then.
        """
        async with self._lock:
            quote = await self._chain.gas_quote()
            for draft in drafts:
                require_signable(self._guard, self._unsigned(draft.call, self._gas_limit(draft), quote))
            intents = []
            for draft in drafts:
                intent = await self._store.add_intent(
                    draft.kind,
                    draft.key,
                    draft.detail,
                    draft.call,
                    self._gas_limit(draft),
                    await self._chain.transaction_count(self._signer.address),
                    self._clock.now_ms(),
                    self._signer.address,
                )
                intents.append(intent)
                await self._send_first(intent, quote)
            return intents

    async def confirm(self) -> list[StoredIntent]:
        """Look for receipts of open intents, end those that have one, send the others again after a while.

        Returns:
            Those that are still open.
        """
        async with self._lock:
            still_open = []
            for intent in await self._store.open_intents():
                receipt = await self._receipt(intent)
                if receipt is not None:
                    await self._end(intent, receipt)
                elif await self._is_passed_over(intent):
                    await self._drop(intent, "nonce taken")
                    log.error("nonce_taken", kind=intent.kind, nonce=intent.nonce, hint="nothing else may use the key")
                elif not intent.attempts and intent.sender != self._signer.address:
                    # It was stored for a key that does not send any more, and never signed.
                    await self._drop(intent, "another sender")
                else:
                    still_open.append(intent)
                    await self._push(intent)
            return still_open

    async def _is_passed_over(self, intent: StoredIntent) -> bool:
        """Whether a transaction that is not ours has had the nonce for some blocks, so that no attempt can count.

        A node may tell its new count before it tells the receipt, and a reorg may take the other transaction away.
        """
        if await self._chain.transaction_count(intent.sender) <= intent.nonce:
            self._passed_since.pop(intent.intent_id, None)
            return False
        head = (await self._chain.head()).number
        since = self._passed_since.setdefault(intent.intent_id, head)
        return head - since >= self._settings.give_up_blocks and await self._receipt(intent) is None

    async def _drop(self, intent: StoredIntent, cause: str) -> None:
        """End an intent of which no transaction counts. What it was for is drafted anew, which pays nothing twice."""
        await self._store.end_intent(intent.intent_id, "dropped", 0, {"cause": cause})
        self._sent_at_ms.pop(intent.intent_id, None)
        self._passed_since.pop(intent.intent_id, None)
        self._metrics.count("headrace_transactions_total", kind=intent.kind, outcome="dropped")

    async def _send_first(self, intent: StoredIntent, quote: GasQuote) -> None:
        if intent.attempts:
            return
        unsigned = self._unsigned(intent.call, intent.gas_limit, quote)
        require_signable(self._guard, unsigned)
        raw, transaction_hash = self._signer.sign_transaction(
            {
                "type": 2,
                "chainId": self._chain.chain_id,
                "nonce": intent.nonce,
                "to": unsigned.to,
                "data": unsigned.data,
                "value": unsigned.value_wei,
                "gas": unsigned.gas_limit,
                "maxFeePerGas": unsigned.max_fee_wei,
                "maxPriorityFeePerGas": quote.tip_wei,
            }
        )
        attempt = StoredAttempt(transaction_hash, raw, unsigned.max_fee_wei, quote.tip_wei, self._clock.now_ms())
        await self._store.add_attempt(intent.intent_id, attempt)
        await self._broadcast(intent, attempt)

    async def _push(self, intent: StoredIntent) -> None:
        """Sign an intent that never was (a crash came between), or send its last attempt's same bytes again."""
        if not intent.attempts:
            await self._send_first(intent, await self._chain.gas_quote())
        elif self._clock.now_ms() - self._sent_at_ms.get(intent.intent_id, 0) >= self._settings.rebroadcast_ms:
            await self._broadcast(intent, intent.attempts[-1])

    async def _broadcast(self, intent: StoredIntent, attempt: StoredAttempt) -> None:
        self._sent_at_ms[intent.intent_id] = self._clock.now_ms()
        context = {"kind": intent.kind, "nonce": intent.nonce, "transaction": attempt.transaction_hash}
        try:
            await self._chain.send_raw(attempt.raw)
            log.info("transaction_sent", **context)
        except Unknown as exc:
            log.warning("transaction_unanswered", error=str(exc), **context)
        except Refused as exc:
            # A refusal proves nothing about copies sent before: the intent stays open and is sent again.
            log.error("transaction_refused", error=str(exc), **context)
            self._metrics.count("headrace_transactions_refused_total", kind=intent.kind)
        except HeadraceError as exc:
            log.warning("transaction_not_sent", error=str(exc), **context)

    async def _receipt(self, intent: StoredIntent) -> Receipt | None:
        for attempt in intent.attempts:
            receipt = await self._chain.receipt(attempt.transaction_hash)
            if receipt is not None:
                return receipt
        return None

    async def _end(self, intent: StoredIntent, receipt: Receipt) -> None:
        state = "included" if receipt.succeeded else "reverted"
        detail = {
            "transaction_hash": receipt.transaction_hash,
            "gas_used": receipt.gas_used,
            "gas_price_wei": str(receipt.effective_gas_price_wei),
            "unpaid": unpaid_items(intent, receipt) if receipt.succeeded else {},
        }
        await self._store.end_intent(intent.intent_id, state, receipt.block_number, detail)
        self._sent_at_ms.pop(intent.intent_id, None)
        self._metrics.count("headrace_transactions_total", kind=intent.kind, outcome=state)
        self._metrics.observe("headrace_transaction_gas", receipt.gas_used, kind=intent.kind)
        log.info("transaction_" + state, kind=intent.kind, nonce=intent.nonce, **detail)

    def _gas_limit(self, draft: Draft) -> int:
        wanted = draft.gas_used * self._settings.gas_margin_bps // BPS + self._settings.gas_headroom
        return min(wanted + draft.call_out_gas, MAX_TRANSACTION_GAS)

    def _unsigned(self, call: Call, gas_limit: int, quote: GasQuote) -> Unsigned:
        # Twice the base fee survives six full blocks in a row (EIP-1559: +12.5 % each).
        max_fee_wei = 2 * quote.base_fee_wei + quote.tip_wei
        return Unsigned(call.to, call.data, call.value_wei, gas_limit, max_fee_wei)


def unpaid_items(intent: StoredIntent, receipt: Receipt) -> dict[str, str]:
    """Of a settled batch, the requests whose items were not paid, with their item status.

    `intent.detail["sets"]` lists the request ids of each set in the order of the transaction.
    """
    if intent.kind != "submit_results":
        return {}
    settled = [event for event in receipt.events if event.name == "BatchSettled"]
    unpaid = {}
    for request_ids, event in zip(intent.detail["sets"], settled, strict=True):
        statuses = bytes.fromhex(event.args["statuses"][2:])
        for request_id, status in zip(request_ids, statuses, strict=True):
            if status != ItemStatus.OK:
                unpaid[request_id] = ItemStatus(status).name
    return unpaid
