"""Who asks and who answers in a run, drawn from its seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from headrace.core.cycle import Offer, WaitingRequest
from headrace.core.keccak import keccak
from headrace.core.types import Address, Hash32, Lane, Price
from headrace.core.work import expected_work
from headrace.sim.schedule.scenario import Model, Scenario
from headrace.sim.traces import Arrival

BYTES_PER_TOKEN = 4


def id_of(text: str) -> Hash32:
    """A hash as an id."""
    return "0x" + keccak(text.encode()).hex()


def address_of(text: str) -> Address:
    """A hash's beginning as an address."""
    return id_of(text)[:42]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request before it is on the chain. `output_tokens` is what its answer will have."""

    number: int
    at_ms: int
    model: Model
    lane: Lane
    requester: Address
    priority_fee_wei: int
    prompt_tokens: int
    output_tokens: int
    deadline_after_ms: int


@dataclass(slots=True)
class SimNode:
    """A node as it is, which is not always what it says."""

    key: Address
    owner: Address
    offers: tuple[Offer, ...]
    tokens_per_s: float
    places: int
    memory_mb: int
    miss_share: float
    says_faster: float
    is_new: bool
    is_up: bool = True
    epoch: int = 0  # counts how often it went away: what it had in hand then is lost
    running: int = 0
    warm: list[Hash32] = field(default_factory=list)  # newest last


class Population:
    """Draws requests and nodes. The same seed draws the same, whatever the policy."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._requests = Random(f"requests {seed}")
        self._nodes = Random(f"nodes {seed}")
        self._weights = list(accumulate(model.weight for model in scenario.models))
        self._zipf = list(accumulate(1 / (1 + number) for number in range(scenario.requests.requesters)))

    def requests(self, trace: Sequence[Arrival]) -> list[Asked]:
        """The requests of a run: a stretch of the trace, its times divided by the rate."""
        wanted, rng = self._scenario.requests, self._requests
        last_s = trace[-1].at_s
        needed_s = self._scenario.duration_s * wanted.rate
        start_s = wanted.offset_s
        drawn = rng.random() * max(0.0, last_s - needed_s)
        start_s = drawn if start_s is None else start_s
        end_s = start_s + needed_s
        # A trace that is too short goes on from its beginning.
        lap_s = last_s + 1
        arrivals = [
            Arrival(each.at_s + lap * lap_s, each.prompt_tokens, each.output_tokens)
            for lap in range(int(start_s // lap_s), math.ceil(end_s / lap_s))
            for each in trace
            if start_s <= each.at_s + lap * lap_s < end_s
        ]
        return [self._asked(number, each, start_s) for number, each in enumerate(arrivals)]

    def nodes(self) -> list[SimNode]:
        """The nodes of a run."""
        return [self._node(number) for number in range(self._scenario.nodes.count)]

    def _asked(self, number: int, arrival: Arrival, start_s: float) -> Asked:
        wanted, rng = self._scenario.requests, self._requests
        lane = Lane.REALTIME if rng.random() < wanted.realtime_share else Lane.BULK
        is_realtime = lane is Lane.REALTIME
        median_wei = wanted.realtime_fee_wei if is_realtime else wanted.bulk_fee_wei
        deadline_s = rng.uniform(*(wanted.realtime_deadline_s if is_realtime else wanted.bulk_deadline_s))
        return Asked(
            number=number,
            at_ms=round((arrival.at_s - start_s) / wanted.rate * 1000),
            model=rng.choices(self._scenario.models, cum_weights=self._weights)[0],
            lane=lane,
            requester=address_of(f"requester {rng.choices(range(wanted.requesters), cum_weights=self._zipf)[0]}"),
            priority_fee_wei=round(median_wei * rng.lognormvariate(0, wanted.fee_sigma)),
            prompt_tokens=max(1, arrival.prompt_tokens),
            output_tokens=max(1, arrival.output_tokens),
            deadline_after_ms=round(deadline_s * 1000),
        )

    def _node(self, number: int) -> SimNode:
        wanted, rng = self._scenario.nodes, self._nodes
        most = min(len(self._scenario.models), rng.randint(*wanted.models_each))
        offered: dict[str, Model] = {}
        while len(offered) < most:
            model = rng.choices(self._scenario.models, cum_weights=self._weights)[0]
            offered[model.name] = model
        is_flaky, is_liar, is_new = (
            rng.random() < share for share in (wanted.flaky_share, wanted.liar_share, wanted.new_share)
        )
        dearness = rng.lognormvariate(0, wanted.price_sigma)
        offers = [_offer(model, dearness) for model in offered.values()]
        return SimNode(
            key=address_of(f"node {number}"),
            owner=address_of(f"owner {number}"),
            offers=tuple(sorted(offers, key=lambda offer: offer.model_id)),
            tokens_per_s=wanted.tokens_per_s * rng.lognormvariate(0, wanted.speed_sigma),
            places=rng.randint(*wanted.places),
            memory_mb=wanted.memory_mb,
            miss_share=wanted.flaky_miss_share if is_flaky else wanted.miss_share,
            says_faster=wanted.lie_factor if is_liar else 1.0,
            is_new=is_new,
            warm=[offers[0].model_id],
        )


def waiting_request(asked: Asked, included_at_s: int, gas_budget_wei: int, memory_mb: int) -> WaitingRequest:
    """A request as the scheduler sees it. Who asks names a limit above the answer: the next power of two."""
    limit = 1 << (asked.output_tokens - 1).bit_length()
    prompt_bytes = asked.prompt_tokens * BYTES_PER_TOKEN
    return WaitingRequest(
        request_id=id_of(f"request {asked.number}"),
        model_id=id_of(asked.model.name),
        model_name=asked.model.name,
        lane=asked.lane,
        priority_fee_wei=asked.priority_fee_wei,
        included_at_s=included_at_s,
        deadline_s=included_at_s + asked.deadline_after_ms // 1000,
        prompt_bytes=prompt_bytes,
        max_output_tokens=limit,
        required_memory_mb=memory_mb,
        batchable=True,
        max_reward_wei=10**18,
        gas_budget_wei=gas_budget_wei,
        prompt_available=True,
        assignments=0,
        excluded_nodes=(),
        supersedes_round=0,
        k=0,
        n=0,
        kept_nodes=(),
        tried_owners=(),
        deterministic=True,
        released_until_s=0,
        requester=asked.requester,
        work=expected_work(prompt_bytes, limit, asked.model.complexity_milli),
        complexity_milli=asked.model.complexity_milli,
    )


def _offer(model: Model, dearness: float) -> Offer:
    price = Price(round(model.per_prompt_kib_wei * dearness), round(model.per_thousand_tokens_wei * dearness))
    return Offer(id_of(model.name), model.name, price)
