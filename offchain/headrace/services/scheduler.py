"""Runs a cycle when something changed: gathers its inputs, asks `core.scheduling`, stores the outcome, dispatches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import TypeVar

import structlog

from headrace.core import typed_data
from headrace.core.canonical import canonical_json
from headrace.core.envelope import content_of
from headrace.core.errors import ChainUnavailable, IllegalTransition, InvalidInput, SignerUnavailable
from headrace.core.events import BlockRef
from headrace.core.fields import to_json
from headrace.core.gas import counted_verifier_gas, required_answer_bytes
from headrace.core.lifecycle import Cause
from headrace.core.lost import MAX_UNRECORDED
from headrace.core.performance import Performance
from headrace.core.prompts import why_not_deterministic
from headrace.core.quorum import Member, Vote, standing_of
from headrace.core.scheduling import (
    Anchor,
    CycleInputs,
    CyclePlan,
    Engine,
    NodeView,
    Offer,
    PlannedDecision,
    Policy,
    WaitingRequest,
)
from headrace.core.snapshot import SnapshotWriter, policy_hash
from headrace.core.tasks import LinkedNode
from headrace.core.types import (
    ZERO_HASH,
    Address,
    Assignment,
    Decision,
    DecisionKind,
    GasQuote,
    Hash32,
    MarketTerms,
    Reason,
)
from headrace.core.work import expected_work
from headrace.ports import (
    Chain,
    Clock,
    Metrics,
    ModelFacts,
    NodeFacts,
    NodeLink,
    Running,
    Signer,
    Store,
    StoredAssignment,
    StoredCycle,
    StoredRequest,
    StoredRound,
)
from headrace.services.dispatcher import Dispatcher
from headrace.services.rounds import close, leave_behind
from headrace.services.signing import sign_all
from headrace.services.together import together
from headrace.services.wake import Wake

log = structlog.get_logger(__name__)

MAX_WAITING = 10_000
MANY_REQUESTS = 100
LAST_FEES, FEES_TTL_MS = 1_000, 10_000
BYTES_PER_TOKEN = 3  # of prompts, a low guess: memory is over- rather than under-estimated


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Waits of the scheduler in milliseconds, and the blocks after which requests are eligible."""

    min_gap_ms: int = 25
    idle_ms: int = 1_000
    lease_ms: int = 30_000
    node_facts_ttl_ms: int = 5_000
    confirmations: int = 1


@dataclass(slots=True)
class _KnownNode:
    facts: NodeFacts
    offers: tuple[Offer, ...]
    read_at_ms: int


_T = TypeVar("_T")
_Tried = Mapping[Hash32, Sequence[StoredAssignment]]


@dataclass(slots=True)
class _Caches:
    nodes: dict[str, _KnownNode] = field(default_factory=dict)
    owners: dict[Address, Address] = field(default_factory=dict)
    fixed_answers: dict[Hash32, bool] = field(default_factory=dict)  # by prompt hash
    ageing: list[Address] = field(default_factory=list)  # nodes whose facts are soon too old
    gas: tuple[Hash32, GasQuote] | None = None  # by the hash of the block before
    median_fee_wei: int = 0
    fees_at_ms: int = 0
    last: dict[Hash32, Decision | None] = field(default_factory=dict)  # decisions on what waits


class Scheduler:
    """The scheduling loop. `wake.ring()` asks for a cycle.

    `rounds` is held over a cycle, so that its round stays open until the cycle is stored.
    """

    def __init__(
        self,
        chain: Chain,
        store: Store,
        link: NodeLink,
        dispatcher: Dispatcher,
        clock: Clock,
        signer: Signer,
        metrics: Metrics,
        terms: MarketTerms,
        models: Sequence[ModelFacts],
        policy: Policy,
        first_round: int,
        rounds: asyncio.Lock,
        settings: SchedulerSettings | None = None,
        wake: Wake | None = None,
        *,
        has_bond: Callable[[], bool] = lambda: True,
        performance: Performance | None = None,
    ) -> None:
        self.wake = wake or Wake()
        self._chain = chain
        self._store = store
        self._link = link
        self._dispatcher = dispatcher
        self._clock = clock
        self._signer = signer
        self._metrics = metrics
        self._terms = terms
        self._models: Mapping[Hash32, ModelFacts] = {model.model_id: model for model in models}
        self._policy = policy
        self._policy_hash = policy_hash(policy)
        self._first_round = first_round
        self._rounds = rounds
        self._settings = settings or SchedulerSettings()
        self._has_bond = has_bond
        self._performance = performance or Performance()
        self._domain = typed_data.Domain(chain.chain_id, chain.market)
        self._caches = _Caches()
        self._engine = Engine()
        self._snapshots = SnapshotWriter()
        self._ttl_ms = self._settings.node_facts_ttl_ms
        self._refreshing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run cycles until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                started_s = asyncio.get_running_loop().time()
                try:
                    await self.step(group)
                except (ChainUnavailable, SignerUnavailable) as exc:
                    log.warning("cycle_postponed", error=str(exc))
                # A cycle over a long backlog takes a while: half of the time is for the other loops.
                took_s = asyncio.get_running_loop().time() - started_s
                await asyncio.sleep(max(self._settings.min_gap_ms / 1000, took_s))
                await self.wake.wait(self._settings.idle_ms / 1000)

    async def step(self, group: asyncio.TaskGroup) -> CyclePlan | None:
        """End lapsed leases, run one cycle if anything waits, and dispatch what is assigned and not accepted yet.

        Without a bond nothing is assigned or dispatched: its round could not be recorded.
        """
        await self._end_lapsed_leases()
        if not self._has_bond():
            return None
        async with self._rounds:
            plan = await self._cycle()
        for assignment in await self._store.unsent_assignments():
            self._dispatcher.start(group, assignment)
        if self._caches.ageing and self._refreshing is None:
            self._refreshing = group.create_task(self._refresh(), name="refresh nodes")
        return plan

    def use(self, policy: Policy) -> None:
        """Decide by another policy from the next cycle on."""
        self._policy, self._policy_hash = policy, policy_hash(policy)
        self.wake.ring()

    async def hold(self, request_id: Hash32, until_ms: int) -> bool:
        """Keep a request from being assigned until a time, so that the relayer can sign a release of it.

        Returns:
            False when it is assigned, or past being assigned, already.
        """
        async with self._rounds:
            return await self._store.release(request_id, -(-until_ms // 1000), self._clock.now_ms())

    async def _end_lapsed_leases(self) -> None:
        now_ms = self._clock.now_ms()
        for stored in await self._store.lapsed_assignments(now_ms):
            try:
                await self._store.end_assignment(
                    stored.request_id, stored.attempt, Cause.LEASE_EXPIRED, now_ms, "no answer within the lease"
                )
            except IllegalTransition:
                continue
            self._performance.missed(stored.assignment.node)
            self._metrics.count("headrace_assignments_total", outcome=Cause.LEASE_EXPIRED)
            log.warning("lease_expired", requestId=stored.request_id, node=stored.assignment.node)

    async def _cycle(self) -> CyclePlan | None:
        await self._leave_round_of_another_policy()
        found = await self._store.waiting_at_head(MAX_WAITING, self._settings.confirmations)
        if found is None:
            return None  # the indexer rings when it is done
        anchor, waiting = found
        last = await self._last_decisions([request.request_id for request in waiting])
        waiting = [request for request in waiting if not _is_given_up(last[request.request_id])]
        if not waiting:
            return None
        tried_of = await self._store.assignments_of([stored.request_id for stored in waiting])
        await self._leave_round_to_list_again(waiting, tried_of)
        if await self._is_far_ahead():
            return None
        round_ = await self._store.open_round(self._clock.now_ms(), self._first_round)
        inputs = await self._inputs(round_, anchor, waiting, tried_of)
        plan = await self._planned(inputs)
        if not plan.decisions:
            return None
        try:
            await self._persist(inputs, plan, tried_of)
        except IllegalTransition as exc:
            # A request moved between the snapshot and now (its result came, the chain closed it): decide anew.
            log.info("cycle_abandoned", cause=str(exc))
            self.wake.ring()
            return None
        return plan

    async def _planned(self, inputs: CycleInputs) -> CyclePlan:
        return await _aside(inputs, lambda: self._engine.plan(inputs))

    async def _last_decisions(self, request_ids: Sequence[Hash32]) -> dict[Hash32, Decision | None]:
        """The last decision on each of these, which is looked up once."""
        known = self._caches.last
        unknown = [request_id for request_id in request_ids if request_id not in known]
        found = await self._store.last_decisions(unknown) if unknown else {}
        self._caches.last = {
            request_id: known[request_id] if request_id in known else found.get(request_id)
            for request_id in request_ids
        }
        return self._caches.last

    def _last_reason(self, request_id: Hash32) -> Reason:
        last = self._caches.last.get(request_id)
        return last.reason if last else Reason.NONE

    async def _inputs(
        self, round_: StoredRound, anchor: BlockRef, waiting: Sequence[StoredRequest], tried_of: _Tried
    ) -> CycleInputs:
        """What the next cycle of a round decides on."""
        views = await self._waiting_requests(waiting, tried_of, round_.round)
        requests = tuple(replace(view, last_reason=self._last_reason(view.request_id)) for view in views)
        nodes, gas = await self._node_views(), await self._gas_quote(anchor)
        carried = await self._store.carried()
        return CycleInputs(
            chain_id=self._chain.chain_id,
            market=self._chain.market,
            relayer=self._signer.address,
            round=round_.round,
            cycle=round_.cycles,
            now_ms=self._clock.now_ms(),  # after all that was read: an audit finds a heartbeat of later than this
            anchor=Anchor(anchor.number, anchor.hash, anchor.timestamp_s),
            gas=gas,
            terms=self._terms,
            policy=self._policy,
            lane_streak=carried.lane_streak,
            requests=requests,
            nodes=nodes,
            lane_lag=carried.lane_lag,
            floor_work=carried.floor_work,
            accounts=carried.accounts,
            median_fee_wei=await self._median_fee_wei(),
        )

    async def _leave_round_of_another_policy(self) -> None:
        for round_ in await self._store.rounds(limit=1):
            if round_.state == "open" and round_.cycles and round_.policy_hash != self._policy_hash:
                log.info("policy_changed", round=round_.round, before=round_.policy_hash, now=self._policy_hash)
                await leave_behind(self._store, round_)
                self._caches.last.clear()  # if it assigned nothing, its decisions are forgotten

    async def _leave_round_to_list_again(self, waiting: Sequence[StoredRequest], tried_of: _Tried) -> None:
        """Close the open round when a request of it waits for what only another round can have.

        A quorum is listed once a round, since within one a node's assignment cannot change its reward. A node that put
        a single request off gets it again in a later round; that nobody else took it meanwhile says that it should.
        """
        for round_ in await self._store.rounds(limit=1):
            if round_.state != "open":
                return
            now_ms = self._clock.now_ms()
            for stored in waiting:
                tried = tried_of.get(stored.request_id, [])
                within = [each for each in tried if each.assignment.round == round_.round]
                is_due = any(_is_put_off(each) and each.lease_until_ms <= now_ms for each in within)
                if within and (tried[-1] in within if stored.request.k else is_due):
                    log.info("listed_again_in_a_new_round", requestId=stored.request_id, round=round_.round)
                    await close(self._store, round_)
                    return

    async def _is_far_ahead(self) -> bool:
        """Whether so many rounds wait for their records that no more are decided. What a relayer that lost its store
        may have signed for has a bound by this (`core.lost`)."""
        waiting = sum(stored.state == "closed" for stored in await self._store.unrecorded_rounds())
        if waiting >= MAX_UNRECORDED:
            log.warning("rounds_wait_for_their_records", rounds=waiting)
        return waiting >= MAX_UNRECORDED

    async def _persist(self, inputs: CycleInputs, plan: CyclePlan, tried_of: _Tried) -> None:
        snapshot_hash, snapshot = await _aside(inputs, lambda: self._snapshots.write(inputs))
        cycle = StoredCycle(
            round=inputs.round,
            cycle=inputs.cycle,
            snapshot_hash=snapshot_hash,
            anchor=inputs.anchor,
            planned_at_ms=inputs.now_ms,
            plan=plan,
        )
        assignments = await self._signed(inputs, plan, tried_of)
        await self._store.add_cycle(cycle, snapshot, assignments, self._policy_hash)
        self._snapshots.keep(snapshot_hash, snapshot, inputs)
        self._caches.last.update((each.decision.request_id, each.decision) for each in plan.decisions)
        self._metrics.observe("headrace_cycle_requests", len(inputs.requests))
        for kind in DecisionKind:
            if amount := len(plan.of_kind(kind)):
                self._metrics.count("headrace_decisions_total", amount, kind=kind.name.lower())
        for assignment in assignments:
            log.info(
                "assigned",
                requestId=assignment.request_id,
                node=assignment.assignment.node,
                round=inputs.round,
                reward_wei=assignment.assignment.reward_wei,
            )

    async def _signed(self, inputs: CycleInputs, plan: CyclePlan, tried_of: _Tried) -> list[StoredAssignment]:
        """What the plan assigns, signed. An attempt's number counts on from those before."""
        by_id = {request.request_id: request for request in inputs.requests}
        assigned = plan.of_kind(DecisionKind.ASSIGNED)
        words = [self._word(inputs, by_id[planned.decision.request_id], planned) for planned in assigned]
        hashes = [typed_data.hash_assignment(word) for word in words]
        attempts = Counter({request_id: len(tried) for request_id, tried in tried_of.items()})
        assignments = []
        for word, signature in zip(words, await sign_all(self._signer, self._domain, hashes), strict=True):
            attempts[word.request_id] += 1
            request, number = by_id[word.request_id], attempts[word.request_id]
            assignments.append(self._assignment(inputs, request, word, number, signature))
        return assignments

    def _word(self, inputs: CycleInputs, request: WaitingRequest, planned: PlannedDecision) -> Assignment:
        return Assignment(
            request_id=request.request_id,
            relayer=self._signer.address,
            node=planned.decision.node,
            round=inputs.round,
            reward_wei=planned.decision.reward_wei,
            deadline_s=request.deadline_s,
        )

    def _assignment(
        self, inputs: CycleInputs, request: WaitingRequest, word: Assignment, attempt: int, signature: bytes
    ) -> StoredAssignment:
        return StoredAssignment(
            request_id=request.request_id,
            attempt=attempt,
            assignment=word,
            state="open",
            assigned_at_ms=inputs.now_ms,
            # Leases grow: a second try is given more time before a third is paid for.
            lease_until_ms=inputs.now_ms + self._settings.lease_ms * (request.assignments + 1),
            signature=signature,
            accept_signature=b"",
            detail="",
        )

    async def _waiting_requests(
        self, waiting: Sequence[StoredRequest], tried_of: _Tried, round_: int
    ) -> tuple[WaitingRequest, ...]:
        held = await self._store.held_prompts({_prompt_of(stored) for stored in waiting})
        views = []
        for stored in waiting:
            tried = tried_of.get(stored.request_id, [])
            view = self._waiting_request(stored, tried, round_, _prompt_of(stored) in held)
            views.append(await self._as_quorum(view, stored, tried) if stored.request.k else view)
        return tuple(sorted(views, key=lambda view: view.request_id))

    async def _as_quorum(
        self, view: WaitingRequest, stored: StoredRequest, tried: Sequence[StoredAssignment]
    ) -> WaitingRequest:
        """What a quorum's scheduling depends on: whom it goes on with, and whether it can agree at all."""
        members = [Member(each.assignment.node, each.assignment.round, each.state) for each in tried]
        results = await self._store.results(stored.request_id)
        votes = [Vote(each.node, each.result.round, each.result.result_hash) for each in results]
        standing = standing_of(stored.request.k, members, votes)
        owners = {await self._owner_of(node) for node in standing.tried}
        return replace(
            view,
            assignments=standing.listings,
            excluded_nodes=standing.dropped,
            supersedes_round=standing.round,
            k=stored.request.k,
            n=stored.request.n,
            kept_nodes=standing.kept,
            tried_owners=tuple(sorted(owners)),
            deterministic=await self._is_deterministic(stored, view.prompt_available),
        )

    async def _owner_of(self, node: Address) -> Address:
        """Whose node it is, which never changes."""
        if node not in self._caches.owners:
            self._caches.owners[node] = (await self._chain.node_facts(node)).owner
        return self._caches.owners[node]

    async def _is_deterministic(self, stored: StoredRequest, prompt_available: bool) -> bool:
        """Whether prompt and model fix the answer. A prompt that is not there yet is not held against it."""
        model, prompt_hash = self._models.get(stored.request.model_id), stored.request.prompt_hash
        if model is not None and model.weights_hash == ZERO_HASH:
            return False
        if prompt_available and prompt_hash not in self._caches.fixed_answers:
            prompt = await self._store.payload(prompt_hash)
            if prompt is not None:
                if len(self._caches.fixed_answers) >= MAX_WAITING:
                    self._caches.fixed_answers.clear()
                self._caches.fixed_answers[prompt_hash] = _fixes_its_answer(prompt)
        return self._caches.fixed_answers.get(prompt_hash, True)

    def _waiting_request(
        self, stored: StoredRequest, tried: Sequence[StoredAssignment], round_: int, prompt_available: bool
    ) -> WaitingRequest:
        request = stored.request
        model = self._models.get(request.model_id)
        complexity_milli = model.complexity_milli if model else 1_000
        return WaitingRequest(
            request_id=stored.request_id,
            model_id=request.model_id,
            model_name=model.name if model else "",
            lane=request.lane,
            priority_fee_wei=request.priority_fee_wei + stored.priority_fee_added_wei,
            included_at_s=stored.included_at_s,
            deadline_s=stored.effective_deadline_s,
            prompt_bytes=request.prompt_bytes,
            max_output_tokens=request.max_output_tokens,
            required_memory_mb=_required_memory_mb(model, request.prompt_bytes, request.max_output_tokens),
            batchable=request.batchable,
            max_reward_wei=request.max_reward_wei,
            gas_budget_wei=request.gas_budget_wei,
            prompt_available=prompt_available,
            assignments=sum(not _is_put_off(each) for each in tried),
            excluded_nodes=tuple(sorted(self._excluded(tried, round_))),
            supersedes_round=tried[-1].assignment.round if tried else 0,
            k=0,
            n=0,
            kept_nodes=(),
            tried_owners=(),
            deterministic=True,
            released_until_s=stored.released_until_s,
            callback_gas=request.callback_gas,
            answer_bytes=required_answer_bytes(request),
            verifier=request.verifier,
            verifier_gas=counted_verifier_gas(request.verifier, self._chain.attested_key_verifier, self._terms),
            requester=request.requester,
            work=expected_work(request.prompt_bytes, request.max_output_tokens, complexity_milli),
            complexity_milli=complexity_milli,
        )

    def _excluded(self, tried: Sequence[StoredAssignment], round_: int) -> set[Address]:
        """Nodes that are not asked (again) in a round: all that were, but for those that put it off before."""
        now_ms = self._clock.now_ms()
        return {
            each.assignment.node
            for each in tried
            if not _is_put_off(each) or each.assignment.round == round_ or each.lease_until_ms > now_ms
        }

    async def _node_views(self) -> tuple[NodeView, ...]:
        assigned = await self._store.running_by_node()
        views = []
        for linked, known in await self._known_nodes():
            if known.facts.is_active and int(known.facts.payee, 16):
                views.append(_node_view(linked, known, assigned.get(linked.node, Running(0, 0)), self._performance))
        return tuple(sorted(views, key=lambda view: view.node))

    async def _known_nodes(self) -> list[tuple[LinkedNode, _KnownNode]]:
        """The linked nodes with their chain facts, which are at most `node_facts_ttl_ms` old."""
        linked = self._link.linked()
        await self._read_nodes([each.node for each in linked if self._age_ms(each.node) > self._ttl_ms])
        self._caches.ageing = [each.node for each in linked if self._age_ms(each.node) > self._ttl_ms // 2]
        return [(each, self._caches.nodes[each.node]) for each in linked]

    async def _read_nodes(self, nodes: Sequence[Address]) -> None:
        known = await together(self._read_node(node) for node in nodes)
        self._caches.nodes.update(zip(nodes, known, strict=True))

    async def _read_node(self, node: Address) -> _KnownNode:
        now_ms = self._clock.now_ms()
        facts = await self._chain.node_facts(node)
        offers = await self._chain.offers(node, list(self._models))
        return _KnownNode(facts, tuple(offers), now_ms)

    def _age_ms(self, node: Address) -> int:
        known = self._caches.nodes.get(node)
        return self._clock.now_ms() - known.read_at_ms if known else self._ttl_ms + 1

    async def _refresh(self) -> None:
        """Read anew, behind the cycles, what will soon be too old for them."""
        try:
            await self._read_nodes(self._caches.ageing)
        except ChainUnavailable as exc:
            log.info("node_facts_not_refreshed", error=str(exc))
        self._refreshing = None

    async def _median_fee_wei(self) -> int:
        """Of the priority fees of the requests that were fulfilled last, which is looked up now and then."""
        now_ms = self._clock.now_ms()
        if now_ms - self._caches.fees_at_ms > FEES_TTL_MS:
            fees = await self._store.fulfilled_fees(LAST_FEES)
            self._caches.median_fee_wei = median_low(fees) if fees else 0
            self._caches.fees_at_ms = now_ms
        return self._caches.median_fee_wei

    async def _gas_quote(self, anchor: BlockRef) -> GasQuote:
        """What the block after the anchor asks for, which is asked once."""
        if self._caches.gas is None or self._caches.gas[0] != anchor.hash:
            self._caches.gas = (anchor.hash, await self._chain.gas_quote())
        return self._caches.gas[1]


def _node_view(linked: LinkedNode, known: _KnownNode, running: Running, performance: Performance) -> NodeView:
    beat, node = linked.heartbeat, linked.node
    answered, missed = performance.tally(node)
    return NodeView(
        node=node,
        owner=known.facts.owner,
        offers=tuple(
            replace(
                offer,
                is_warm=offer.model_id in beat.warm_models,
                us_per_token=performance.us_per_token(node, offer.model_id),
            )
            for offer in known.offers
            if offer.model_id in beat.models
        ),
        free_memory_mb=beat.free_memory_mb,
        # Its own word is as old as its heartbeat; what was assigned since counts as well.
        in_flight=max(beat.in_flight, running.count),
        max_in_flight=beat.max_in_flight,
        avg_latency_ms=beat.avg_latency_ms,
        settled_count=known.facts.settled_count,
        joined_at_s=known.facts.joined_at_s,
        heartbeat_at_ms=linked.received_at_ms,
        heartbeat=canonical_json(to_json(beat)).decode(),
        heartbeat_signature="0x" + linked.signature.hex(),
        verifiers=beat.verifiers,
        stake_wei=known.facts.stake_wei,
        exposure_wei=running.rewards_wei,
        answered=answered,
        missed=missed,
    )


async def _aside(inputs: CycleInputs, work: Callable[[], _T]) -> _T:
    """Do what may take long. Over many requests it takes so long that other loops would miss the processor."""
    if len(inputs.requests) < MANY_REQUESTS:
        return work()
    return await asyncio.to_thread(work)


def _fixes_its_answer(prompt: bytes) -> bool:
    try:
        return not why_not_deterministic(content_of(prompt))
    except InvalidInput:
        return False  # a broken envelope, which no node takes


def _required_memory_mb(model: ModelFacts | None, prompt_bytes: int, max_output_tokens: int) -> int:
    if model is None:
        return 0
    tokens = prompt_bytes // BYTES_PER_TOKEN + max_output_tokens
    return model.memory_mb + -(-tokens * model.memory_per_token_bytes // 2**20)


def _is_put_off(attempt: StoredAssignment) -> bool:
    """Whether its node could not take it then, which says nothing of the request."""
    return attempt.state == "put_off"


def _prompt_of(stored: StoredRequest) -> tuple[Hash32, Address]:
    return stored.request.prompt_hash, stored.request.requester


def _is_given_up(last: Decision | None) -> bool:
    return last is not None and last.kind is DecisionKind.TOO_LATE
