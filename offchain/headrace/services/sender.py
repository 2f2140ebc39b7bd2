"""Puts intents on the chain: one nonce each for ever, attempts stored before they are sent, ended by receipts only."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from headrace.core.bidding import market_bid
from headrace.core.errors import Refused, Unavailable
from headrace.core.events import BlockRef
from headrace.core.fees import BPS
from headrace.core.guard import MAX_TRANSACTION_GAS, GuardPolicy, Unsigned, require_signable
from headrace.core.types import Address, GasQuote, ItemStatus
from headrace.ports import Call, Chain, Clock, Metrics, Receipt, Signer, Store, StoredIntent
from headrace.services.pushing import Pusher, PushSettings, require_funds
from headrace.services.together import together

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """How transactions are priced and pushed."""

    gas_margin_bps: int = 12_500
    gas_headroom: int = 20_000
    push: PushSettings = field(default_factory=PushSettings)
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
        until_s: block time after which it is of no use; 0 = always of use.
        worth_wei: what may be spent on it; 0 = whatever the market asks.
    """

    kind: str
    key: str
    detail: Mapping[str, Any]
    call: Call
    gas_used: int
    call_out_gas: int = 0
    until_s: int = 0
    worth_wei: int = 0


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
        self._pusher = Pusher(chain, store, clock, signer, metrics, guard, self._settings.push)
        self._left: frozenset[Address] = frozenset()  # whose intents others look after
        self._takes_strangers = True
        self._passed_since: dict[int, int] = {}  # intent → block in which the chain was first seen beyond its nonce
        self._hole: tuple[int, int] | None = (
            None  # the lowest nonce that is nobody's, and the block it was first seen in
        )
        # Nonces are given and first broadcast in one order; settler and reaper share this key.
        self._lock = asyncio.Lock()

    @property
    def address(self) -> Address:
        """Whose transactions."""
        return self._signer.address

    def leave(self, others: Collection[Address], *, and_strangers: bool) -> None:
        """Leave the intents of these keys to their own senders; and those of keys that do not send any more, to one."""
        self._left = frozenset(others)
        self._takes_strangers = not and_strangers

    def _takes(self, intent: StoredIntent) -> bool:
        if intent.sender == self._signer.address:
            return True
        return self._takes_strangers and intent.sender not in self._left

    async def submit(self, drafts: Sequence[Draft]) -> list[StoredIntent]:
        """Store, sign and send drafts in their order.

        Raises:
            Refused, ExpiredContext: the guard does not let one be signed, or the key cannot pay, or may not spend so
                much in an hour; none is stored then.
            SignerUnavailable: others wait for their signatures already; none is stored then. These are stored and sent
                later, when theirs is the first signature that cannot be had.
        """
        async with self._lock:
            self._pusher.require_signer()
            quote, head, count = await self._look(drafts)
            intents = []
            for draft in drafts:
                intent = await self._store.add_intent(
                    draft.kind,
                    draft.key,
                    draft.detail,
                    draft.call,
                    self._gas_limit(draft),
                    count,
                    self._clock.now_ms(),
                    self._signer.address,
                    until_s=draft.until_s,
                    worth_wei=draft.worth_wei,
                )
                intents.append(intent)
                await self._pusher.first(intent, quote, head.timestamp_s, is_code_checked=True)
            return intents

    async def _look(self, drafts: Sequence[Draft]) -> tuple[GasQuote, BlockRef, int]:
        """What sending depends on, asked at once: what gas costs, the head, and the key's count of transactions.

        Raises:
            Refused, ExpiredContext: the drafts cannot be sent now.
        """
        chain, account = self._chain, self._signer.address
        codes = [chain.require_code(target) for target in sorted({draft.call.to for draft in drafts})]
        asked: list[Any] = await together(
            [chain.gas_quote(), chain.head(), chain.transaction_count(account), chain.balance_wei(account), *codes]
        )
        quote, head, count, balance_wei = asked[:4]
        await self._require_sendable(drafts, quote, balance_wei)
        return quote, head, count

    async def _require_sendable(self, drafts: Sequence[Draft], quote: GasQuote, balance_wei: int) -> None:
        max_fee_wei = market_bid(quote).max_fee_wei
        needed_wei = 0
        for draft in drafts:
            gas_limit, call = self._gas_limit(draft), draft.call
            require_signable(self._guard, Unsigned(call.to, call.data, call.value_wei, gas_limit, max_fee_wei))
            needed_wei += gas_limit * max_fee_wei + call.value_wei
        require_funds(self._signer.address, balance_wei, needed_wei)
        await self._pusher.require_within_limit(needed_wei)

    async def confirm(self) -> list[StoredIntent]:
        """Look for receipts of open intents, end those that have one, send the others again after a while.

        Returns:
            Those of them that are still open.
        """
        async with self._lock:
            still_open = []
            intents = [intent for intent in await self._store.open_intents() if self._takes(intent)]
            receipts = await together(self._receipt(intent) for intent in intents)
            counts = await self._counts(intents)
            for intent, receipt in zip(intents, receipts, strict=True):
                if receipt is not None:
                    await self._end(intent, receipt)
                elif await self._is_passed_over(intent, counts[intent.sender]):
                    await self._drop(intent, "nonce taken")
                    log.error("nonce_taken", kind=intent.kind, nonce=intent.nonce, hint="nothing else may use the key")
                elif not intent.attempts and intent.sender != self._signer.address:
                    # It was stored for a key that does not send any more, and never signed.
                    await self._drop(intent, "another sender")
                else:
                    still_open.append(intent)
            still_open = [*await self._fill_hole(still_open, counts), *still_open]
            await self._pusher.push(still_open)
            return still_open

    async def _counts(self, intents: Sequence[StoredIntent]) -> dict[Address, int]:
        """How many transactions the chain counts of each sender."""
        senders = sorted({intent.sender for intent in intents})
        counts = await together(self._chain.transaction_count(sender) for sender in senders)
        return dict(zip(senders, counts, strict=True))

    async def _fill_hole(self, still_open: Sequence[StoredIntent], counts: Mapping[Address, int]) -> list[StoredIntent]:
        """Take nonces that are nobody's and that all open ones wait behind: a stranger's transaction that had one was
        reorganised away, or the store counted on from what is not on this chain."""
        account = self._signer.address
        lowest = min((each.nonce for each in still_open if each.sender == account), default=0)
        count = counts.get(account, 0)
        if count >= lowest:
            self._hole = None
            return []
        head = (await self._chain.head()).number
        if self._hole is None or self._hole[0] != count:
            self._hole = (count, head)
        # As of passed nonces: the count may be of a node that lags.
        if head - self._hole[1] < self._settings.give_up_blocks:
            return []
        filled = await self._store.fill_nonces(account, count, lowest, self._clock.now_ms())
        if filled:
            nonces = [each.nonce for each in filled]
            log.error("nonces_filled", nonces=nonces, hint="nothing else may use the key or change the store")
        return filled

    async def _is_passed_over(self, intent: StoredIntent, count: int) -> bool:
        """Whether a transaction that is not ours has had the nonce for some blocks, so that no attempt can count.

        A node may tell its new count before it tells the receipt, and a reorg may take the other transaction away.
        """
        if count <= intent.nonce:
            self._passed_since.pop(intent.intent_id, None)
            return False
        head = (await self._chain.head()).number
        since = self._passed_since.setdefault(intent.intent_id, head)
        if head - since < self._settings.give_up_blocks or await self._receipt(intent) is not None:
            return False
        return not await self._is_known(intent)

    async def _is_known(self, intent: StoredIntent) -> bool:
        """Whether the chain may have one of its transactions after all: a node may be without a receipt for long."""
        for attempt in intent.attempts:
            try:
                await self._chain.send_raw(attempt.raw)
            except Refused:
                continue
            except Unavailable:
                return True
            return True
        return False

    async def _drop(self, intent: StoredIntent, cause: str) -> None:
        """End an intent of which no transaction counts. What it was for is drafted anew, which pays nothing twice."""
        await self._store.end_intent(intent.intent_id, "dropped", 0, {"cause": cause})
        self._pusher.forget(intent.intent_id)
        self._passed_since.pop(intent.intent_id, None)
        self._metrics.count("headrace_transactions_total", kind=intent.kind, outcome="dropped")

    async def _receipt(self, intent: StoredIntent) -> Receipt | None:
        for attempt in intent.attempts:
            receipt = await self._chain.receipt(attempt.transaction_hash)
            if receipt is not None:
                return receipt
        return None

    async def _end(self, intent: StoredIntent, receipt: Receipt) -> None:
        state = "included" if receipt.succeeded else "reverted"
        if any(each.is_noop and each.transaction_hash == receipt.transaction_hash for each in intent.attempts):
            state = "cancelled"
        detail = {
            "transaction_hash": receipt.transaction_hash,
            "gas_used": receipt.gas_used,
            "gas_price_wei": str(receipt.effective_gas_price_wei),
            "unpaid": unpaid_items(intent, receipt) if state == "included" else {},
        }
        await self._store.end_intent(intent.intent_id, state, receipt.block_number, detail)
        self._pusher.forget(intent.intent_id)
        self._metrics.count("headrace_transactions_total", kind=intent.kind, outcome=state)
        self._metrics.observe("headrace_transaction_gas", receipt.gas_used, kind=intent.kind)
        log.info("transaction_" + state, kind=intent.kind, nonce=intent.nonce, **detail)

    def _gas_limit(self, draft: Draft) -> int:
        wanted = draft.gas_used * self._settings.gas_margin_bps // BPS + self._settings.gas_headroom
        return min(wanted + draft.call_out_gas, MAX_TRANSACTION_GAS)


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
