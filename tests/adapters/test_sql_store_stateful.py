"""Whatever blocks come and go, the store is what folding the chain's events gives.

The model below is written against the rules, not against the store: it reads the canonical events from the first to the
last and knows nothing of rewinding.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import select

from headrace.adapters.sql.store import SqlStore
from headrace.adapters.sql.tables import events as event_table
from headrace.core.lifecycle import TERMINAL, Cause, RequestState, next_state
from headrace.core.types import ZERO_HASH, Hash32, RoundRecord, Status
from headrace.ports import StoredRequest
from tests.adapters.steps import NOW_MS, assign, batch, deliver, follow
from tests.fakes import RELAYER, START_S, FakeChain, FakeClock, Log, make_request

PICKS = st.tuples(st.integers(min_value=1, max_value=4), st.integers(min_value=0, max_value=5))  # request, event
END_OF = {Status.FULFILLED: RequestState.FULFILLED, Status.EXPIRED: RequestState.EXPIRED}


@dataclass
class Expected:
    """What the chain says of a request."""

    block_hash: Hash32
    added_wei: int
    deadline_s: int
    end: RequestState | None
    closing_transaction: Hash32


class StoreFollowsChain(RuleBasedStateMachine):
    """Blocks with any legal events, reorgs of any depth, and a relayer at work in between."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.chain = FakeChain()
        self.store: SqlStore = self.run(SqlStore.open("sqlite://", FakeClock()))
        self.seen: set[Hash32] = set()
        self.results: set[Hash32] = set()

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()

    # What happens on the chain

    @initialize()
    def start(self) -> None:
        self.chain.mine(self.chain.requested(make_request(salt=1)))
        self.follow()

    @rule(picks=st.lists(PICKS, max_size=4))
    def mine(self, picks: list[tuple[int, int]]) -> None:
        """A block with events that the contracts could log after the blocks before."""
        self.chain.mine(*self.legal(picks))
        self.follow()

    @rule(depth=st.integers(1, 6), blocks=st.lists(st.lists(PICKS, max_size=3), max_size=7))
    def reorg(self, depth: int, blocks: list[list[tuple[int, int]]]) -> None:
        depth = min(depth, len(self.chain.all_blocks()) - 1)
        self.chain.rollback(depth)
        for picks in blocks:
            self.chain.mine(*self.legal(picks))
        if len(blocks) < depth:
            self.chain.mine_many(depth - len(blocks))
        self.follow()

    def legal(self, picks: list[tuple[int, int]]) -> list[Log]:
        logs: list[Log] = []
        known = self.expected()
        opened = {id_ for id_, expected in known.items() if expected.end is None}
        recorded = sum(1 for event in self.chain.all_events() if event.name == "RoundRecorded")
        raised = Counter({id_: expected.added_wei for id_, expected in known.items()})
        for salt, kind in picks:
            request = make_request(salt=salt)
            id_ = self.chain.id_of(request)
            if id_ not in known and kind < 3:
                known[id_] = Expected("", 0, 0, None, "")
                opened.add(id_)
                logs.append(self.chain.requested(request, b"Why is the sky blue?"))
            elif kind == 5:
                recorded += 1
                record = RoundRecord(recorded, ZERO_HASH, ZERO_HASH, ZERO_HASH, 1, ZERO_HASH, 1, 0, 0)
                logs.append(self.chain.recorded(RELAYER, record))
            elif id_ in opened and kind == 0:
                raised[id_] += 10**25
                logs.append(self.chain.raised(id_, 10**25, raised[id_]))
            elif id_ in opened and kind == 1:
                logs.append(self.chain.cancel_announced(id_, START_S + len(self.chain.all_blocks())))
            elif id_ in opened and kind in (3, 4):
                opened.discard(id_)
                logs.append(self.chain.fulfilled(id_) if kind == 3 else self.chain.closed(id_, Status.EXPIRED))
        return logs

    # What the relayer does

    def follow(self) -> None:
        self.run(follow(self.store, self.chain))
        self.seen |= set(self.expected())

    @rule(depth=st.integers(0, 2))
    def confirm(self, depth: int) -> None:
        self.run(self.store.confirm_up_to(self.chain.all_blocks()[-1].number - depth, NOW_MS))

    @rule()
    def serve(self) -> None:
        """Assign what is eligible, and deliver every other assignment."""
        eligible = self.run(self.store.eligible(10))
        if eligible:
            self.run(assign(self.store, *[stored.request_id for stored in eligible]))
        for index, running in enumerate(self.run(self.store.open_assignments())):
            if index % 2 == 0 and self.run(deliver(self.store, running.request_id, running.assignment.round)):
                self.results.add(running.request_id)

    @rule()
    def settle(self) -> None:
        ready = [ready.result.request_id for (ready,) in self.run(self.store.ready_results(10))]
        if ready:
            self.run(batch(self.store, *ready, key=f"batch {ready}"))

    @rule(state=st.sampled_from(["included", "reverted", "dropped"]))
    def end_batch(self, state: str) -> None:
        block = 0 if state == "dropped" else self.chain.all_blocks()[-1].number
        for intent in self.run(self.store.open_intents()):
            self.run(self.store.end_intent(intent.intent_id, state, block, {"unpaid": {}}))

    # What must hold

    def expected(self) -> dict[Hash32, Expected]:
        found: dict[Hash32, Expected] = {}
        for event in self.chain.all_events():
            args = event.args
            match event.name:
                case "InferenceRequested":
                    found[args["requestId"]] = Expected(event.block_hash, 0, START_S + 3600, None, "")
                case "PriorityFeeRaised":
                    found[args["requestId"]].added_wei = args["total"]
                case "CancelAnnounced":
                    found[args["requestId"]].deadline_s = args["effectiveDeadline"]
                case "ResultFulfilled":
                    found[args["requestId"]].end = RequestState.FULFILLED
                    found[args["requestId"]].closing_transaction = event.transaction_hash
                case "RequestClosed":
                    found[args["requestId"]].end = END_OF[Status(args["status"])]
                    found[args["requestId"]].closing_transaction = event.transaction_hash
        return found

    @invariant()
    def requests_are_what_the_chain_says(self) -> None:
        expected = self.expected()
        stored: list[StoredRequest] = self.run(self.store.requests())
        assert {each.request_id for each in stored} == self.seen, "rows stay"
        for each in stored:
            said = expected.get(each.request_id)
            if said is None:
                assert each.state is RequestState.WITHDRAWN
                assert (each.closed, each.priority_fee_added_wei) == (None, 0)
                continue
            assert (each.block_hash, each.priority_fee_added_wei, each.effective_deadline_s) == (
                said.block_hash,
                said.added_wei,
                said.deadline_s,
            )
            assert each.state is not RequestState.WITHDRAWN
            assert (each.state if each.state in TERMINAL else None) is said.end
            assert (each.closed["transaction_hash"] if each.closed else "") == said.closing_transaction

    @invariant()
    def blocks_and_events_are_the_chains(self) -> None:
        assert self.run(self.store.last_block()) == self.chain.all_blocks()[-1]
        assert self.run(self._event_places()) == [
            (event.block_number, event.log_index, event.block_hash, event.name) for event in self.chain.all_events()
        ]

    async def _event_places(self) -> list[tuple[Any, ...]]:
        columns = (event_table.c.block_number, event_table.c.log_index, event_table.c.block_hash, event_table.c.name)
        async with self.store._database.read() as connection:
            return [tuple(row) for row in await connection.execute(select(*columns).order_by(*columns[:2]))]

    @invariant()
    def timelines_lead_to_where_requests_stand(self) -> None:
        for id_ in self.seen:
            state = RequestState.INCLUDED
            for entry in self.run(self.store.timeline(id_)):
                if "state" in entry.detail:
                    state = next_state(state, Cause(entry.stage))
                    assert state == entry.detail["state"]
            assert self.run(self.store.request(id_)).state is state

    @invariant()
    def results_stay_and_wait_in_one_place(self) -> None:
        ready = {ready.result.request_id for (ready,) in self.run(self.store.ready_results(10))}
        batched = [id_ for intent in self.run(self.store.open_intents()) for id_ in intent.detail["request_ids"]]
        for id_ in self.results:
            assert self.run(self.store.result(id_)) is not None
        for each in self.run(self.store.requests()):
            assert (each.request_id in ready) == (each.state is RequestState.SIGNED)
            if each.state is RequestState.SIGNED:
                assert each.request_id not in batched, "a batch on its way has it already"

    @invariant()
    def rounds_are_recorded_that_the_chain_has(self) -> None:
        on_chain = {event.args["round"]: event for event in self.chain.all_events() if event.name == "RoundRecorded"}
        for round_ in self.run(self.store.rounds()):
            assert (round_.state == "recorded") == (round_.round in on_chain)
            if round_.round in on_chain:
                assert round_.recorded_block == on_chain[round_.round].block_number


TestStoreFollowsChain = StoreFollowsChain.TestCase
TestStoreFollowsChain.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
