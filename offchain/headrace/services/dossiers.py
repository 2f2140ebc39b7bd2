"""Puts together what is known of a request, so that `core.faults` can find in it what somebody did wrong."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TypeAlias

from headrace.core.events import BlockRef, ChainEvent
from headrace.core.faults import (
    Dossier,
    Ending,
    SignedAccept,
    SignedAssignment,
    SignedResult,
    WatchedRound,
    is_record_of,
)
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Address, Hash32, ResultRef, Status
from headrace.ports import FaultChain, NotedResult, RoundWords, StoredRequest, StoredRound, WatchStore

_ROUNDS_IN_MEMORY = 64
_REQUESTS_AT_ONCE = 200
_MAX_ASSIGNMENTS = 100_000


_Settlements: TypeAlias = tuple[Sequence[ChainEvent], BlockRef | None]


class Dossiers:
    """Dossiers of the requests of one relayer."""

    def __init__(
        self, chain: FaultChain, store: WatchStore, words: RoundWords, relayer: Address, rounds: range | None = None
    ) -> None:
        """
        Args:
            chain: for the calldata of settlements.
            store: blocks and events up to now.
            words: where leaves and accepts are had from.
            relayer: whose rounds.
            rounds: those to look at, all unless given.
        """
        self.relayer = relayer
        self._chain = chain
        self._store = store
        self._words = words
        self._chosen = rounds
        self._rounds: OrderedDict[tuple[int, int], WatchedRound] = OrderedDict()
        self._accepts: OrderedDict[int, list[SignedAccept]] = OrderedDict()
        self._assignments: OrderedDict[Hash32, list[SignedAssignment]] = OrderedDict()
        self._assigned_in: defaultdict[int, set[Hash32]] = defaultdict(set)
        self.without_accepts: set[int] = set()  # rounds whose accepts could not be had when they were asked for

    def is_chosen(self, round_: int) -> bool:
        """Whether a round is one of those to look at."""
        return self._chosen is None or round_ in self._chosen

    # What comes in

    def take_assignments(self, signed: Iterable[SignedAssignment]) -> set[Hash32]:
        """Take in what the relayer signed; returns the requests that it concerns."""
        touched = set()
        for each in signed:
            word = each.assignment
            if word.relayer != self.relayer:
                continue
            known = self._assignments.setdefault(word.request_id, [])
            if each not in known:
                known.append(each)
                self._assigned_in[word.round].add(word.request_id)
                touched.add(word.request_id)
        while len(self._assignments) > _MAX_ASSIGNMENTS:
            _, oldest = self._assignments.popitem(last=False)
            for each in oldest:
                self._assigned_in[each.assignment.round].discard(each.assignment.request_id)
        return touched

    async def take_round(self, number: int) -> set[Hash32] | None:
        """Fetch a recorded round's leaves and keep them. Returns the requests that they concern, or that should be in
        them; None when the leaves cannot be had, or are not those of the record."""
        stored = await self._store.round(number)
        if stored is None or stored.record is None:
            return set()
        round_ = await self._known(stored)
        if round_ is None:
            record = stored.record
            leaves = await self._words.leaves(number, record.assigned + record.skipped + record.too_late)
            if leaves is None or not is_record_of(record, leaves):
                return None
            await self._store.keep_leaves(number, leaves)
            round_ = await self._known(stored)
        named = {leaf.request_id for leaf in round_.leaves if leaf.node != ZERO_ADDRESS} if round_ else set()
        return named | self._assigned_in.get(number, set()) | set(await self._store.noted_in_round(number))

    # Dossiers

    async def of(self, request_ids: Sequence[Hash32]) -> AsyncIterator[Dossier]:
        """What is known of each of these requests, but for those that the relayer may not serve."""
        rounds: dict[int, WatchedRound | None] = {}
        blocks: dict[int, _Settlements] = {}
        for start in range(0, len(request_ids), _REQUESTS_AT_ONCE):
            some = request_ids[start : start + _REQUESTS_AT_ONCE]
            known = await self._store.known_requests(some)
            servable = [each for each in some if each in known and self._may_serve(known[each])]
            events = await self._store.events_of(servable)
            assigning = await self._store.rounds_assigning(servable)
            noted = await self._store.noted_results(servable)
            settled = await self._settled(servable, events, blocks)
            for request_id in servable:
                paid = settled.get(request_id)
                wanted = assigning[request_id] | ({paid.round} if paid else set())
                wanted |= {each.assignment.round for each in self._assignments.get(request_id, ())}
                for number in wanted - rounds.keys():
                    rounds[number] = await self.round(number)
                concerned = {number: found for number in sorted(wanted) if (found := rounds[number]) is not None}
                ending = _ending_of(events[request_id])
                yield Dossier(
                    request_id=request_id,
                    request=known[request_id].request,
                    relayer=self.relayer,
                    ending=ending,
                    paid=paid,
                    rounds=concerned,
                    accepts=await self._accepts_of(request_id, concerned) if ending is Ending.EXPIRED else [],
                    assignments=list(self._assignments.get(request_id, ())),
                    results=await self._signed_results(noted[request_id]),
                )

    def _may_serve(self, stored: StoredRequest) -> bool:
        return stored.request.relayer in (self.relayer, ZERO_ADDRESS)

    async def round(self, number: int) -> WatchedRound | None:
        """A recorded round whose leaves are known."""
        stored = await self._store.round(number) if self.is_chosen(number) else None
        return None if stored is None else await self._known(stored)

    async def _known(self, stored: StoredRound) -> WatchedRound | None:
        if stored.state != "recorded" or stored.record is None:
            return None
        key = (stored.round, stored.recorded_block)
        found = self._rounds.get(key)
        if found is not None and found.record == stored.record:
            self._rounds.move_to_end(key)
            return found
        leaves = await self._store.leaves(stored.round)
        block = await self._store.block(stored.recorded_block)
        if block is None or not is_record_of(stored.record, leaves):
            return None
        round_ = WatchedRound(self.relayer, stored.record, block.timestamp_s, leaves)
        self._rounds[key] = round_
        if len(self._rounds) > _ROUNDS_IN_MEMORY:
            self._rounds.popitem(last=False)
        return round_

    async def _settled(
        self,
        request_ids: Iterable[Hash32],
        events: Mapping[Hash32, Sequence[ChainEvent]],
        blocks: dict[int, _Settlements],
    ) -> dict[Hash32, ResultRef]:
        """What the market keeps of settlements in the relayer's rounds: of each, the set that ends after its event.
        `blocks` has what was read before, by number."""
        found: dict[Hash32, ResultRef] = {}
        for request_id in request_ids:
            event = next((event for event in reversed(events[request_id]) if event.name == "ResultFulfilled"), None)
            if event is None:
                continue
            number = event.block_number
            if number not in blocks:
                sets = await self._store.events_between(number, number, ("BatchSettled",))
                blocks[number] = sets, await self._store.block(number)
            settlements, block = blocks[number]
            if block is not None and (ref := self._ref_of(event, settlements, block)) is not None:
                found[request_id] = ref
        return found

    def _ref_of(self, fulfilled: ChainEvent, sets: Sequence[ChainEvent], block: BlockRef) -> ResultRef | None:
        settled = next((event for event in sets if event.log_index > fulfilled.log_index), None)
        if settled is None or settled.args["relayer"] != self.relayer:
            return None
        return ResultRef(
            result_hash=fulfilled.args["resultHash"],
            relayer=self.relayer,
            round=int(settled.args["round"]),
            nodes=tuple(settled.args["nodes"]),
            settled_at_s=block.timestamp_s,
        )

    async def _accepts_of(self, request_id: Hash32, rounds: Iterable[int]) -> list[SignedAccept]:
        found = []
        for number in rounds:
            accepts = self._accepts.get(number)
            if accepts is None:
                accepts = await self._words.accepts(number)
                if accepts is None:
                    self.without_accepts.add(number)
                    continue
                self.without_accepts.discard(number)
                self._accepts[number] = accepts
                if len(self._accepts) > _ROUNDS_IN_MEMORY:
                    self._accepts.popitem(last=False)
            found += [accept for accept in accepts if accept.request_id == request_id]
        return found

    async def _signed_results(self, noted: Sequence[NotedResult]) -> list[SignedResult]:
        """Results of nodes. Signatures that are in calldata are looked for only when a node signed two results."""
        hashes: defaultdict[Address, set[Hash32]] = defaultdict(set)
        for each in noted:
            hashes[each.node].add(each.result.result_hash)
        return [
            await self._signed(each)
            if len(hashes[each.node]) > 1
            else SignedResult(each.node, each.result, each.signature)
            for each in noted
        ]

    async def _signed(self, noted: NotedResult) -> SignedResult:
        if noted.transaction_hash != ZERO_HASH:
            submission = await self._chain.submitted(noted.transaction_hash)
            for each in submission.sets if submission else ():
                for signed in (word for words in each.signed for word in words):
                    if (signed.node, signed.result) == (noted.node, noted.result):
                        return signed
        return SignedResult(noted.node, noted.result, noted.signature)


def _ending_of(events: Sequence[ChainEvent]) -> Ending:
    """How a request ended, by its events."""
    closing = next((event for event in reversed(events) if event.name in ("ResultFulfilled", "RequestClosed")), None)
    if closing is None:
        return Ending.OPEN
    if closing.name == "ResultFulfilled":
        return Ending.SETTLED
    if Status(closing.args["status"]) is Status.CANCELLED:
        return Ending.RELEASED
    is_cancelled = any(event.name == "CancelAnnounced" for event in events)
    return Ending.EXPIRED_CANCELLED if is_cancelled else Ending.EXPIRED
