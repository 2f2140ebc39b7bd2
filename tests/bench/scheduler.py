"""`make bench-scheduler`: how well and how fast the scheduling engine decides.

Each figure is of this run, from `SEED`. Times are of the process's own work on one core.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import ne
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.optimize import linear_sum_assignment

from headrace.core.merkle import leaf_of, root_of
from headrace.core.rounds import merge_decisions
from headrace.core.routing.asked import RequestTable
from headrace.core.routing.candidates import Candidates
from headrace.core.routing.filters import filtered
from headrace.core.routing.scorers import costs_wei
from headrace.core.routing.table import NodeTable
from headrace.core.scheduling import CycleInputs, CyclePlan, Engine, Policy, plan_cycle
from headrace.core.snapshot import SnapshotReader, SnapshotWriter
from headrace.core.types import DecisionKind, Lane
from tests.bench.economics import deadline_rows, gas_rows, loss_rows, overload_rows
from tests.bench.rows import Row, show, write
from tests.bench.scheduler_worlds import BALANCED_POLICY, World, cycle_of

_T = TypeVar("_T")


def timed(work: Callable[[], _T]) -> tuple[_T, float]:
    """What it gives, and the milliseconds of processor time that it took."""
    gc.collect()
    started_s = time.process_time()
    outcome = work()
    return outcome, (time.process_time() - started_s) * 1000


class Relayer:
    """Cycles as a relayer lives them: plan, snapshot, its hash, the leaves and their root. Tables are kept."""

    def __init__(self) -> None:
        self._engine = Engine()
        self._snapshots = SnapshotWriter()
        self.texts: dict[str, bytes] = {}
        self.hashes: list[str] = []

    def decide(self, inputs: CycleInputs) -> CyclePlan:
        """One cycle."""
        plan = self._engine.plan(inputs)
        hash_, text = self._snapshots.write(inputs)
        self._snapshots.keep(hash_, text, inputs)
        leaves_root(plan)
        self.texts[hash_] = text
        self.hashes.append(hash_)
        return plan


def leaves_root(plan: CyclePlan) -> str:
    """The root over what a plan decided."""
    leaves = merge_decisions([[planned.decision for planned in plan.decisions]])
    return root_of([leaf_of(leaf) for leaf in leaves])


# Rows


def cycle_rows(seed: int) -> Iterator[Row]:
    """The whole cycle by size, of a relayer that just started and of one that runs; and the reference's at a tenth of
    it, since it looks at every pair."""
    running: dict[int, float] = {}
    for size in (2_500, 5_000, 10_000):
        world, relayer = World(seed, 50), Relayer()
        inputs = world.inputs(size, size)
        plan, cold = timed(partial(relayer.decide, inputs))
        took = []
        for _ in range(3):
            inputs = world.next(inputs, plan, new_requests=0, heard=size // 100)
            plan, ms = timed(partial(relayer.decide, inputs))
            took.append(ms)
        running[size] = median(took)
        yield Row(f"assigned in a cycle over {size:,} x {size:,}", len(plan.of_kind(DecisionKind.ASSIGNED)), "")
        yield Row(f"first cycle of a relayer over {size:,} x {size:,}, full snapshot", cold, "ms")
    yield Row("cycle over 10,000 requests x 10,000 nodes, 50 models", running[10_000], "ms", 250, at_most=True)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Row("memory of the process at that", peak_mb, "MB", 500, at_most=True)
    yield Row(
        "four times the size takes so many times the time", running[10_000] / running[2_500], "x", 5, at_most=True
    )
    small = World(seed, 50).inputs(1_000, 1_000)
    _, ours = timed(lambda: Relayer().decide(small))
    _, theirs = timed(lambda: Relayer().decide(replace(small, policy=Policy())))
    yield Row("first cycle over 1,000 x 1,000", ours, "ms")
    yield Row("the same by `reference`", theirs, "ms")


def incremental_rows(seed: int) -> Iterator[Row]:
    """A network that is busy: in each cycle one node of a hundred is heard with a place that became free, and one
    request of a hundred is new."""
    world, relayer = World(seed, 50), Relayer()
    inputs = world.inputs(10_000, 10_000)
    busy = tuple(replace(node, in_flight=node.max_in_flight) for node in inputs.nodes)
    inputs = replace(inputs, nodes=busy)
    plan, took = relayer.decide(inputs), []
    for _ in range(12):
        inputs = world.next(inputs, plan, new_requests=100, heard=100, freed=1)
        plan, ms = timed(partial(relayer.decide, inputs))
        took.append(ms)
    yield Row("incremental cycle after 1 % changed", median(took[2:]), "ms", 25, at_most=True)


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
    """How fast an audit reads snapshots, plans them again and hashes what comes of it."""
    world, relayer = World(seed, 50), Relayer()
    inputs, roots = world.inputs(10_000, 10_000), []
    for _ in range(8):
        plan = relayer.decide(inputs)
        roots.append(leaves_root(plan))
        inputs = world.next(inputs, plan, new_requests=1_000, heard=2_000, freed=2)

    def replay() -> tuple[int, int, list[str]]:
        reader, engine, looked_at, decided, again = SnapshotReader(), Engine(), 0, 0, []
        for hash_ in relayer.hashes:
            read = reader.read(hash_, relayer.texts)
            plan = engine.plan(read)
            looked_at, decided = looked_at + len(read.requests), decided + len(plan.decisions)
            again.append(leaves_root(plan))
        return looked_at, decided, again

    (looked_at, decided, again), took_ms = timed(replay)
    yield Row("decisions replayed: what was decided on each waiting request", looked_at / took_ms * 1000, "/s", 20_000)
    yield Row("of them news, which are leaves", decided / took_ms * 1000, "/s")
    yield Row("rounds whose replay gave another root", sum(map(ne, roots, again)), "", 0, at_most=True)
    if other := os.environ.get("OTHER_PYTHON"):
        elsewhere = replayed_by(other, relayer)
        version = subprocess.run([other, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        yield Row(f"the same by Python {version}", sum(map(ne, roots, elsewhere)), "", 0, at_most=True)


def replayed_by(python: str, relayer: Relayer) -> list[str]:
    """The roots that another Python finds: one that has this package's dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "order.json").write_text(json.dumps(relayer.hashes), encoding="utf-8")
        for hash_, text in relayer.texts.items():
            Path(folder, hash_).write_bytes(text)
        script, source = Path(__file__).with_name("replay.py"), Path(__file__).parents[2] / "offchain"
        environment = {**os.environ, "PYTHONPATH": str(source)}
        done = subprocess.run([python, str(script), folder], capture_output=True, check=True, env=environment)
    roots: list[str] = json.loads(done.stdout)
    return roots


PARTS = (
    ("cycles", cycle_rows),
    ("cycles after small changes", incremental_rows),
    ("placement", placement_rows),
    ("replay", replay_rows),
    ("losses by margin", lambda _: loss_rows()),
    ("gas a result", lambda seed: gas_rows(range(seed, seed + RUNS))),
    ("overload", lambda seed: overload_rows(range(seed, seed + RUNS))),
    ("deadlines", lambda seed: deadline_rows(range(seed, seed + 3 * RUNS))),
)
RUNS = 3


def main() -> int:
    """Measure, print, write."""
    seed, screen = int(os.environ.get("SEED", "1")), Console()
    rows = [Row("calibration: ten million additions", timed(lambda: sum(range(10_000_000)))[1], "ms")]
    for title, part in PARTS:
        screen.print(f"[dim]{title} …[/dim]")
        rows.extend(part(seed))
    show(screen, f"Scheduler, seed {seed}", rows)
    write("scheduler", rows)
    return 0
