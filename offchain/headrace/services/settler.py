"""Settles results: closes and records their rounds, batches them, simulates the whole, and hands it to the sender."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from headrace.core.adaptive_batching import AdaptivePolicy, Market, Ready, choose_batch
from headrace.core.arrivals import Arrivals
from headrace.core.batching import NODES_FAULT, BatchPolicy, BatchReason, why_send
from headrace.core.block_clock import BlockClock
from headrace.core.errors import ChainUnavailable, ExpiredContext, IllegalTransition, SignerUnavailable
from headrace.core.fees import charged_gas, charged_gas_price_wei
from headrace.core.gas import counted_verifier_gas, fitting, required_answer_bytes, result_bytes
from headrace.core.lifecycle import Cause
from headrace.core.quarantine import Quarantine
from headrace.core.types import ZERO_ADDRESS, Address, GasQuote, Hash32, ItemStatus, MarketTerms, RoundRecord
from headrace.ports import (
    Call,
    Chain,
    Clock,
    Metrics,
    NodeLink,
    Signer,
    Store,
    StoredDeadLetter,
    StoredRequest,
    StoredResult,
)
from headrace.services.drafting import Drafter, Item, Spoiler, record_key
from headrace.services.lanes import Lane, Lanes
from headrace.services.rounds import close
from headrace.services.sender import Sender
from headrace.services.submitting import Submitting
from headrace.services.together import together
from headrace.services.wake import Wake

log = structlog.get_logger(__name__)

_MOST_HELD = 1_000
_MOST_WITHOUT_BOND = 1_000  # results that are looked through for those that need none


@dataclass(frozen=True, slots=True)
class SettlerSettings:
    """Waits and bounds of the settler."""

    min_gap_ms: int = 50  # results come one by one, and each look at what is ready reads all of it
    poll_ms: int = 200
    max_open_batches: int = 4  # on their way at once; they go out under nonces in a row
    idle_poll_ms: int = 1_000  # when nothing waits: only the deadline of an assignment could come near
    set_signature_timeout_s: float = 0.5
    record_margin_ms: int = 6_000
    max_inline_result_bytes: int = 1_024


class Settler:
    """The settling loop. `wake.ring()` says that there is a new result or block.

    Without a bond it settles what needs none: results of recorded rounds, of requests that name the relayer.

    `rounds` is held while a round is closed, so that no cycle adds to it meanwhile. `submitter` sends, when it is not
    the relayer itself; `sender` has its key then. `further` submitters send beside it, each in a lane of its own.
    What a batch pays out and `bond_wei` are what its records may cost.
    """

    def __init__(
        self,
        chain: Chain,
        store: Store,
        link: NodeLink,
        sender: Sender,
        clock: Clock,
        signer: Signer,
        metrics: Metrics,
        terms: MarketTerms,
        batching: BatchPolicy | AdaptivePolicy,
        rounds: asyncio.Lock,
        on_requeued: Callable[[], None],
        settings: SettlerSettings | None = None,
        submitter: Address | None = None,
        *,
        further: Sequence[Lane] = (),
        has_bond: Callable[[], bool] = lambda: True,
        bond_wei: int = 0,
    ) -> None:
        self.wake = Wake()
        self._chain = chain
        self._store = store
        self._lanes = Lanes([Lane(sender, submitter), *further], store, clock, metrics)
        self._clock = clock
        self._signer = signer
        self._metrics = metrics
        self._terms = terms
        self._batching = batching
        self._rounds = rounds
        self._on_requeued = on_requeued
        self._settings = settings or SettlerSettings()
        self._has_bond = has_bond
        self._drafters = {
            lane.address: Drafter(
                chain,
                link,
                metrics,
                terms,
                signer.address,
                Submitting(chain, clock, signer, lane.submitter),
                self._settings.set_signature_timeout_s,
                bond_wei,
            )
            for lane in self._lanes
        }
        self._quarantine = Quarantine()
        self._arrivals = Arrivals()
        self._arrived: set[Hash32] = set()  # that are noted there, and ready still
        self._blocks = BlockClock()
        self._sent_at_ms = 0  # when a batch went last
        self._held = 0  # results that wait for a better price
        self._is_idle = False

    async def run(self) -> None:
        """Settle until cancelled."""
        while True:
            try:
                await self.step()
            except (ChainUnavailable, SignerUnavailable) as exc:
                log.warning("settling_postponed", error=str(exc))
            except ExpiredContext as exc:
                log.warning("settling_on_hold", error=str(exc))
            pause_ms = self._settings.idle_poll_ms if self._is_idle else self._settings.poll_ms
            await asyncio.sleep(self._settings.min_gap_ms / 1000)
            await self.wake.wait(pause_ms / 1000)

    async def step(self) -> bool:
        """Confirm what was sent; unless too much of it is open, send the next batch if it is time. True if it did.

        Records are ordered on the chain, so those that are on their way at once are in one lane. While that one is
        full, others take what needs no new record.
        """
        self._is_idle = False
        still_open = await self._lanes.confirm()
        free = self._lanes.free(still_open, self._settings.max_open_batches)
        if not free:
            return False
        carrier = self._lanes.carrier(still_open)
        may_record = carrier is None or carrier in free
        waiting, quote = await self._items()
        if not may_record:
            waiting = [item for item in waiting if await self._is_recorded(item.result.round)]
        self._is_idle = not waiting and not still_open
        if isinstance(self._batching, AdaptivePolicy):
            items, reason = await self._adaptive(self._batching, waiting, quote)
        else:
            items = await self._fitting(waiting)
            reason = self._why_send(self._batching, items, is_cut=len(items) < len(waiting))
        due = await self._rounds_due() if may_record and self._has_bond() else set()
        rounds = await self._rounds_to_record(items if reason else [], due) if may_record else []
        under_way = {intent.key for intent in still_open}
        if not reason and all(record_key(record.round) in under_way for record in rounds):
            return False
        lanes = free
        if carrier is not None and rounds and len(self._lanes) > 1:
            needed = {item.result.round for item in items} if reason else set()
            if all(record_key(each.round) in under_way and each.round not in needed for each in rounds):
                rounds = []  # they are on their way, and this batch does not wait for them
            else:
                lanes = [carrier]
        for lane in lanes:
            try:
                return await self._send(lane, reason, rounds, items if reason else [], is_due=bool(due))
            except (ExpiredContext, SignerUnavailable) as exc:
                if lane is lanes[-1]:
                    raise
                self._lanes.pass_over(lane, str(exc))
        return False

    async def _send(
        self, lane: Lane, reason: str | None, rounds: Sequence[RoundRecord], items: Sequence[Item], *, is_due: bool
    ) -> bool:
        """Draft records and a batch for a lane, and send what came of it. True if anything did."""
        drafted = await self._drafters[lane.address].draft(rounds, items)
        await self._leave_out(dict(drafted.unpaid))
        for spoiler in drafted.spoilers:
            await self._suspect(spoiler)
        is_in_vain = bool(reason) and not drafted.items and not is_due
        if not drafted.drafts or is_in_vain:
            return False
        try:
            intents = await lane.sender.submit(drafted.drafts)
        except IllegalTransition as exc:
            # A request of the batch moved since it was read (a reorg took it, the chain closed it): draft anew.
            log.info("batch_abandoned", cause=str(exc))
            return False
        self._sent_at_ms = self._clock.now_ms() if drafted.items else self._sent_at_ms
        self._quarantine.passed(id_ for intent in intents for id_ in intent.detail.get("request_ids", ()))
        log.info("batch_sent", reason=reason, items=drafted.items, rounds=[record.round for record in rounds])
        return True

    # What waits

    async def _items(self) -> tuple[list[Item], GasQuote]:
        """What may be settled now, the oldest first, and the price of the next block."""
        ready = await self._ready()
        if not ready:
            return [], GasQuote(0, 0)
        quote = await self._chain.gas_quote()
        requests = await self._store.requests_of([results[0].result.request_id for results in ready])
        items: list[Item] = []
        for results in ready:
            stored = requests.get(results[0].result.request_id)
            if stored is not None and self._may_settle(stored):
                items.append(await self._item(stored, results, quote))
            if len(items) == self._most_items:
                break
        return items, quote

    @property
    def _most_items(self) -> int:
        """What is looked at: what waits for its price must not keep others from their batch."""
        return self._batching.max_items + min(self._held, _MOST_HELD)

    async def _ready(self) -> list[tuple[StoredResult, ...]]:
        """What may be settled now. What needs a bond waits until it is back."""
        if self._has_bond():
            now_ms = self._clock.now_ms()
            ready = await self._store.ready_results(self._most_items + len(self._quarantine))
            return [each for each in ready if not self._quarantine.is_in(each[0].result.request_id, now_ms)]
        ready = await self._store.ready_results(_MOST_WITHOUT_BOND)
        rounds = {results[0].result.round for results in ready}
        recorded = {round_ for round_ in rounds if await self._is_recorded(round_)}
        return [results for results in ready if results[0].result.round in recorded]

    def _may_settle(self, stored: StoredRequest) -> bool:
        """In an open race, only who has a bond may."""
        return stored.request.relayer != ZERO_ADDRESS or self._has_bond()

    async def _item(self, stored: StoredRequest, results: tuple[StoredResult, ...], quote: GasQuote) -> Item:
        verifier = stored.request.verifier
        gas = counted_verifier_gas(verifier, self._chain.attested_key_verifier, self._terms)
        return Item(stored, results, await self._inline_bytes(stored, results[0], quote), gas)

    async def _fitting(self, items: Sequence[Item]) -> Sequence[Item]:
        """As many as one transaction takes, whatever their callbacks and verifiers do."""
        while items:
            if count := fitting([item.load for item in items]):
                return items[:count]
            # Such a request is not assigned; one that came here all the same must not stand in the way of others.
            await self._leave_out({items[0].result.request_id: ItemStatus.BAD_RESULT})
            items = items[1:]
        return items

    async def _inline_bytes(self, stored: StoredRequest, result: StoredResult, quote: GasQuote) -> bytes:
        """The bytes to publish: only when the requester asked for it and its gas budget pays for them, or a contract is
        to be called with them."""
        request, size = stored.request, result.payload_bytes
        if required_answer_bytes(request):
            return await self._store.payload(result.payload_hash) or b""
        if not request.inline_result or size > self._settings.max_inline_result_bytes:
            return b""
        gas = charged_gas(self._terms, 1, size, max(1, request.k))
        if gas * charged_gas_price_wei(self._terms, quote) > request.gas_budget_wei:
            return b""
        return await self._store.payload(result.payload_hash) or b""

    async def _adaptive(
        self, policy: AdaptivePolicy, waiting: Sequence[Item], quote: GasQuote
    ) -> tuple[Sequence[Item], str | None]:
        """The results of the next batch, and why it goes now; None while it waits."""
        self._note_arrivals(waiting)
        head = await self._chain.head()
        self._blocks.note(head.number, head.timestamp_s)
        if not waiting:
            return [], None
        now_ms, interval_ms = self._clock.now_ms(), self._blocks.interval_ms
        market = Market(self._terms, quote, self._blocks.last_block_ms, interval_ms, self._sent_at_ms)
        chance = self._arrivals.chance_of_another(now_ms, max(interval_ms, 1_000))
        choice = choose_batch(policy, now_ms, [_ready_of(item, quote) for item in waiting], market, chance)
        self._held = len(choice.held)
        self._metrics.gauge("headrace_results_held", self._held)
        if choice.reason is None:
            return [], None
        chosen = [waiting[number] for number in choice.chosen]
        items = await self._fitting(chosen)
        return items, BatchReason.FULL if len(items) < len(chosen) else choice.reason

    def _note_arrivals(self, waiting: Sequence[Item]) -> None:
        for item in waiting:
            if item.result.request_id not in self._arrived:
                self._arrivals.note(item.stored.request.model_id, item.ready_at_ms)
        self._arrived = {item.result.request_id for item in waiting}

    def _why_send(self, policy: BatchPolicy, items: Sequence[Item], *, is_cut: bool) -> str | None:
        if not items:
            return None
        if is_cut:
            return BatchReason.FULL
        return why_send(
            policy,
            self._clock.now_ms(),
            len(items),
            min(item.ready_at_ms for item in items),
            min(item.stored.effective_deadline_s for item in items) * 1000,
        )

    # Rounds

    async def _rounds_to_record(self, items: Sequence[Item], due: Collection[int]) -> list[RoundRecord]:
        """Records that must be on-chain with this batch, or now because an assignment's deadline nears."""
        if not self._has_bond():
            return []
        wanted = {item.result.round for item in items} | set(due)
        async with self._rounds:
            unrecorded = await self._store.unrecorded_rounds()
            are_recorded = await together(self._is_recorded(each.round) for each in unrecorded)
            records = []
            for stored, is_recorded in zip(unrecorded, are_recorded, strict=True):
                if stored.state == "open" and stored.round in wanted:
                    records.append(await close(self._store, stored))
                elif stored.state == "closed" and stored.record is not None and not is_recorded:
                    records.append(stored.record)
            return records

    async def _is_recorded(self, round_: int) -> bool:
        """Whether the chain has a record that the indexer has not reached yet."""
        return await self._chain.recorded_at_s(self._signer.address, round_) != 0

    async def _rounds_due(self) -> set[int]:
        now_ms = self._clock.now_ms()
        latest_ms = now_ms + self._settings.record_margin_ms
        due = {stored.assignment.round for stored in await self._store.assignments_due(latest_ms // 1000)}
        # What a node accepted and did not do counts as a miss only if it is on record by the deadline.
        return due | await self._store.rounds_owed(now_ms // 1000, latest_ms // 1000)

    async def _leave_out(self, bad: dict[Hash32, ItemStatus]) -> None:
        for request_id, status in bad.items():
            log.warning("item_left_out", requestId=request_id, status=status.name)
            self._metrics.count("headrace_items_left_out_total", status=status.name)
            now_ms = self._clock.now_ms()
            if status in NODES_FAULT:
                try:
                    await self._store.move(request_id, Cause.UNPAYABLE, now_ms, {"status": status.name})
                    self._on_requeued()
                except IllegalTransition:
                    continue
            elif status is ItemStatus.WRONG_RELAYER and await self._is_open_race(request_id):
                continue  # only the bond can be why, and it may be back
            elif status is ItemStatus.NO_ROUND and await self._may_have_a_round(request_id):
                continue
            elif status in (ItemStatus.LATE, ItemStatus.NO_ROUND, ItemStatus.WRONG_RELAYER):
                await self._give_up(request_id, f"the market will never pay it: {_NEVER[status]}", status.name)

    async def _is_open_race(self, request_id: Hash32) -> bool:
        stored = await self._store.request(request_id)
        return stored is not None and stored.request.relayer == ZERO_ADDRESS

    async def _may_have_a_round(self, request_id: Hash32) -> bool:
        """Whether an item without a recorded round may have one yet: its time is not over, or a reorg has just taken
        the record away, which the indexer is still to see."""
        stored, result = await self._store.request(request_id), await self._store.result(request_id)
        if stored is None or result is None:
            return True
        if (await self._chain.head()).timestamp_s <= stored.effective_deadline_s:
            return True
        round_ = await self._store.round(result.result.round)
        is_held_recorded = round_ is not None and round_.state == "recorded"
        return is_held_recorded and not await self._is_recorded(result.result.round)

    async def _suspect(self, spoiler: Spoiler) -> None:
        """Keep what makes its batch revert out of the next ones, and give it up when it did so often."""
        request_id, now_ms = spoiler.item.result.request_id, self._clock.now_ms()
        log.error("item_spoils_its_batch", requestId=request_id, error=spoiler.error)
        self._metrics.count("headrace_items_left_out_total", status="REVERTS")
        if self._quarantine.failed(request_id, now_ms):
            reason = "a batch with it reverts, also when nothing else is in it"
            await self._give_up(request_id, reason, spoiler.error, spoiler.call)

    async def _give_up(self, request_id: Hash32, reason: str, error: str, call: Call | None = None) -> None:
        """It is not tried again unless somebody asks for it; `expire` refunds it in the end."""
        head = await self._chain.head()
        letter = StoredDeadLetter(request_id, reason, error, call, head.number, self._clock.now_ms())
        await self._store.add_dead_letter(letter)
        self._metrics.count("headrace_dead_letters_total")
        log.error("dead_letter", requestId=request_id, reason=reason, error=error)


_NEVER = {
    ItemStatus.LATE: "its time is over",
    ItemStatus.NO_ROUND: "its round was not recorded in time",
    ItemStatus.WRONG_RELAYER: "it names another relayer",
}


def _ready_of(item: Item, quote: GasQuote) -> Ready:
    """An item as batching sees it."""
    request, load = item.stored.request, item.load
    return Ready(
        ready_at_ms=item.ready_at_ms,
        end_ms=item.stored.effective_deadline_s * 1000,
        lane=request.lane,
        batchable=request.batchable,
        priority_fee_wei=request.priority_fee_wei + item.stored.priority_fee_added_wei,
        gas_budget_wei=request.gas_budget_wei,
        nodes=load.nodes,
        result_bytes=load.result_bytes,
        callback_gas=load.callback_gas,
        verifier_gas=load.verifier_gas,
        data_fee_wei=result_bytes(load.nodes, load.result_bytes + load.proof_bytes) * quote.data_byte_wei,
    )
