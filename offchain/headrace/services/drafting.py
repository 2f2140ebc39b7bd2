"""Makes a batch's transactions: simulates the whole, finds the items that spoil it by halves, and leaves them out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from headrace.core import typed_data
from headrace.core.errors import Refused, SignatureMismatch
from headrace.core.expectations import ExpectedItem, ExpectedSet, require_recorded, require_settled
from headrace.core.gas import Load, unused_gas
from headrace.core.types import Address, Hash32, ItemStatus, MarketTerms, Result, RoundRecord
from headrace.ports import Call, CallOutcome, Chain, Metrics, NodeLink, ResultSetCall, StoredRequest, StoredResult
from headrace.services.sender import Draft
from headrace.services.submitting import Submitting
from headrace.services.together import together

log = structlog.get_logger(__name__)

_MAX_SIMULATIONS = 40
"""Of one draft, besides those of single items. Of fifty, one that spoils the batch is found in ten."""


@dataclass(frozen=True, slots=True)
class Item:
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


@dataclass(frozen=True, slots=True)
class Spoiler:
    """An item whose batch reverts even when it is alone in it."""

    item: Item
    error: str
    call: Call


@dataclass(frozen=True, slots=True)
class Drafted:
    """What can be sent, and what was left out of it.

    Args:
        drafts: transactions that a simulation of their sequence found good.
        items: how many items are in them.
        unpaid: what the market would not pay, with the status that it gives.
        spoilers: what makes the whole revert.
    """

    drafts: tuple[Draft, ...] = ()
    items: int = 0
    unpaid: tuple[tuple[Hash32, ItemStatus], ...] = ()
    spoilers: tuple[Spoiler, ...] = ()


class _Trial:
    """A simulation of records and of a batch after them."""

    def __init__(self, sets: Sequence[ResultSetCall], calls: Sequence[Call], outcomes: Sequence[CallOutcome]) -> None:
        self.sets, self.calls, self.outcomes = sets, calls, outcomes

    @property
    def error(self) -> str | None:
        """Of the first call that fails."""
        return next((each.error for each in self.outcomes if not each.succeeded), None)

    @property
    def is_record_bad(self) -> bool:
        """Whether a record fails, whatever the batch is."""
        records = self.outcomes[: -1 if self.sets else None]
        return any(not each.succeeded for each in records)


class Drafter:
    """Makes the transactions of records and of a batch. It sends nothing and stores nothing."""

    def __init__(
        self,
        chain: Chain,
        link: NodeLink,
        metrics: Metrics,
        terms: MarketTerms,
        relayer: Address,
        submitting: Submitting,
        set_signature_timeout_s: float,
        bond_wei: int = 0,
    ) -> None:
        self._chain = chain
        self._link = link
        self._metrics = metrics
        self._terms = terms
        self._relayer = relayer
        self._submitting = submitting
        self._set_signature_timeout_s = set_signature_timeout_s
        self._domain = typed_data.Domain(chain.chain_id, chain.market)
        self._bond_wei = bond_wei

    async def draft(self, records: Sequence[RoundRecord], items: Sequence[Item]) -> Drafted:
        """Transactions for these records and for what of these items can go out together.

        Raises:
            ChainUnavailable: the chain does not answer.
            Refused, ExpiredContext: a simulation does something else than was asked.
        """
        unpaid: dict[Hash32, ItemStatus] = {}
        search = _Search(self, records)
        for _ in range(len(ItemStatus)):
            trial = await self.attempt(records, items, as_sets=True)
            if trial.error is not None:
                log.error("simulation_failed", error=trial.error, items=len(items))
                self._metrics.count("headrace_simulations_failed_total")
                if not items or trial.is_record_bad:
                    return Drafted(unpaid=tuple(unpaid.items()), spoilers=tuple(search.spoilers))
                sound = await search.sound(items)
                # None of them is to blame: they are too much together.
                items = sound if len(sound) < len(items) else items[: len(items) // 2]
                if not items and not records:
                    break
                continue
            bad = bad_items(trial.sets, trial.outcomes[-1]) if trial.sets else {}
            if not bad:
                self._require_as_meant(records, trial, items)
                drafts = self._as_drafts(records, trial, items)
                return Drafted(tuple(drafts), len(items), tuple(unpaid.items()), tuple(search.spoilers))
            unpaid |= bad
            items = [item for item in items if item.result.request_id not in bad]
        return Drafted(unpaid=tuple(unpaid.items()), spoilers=tuple(search.spoilers))

    def _require_as_meant(self, records: Sequence[RoundRecord], trial: _Trial, items: Sequence[Item]) -> None:
        """Raises ExpiredContext when the simulation does something else than is meant."""
        for record, outcome in zip(records, trial.outcomes, strict=False):
            require_recorded(outcome.events, self._relayer, record.round, record.decisions_root)
        if not trial.sets:
            return
        by_id = {item.result.request_id: item for item in items}
        sets = [
            ExpectedSet(each.round, each.nodes, tuple(_expected(by_id[result.request_id]) for _, result in each.items))
            for each in trial.sets
        ]
        require_settled(trial.outcomes[-1].events, self._relayer, sets, self._terms)

    async def attempt(self, records: Sequence[RoundRecord], items: Sequence[Item], *, as_sets: bool) -> _Trial:
        """Simulate records and a batch, signed as sets or result by result."""
        sets = await self._sets(items, as_sets=as_sets)
        calls = [await self._submitting.record_round_call(record) for record in records]
        if sets:
            calls.append(await self._submitting.submit_results_call(sets))
        outcomes = await self._chain.simulate(self._submitting.sender, calls) if calls else []
        return _Trial(sets, calls, outcomes)

    def _as_drafts(
        self,
        records: Sequence[RoundRecord],
        trial: _Trial,
        items: Sequence[Item],
    ) -> list[Draft]:
        # What the market pays out for all of them at most.
        at_stake_wei = sum(item.at_stake_wei for item in items)
        drafts = [
            # Without it the batch is not paid, and no later round can be recorded, which is what the bond is for.
            Draft(
                "record_round",
                record_key(record.round),
                {"round": record.round},
                call,
                outcome.gas_used,
                worth_wei=at_stake_wei + self._bond_wei,
            )
            for record, call, outcome in zip(records, trial.calls, trial.outcomes, strict=False)
        ]
        return [*drafts, self._batch(trial, items, at_stake_wei)] if trial.sets else drafts

    def _batch(self, trial: _Trial, items: Sequence[Item], at_stake_wei: int) -> Draft:
        ids = [[result.request_id for _, result in set_.items] for set_ in trial.sets]
        flat = [request_id for group in ids for request_id in group]
        named = typed_data.hash_result_set(self._relayer, 0, [bytes.fromhex(request_id[2:]) for request_id in flat])
        return Draft(
            "submit_results",
            f"submit_results:{named.hex()}",
            {"sets": ids, "request_ids": flat, "rounds": [set_.round for set_ in trial.sets]},
            trial.calls[-1],
            trial.outcomes[-1].gas_used,
            unused_gas([item.load for item in items]),
            # When the market pays none of them any more.
            until_s=max(item.stored.effective_deadline_s for item in items) + self._terms.grace_s,
            worth_wei=at_stake_wei,
        )

    async def _sets(self, items: Sequence[Item], *, as_sets: bool) -> list[ResultSetCall]:
        groups: dict[tuple[int, tuple[Address, ...]], list[Item]] = {}
        for item in items:
            groups.setdefault((item.result.round, item.nodes), []).append(item)
        # Refunds to one requester in a row are stored once.
        return await together(
            self._set(round_, nodes, sorted(group, key=lambda item: item.stored.request.requester), as_sets=as_sets)
            for (round_, nodes), group in sorted(groups.items())
        )

    async def _set(
        self, round_: int, nodes: tuple[Address, ...], group: Sequence[Item], *, as_sets: bool
    ) -> ResultSetCall:
        # A lone item's signatures are there already; one of a set of one would say no more.
        signatures = await self._set_signatures(round_, nodes, group) if as_sets and len(group) > 1 else None
        return ResultSetCall(
            round=round_,
            nodes=nodes,
            signatures=signatures or tuple(each.signature for item in group for each in item.results),
            items=tuple((item.stored.request, item.result) for item in group),
            payloads=tuple(item.inline for item in group) if any(item.inline for item in group) else (),
            proofs=tuple(item.proof for item in group) if any(item.proof for item in group) else (),
        )

    async def _set_signatures(
        self, round_: int, nodes: tuple[Address, ...], group: Sequence[Item]
    ) -> tuple[bytes, ...] | None:
        """Each node's signature over the set, or None to fall back on those of the results (+5.5k gas each)."""
        signed = await asyncio.gather(*(self._set_signature(round_, node, group) for node in nodes))
        whole = tuple(signature for signature in signed if signature is not None)
        return whole if len(whole) == len(nodes) else None

    async def _set_signature(self, round_: int, node: Address, group: Sequence[Item]) -> bytes | None:
        results = [item.result for item in group]
        signature = await self._link.sign_set(node, round_, results, self._set_signature_timeout_s)
        if signature is None:
            return None
        hashes = [typed_data.hash_result(result) for result in results]
        struct_hash = typed_data.hash_result_set(self._relayer, round_, hashes)
        try:
            typed_data.require_signer(node, typed_data.digest(self._domain, struct_hash), signature, "result set")
        except SignatureMismatch as exc:
            log.warning("set_signature_refused", node=node, error=str(exc))
            return None
        return signature


class _Search:
    """Finds, by halves, what of a batch can go out together. Nodes are not asked to sign what is only tried."""

    def __init__(self, drafter: Drafter, records: Sequence[RoundRecord]) -> None:
        self.spoilers: list[Spoiler] = []
        self._drafter = drafter
        self._records = records
        self._left = _MAX_SIMULATIONS

    async def sound(self, items: Sequence[Item]) -> Sequence[Item]:
        """Of items that fail together, those that do not fail. What it does not come to waits for the next batch."""
        if len(items) == 1:
            trial = await self._drafter.attempt(self._records, items, as_sets=False)
            if trial.error is not None and not trial.is_record_bad:
                self.spoilers.append(Spoiler(items[0], trial.error, trial.calls[-1]))
            return () if trial.error is not None else items
        halves = items[: len(items) // 2], items[len(items) // 2 :]
        good = [await self._is_good(half) for half in halves]
        if all(good):
            # Too much together: a chain whose blocks are smaller than a transaction may be, say.
            return halves[0]
        return [
            item
            for half, is_good in zip(halves, good, strict=True)
            for item in (half if is_good else await self._within(half))
        ]

    async def _is_good(self, items: Sequence[Item]) -> bool:
        if self._left == 0 or len(items) == 1:
            return False
        self._left -= 1
        return (await self._drafter.attempt(self._records, items, as_sets=False)).error is None

    async def _within(self, items: Sequence[Item]) -> Sequence[Item]:
        return await self.sound(items) if self._left or len(items) == 1 else ()


def _expected(item: Item) -> ExpectedItem:
    stored, result = item.stored, item.result
    added_wei = stored.priority_fee_added_wei
    return ExpectedItem(stored.request_id, stored.request, added_wei, result.reward_wei, result.result_hash)


def record_key(round_: int) -> str:
    """The key of the intent that records a round."""
    return f"record_round:{round_}"


def bad_items(sets: Sequence[ResultSetCall], outcome: CallOutcome) -> dict[Hash32, ItemStatus]:
    """What a simulated batch would not pay. Raises Refused when it settled something else than was asked."""
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
