"""Settles by the node itself what its relayer did not: looks at the chain for each answer until it is settled.

Persist, then act: which answer goes with which nonce, and each signed transaction, is in the journal before it is sent.
A restart goes on from there; while a transaction of an answer may be on its way, no other nonce is used for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import structlog

from headrace.core.bidding import Bid, higher_bid, market_bid
from headrace.core.errors import HeadraceError, InvalidInput, Refused, Unavailable
from headrace.core.events import BlockRef
from headrace.core.fees import BPS
from headrace.core.gas import MAX_BATCH_BYTES, Load, batch_bytes, spare_gas
from headrace.core.guard import MAX_TRANSACTION_GAS, GuardPolicy, Unsigned, require_signable
from headrace.core.journal import JournalEntry
from headrace.core.link_messages import read_task
from headrace.core.self_settlement import (
    SelfSettlementPolicy,
    Settlement,
    SettlementAttempt,
    SettlementState,
    Step,
    Verdict,
    free_nonce,
    is_miss_provable,
    is_worth,
    next_step,
    pay_wei,
    payloads_to_try,
    why_never,
)
from headrace.core.tasks import Task
from headrace.core.typed_data import Domain, hash_result
from headrace.core.types import Address, GasQuote, Hash32, MarketTerms, Mode, Pending, Request, Result, Status
from headrace.node.journal import NodeJournal, SettlementJournal
from headrace.ports import Call, Chain, Clock, Receipt, ResultSetCall, Signer

log = structlog.get_logger(__name__)

_GAS_MARGIN_BPS = 12_500
_GAS_HEADROOM = 20_000
_AT_ONCE = 50  # requests that the chain is asked about together


@dataclass(frozen=True, slots=True)
class SelfSettlerSettings:
    """Waits and bounds of the loop."""

    poll_s: float = 5.0
    retry_s: int = 20  # by the chain's time, after an answer could not be settled
    sure_blocks: int = 12  # for which an end is seen before it is believed: blocks may go again
    give_up_blocks: int = 3  # after which a nonce that another transaction took is believed to be gone
    max_watched: int = 10_000
    max_open: int = 16


@dataclass(frozen=True, slots=True)
class _Plan:
    """A transaction that a simulation found good, and that is worth its gas."""

    data: bytes
    gas_limit: int
    quote: GasQuote


class _NotNow(Exception):
    """An answer cannot be settled at the moment; later may be better."""


class _Never(Exception):
    """An answer can never be settled by its node."""


class SelfSettler:
    """The loop. Entries that it looks after come from the journal, which the executor fills.

    Args:
        chain: where the market is.
        journal: the node's, with its answers.
        settlements: the same journal, with what became of them.
        clock: wall-clock time.
        node: the node's key.
        payer: the key that sends and pays gas; may be the node's.
        terms: the market's numbers.
        missed_wei: what a miss costs, of the node's stake.
        guard: what the payer's key may sign.
        policy: when a node settles by itself.
        settings: waits and bounds.
    """

    def __init__(
        self,
        chain: Chain,
        journal: NodeJournal,
        settlements: SettlementJournal,
        clock: Clock,
        node: Signer,
        payer: Signer,
        terms: MarketTerms,
        missed_wei: int,
        guard: GuardPolicy,
        policy: SelfSettlementPolicy,
        settings: SelfSettlerSettings | None = None,
    ) -> None:
        self._chain = chain
        self._journal = journal
        self._settlements = settlements
        self._clock = clock
        self._node = node
        self._payer = payer
        self._terms = terms
        self._missed_wei = missed_wei
        self._policy = policy
        self._settings = settings or SelfSettlerSettings()
        self._domain = Domain(chain.chain_id, chain.market)
        self._guard = guard
        self._taken: set[int] = set()  # nonces of open intents
        self._ends: dict[Hash32, tuple[SettlementState, int]] = {}  # what end was first seen in which block
        self._passed_since: dict[Hash32, int] = {}  # block in which the chain was first seen beyond an intent's nonce
        self._retry_at_s: dict[Hash32, int] = {}

    async def run(self) -> NoReturn:
        """Settle until cancelled."""
        is_announced = False
        while True:
            try:
                if not is_announced:
                    await self._announce()
                    is_announced = True
                await self.step()
            except HeadraceError as exc:
                log.warning("self_settlement_on_hold", error=str(exc))
            except Exception:
                # A bug here costs answers that the relayer did not settle, not those that it does.
                log.exception("self_settlement_broke")
            await asyncio.sleep(self._settings.poll_s)

    async def step(self) -> None:
        """Look at all answers that are not settled, once.

        Raises:
            Unavailable: the chain does not answer.
        """
        watched = await self._settlements.unsettled(self._settings.max_watched)
        self._taken = {each.nonce for each in watched if each.payer == self._payer.address}
        if not watched:
            return
        head = await self._chain.head()
        for start in range(0, len(watched), _AT_ONCE):
            await self._look_at(watched[start : start + _AT_ONCE], head)

    async def _announce(self) -> None:
        payer, balance_wei = self._payer.address, await self._chain.balance_wei(self._payer.address)
        if balance_wei:
            log.info("self_settlement_ready", payer=payer, balance_wei=balance_wei)
        else:
            log.warning("self_settlement_unfunded", payer=payer, hint=_unfunded(payer, 0, None))

    async def _look_at(self, some: Sequence[Settlement], head: BlockRef) -> None:
        ids = [each.request_id for each in some]
        statuses = dict(zip(ids, await self._chain.statuses(ids), strict=True))
        open_ids = [each for each in ids if statuses[each] is Status.PENDING]
        pending = dict(zip(open_ids, await self._chain.pending(open_ids), strict=True))
        for each in some:
            of_request = pending.get(each.request_id)
            status = statuses[each.request_id]
            verdict = next_step(self._policy, self._terms.grace_s, each, status, of_request, head.timestamp_s)
            with structlog.contextvars.bound_contextvars(requestId=each.request_id):
                await self._follow(each, verdict, of_request, head)

    async def _follow(self, settlement: Settlement, verdict: Verdict, pending: Pending | None, head: BlockRef) -> None:
        request_id = settlement.request_id
        if verdict.step is Step.END:
            await self._end(settlement, verdict, head)
            return
        self._ends.pop(request_id, None)
        if verdict.step is Step.WAIT or pending is None:
            return
        if settlement.state is not SettlementState.OPEN and head.timestamp_s < self._retry_at_s.get(request_id, 0):
            return
        try:
            if settlement.state is SettlementState.OPEN:
                await self._push(settlement, pending, head)
            elif len(self._taken) < self._settings.max_open:
                await self._begin(settlement, pending)
        except _Never as exc:
            await self._close(settlement, SettlementState.GIVEN_UP, str(exc))
        except Unavailable:
            raise
        except (_NotNow, HeadraceError) as exc:
            await self._postpone(settlement, str(exc), head)

    # Ends

    async def _end(self, settlement: Settlement, verdict: Verdict, head: BlockRef) -> None:
        """End what has been seen to end for some blocks; say so at the first sight."""
        before, since = self._ends.get(settlement.request_id, (None, head.number))
        if before is not verdict.state:
            since = head.number
            self._ends[settlement.request_id] = (verdict.state, since)
            if verdict.state is SettlementState.SETTLED and (own := await self._receipt(settlement)) is not None:
                _report(own)
        if head.number - since >= self._settings.sure_blocks:
            detail = verdict.detail
            if verdict.state is SettlementState.SETTLED:
                own = await self._receipt(settlement)
                detail = f"by the node, in {own.transaction_hash}" if own and own.succeeded else "by its relayer"
            await self._close(settlement, verdict.state, detail)

    async def _close(self, settlement: Settlement, state: SettlementState, detail: str) -> None:
        await self._settlements.end(settlement.request_id, state, detail, self._clock.now_ms())
        for seen in (self._ends, self._passed_since, self._retry_at_s):
            seen.pop(settlement.request_id, None)
        if state is SettlementState.GIVEN_UP:
            log.warning("self_settlement_given_up", reason=detail)

    async def _postpone(self, settlement: Settlement, reason: str, head: BlockRef) -> None:
        self._retry_at_s[settlement.request_id] = head.timestamp_s + self._settings.retry_s
        if settlement.detail != reason:
            log.warning("self_settlement_postponed", reason=reason)
            await self._settlements.note(settlement.request_id, reason, self._clock.now_ms())

    # Beginning

    async def _begin(self, settlement: Settlement, pending: Pending) -> None:
        plan = await self._plan(settlement, pending, None)
        bid = market_bid(plan.quote)
        payer = self._payer.address
        needed_wei = plan.gas_limit * bid.max_fee_wei
        balance_wei = await self._chain.balance_wei(payer)
        if balance_wei < needed_wei:
            raise _NotNow(_unfunded(payer, balance_wei, needed_wei))
        await self._require_signable(plan.data, plan.gas_limit, bid)
        nonce = free_nonce(await self._chain.transaction_count(payer), self._taken)
        now_ms = self._clock.now_ms()
        opened = await self._settlements.begin(settlement.request_id, payer, nonce, plan.data, plan.gas_limit, now_ms)
        self._taken.add(nonce)
        await self._send(opened, bid)

    async def _plan(self, settlement: Settlement, pending: Pending, bid: Bid | None) -> _Plan:
        """What to send, at the chain's present prices or at a bid.

        Raises:
            _NotNow: the market would refuse it, or it is not worth its gas.
            _Never: it cannot be settled by its node.
        """
        task, entry, result = await self._answer(settlement)
        request, quote = task.request, await self._chain.gas_quote()
        if bid is not None:
            quote = replace(quote, tip_wei=bid.tip_wei)
        reason = ""
        for payload in payloads_to_try(request, entry.payload):
            load = _load(self._terms, request, payload, entry.proof)
            if batch_bytes([load]) > MAX_BATCH_BYTES:
                reason = f"the answer has {len(payload)} bytes, more than a transaction carries"
                continue
            call = await self._call(task, entry, result, payload)
            (outcome,) = await self._chain.simulate(self._payer.address, [call])
            if not outcome.succeeded:
                reason = f"the market would refuse it: {outcome.error}"
                continue
            paid_wei = pay_wei(
                self._terms,
                request,
                pending.priority_fee_added_wei,
                result.reward_wei,
                len(payload),
                outcome.gas_used,
                quote,
            )
            cost_wei = outcome.gas_used * quote.price_wei
            # What is asked for only if the pay alone is too little.
            spared_wei = 0 if is_worth(self._policy, paid_wei, cost_wei) else await self._spared_wei(task, pending)
            if is_worth(self._policy, paid_wei, cost_wei, spared_wei):
                return _Plan(call.data, _gas_limit(outcome.gas_used, load), quote)
            spares = f", spare {spared_wei} wei of stake" if spared_wei else ""
            reason = f"it would bring in {paid_wei} wei{spares}, and cost {cost_wei} wei of gas"
        raise _NotNow(reason)

    async def _spared_wei(self, task: Task, pending: Pending) -> int:
        """What the node would be slashed for the answer if nobody settled it."""
        word = task.assignment
        recorded_at_s = await self._chain.recorded_at_s(word.relayer, word.round)
        if not is_miss_provable(task.request, word.relayer, pending, recorded_at_s):
            return 0
        return min(self._missed_wei, (await self._chain.node_facts(self._node.address)).stake_wei)

    async def _answer(self, settlement: Settlement) -> tuple[Task, JournalEntry, Result]:
        entry = await self._journal.entry(settlement.request_id)
        if entry is None or entry.result is None or not entry.task:
            raise _Never("its task is not in the journal any more")
        try:
            task = read_task(entry.task)
        except InvalidInput as exc:
            raise _Never(f"its journal is damaged: {exc}") from None
        if (reason := why_never(task.request)) is not None:
            raise _Never(reason)
        return task, entry, entry.result

    async def _call(self, task: Task, entry: JournalEntry, result: Result, payload: bytes) -> Call:
        result_set = ResultSetCall(
            round=result.round,
            nodes=(self._node.address,),
            # What the journal holds is all that is ever signed as a result, and it is signed the same each time.
            signatures=(await self._node.sign_typed(self._domain, hash_result(result)),),
            items=((task.request, result),),
            payloads=(payload,) if payload else (),
            proofs=(entry.proof,) if entry.proof else (),
        )
        return self._chain.submit_assigned_call(task.assignment, task.assignment_signature, result_set)

    # Sending

    async def _push(self, settlement: Settlement, pending: Pending, head: BlockRef) -> None:
        """See what became of an intent that is open, and send it again."""
        receipt = await self._receipt(settlement)
        if receipt is not None:
            if not receipt.succeeded:
                await self._step_back(settlement, f"transaction {receipt.transaction_hash} reverted", reverted=True)
            return  # else the market's status is of an older block than the receipt
        if await self._is_passed_over(settlement, head):
            await self._step_back(settlement, f"nonce {settlement.nonce} was used otherwise", reverted=False)
            return
        last = settlement.attempts[-1] if settlement.attempts else None
        if last is None and settlement.payer != self._payer.address:
            await self._step_back(settlement, f"the payer was {settlement.payer}", reverted=False)
        elif last is None:
            await self._send(settlement, market_bid(await self._chain.gas_quote()))
        elif (bid := await self._replacement(settlement, last, pending)) is not None:
            await self._send(settlement, bid)
        else:
            await self._broadcast(last)

    async def _replacement(self, settlement: Settlement, last: SettlementAttempt, pending: Pending) -> Bid | None:
        """A higher bid, when the last was not taken for long and a higher one is still worth it."""
        waited_ms = self._clock.now_ms() - last.created_at_ms
        is_due = waited_ms >= self._policy.replace_after_ms and len(settlement.attempts) < self._policy.max_attempts
        if not is_due or settlement.payer != self._payer.address:
            return None
        bid = higher_bid(Bid(last.max_fee_wei, last.tip_wei), await self._chain.gas_quote())
        try:
            await self._plan(settlement, pending, bid)
        except _NotNow:
            return None
        return bid

    async def _is_passed_over(self, settlement: Settlement, head: BlockRef) -> bool:
        """Whether a transaction that is not ours has had the nonce for some blocks, so that no attempt can count."""
        if await self._chain.transaction_count(settlement.payer) <= settlement.nonce:
            self._passed_since.pop(settlement.request_id, None)
            return False
        since = self._passed_since.setdefault(settlement.request_id, head.number)
        # A node may tell its new count before it tells the receipt.
        return head.number - since >= self._settings.give_up_blocks and await self._receipt(settlement) is None

    async def _step_back(self, settlement: Settlement, detail: str, *, reverted: bool) -> None:
        log.warning("self_settlement_repeated", reason=detail)
        await self._settlements.step_back(settlement.request_id, detail, reverted, self._clock.now_ms())
        self._passed_since.pop(settlement.request_id, None)
        self._taken.discard(settlement.nonce)

    async def _send(self, settlement: Settlement, bid: Bid) -> None:
        """Sign, write down, send."""
        await self._require_signable(settlement.data, settlement.gas_limit, bid)
        raw, transaction_hash = await self._payer.sign_transaction(
            {
                "type": 2,
                "chainId": self._chain.chain_id,
                "nonce": settlement.nonce,
                "to": self._chain.market,
                "data": settlement.data,
                "value": 0,
                "gas": settlement.gas_limit,
                "maxFeePerGas": bid.max_fee_wei,
                "maxPriorityFeePerGas": bid.tip_wei,
            }
        )
        attempt = SettlementAttempt(transaction_hash, raw, bid.max_fee_wei, bid.tip_wei, self._clock.now_ms())
        await self._settlements.add_attempt(settlement.request_id, settlement.nonce, attempt)
        log.info("self_settlement_sent", transaction=transaction_hash, nonce=settlement.nonce, payer=settlement.payer)
        await self._broadcast(attempt)

    async def _require_signable(self, data: bytes, gas_limit: int, bid: Bid) -> None:
        require_signable(self._guard, Unsigned(self._chain.market, data, 0, gas_limit, bid.max_fee_wei))
        await self._chain.require_code(self._chain.market)

    async def _broadcast(self, attempt: SettlementAttempt) -> None:
        try:
            await self._chain.send_raw(attempt.raw)
        except (Unavailable, Refused) as exc:
            # Neither proves anything about copies that were sent before: it stays open, and is sent again.
            log.warning("self_settlement_unanswered", transaction=attempt.transaction_hash, error=str(exc))

    async def _receipt(self, settlement: Settlement) -> Receipt | None:
        for attempt in settlement.attempts:
            receipt = await self._chain.receipt(attempt.transaction_hash)
            if receipt is not None:
                return receipt
        return None


def _report(receipt: Receipt) -> None:
    cost_wei = receipt.gas_used * receipt.effective_gas_price_wei
    paid = [event.args for event in receipt.events if event.name == "ResultFulfilled"]
    if not receipt.succeeded or not paid:
        log.warning("self_settlement_overtaken", transaction=receipt.transaction_hash, cost_wei=cost_wei)
        return
    paid_wei = sum(args["nodePaid"] + args["relayerPaid"] for args in paid)
    log.info("self_settled", transaction=receipt.transaction_hash, paid_wei=paid_wei, cost_wei=cost_wei)


def _load(terms: MarketTerms, request: Request, payload: bytes, proof: bytes) -> Load:
    return Load(
        set_key="",
        nodes=1,
        requester=request.requester,
        result_bytes=len(payload),
        proof_bytes=len(proof),
        callback_gas=request.callback_gas,
        verifier_gas=terms.verifier_gas if request.mode is Mode.VERIFIER else 0,
    )


def _gas_limit(gas_used: int, load: Load) -> int:
    """With all that callback and verifier may use, and what the market wants to be left around them."""
    margin = gas_used * _GAS_MARGIN_BPS // BPS + _GAS_HEADROOM
    return min(margin + load.callback_gas + load.verifier_gas + spare_gas([load]), MAX_TRANSACTION_GAS)


def _unfunded(payer: Address, balance_wei: int, needed_wei: int | None) -> str:
    needs = "needs some" if needed_wei is None else f"needs {needed_wei}"
    return (
        f"{payer} has {balance_wei} wei and {needs} for gas, to settle answers that its relayer leaves: send it ether, "
        "or set HEADRACE_NODE__PAYER__KEYSTORE to a key that has some"
    )
