"""Pushes a stored transaction into a block: signs it, sends the same bytes again, bids more, or gives its nonce up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from headrace.core.bidding import Bid, BidPolicy, Move, market_bid, next_move
from headrace.core.errors import ExpiredContext, HeadraceError, Refused, SignerUnavailable, Unknown
from headrace.core.guard import NOOP_GAS, GuardPolicy, Unsigned, require_noop, require_signable
from headrace.core.spending import WINDOW_MS, Signed, Spending, worst_wei
from headrace.core.types import GasQuote
from headrace.ports import Chain, Clock, Metrics, Signer, Store, StoredAttempt, StoredIntent

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PushSettings:
    """How transactions are pushed. `inclusion_s`: what a block may take to come with one that is sent now.
    `spending_limit_wei`: what the key may spend in an hour; 0 = any amount."""

    bids: BidPolicy = field(default_factory=BidPolicy)
    rebroadcast_ms: int = 4_000
    inclusion_s: int = 2
    spending_limit_wei: int = 0


class Pusher:
    """Signs and sends the attempts of intents, all of one key. Nothing is sent before it is stored."""

    def __init__(
        self,
        chain: Chain,
        store: Store,
        clock: Clock,
        signer: Signer,
        metrics: Metrics,
        guard: GuardPolicy,
        settings: PushSettings | None = None,
    ) -> None:
        self._chain = chain
        self._store = store
        self._clock = clock
        self._signer = signer
        self._metrics = metrics
        self._guard = guard
        self._settings = settings or PushSettings()
        self._sent_at_ms: dict[int, int] = {}
        self._held: dict[int, str] = {}  # why an intent does not bid more
        self._spending = Spending(self._settings.spending_limit_wei)
        self._is_restored = False
        self._is_paused = False
        self._gone = ""  # why the signer gave no signature when it was last asked, if so

    def forget(self, intent_id: int) -> None:
        """An intent has ended."""
        self._spending.forget(intent_id)
        self._sent_at_ms.pop(intent_id, None)
        self._held.pop(intent_id, None)

    async def require_within_limit(self, wei: int) -> None:
        """Check that the key may spend so much more now. What it signed before a restart counts, too.

        Raises:
            ExpiredContext: it may not; later it may.
        """
        now_ms = self._clock.now_ms()
        if not self._is_restored and self._spending.limit_wei:
            self._spending.restore(await self._store.signed_since(self._signer.address, now_ms - WINDOW_MS), now_ms)
        self._is_restored = True
        try:
            self._spending.require(wei, now_ms)
        except ExpiredContext as exc:
            self._set_paused(str(exc))
            raise
        self._set_paused("")

    def _set_paused(self, why: str) -> None:
        """Say once that the spending limit holds transactions back, and that it does not any more."""
        sender = self._signer.address
        self._metrics.gauge("headrace_spent_wei", self._spending.spent_wei(self._clock.now_ms()), sender=sender)
        self._metrics.gauge("headrace_spending_paused", bool(why), sender=sender)
        if why and not self._is_paused:
            log.error("spending_limit_reached", key=sender, reason=why)
        elif self._is_paused and not why:
            log.info("spending_limit_left", key=sender)
        self._is_paused = bool(why)

    async def first(self, intent: StoredIntent, quote: GasQuote, head_s: int, *, is_code_checked: bool = False) -> None:
        """Sign and send an intent's first attempt; when it came too late, one that only takes its nonce. What cannot be
        signed now, or waits behind such a one, waits for the next push.

        Raises:
            Refused, ExpiredContext: the guard does not let it be signed.
        """
        if not intent.attempts and not self._gone:
            try:
                await self._first(intent, quote, head_s, is_code_checked=is_code_checked)
            except SignerUnavailable as exc:
                self._gone = str(exc)
                self._hold(intent, self._gone)

    async def _first(
        self, intent: StoredIntent, quote: GasQuote, head_s: int, *, is_code_checked: bool = False
    ) -> None:
        left_ms = self._left_ms(intent, head_s)
        is_noop = left_ms is not None and left_ms <= 0
        await self._attempt(intent, market_bid(quote), is_noop=is_noop, is_code_checked=is_code_checked)

    async def push(self, intents: Sequence[StoredIntent]) -> None:
        """Do what open intents need, which are in the order of their nonces.

        Only the first of each sender may bid more: none behind it can be in a block before it.
        """
        first = {intent.sender: intent.intent_id for intent in reversed(intents)}
        self._gone = ""
        for intent in intents:
            is_first = first[intent.sender] == intent.intent_id
            try:
                await self._push(intent, is_first=is_first)
            except SignerUnavailable as exc:
                # The others are not kept waiting for it as well: they are sent again as they are.
                self._gone = str(exc)
                self._hold(intent, self._gone)
                if intent.attempts:
                    await self._rebroadcast(intent)
            except (Refused, ExpiredContext) as exc:
                self._hold(intent, str(exc))

    def require_signer(self) -> None:
        """Raises SignerUnavailable while intents wait for a signature that could not be had when it was last asked for:
        others would only wait behind them."""
        if self._gone:
            raise SignerUnavailable(f"stored transactions wait for their signature: {self._gone}")

    async def _push(self, intent: StoredIntent, *, is_first: bool) -> None:
        if self._gone:
            if intent.attempts:
                await self._rebroadcast(intent)
        elif not intent.attempts:
            # A crash came before it was signed, or its signer was gone.
            head = await self._chain.head()
            await self._first(intent, await self._chain.gas_quote(), head.timestamp_s)
        elif not (is_first and await self._outbid(intent)):
            await self._rebroadcast(intent)

    async def _outbid(self, intent: StoredIntent) -> bool:
        """Replace an intent's last attempt if that is due. Returns whether it was."""
        last = intent.attempts[-1]
        waited_ms = self._since_ms(last.created_at_ms)
        if waited_ms < self._settings.bids.least_pause_ms:
            return False
        if intent.sender != self._signer.address:
            self._hold(intent, f"{intent.sender} signed it, whose key is not set any more: it is sent again as it is")
            return False
        quote, head = await self._chain.gas_quote(), await self._chain.head()
        verdict = next_move(
            self._settings.bids,
            quote,
            Bid(last.max_fee_wei, last.tip_wei),
            len(intent.attempts),
            waited_ms,
            self._left_ms(intent, head.timestamp_s),
            is_cancelling=last.is_noop,
            most_fee_wei=intent.worth_wei // intent.gas_limit if intent.worth_wei else None,
        )
        if verdict.move is Move.WAIT:
            return False
        if verdict.bid is None:
            self._hold(intent, _WHY_HELD[verdict.move])
            return False
        is_noop = verdict.move is Move.CANCEL
        await self._require_funds(intent, verdict.bid, is_noop=is_noop)
        self._held.pop(intent.intent_id, None)
        await self._attempt(intent, verdict.bid, is_noop=is_noop)
        self._metrics.count("headrace_replacements_total", kind=intent.kind, move=str(verdict.move))
        return True

    async def _attempt(self, intent: StoredIntent, bid: Bid, *, is_noop: bool, is_code_checked: bool = False) -> None:
        if is_noop:
            unsigned = Unsigned(intent.sender, b"", 0, NOOP_GAS, bid.max_fee_wei)
            require_noop(self._guard, unsigned, self._signer.address)
        else:
            call = intent.call
            unsigned = Unsigned(call.to, call.data, call.value_wei, intent.gas_limit, bid.max_fee_wei)
            require_signable(self._guard, unsigned)
            if not is_code_checked:
                await self._chain.require_code(call.to)
        wei = worst_wei(unsigned.gas_limit, bid.max_fee_wei, unsigned.value_wei)
        await self.require_within_limit(self._spending.beyond_wei(intent.intent_id, wei))
        raw, transaction_hash = await self._signer.sign_transaction(
            {
                "type": 2,
                "chainId": self._chain.chain_id,
                "nonce": intent.nonce,
                "to": unsigned.to,
                "data": unsigned.data,
                "value": unsigned.value_wei,
                "gas": unsigned.gas_limit,
                "maxFeePerGas": bid.max_fee_wei,
                "maxPriorityFeePerGas": bid.tip_wei,
            }
        )
        now_ms = self._clock.now_ms()
        attempt = StoredAttempt(transaction_hash, raw, bid.max_fee_wei, bid.tip_wei, now_ms, is_noop)
        await self._store.add_attempt(intent.intent_id, attempt)
        self._spending.add(Signed(intent.intent_id, now_ms, wei))
        await self._broadcast(intent, attempt)

    async def _rebroadcast(self, intent: StoredIntent) -> None:
        """The same bytes again: a pool may have lost them, or never had them."""
        if self._since_ms(self._sent_at_ms.get(intent.intent_id, 0)) >= self._settings.rebroadcast_ms:
            await self._broadcast(intent, intent.attempts[-1])

    async def _broadcast(self, intent: StoredIntent, attempt: StoredAttempt) -> None:
        self._sent_at_ms[intent.intent_id] = self._clock.now_ms()
        context = {"kind": intent.kind, "nonce": intent.nonce, "transaction": attempt.transaction_hash}
        if attempt.is_noop:
            context["noop"] = True
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

    async def _require_funds(self, intent: StoredIntent, bid: Bid, *, is_noop: bool) -> None:
        gas, value_wei = (NOOP_GAS, 0) if is_noop else (intent.gas_limit, intent.call.value_wei)
        require_funds(
            self._signer.address, await self._chain.balance_wei(intent.sender), gas * bid.max_fee_wei + value_wei
        )

    def _since_ms(self, at_ms: int) -> int:
        """How long ago something was, at least; for long, when it is in the future: the clock was set back."""
        passed_ms = self._clock.now_ms() - at_ms
        return passed_ms if passed_ms >= 0 else self._settings.bids.longest_pause_ms

    def _left_ms(self, intent: StoredIntent, head_s: int) -> int | None:
        return (intent.until_s - head_s - self._settings.inclusion_s) * 1000 if intent.until_s else None

    def _hold(self, intent: StoredIntent, why: str) -> None:
        """Say once why a transaction does not bid what it should. Its last attempt stands."""
        if self._held.get(intent.intent_id) != why:
            self._held[intent.intent_id] = why
            log.error("transaction_held", kind=intent.kind, nonce=intent.nonce, reason=why)
            self._metrics.count("headrace_transactions_held_total", kind=intent.kind)


_WHY_HELD = {
    Move.HOLD: "the next bid would be above what the market asks many times over, or above what it is worth",
    Move.ALARM: "it bids what the market asks and is in no block: see whether the endpoint passes transactions on",
}


def require_funds(account: str, balance_wei: int, needed_wei: int) -> None:
    """Raises ExpiredContext when an account cannot pay for a transaction now: more ether mends that."""
    if balance_wei < needed_wei:
        raise ExpiredContext(
            f"{account} has {balance_wei} wei and needs {needed_wei} for gas: send it ether, and it goes on by itself"
        )
