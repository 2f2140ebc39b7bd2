"""`make bench-scheduler`: how well and how fast the scheduling engine decides.

Each figure is of this run, from `SEED`. Times are of the process's own work on one core.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.optimize import linear_sum_assignment

from headrace.core.keccak import keccak
from headrace.core.merkle import leaf_of, root_of
from headrace.core.rounds import merge_decisions
from headrace.core.routing.asked import RequestTable
from headrace.core.routing.candidates import Candidates
from headrace.core.routing.filters import filtered
from headrace.core.routing.scorers import costs_wei
from headrace.core.routing.table import NodeTable
from headrace.core.scheduling import CycleInputs, CyclePlan, Policy, plan_cycle
from headrace.core.snapshot import decode_snapshot, encode_snapshot
from headrace.core.types import DecisionKind, Lane
from tests.bench.rows import Row, show, write
from tests.bench.scheduler_worlds import BALANCED_POLICY, World, cycle_of

_T = TypeVar("_T")


def timed(work: Callable[[], _T]) -> tuple[_T, float]:
    """What it gives, and the milliseconds of processor time that it took."""
    gc.collect()
    started_s = time.process_time()
    outcome = work()
    return outcome, (time.process_time() - started_s) * 1000


def decide(inputs: CycleInputs) -> CyclePlan:
    """A cycle as a relayer lives it: plan, snapshot, its hash, the round's leaves and their root."""
    plan = plan_cycle(inputs)
    keccak(encode_snapshot(inputs))
    leaves = merge_decisions([[planned.decision for planned in plan.decisions]])
    root_of([leaf_of(leaf) for leaf in leaves])
    return plan


# Rows


def cycle_rows(seed: int) -> Iterator[Row]:
    """The whole cycle, cold, by size; and the reference's at a tenth of it, since it looks at every pair."""
    took: dict[int, float] = {}
    for size in (2_500, 5_000, 10_000):
        inputs = World(seed, 50).inputs(size, size)
        plan, took[size] = timed(lambda inputs=inputs: decide(inputs))  # type: ignore[misc]
        yield Row(f"requests assigned of {size:,}", len(plan.of_kind(DecisionKind.ASSIGNED)), "")
    yield Row("cycle over 10,000 requests x 10,000 nodes, 50 models", took[10_000], "ms", 250, at_most=True)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Row("memory of the process at that", peak_mb, "MB", 500, at_most=True)
    yield Row("four times the size takes so many times the time", took[10_000] / took[2_500], "x", 5, at_most=True)
    small = World(seed, 50).inputs(1_000, 1_000)
    _, ours = timed(lambda: decide(small))
    _, theirs = timed(lambda: decide(replace(small, policy=Policy())))
    yield Row("cycle over 1,000 x 1,000", ours, "ms")
    yield Row("the same by `reference`", theirs, "ms")


def placement_rows(seed: int) -> Iterator[Row]:
    """What the placement costs, over the exact assignment of the same served set."""
    for nodes, models in ((600, 1), (1_000, 1), (1_000, 5)):
        for load in (0.5, 0.7, 0.9, 0.95):
            over, stranded = placed_over_exact(seed, nodes, models, load)
            name = f"{nodes:,} places, {models} models, load {load:.0%}"
            yield Row(f"placement over the exact optimum, {name}", over * 100, "%", 1, at_most=True)
            yield Row(f"stranded, {name}", stranded, "requests", 0, at_most=True)


def placed_over_exact(seed: int, nodes: int, models: int, load: float) -> tuple[float, int]:
    """By how much the placement costs more than the exact one, and how many more could have been served."""
    world = World(seed, models)
    there = sorted((world.node(number, places=1) for number in range(nodes)), key=lambda each: each.node)
    asked = sorted((world.request(n) for n in range(round(nodes * load))), key=lambda each: each.request_id)
    asked = [replace(each, lane=Lane.BULK) for each in asked]
    policy = replace(BALANCED_POLICY, bulk_capacity=nodes, exploration_milli=0)
    inputs = cycle_of(asked, there, policy)
    plan = plan_cycle(inputs)
    at = {each.decision.request_id: each.decision.node for each in plan.of_kind(DecisionKind.ASSIGNED)}
    costs, possible = cost_matrix(inputs)
    # As many as possible first: a place that cannot be had costs more than all others together.
    forbidden = float(costs.max()) * (len(asked) + 1)
    whole = np.where(possible, costs, forbidden)
    rows, columns = linear_sum_assignment(whole)
    most = int(possible[rows, columns].sum())
    served = [row for row, request in enumerate(asked) if request.request_id in at]
    column_of = {node.node: column for column, node in enumerate(there)}
    ours = sum(int(costs[row, column_of[at[asked[row].request_id]]]) for row in served)
    rows, columns = linear_sum_assignment(whole[served])
    exact = sum(int(costs[served[row], column]) for row, column in zip(rows, columns, strict=True))
    return ours / exact - 1, most - len(served)


def cost_matrix(inputs: CycleInputs) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The cost of each request at each node, and whether it may be there."""
    asked, nodes = RequestTable(inputs.requests), NodeTable(inputs.nodes)
    graduated = nodes.is_graduated(inputs.terms, inputs.now_ms)
    costs = np.zeros((len(inputs.requests), len(inputs.nodes)))
    possible = np.zeros(costs.shape, dtype=bool)
    for model_id in {request.model_id for request in inputs.requests}:
        block = nodes.offering(model_id)
        if block is None:
            continue
        rows = np.flatnonzero([request.model_id == model_id for request in inputs.requests])
        candidates = Candidates(asked, rows, nodes, block, inputs.policy, inputs.terms, inputs.now_ms, graduated)
        costs[np.ix_(rows, block.rows)] = costs_wei(candidates)
        possible[np.ix_(rows, block.rows)] = filtered(candidates)[0]
    return costs, possible


def replay_rows(seed: int) -> Iterator[Row]:
    """How fast an audit reads snapshots and plans them again, and whether other Pythons come to the same."""
    inputs = World(seed, 50).inputs(10_000, 10_000)
    text = encode_snapshot(inputs)

    def replay() -> CyclePlan:
        plan = plan_cycle(decode_snapshot(text))
        for planned in plan.decisions:
            leaf_of(planned.decision)
        return plan

    plan, took_ms = timed(replay)
    yield Row("decisions replayed", len(plan.decisions) / took_ms * 1000, "/s", 20_000)


def main() -> int:
    """Measure, print, write."""
    seed, screen = int(os.environ.get("SEED", "1")), Console()
    rows = [Row("calibration: ten million additions", timed(lambda: sum(range(10_000_000)))[1], "ms")]
    for title, part in (("cycles", cycle_rows), ("placement", placement_rows), ("replay", replay_rows)):
        screen.print(f"[dim]{title} …[/dim]")
        rows.extend(part(seed))
    show(screen, f"Scheduler, seed {seed}", rows)
    write("scheduler", rows)
    return 0
