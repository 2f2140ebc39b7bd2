"""One run: events in virtual time around the core's own decisions."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from random import Random
from statistics import median_low

from headrace.core.cycle import (
    Anchor,
    Carried,
    CycleInputs,
    NodeView,
    Policy,
    WaitingRequest,
)
from headrace.core.errors import InvalidInput
from headrace.core.fees import charged_gas, charged_gas_price_wei
from headrace.core.performance import Performance
from headrace.core.scheduling import Engine
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Address, DecisionKind, Hash32, MarketTerms
from headrace.sim.schedule.population import Asked, Population, SimNode, id_of, waiting_request
from headrace.sim.schedule.scenario import GWEI, Policies, Scenario
from headrace.sim.schedule.settling import Chain, Result
from headrace.sim.traces import Arrival, TracedBlock

EPOCH_MS = 1_800_000_000_000
PROMPT_TOKENS_PER_UNIT = 8


class Kind(IntEnum):
    """What happens. Of one moment, in this order."""

    BLOCK = 0
    ARRIVAL = 1
    ANSWER = 2
    LAPSE = 3
    UP = 4
    DOWN = 5
    HEARTBEAT = 6
    CYCLE = 7
    BATCH = 8


@dataclass(frozen=True, slots=True)
class Task:
    """What a node was given: how long it takes, and whether it will come to nothing."""

    request: WaitingRequest
    node: SimNode
    epoch: int
    reward_wei: int
    assigned_ms: int
    is_missed: bool


@dataclass(slots=True)
class Fate:
    """A request's life, in milliseconds of the run; -1 = not (yet)."""

    asked: Asked
    included_ms: int = -1
    assigned_ms: int = -1
    answered_ms: int = -1
    deadline_ms: int = -1
    assignments: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    fates: Sequence[Fate]
    chain: Chain
    busy_ms: Counter[Address]
    nodes: Sequence[SimNode]
    cycles: int


def terms_of(scenario: Scenario) -> MarketTerms:
    """The market of a scenario."""
    gas = scenario.gas
    return MarketTerms(
        grace_s=300,
        min_ttl_s=10,
        max_ttl_s=86_400,
        max_inline_prompt_bytes=8_192,
        max_callback_gas=2_000_000,
        verifier_gas=400_000,
        tip_cap_wei=2 * GWEI,
        fixed_gas=gas.fixed_gas,
        item_gas=gas.item_gas,
        node_gas=20_000,
        assigned_gas=87_500,
        gas_per_result_byte=40,
        relayer_fee_share_bps=2_000,
        relayer_saving_share_bps=1_000,
        probation_max_reward_wei=gas.probation_max_reward_wei,
        probation_settled_count=10,
        probation_duration_s=86_400,
    )


class Run:
    """A run of one pair of policies.

    Args:
        scenario: what is simulated.
        seed: of all that is drawn. Requests, nodes, and what becomes of a request at a node are the same for every pair
            of policies.
        policies: the pair.
        trace: of requests.
        blocks: of the chain.
        policy_at: the scheduling policy by the time of the run, where it changes.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        policies: Policies,
        trace: Sequence[Arrival],
        blocks: Sequence[TracedBlock],
        policy_at: Callable[[int], Policy] | None = None,
    ) -> None:
        population = Population(scenario, seed)
        self._scenario = scenario
        self._seed = seed
        self._rng = Random(f"run {seed}")
        policy = policies.scheduling_policy()
        self._policy_at = policy_at or (lambda _: policy)
        self._terms = terms_of(scenario)
        start = _first_block(scenario, blocks, Random(f"blocks {seed}"))
        self._chain = Chain(scenario, blocks, start, self._terms, policies.batching_policy())
        self._asked = population.requests(trace)
        if not self._asked:
            raise InvalidInput(f"no request of {scenario.requests.trace} is in the time of the run: make it longer")
        self._nodes = {node.key: node for node in population.nodes()}
        self._fates: dict[Hash32, Fate] = {}
        self._pending: list[Asked] = []  # sent, and not in a block yet
        self._waiting: dict[Hash32, WaitingRequest] = {}
        self._views: dict[Address, NodeView] = {}
        self._given: dict[Address, list[Task]] = {}
        self._performance = Performance()
        self._engine = Engine()
        self._carried = Carried()
        self._paid_fees: list[int] = []
        self._settled_of: Counter[Address] = Counter()
        self._busy_ms: Counter[Address] = Counter()
        self._events: list[tuple[int, int, int, object]] = []
        self._sequence = 0
        self._cycle_at_ms = -1
        self._last_cycle_ms = -(10**9)
        self._cycles = 0
        self._now_ms = 0

    def run(self) -> Outcome:
        """Until all requests came to an end."""
        for number, at_ms in enumerate(self._chain.blocks_ms):
            self._at(at_ms, Kind.BLOCK, number)
        for asked in self._asked:
            self._at(asked.at_ms, Kind.ARRIVAL, asked)
        for node in self._nodes.values():
            self._at(round(self._rng.random() * 1000), Kind.UP, node)
        open_requests = len(self._asked)
        end_ms = round(self._scenario.duration_s * 1000) + self._longest_ms()
        while self._events and (open_requests or not self._chain.is_idle):
            self._now_ms, kind, _, subject = heapq.heappop(self._events)
            if self._now_ms > end_ms:
                break
            self._happen(Kind(kind), subject)
            open_requests = len(self._asked) - len(self._fates) + self._unfinished
        return Outcome(
            [self._fates[id_of(f"request {asked.number}")] for asked in self._asked if self._is_known(asked)],
            self._chain,
            self._busy_ms,
            list(self._nodes.values()),
            self._cycles,
        )

    def _is_known(self, asked: Asked) -> bool:
        return id_of(f"request {asked.number}") in self._fates

    def _longest_ms(self) -> int:
        return round(1000 * max(*self._scenario.requests.realtime_deadline_s, *self._scenario.requests.bulk_deadline_s))

    @property
    def _unfinished(self) -> int:
        return len(self._waiting) + sum(map(len, self._given.values()))

    def _at(self, at_ms: int, kind: Kind, subject: object = None) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at_ms, int(kind), self._sequence, subject))

    def _happen(self, kind: Kind, subject: object) -> None:
        if kind is Kind.BLOCK and isinstance(subject, int):
            self._block(subject)
        elif kind is Kind.ARRIVAL and isinstance(subject, Asked):
            self._pending.append(subject)
        elif kind in (Kind.ANSWER, Kind.LAPSE) and isinstance(subject, Task):
            self._ended(subject, is_answer=kind is Kind.ANSWER)
        elif isinstance(subject, SimNode):
            {Kind.UP: self._up, Kind.DOWN: self._down, Kind.HEARTBEAT: self._heartbeat}[kind](subject)
        elif kind is Kind.CYCLE:
            self._cycle()
        elif kind is Kind.BATCH:
            self._look_at_batches()

    # Chain

    def _block(self, number: int) -> None:
        self._chain.block(number, EPOCH_MS)
        included_s = (EPOCH_MS + self._now_ms) // 1000
        for asked in self._pending:
            quote = self._chain.quote(self._now_ms)
            charge_wei = charged_gas(self._terms, 1, 0) * charged_gas_price_wei(self._terms, quote)
            budget_wei = round(charge_wei * self._scenario.requests.gas_headroom)
            request = waiting_request(asked, included_s, budget_wei, asked.model.memory_mb)
            deadline_ms = request.deadline_s * 1000 - EPOCH_MS
            self._fates[request.request_id] = Fate(asked, self._now_ms, deadline_ms=deadline_ms)
            self._waiting[request.request_id] = request
        self._pending = []
        self._look_at_batches()
        self._ask_for_cycle()

    def _look_at_batches(self) -> None:
        again_ms = self._chain.look(self._now_ms, EPOCH_MS)
        if again_ms is not None:
            self._at(again_ms, Kind.BATCH)

    # Nodes

    def _up(self, node: SimNode) -> None:
        node.is_up = True
        self._heartbeat(node)
        if self._scenario.nodes.mean_up_s:
            stays_ms = self._rng.expovariate(1 / self._scenario.nodes.mean_up_s) * 1000
            self._at(self._now_ms + round(stays_ms), Kind.DOWN, node)

    def _down(self, node: SimNode) -> None:
        """What it had in hand is lost, and nobody is told: its heartbeats stop."""
        node.is_up = False
        node.epoch += 1
        node.running = 0
        away_ms = self._rng.expovariate(1 / max(0.001, self._scenario.nodes.mean_down_s)) * 1000
        self._at(self._now_ms + round(away_ms), Kind.UP, node)

    def _heartbeat(self, node: SimNode) -> None:
        if not node.is_up:
            return
        self._view(node, is_heard=True)
        self._ask_for_cycle()
        self._at(self._now_ms + round(self._scenario.nodes.heartbeat_s * 1000), Kind.HEARTBEAT, node)

    def _view(self, node: SimNode, *, is_heard: bool = False) -> None:
        """What the scheduler sees of a node: its own word, and what it was given since."""
        before = self._views.get(node.key)
        given = self._given.get(node.key, [])
        is_liar = node.says_faster > 1
        says = 0 if is_liar else node.running
        answered, missed = self._performance.tally(node.key)
        seven_b_ms = 256 / node.tokens_per_s * 1000
        self._views[node.key] = NodeView(
            node=node.key,
            owner=node.owner,
            offers=tuple(
                replace(
                    offer,
                    is_warm=offer.model_id in node.warm,
                    us_per_token=self._performance.us_per_token(node.key, offer.model_id),
                )
                for offer in node.offers
            ),
            free_memory_mb=node.memory_mb,
            in_flight=max(says if is_heard or before is None else 0, len(given)),
            max_in_flight=node.places,
            avg_latency_ms=round(seven_b_ms / node.says_faster),
            settled_count=self._settled_of[node.key] if node.is_new else 1_000,
            joined_at_s=EPOCH_MS // 1000 - 10**6,
            heartbeat_at_ms=EPOCH_MS + self._now_ms if is_heard or before is None else before.heartbeat_at_ms,
            heartbeat="",
            heartbeat_signature="",
            exposure_wei=sum(task.reward_wei for task in given),
            answered=answered,
            missed=missed,
        )

    # Scheduling

    def _ask_for_cycle(self) -> None:
        if self._waiting and self._cycle_at_ms < self._now_ms:
            self._cycle_at_ms = max(self._now_ms, self._last_cycle_ms + self._scenario.relayer.cycle_ms)
            self._at(self._cycle_at_ms, Kind.CYCLE)

    def _cycle(self) -> None:
        self._last_cycle_ms, self._cycle_at_ms = self._now_ms, -1
        if not self._waiting:
            return
        self._cycles += 1
        plan = self._engine.plan(self._inputs())
        self._carried = plan.carried
        for planned in plan.decisions:
            decision = planned.decision
            request = self._waiting[decision.request_id]
            if decision.kind is DecisionKind.SKIPPED:
                self._waiting[decision.request_id] = replace(request, last_reason=decision.reason)
                continue
            del self._waiting[decision.request_id]
            if decision.kind is DecisionKind.ASSIGNED:
                given = replace(request, last_reason=decision.reason, assignments=request.assignments + 1)
                self._assign(given, self._nodes[decision.node], decision.reward_wei)

    def _inputs(self) -> CycleInputs:
        return CycleInputs(
            chain_id=31_337,
            market=ZERO_ADDRESS,
            relayer=ZERO_ADDRESS,
            round=1,
            cycle=self._cycles,
            now_ms=EPOCH_MS + self._now_ms,
            anchor=Anchor(0, ZERO_HASH, 0),
            gas=self._chain.quote(self._now_ms),
            terms=self._terms,
            policy=self._policy_at(self._now_ms),
            lane_streak=self._carried.lane_streak,
            requests=tuple(self._waiting[each] for each in sorted(self._waiting)),
            nodes=tuple(self._views[each] for each in sorted(self._views)),
            lane_lag=self._carried.lane_lag,
            floor_work=self._carried.floor_work,
            accounts=self._carried.accounts,
            median_fee_wei=median_low(self._paid_fees[-1_000:]) if self._paid_fees else 0,
        )

    def _assign(self, request: WaitingRequest, node: SimNode, reward_wei: int) -> None:
        fate = self._fates[request.request_id]
        fate.assignments += 1
        fate.assigned_ms = self._now_ms
        luck = Random(f"{self._seed} {request.request_id} {node.key}")
        task = Task(request, node, node.epoch, reward_wei, self._now_ms, luck.random() < node.miss_share)
        self._given.setdefault(node.key, []).append(task)
        lease_ms = self._scenario.relayer.lease_ms * request.assignments
        self._at(self._now_ms + lease_ms, Kind.LAPSE, task)
        if node.is_up and not task.is_missed:
            took_ms = self._takes_ms(request, node, fate.asked)
            self._busy_ms[node.key] += took_ms
            self._at(self._now_ms + took_ms, Kind.ANSWER, task)
            node.running += 1
        self._view(node)

    def _takes_ms(self, request: WaitingRequest, node: SimNode, asked: Asked) -> int:
        """How long an answer takes: its tokens at the node's speed, shared with what it has in hand, and loading."""
        units = asked.output_tokens + asked.prompt_tokens / PROMPT_TOKENS_PER_UNIT
        alone_ms = units * asked.model.complexity_milli / node.tokens_per_s
        shared_ms = alone_ms * (node.places + min(node.running, node.places)) / node.places
        load_ms = 0.0
        if request.model_id not in node.warm:
            load_ms = 1000 * asked.model.memory_mb / self._scenario.nodes.load_mb_per_s
            node.warm.append(request.model_id)
            del node.warm[: -self._scenario.nodes.warm_models]
        return max(1, round(shared_ms + load_ms))

    def _ended(self, task: Task, *, is_answer: bool) -> None:
        """An answer, or the end of a lease. What came first counts."""
        given, node, request = self._given.get(task.node.key, []), task.node, task.request
        if is_answer and task.epoch == node.epoch:
            node.running = max(0, node.running - 1)
        if task not in given or (is_answer and task.epoch != node.epoch):
            return
        given.remove(task)
        fate = self._fates[request.request_id]
        if is_answer:
            fate.answered_ms = self._now_ms
            took_ms = self._now_ms - task.assigned_ms
            self._performance.answered(node.key, request.model_id, request.max_output_tokens, took_ms)
            self._settled_of[node.key] += 1
            self._paid_fees.append(request.priority_fee_wei)
            self._chain.deliver(Result(request, node.key, task.reward_wei, EPOCH_MS + self._now_ms))
            self._look_at_batches()
        else:
            self._performance.missed(node.key)
            excluded = tuple(sorted({*request.excluded_nodes, node.key}))
            self._waiting[request.request_id] = replace(request, excluded_nodes=excluded)
        self._view(node)
        self._ask_for_cycle()


def _first_block(scenario: Scenario, blocks: Sequence[TracedBlock], rng: Random) -> int:
    """Where in the trace a run starts: as the scenario says, or anywhere from where it lasts long enough."""
    origin_s, last_s = blocks[0].timestamp_s, blocks[-1].timestamp_s
    drawn_s = rng.random() * max(0.0, last_s - origin_s - 2 * scenario.duration_s)
    offset_s = drawn_s if scenario.chain.offset_s is None else scenario.chain.offset_s
    return next(
        (number for number, block in enumerate(blocks) if block.timestamp_s - origin_s >= offset_s), len(blocks) - 1
    )
