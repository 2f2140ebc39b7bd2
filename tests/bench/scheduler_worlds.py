"""Requests and nodes for the scheduler's bench, drawn from a seed: what a network of that size may look like."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from random import Random

from headrace.core.canonical import canonical_json
from headrace.core.fields import from_json, to_json
from headrace.core.keccak import keccak
from headrace.core.scheduling import (
    BALANCED,
    SHARED,
    Anchor,
    CycleInputs,
    CyclePlan,
    NodeView,
    Offer,
    Policy,
    WaitingRequest,
)
from headrace.core.tasks import Heartbeat
from headrace.core.types import DecisionKind, GasQuote, Lane, Price
from headrace.core.work import expected_work
from tests.fakes import GWEI, MARKET, RELAYER, TERMS

NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000
BALANCED_POLICY = Policy(name=BALANCED, lanes=SHARED)


def id_of(text: str) -> str:
    return "0x" + keccak(text.encode()).hex()


def address_of(text: str) -> str:
    return id_of(text)[:42]


class World:
    """A population of nodes and a demand for them. Few models are asked for often, and offered by more nodes."""

    def __init__(self, seed: int, models: int) -> None:
        self.rng = Random(f"scheduler {seed}")
        self.models = [id_of(f"model {number}") for number in range(models)]
        self._requests = 0  # that came after the first cycle
        self._popular = list(accumulate(1 / (1 + number) ** 0.7 for number in range(models)))

    def request(self, number: int) -> WaitingRequest:
        """One that a node may take."""
        rng = self.rng
        model = self._model()
        prompt_bytes, tokens = int(rng.lognormvariate(7, 1.2)) + 1, int(rng.lognormvariate(5, 0.9)) + 1
        return WaitingRequest(
            request_id=id_of(f"request {number}"),
            model_id=model,
            model_name="",
            lane=Lane.REALTIME if rng.random() < 0.3 else Lane.BULK,
            priority_fee_wei=int(rng.lognormvariate(0, 1.5) * 10**13) if rng.random() < 0.5 else 0,
            included_at_s=NOW_S - rng.randrange(180),
            deadline_s=NOW_S + rng.randrange(300, 7_200),
            prompt_bytes=prompt_bytes,
            max_output_tokens=tokens,
            required_memory_mb=rng.choice((500, 2_000, 8_000)),
            batchable=True,
            max_reward_wei=10**17,
            gas_budget_wei=10**16,
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
            requester=address_of(f"requester {int(rng.paretovariate(1.1)) % 2_000}"),
            work=expected_work(prompt_bytes, tokens, 1_000),
        )

    def node(self, number: int, *, places: int | None = None) -> NodeView:
        """One that is linked, with some work in hand."""
        rng, key = self.rng, address_of(f"node {number}")
        offered = sorted({self._model() for _ in range(rng.randint(1, 3))})
        most = places or rng.choice((1, 2, 4, 8))
        busy = 0 if places else rng.randrange(most + 1)
        beat = Heartbeat(
            node=key,
            sequence=rng.randrange(10**6),
            sent_at_ms=NOW_MS - rng.randrange(5_000),
            free_memory_mb=rng.choice((12_000, 24_000, 80_000)),
            in_flight=busy,
            max_in_flight=most,
            load_milli=rng.randrange(1_000),
            models=tuple(offered),
            warm_models=tuple(offered[:1]),
            avg_latency_ms=int(rng.lognormvariate(7.3, 0.6)),
            region=rng.choice(("eu", "us", "ap")),
        )
        return NodeView(
            node=key,
            owner=address_of(f"owner {number // 3}"),
            offers=tuple(self._offer(model, beat) for model in offered),
            free_memory_mb=beat.free_memory_mb,
            in_flight=beat.in_flight,
            max_in_flight=beat.max_in_flight,
            avg_latency_ms=beat.avg_latency_ms,
            settled_count=rng.choice((0, 500)) if rng.random() < 0.1 else 500,
            joined_at_s=NOW_S - 10**6,
            heartbeat_at_ms=beat.sent_at_ms,
            heartbeat=canonical_json(to_json(beat)).decode(),
            heartbeat_signature="0x" + "5a" * 64 + "1b",
            stake_wei=10**18,
            exposure_wei=busy * 10**14,
            answered=rng.randrange(100),
            missed=rng.randrange(3),
        )

    def inputs(self, requests: int, nodes: int, policy: Policy = BALANCED_POLICY) -> CycleInputs:
        """A cycle of so many."""
        asked = sorted((self.request(number) for number in range(requests)), key=lambda each: each.request_id)
        there = sorted((self.node(number) for number in range(nodes)), key=lambda each: each.node)
        return cycle_of(asked, there, policy)

    def next(
        self, inputs: CycleInputs, plan: CyclePlan, *, new_requests: int, heard: int, freed: int = 0
    ) -> CycleInputs:
        """The cycle after one: what was assigned is at the nodes, some requests are new, some nodes are heard again.

        Args:
            inputs: of the one before.
            plan: what came of it.
            new_requests: how many.
            heard: how many nodes.
            freed: places of each of these that became free meanwhile.
        """
        assigned = plan.of_kind(DecisionKind.ASSIGNED)
        gone = {each.decision.request_id for each in assigned}
        taken = Counter(each.decision.node for each in assigned)
        reasons = {each.decision.request_id: each.decision.reason for each in plan.decisions}
        waiting = [
            replace(each, last_reason=reasons[each.request_id]) if each.request_id in reasons else each
            for each in inputs.requests
            if each.request_id not in gone
        ]
        self._requests += new_requests
        waiting += [self.request(10**6 + self._requests - number) for number in range(new_requests)]
        nodes = [
            replace(each, in_flight=each.in_flight + taken[each.node]) if each.node in taken else each
            for each in inputs.nodes
        ]
        now_ms = inputs.now_ms + 25
        for index in self.rng.sample(range(len(nodes)), heard):
            nodes[index] = _heard(nodes[index], now_ms, freed)
        return replace(
            inputs,
            cycle=inputs.cycle + 1,
            now_ms=now_ms,
            requests=tuple(sorted(waiting, key=lambda each: each.request_id)),
            nodes=tuple(nodes),
            lane_lag=plan.lane_lag,
            floor_work=plan.floor_work,
            accounts=plan.accounts,
        )

    def _model(self) -> str:
        return self.rng.choices(self.models, cum_weights=self._popular)[0]

    def _offer(self, model: str, beat: Heartbeat) -> Offer:
        rng = self.rng
        price = Price(int(rng.lognormvariate(0, 0.5) * 10**13), int(rng.lognormvariate(0, 0.5) * 2 * 10**14))
        pace_us = int(beat.avg_latency_ms * 1000 / 256 * rng.uniform(0.8, 1.25)) if rng.random() < 0.8 else 0
        return Offer(model, "", price, model in beat.warm_models, pace_us)


def _heard(node: NodeView, now_ms: int, freed: int) -> NodeView:
    beat = from_json(Heartbeat, json.loads(node.heartbeat))
    in_flight = max(0, node.in_flight - freed)
    beat = replace(beat, sequence=beat.sequence + 1, sent_at_ms=now_ms - 5, in_flight=in_flight)
    text = canonical_json(to_json(beat)).decode()
    return replace(node, heartbeat=text, heartbeat_at_ms=now_ms, in_flight=in_flight)


def cycle_of(requests: list[WaitingRequest], nodes: list[NodeView], policy: Policy) -> CycleInputs:
    """The inputs of a cycle over these."""
    return CycleInputs(
        chain_id=31337,
        market=MARKET,
        relayer=RELAYER,
        round=1,
        cycle=0,
        now_ms=NOW_MS,
        anchor=Anchor(1, id_of("anchor"), NOW_S),
        gas=GasQuote(GWEI, GWEI),
        terms=TERMS,
        policy=policy,
        lane_streak=0,
        requests=tuple(requests),
        nodes=tuple(nodes),
        median_fee_wei=10**13,
    )
