"""Watches what nodes and relayers did, and has proven what they did wrong.

The store has the blocks (the indexer's work). Each step looks at what came since the last one: recorded rounds,
settlements, endings, results that were signed twice, assignments in a node's journal. Each of these is about requests,
and each request is judged by all that is known of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from headrace.core.errors import Unavailable
from headrace.core.events import ChainEvent
from headrace.core.faults import (
    Ending,
    FoundFault,
    SignedAccept,
    SignedResult,
    find_faults,
    is_assignment_signed,
    is_result_signed,
)
from headrace.core.submissions import Submission
from headrace.core.typed_data import Domain
from headrace.core.types import ZERO_HASH, Decision, Hash32, ItemStatus
from headrace.ports import AssignmentJournal, Clock, FaultChain, Metrics, NotedResult, StoredFault, WatchStore
from headrace.services.dossiers import Dossiers
from headrace.services.prover import Prover

log = structlog.get_logger(__name__)

_OF_NODES = ("BatchSettled", "RequestClosed")
_OF_ALL = ("RoundRecorded", "BatchSettled", "ResultFulfilled", "RequestClosed")


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """How a watcher looks.

    Args:
        is_relayers_own: the store is that of the relayer whose rounds they are: faults of nodes only are looked for.
        is_once: look at all blocks from the first on, and remember no place to go on from.
        confirmations: blocks on top of what is looked at.
    """

    is_relayers_own: bool = False
    is_once: bool = False
    confirmations: int = 1
    poll_ms: int = 2_000
    window_blocks: int = 500
    retry_ms: int = 60_000
    max_again: int = 1_000


class StoreWords:
    """Leaves and accepts from a relayer's own store."""

    def __init__(self, store: WatchStore) -> None:
        self._store = store

    async def leaves(self, round_: int, count: int) -> list[Decision] | None:
        """See RoundWords."""
        return await self._store.leaves(round_) or None

    async def accepts(self, round_: int) -> list[SignedAccept] | None:
        """See RoundWords."""
        return [
            SignedAccept(
                request_id=each.request_id,
                node=each.assignment.node,
                relayer=each.assignment.relayer,
                round=each.assignment.round,
                deadline_s=each.assignment.deadline_s,
                signature=each.accept_signature,
            )
            for each in await self._store.assignments_of_round(round_)
            if each.accept_signature
        ]


class Watch:
    """The watching loop."""

    def __init__(
        self,
        chain: FaultChain,
        store: WatchStore,
        clock: Clock,
        metrics: Metrics,
        dossiers: Dossiers,
        prover: Prover | None,
        settings: WatchSettings | None = None,
        journal: AssignmentJournal | None = None,
    ) -> None:
        """
        Args:
            chain: for calldata and calls.
            store: with the chain's events up to now.
            clock: the time.
            metrics: counts what is found.
            dossiers: of the requests of the relayer that is watched.
            prover: takes faults to the chain; None = they are only reported.
            settings: how it looks.
            journal: a node's, with the relayer's signed assignments.
        """
        self._chain = chain
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._dossiers = dossiers
        self._prover = prover
        self._settings = settings or WatchSettings()
        self._journal = journal
        self._domain = Domain(chain.chain_id, chain.market)
        self._journal_since_ms = 0
        self._noted_up_to = 0
        self._looked_up_to = -1
        self._retried_at_ms = 0
        self._again: dict[Hash32, None] = {}  # requests that could not be judged for want of accepts

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                await self.step()
            except Unavailable as exc:
                log.warning("watching_postponed", error=str(exc))
            await asyncio.sleep(self._settings.poll_ms / 1000)

    async def step(self) -> None:
        """Look at what is new, and take what is found to the chain."""
        await self.look()
        if self._prover is not None:
            await self._prover.step()

    async def look(self) -> None:
        """Look at what is new, and keep what is found."""
        await self._judge(await self._from_journal())
        head = await self._store.last_block()
        upto = -1 if head is None else head.number - self._settings.confirmations
        place = await self._place()
        while place < upto:
            end = min(place + self._settings.window_blocks, upto)
            names = _OF_NODES if self._settings.is_relayers_own else _OF_ALL
            await self._judge(await self._touched(await self._store.events_between(place + 1, end, names)))
            place = end
            await self._set_place(place)
        equivocated, self._noted_up_to = await self._store.equivocated(self._noted_up_to)
        await self._judge(equivocated)
        if self._clock.now_ms() - self._retried_at_ms >= self._settings.retry_ms:
            self._retried_at_ms = self._clock.now_ms()
            await self._judge([*await self._withheld_before(), *self._again])

    async def withheld(self) -> list[int]:
        """Rounds whose leaves could not be had, or are not those of the record, and those whose accepts were missed."""
        missing = await self._store.rounds_without_leaves(self._settings.max_again)
        rounds = {each.round for each in missing if self._dossiers.is_chosen(each.round)}
        return sorted(rounds | self._dossiers.without_accepts)

    # What is new

    async def _touched(self, events: Sequence[ChainEvent]) -> set[Hash32]:
        """The requests that events concern."""
        touched: set[Hash32] = set()
        settled: dict[Hash32, list[ChainEvent]] = {}
        for event in events:
            is_watched = event.args.get("relayer") == self._dossiers.relayer
            if event.name == "RoundRecorded" and is_watched and self._dossiers.is_chosen(int(event.args["round"])):
                touched |= await self._recorded(int(event.args["round"]))
            elif event.name == "BatchSettled" and is_watched:
                settled.setdefault(event.transaction_hash, []).append(event)
            elif event.name in ("ResultFulfilled", "RequestClosed"):
                touched.add(event.args["requestId"])
        for transaction_hash, sets in settled.items():
            touched |= await self._read_submission(transaction_hash, sets)
        return touched

    async def _recorded(self, round_: int) -> set[Hash32]:
        touched = await self._dossiers.take_round(round_)
        if touched is None:
            log.warning("leaves_withheld", round=round_, relayer=self._dossiers.relayer)
        return touched or set()

    async def _withheld_before(self) -> set[Hash32]:
        """What is in rounds whose leaves are had now, and were not before."""
        if self._settings.is_relayers_own:
            return set()
        touched: set[Hash32] = set()
        for stored in await self._store.rounds_without_leaves(self._settings.max_again):
            if self._dossiers.is_chosen(stored.round):
                touched |= await self._dossiers.take_round(stored.round) or set()
        return touched

    async def _from_journal(self) -> set[Hash32]:
        if self._journal is None:
            return set()
        since_ms, self._journal_since_ms = self._journal_since_ms, self._clock.now_ms()
        # A task may be dated a little before it was written down.
        signed = await self._journal.assignments(max(0, since_ms - self._settings.retry_ms))
        return self._dossiers.take_assignments(each for each in signed if is_assignment_signed(each, self._domain))

    async def _read_submission(self, transaction_hash: Hash32, sets: Sequence[ChainEvent]) -> set[Hash32]:
        """Note what nodes signed in a settlement. Of a relayer's own, all is in its store already."""
        if await self._store.intent_of_transaction(transaction_hash) is not None:
            return set()
        submission = await self._chain.submitted(transaction_hash)
        if submission is None or len(submission.sets) != len(sets):
            return set()  # it went through another contract, whose calldata says nothing
        await self._store.note_results(list(self._noted(submission, sets, transaction_hash)))
        signed = [submission.assignment] if submission.assignment is not None else []
        return self._dossiers.take_assignments(each for each in signed if is_assignment_signed(each, self._domain))

    def _noted(
        self, submission: Submission, sets: Sequence[ChainEvent], transaction_hash: Hash32
    ) -> Iterable[NotedResult]:
        """The results of a settlement that their nodes did sign. The market checked those that it paid."""
        for settled, event in zip(submission.sets, sets, strict=True):
            statuses = bytes.fromhex(event.args["statuses"][2:])
            for words, status in zip(settled.signed, statuses, strict=False):
                for word in words:
                    if status == ItemStatus.OK or is_result_signed(word, self._domain):
                        yield _noted_of(word, transaction_hash)

    async def _place(self) -> int:
        return self._looked_up_to if self._settings.is_once else await self._store.watched_up_to()

    async def _set_place(self, place: int) -> None:
        self._looked_up_to = place
        if not self._settings.is_once:
            await self._store.set_watched_up_to(place)

    # Judging

    async def _judge(self, request_ids: Iterable[Hash32]) -> None:
        """Keep the faults that what is known of these requests proves."""
        judged = sorted(set(request_ids))
        for request_id in judged:
            self._again.pop(request_id, None)
        async for dossier in self._dossiers.of(judged):
            if dossier.ending is Ending.EXPIRED and self._dossiers.without_accepts & dossier.rounds.keys():
                self._keep_for_later(dossier.request_id)
            for found in find_faults(dossier, self._domain):
                await self._keep(found)

    def _keep_for_later(self, request_id: Hash32) -> None:
        if len(self._again) < self._settings.max_again:
            self._again[request_id] = None

    async def _keep(self, found: FoundFault) -> None:
        context = {"fault": found.fault.name, "culprit": found.culprit, "round": found.round}
        if self._settings.is_relayers_own and not found.fault.is_nodes:
            log.error("own_fault", requestId=found.request_id, **context)
            return
        if await self._store.add_fault(self._stored(found)):
            self._metrics.count("headrace_faults_found_total", fault=found.fault.name)
            log.warning("fault_found", requestId=found.request_id, **context)

    def _stored(self, found: FoundFault) -> StoredFault:
        return StoredFault(
            fault=found.fault,
            culprit=found.culprit,
            request_id=found.request_id,
            node=found.node,
            round=found.round,
            call=self._chain.prove_call(found),
            state="found",
            detail="",
            transaction_hash=ZERO_HASH,
            found_at_ms=self._clock.now_ms(),
            tried_at_ms=0,
        )


def _noted_of(signed: SignedResult, transaction_hash: Hash32) -> NotedResult:
    return NotedResult(signed.node, signed.result, b"", transaction_hash)
