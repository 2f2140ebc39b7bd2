"""Settles results: closes and records their rounds, batches them, simulates the whole, and hands it to the sender."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from headrace.core import typed_data
from headrace.core.batching import NODES_FAULT, BatchPolicy, BatchReason, why_send
from headrace.core.errors import ChainUnavailable, ExpiredContext, IllegalTransition, Refused, SignatureMismatch
from headrace.core.fees import charged_gas, charged_gas_price_wei
from headrace.core.gas import Load, counted_verifier_gas, fitting, required_answer_bytes, unused_gas
from headrace.core.lifecycle import Cause
from headrace.core.types import ZERO_ADDRESS, Address, GasQuote, Hash32, ItemStatus, MarketTerms, Result, RoundRecord
from headrace.ports import (
    Call,
    CallOutcome,
    Chain,
    Clock,
    Metrics,
    NodeLink,
    ResultSetCall,
    Signer,
    Store,
    StoredRequest,
    StoredResult,
)
from headrace.services.rounds import close
from headrace.services.sender import Draft, Sender
from headrace.services.submitting import Submitting
from headrace.services.wake import Wake

log = structlog.get_logger(__name__)

_MOST_WITHOUT_BOND = 1_000  # results that are looked through for those that need none
SETTLING = frozenset({"record_round", "submit_results"})


@dataclass(frozen=True, slots=True)
class SettlerSettings:
    """Waits and bounds of the settler."""

    poll_ms: int = 200
    idle_poll_ms: int = 1_000  # when nothing waits: only the deadline of an assignment could come near
    set_signature_timeout_s: float = 0.5
    record_margin_ms: int = 6_000
    max_inline_result_bytes: int = 1_024


@dataclass(frozen=True, slots=True)
class _Item:
    """A request with what is settled of it. `results` are one, or a quorum's k by node: of one round and one hash."""

    stored: StoredRequest
    results: tuple[StoredResult, ...]
    inline: bytes
    verifier_gas: int  # what its verifier is counted with

    @property
    def load(self) -> Load:
        """What it asks of its transaction."""
        return Load(
            set_key=(self.result.round, self.nodes),
            nodes=len(self.nodes),
            requester=self.stored.request.requester,
            result_bytes=len(self.inline),
            proof_bytes=len(self.proof),
            callback_gas=self.stored.request.callback_gas,
            verifier_gas=self.verifier_gas,
        )

    @property
    def proof(self) -> bytes:
        """For the request's verifier, who looks at one node's result."""
        return self.results[0].proof

    @property
    def result(self) -> Result:
        """What each of its nodes signed."""
        return self.results[0].result

    @property
    def nodes(self) -> tuple[Address, ...]:
        """Who signed it, ascending."""
        return tuple(each.node for each in self.results)

    @property
    def at_stake_wei(self) -> int:
        """What nodes and relayer get for it at most, and would lose."""
        request = self.stored.request
        fees_wei = request.priority_fee_wei + self.stored.priority_fee_added_wei + request.gas_budget_wei
        return self.result.reward_wei * len(self.nodes) + fees_wei

    @property
    def ready_at_ms(self) -> int:
        """Since when it can be settled."""
        return max(each.received_at_ms for each in self.results)


class Settler:
    """The settling loop. `wake.ring()` says that there is a new result or block.

    Without a bond it settles what needs none: results of recorded rounds, of requests that name the relayer.

    `rounds` is held while a round is closed, so that no cycle adds to it meanwhile. `submitter` sends, when it is not
    the relayer itself; `sender` has its key then.
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
        batching: BatchPolicy,
        rounds: asyncio.Lock,
        on_requeued: Callable[[], None],
        settings: SettlerSettings | None = None,
        submitter: Address | None = None,
        *,
        has_bond: Callable[[], bool] = lambda: True,
    ) -> None:
        self.wake = Wake()
        self._chain = chain
        self._store = store
        self._link = link
        self._sender = sender
        self._clock = clock
        self._signer = signer
        self._metrics = metrics
        self._terms = terms
        self._batching = batching
        self._rounds = rounds
        self._on_requeued = on_requeued
        self._settings = settings or SettlerSettings()
        self._has_bond = has_bond
        self._submitting = Submitting(chain, clock, signer, submitter)
        self._domain = typed_data.Domain(chain.chain_id, chain.market)
        self._set_aside: dict[Hash32, ItemStatus] = {}
        self._is_idle = False

    async def run(self) -> None:
        """Settle until cancelled."""
        while True:
            try:
                await self.step()
            except ChainUnavailable as exc:
                log.warning("settling_postponed", error=str(exc))
            except ExpiredContext as exc:
                log.warning("settling_on_hold", error=str(exc))
            pause_ms = self._settings.idle_poll_ms if self._is_idle else self._settings.poll_ms
            await self.wake.wait(pause_ms / 1000)

    async def step(self) -> bool:
        """Confirm what was sent; when nothing of it is open, send the next batch if it is time. True if it did."""
        self._is_idle = False
        still_open = await self._sender.confirm()
        if any(intent.kind in SETTLING for intent in still_open):
            return False
        waiting = await self._items()
        self._is_idle = not waiting and not still_open
        items = await self._fitting(waiting)
        reason = self._why_send(items, is_cut=len(items) < len(waiting))
        rounds = await self._rounds_to_record(items if reason else [])
        if not reason and not rounds:
            return False
        drafts = await self._drafts(rounds, items if reason else [])
        if not drafts:
            return False
        await self._sender.submit(drafts)
        log.info("batch_sent", reason=reason, items=len(items) if reason else 0, rounds=[r.round for r in rounds])
        return True

    # What waits

    async def _items(self) -> list[_Item]:
        ready = await self._ready()
        if not ready:
            return []
        quote = await self._chain.gas_quote()
        items: list[_Item] = []
        for results in ready:
            request_id = results[0].result.request_id
            stored = await self._store.request(request_id)
            if stored is not None and request_id not in self._set_aside and self._may_settle(stored):
                items.append(await self._item(stored, results, quote))
            if len(items) == self._batching.max_items:
                break
        return items

    async def _ready(self) -> list[tuple[StoredResult, ...]]:
        """What may be settled now. What needs a bond waits until it is back."""
        if self._has_bond():
            return await self._store.ready_results(self._batching.max_items + len(self._set_aside))
        ready = await self._store.ready_results(_MOST_WITHOUT_BOND)
        rounds = {results[0].result.round for results in ready}
        recorded = {round_ for round_ in rounds if await self._is_recorded(round_)}
        return [results for results in ready if results[0].result.round in recorded]

    def _may_settle(self, stored: StoredRequest) -> bool:
        """In an open race, only who has a bond may."""
        return stored.request.relayer != ZERO_ADDRESS or self._has_bond()

    async def _item(self, stored: StoredRequest, results: tuple[StoredResult, ...], quote: GasQuote) -> _Item:
        verifier = stored.request.verifier
        gas = counted_verifier_gas(verifier, self._chain.attested_key_verifier, self._terms)
        return _Item(stored, results, await self._inline_bytes(stored, results[0], quote), gas)

    async def _fitting(self, items: Sequence[_Item]) -> Sequence[_Item]:
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

    def _why_send(self, items: Sequence[_Item], *, is_cut: bool) -> str | None:
        if not items:
            return None
        if is_cut:
            return BatchReason.FULL
        return why_send(
            self._batching,
            self._clock.now_ms(),
            len(items),
            min(item.ready_at_ms for item in items),
            min(item.stored.effective_deadline_s for item in items) * 1000,
        )

    # Rounds

    async def _rounds_to_record(self, items: Sequence[_Item]) -> list[RoundRecord]:
        """Records that must be on-chain with this batch, or now because an assignment's deadline nears."""
        if not self._has_bond():
            return []
        wanted = {item.result.round for item in items} | await self._rounds_due()
        async with self._rounds:
            records = []
            for stored in sorted(await self._store.rounds(limit=100), key=lambda row: row.round):
                if stored.state == "open" and stored.round in wanted:
                    records.append(await close(self._store, stored))
                elif (
                    stored.state == "closed" and stored.record is not None and not await self._is_recorded(stored.round)
                ):
                    records.append(stored.record)
            return records

    async def _is_recorded(self, round_: int) -> bool:
        """Whether the chain has a record that the indexer has not reached yet."""
        return await self._chain.recorded_at_s(self._signer.address, round_) != 0

    async def _rounds_due(self) -> set[int]:
        now_ms = self._clock.now_ms()
        latest_ms = now_ms + self._settings.record_margin_ms
        due = {
            stored.assignment.round
            for stored in await self._store.open_assignments()
            if stored.assignment.deadline_s * 1000 <= latest_ms
        }
        # What a node accepted and did not do counts as a miss only if it is on record by the deadline.
        return due | await self._store.rounds_owed(now_ms // 1000, latest_ms // 1000)

    # Drafts

    async def _drafts(self, records: Sequence[RoundRecord], items: Sequence[_Item]) -> list[Draft]:
        """Transactions that a simulation of their sequence found good, without the items that are not paid in it."""
        record_calls = [self._submitting.record_round_call(record) for record in records]
        for _ in range(len(ItemStatus)):
            sets = await self._sets(items)
            calls = [*record_calls, *([self._submitting.submit_results_call(sets)] if sets else [])]
            if not calls:
                return []
            outcomes = await self._chain.simulate(self._submitting.sender, calls)
            if failed := next((outcome for outcome in outcomes if not outcome.succeeded), None):
                log.error("simulation_failed", error=failed.error, items=len(items))
                self._metrics.count("headrace_simulations_failed_total")
                if len(items) < 2 or failed is not outcomes[-1]:
                    return []
                # A chain whose blocks are smaller than a transaction may be, say.
                items = items[: len(items) // 2]
                continue
            bad = _bad_items(sets, outcomes[-1]) if sets else {}
            if not bad:
                return self._as_drafts(records, sets, calls, outcomes, items)
            await self._leave_out(bad)
            items = [item for item in items if item.result.request_id not in bad]
        return []

    def _as_drafts(
        self,
        records: Sequence[RoundRecord],
        sets: Sequence[ResultSetCall],
        calls: Sequence[Call],
        outcomes: Sequence[CallOutcome],
        items: Sequence[_Item],
    ) -> list[Draft]:
        drafts = []
        for index, record in enumerate(records):
            key = f"record_round:{record.round}"
            drafts.append(Draft("record_round", key, {"round": record.round}, calls[index], outcomes[index].gas_used))
        if sets:
            ids = [[result.request_id for _, result in set_.items] for set_ in sets]
            flat = [request_id for group in ids for request_id in group]
            detail = {"sets": ids, "request_ids": flat, "rounds": [set_.round for set_ in sets]}
            key = (
                "submit_results:"
                + typed_data.hash_result_set(
                    self._signer.address, 0, [bytes.fromhex(request_id[2:]) for request_id in flat]
                ).hex()
            )
            drafts.append(
                Draft(
                    "submit_results",
                    key,
                    detail,
                    calls[-1],
                    outcomes[-1].gas_used,
                    unused_gas([item.load for item in items]),
                    # When the market pays none of them any more, and what it pays out for all of them at most.
                    until_s=max(item.stored.effective_deadline_s for item in items) + self._terms.grace_s,
                    worth_wei=sum(item.at_stake_wei for item in items),
                )
            )
        return drafts

    async def _sets(self, items: Sequence[_Item]) -> list[ResultSetCall]:
        groups: dict[tuple[int, tuple[Address, ...]], list[_Item]] = {}
        for item in items:
            groups.setdefault((item.result.round, item.nodes), []).append(item)
        # Refunds to one requester in a row are stored once.
        return [
            await self._set(round_, nodes, sorted(group, key=lambda item: item.stored.request.requester))
            for (round_, nodes), group in sorted(groups.items())
        ]

    async def _set(self, round_: int, nodes: tuple[Address, ...], group: Sequence[_Item]) -> ResultSetCall:
        # A lone item's signatures are there already; one of a set of one would say no more.
        signatures = await self._set_signatures(round_, nodes, group) if len(group) > 1 else None
        return ResultSetCall(
            round=round_,
            nodes=nodes,
            signatures=signatures or tuple(each.signature for item in group for each in item.results),
            items=tuple((item.stored.request, item.result) for item in group),
            payloads=tuple(item.inline for item in group) if any(item.inline for item in group) else (),
            proofs=tuple(item.proof for item in group) if any(item.proof for item in group) else (),
        )

    async def _set_signatures(
        self, round_: int, nodes: tuple[Address, ...], group: Sequence[_Item]
    ) -> tuple[bytes, ...] | None:
        """Each node's signature over the set, or None to fall back on those of the results (+5.5k gas each)."""
        signed = await asyncio.gather(*(self._set_signature(round_, node, group) for node in nodes))
        whole = tuple(signature for signature in signed if signature is not None)
        return whole if len(whole) == len(nodes) else None

    async def _set_signature(self, round_: int, node: Address, group: Sequence[_Item]) -> bytes | None:
        results = [item.result for item in group]
        signature = await self._link.sign_set(node, round_, results, self._settings.set_signature_timeout_s)
        if signature is None:
            return None
        hashes = [typed_data.hash_result(result) for result in results]
        struct_hash = typed_data.hash_result_set(self._signer.address, round_, hashes)
        try:
            typed_data.require_signer(node, typed_data.digest(self._domain, struct_hash), signature, "result set")
        except SignatureMismatch as exc:
            log.warning("set_signature_refused", node=node, error=str(exc))
            return None
        return signature

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
            elif status in (ItemStatus.LATE, ItemStatus.NO_ROUND, ItemStatus.WRONG_RELAYER):
                # It can never be paid; `expire` will refund it.
                self._set_aside[request_id] = status
                await self._store.note(request_id, now_ms, "unpayable", {"status": status.name})

    async def _is_open_race(self, request_id: Hash32) -> bool:
        stored = await self._store.request(request_id)
        return stored is not None and stored.request.relayer == ZERO_ADDRESS


def _bad_items(sets: Sequence[ResultSetCall], outcome: CallOutcome) -> dict[Hash32, ItemStatus]:
    settled = [event for event in outcome.events if event.name == "BatchSettled"]
    if len(settled) != len(sets):
        raise Refused(f"the simulated batch settled {len(settled)} sets, not {len(sets)}")
    bad = {}
    for set_, event in zip(sets, settled, strict=True):
        statuses = bytes.fromhex(event.args["statuses"][2:])
        for (_, result), status in zip(set_.items, statuses, strict=True):
            if status != ItemStatus.OK:
                bad[result.request_id] = ItemStatus(status)
    return bad
