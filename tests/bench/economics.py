"""The figures of `make bench-scheduler` that need traces: losses to dear gas, gas a result, overload, deadlines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from headrace.core.batching import BatchPolicy
from headrace.core.cycle import BALANCED, SHARED, Policy
from headrace.sim.schedule.compare import Compared, compare
from headrace.sim.schedule.run import Run
from headrace.sim.schedule.scenario import ChainTrace, Model, Nodes, Policies, Requests, Scenario
from headrace.sim.traces import read_blocks, read_requests
from tests.bench.rows import Row

TRACES = Path(os.environ.get("TRACES", Path(__file__).parent.parent / "sim" / "traces"))
"""Another folder of traces: base_fee_*.csv and azure_*.csv."""
MARGINS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0)
LANDINGS = (1, 2, 3, 5, 10)
AGES_MS = (500, 1_500, 3_000, 6_000, 12_000, 24_000)
LOAD = 1.0
MODELS = (
    Model(name="llama-7b", weight=3),
    Model(name="gpt-2", complexity_milli=300, memory_mb=500, per_thousand_tokens_wei=3 * 10**13),
)


def base_fees() -> list[Path]:
    """The traces of base fees."""
    return sorted(TRACES.glob("base_fee_*.csv"))


def requests_trace() -> Path:
    """The trace of requests."""
    return sorted(TRACES.glob("azure_*.csv"))[0]


# Losses


def loss_share(fees: Sequence[int], margin: float, landing: int) -> float:
    """Of results that are sent whenever their gas budget is just this margin above their charge at the next block's
    price, how many are charged more than their budget where they land: the relayer pays what is above."""
    pairs = list(zip(fees, fees[landing:], strict=False))
    return sum(after > before * margin for before, after in pairs) / max(1, len(pairs))


def loss_rows() -> Iterator[Row]:
    """The curve over margins and blocks to landing, for each trace."""
    for path in base_fees():
        fees = [block.base_fee_wei for block in read_blocks(path)]
        name = path.stem.removeprefix("base_fee_")
        for landing in LANDINGS:
            for margin in MARGINS:
                share = 100 * loss_share(fees, margin, landing)
                title = f"results at a loss, {name}, margin {margin}, {landing} blocks to landing"
                held = margin == 1.5 and landing <= 3
                yield Row(title, share, "%", 0.5, at_most=True) if held else Row(title, share, "%")


# Gas a result


def scenario(name: str, fees: Path, policies: Sequence[Policies], **changes: object) -> Scenario:
    """Requests of the trace over a network that is large enough, while gas costs what a trace says."""
    fields: dict[str, object] = {
        "duration_s": 400.0,
        "requests": Requests(trace=requests_trace(), rate=0.3),
        "chain": ChainTrace(trace=fees),
        "nodes": Nodes(count=40),
        "models": MODELS,
        "policies": tuple(policies),
    }
    return Scenario.model_validate({"name": name} | fields | changes)


def gas_rows(seeds: Sequence[int]) -> Iterator[Row]:
    """Gas a paid result by `adaptive`, and by `threshold` where its 95th percentile of settling is the same."""
    ages = [
        Policies(name=f"threshold {age_ms}", batching="threshold", batch_numbers={"max_age_ms": age_ms})
        for age_ms in AGES_MS
    ]
    for path in base_fees():
        name = path.stem.removeprefix("base_fee_")
        compared = compare(scenario(name, path, [Policies(name="adaptive"), *ages]), seeds)
        p95_s, gas = (compared.of("adaptive", each).mean for each in ("settling_p95_s", "gas_per_result"))
        theirs = threshold_at(compared, [each.name for each in ages], p95_s)
        usual = compared.of(f"threshold {BatchPolicy().max_age_ms}", "gas_per_result").mean
        yield Row(f"gas a result, adaptive, {name} (settled within {p95_s:.1f} s at p95)", gas, "gas")
        yield Row(f"gas a result, threshold at the same p95, {name}", theirs, "gas")
        less = Row(f"adaptive over threshold at the same p95, {name}", 100 * (gas / theirs - 1), "%", -15, at_most=True)
        yield less if "surge" in name or "crash" in name else Row(less.measure, less.value, "%")
        yield Row(f"adaptive over threshold as it is set by default, {name}", 100 * (gas / usual - 1), "%")
        for policy in ("adaptive", "threshold 1500", "threshold 12000"):
            yield Row(f"too late to be paid, {policy}, {name}", 100 * compared.of(policy, "unpaid_share").mean, "%")


def threshold_at(compared: Compared, names: Sequence[str], p95_s: float) -> float:
    """The gas a result that thresholds have at a 95th percentile, between those that were run."""
    points = sorted(
        (compared.of(name, "settling_p95_s").mean, compared.of(name, "gas_per_result").mean) for name in names
    )
    if p95_s <= points[0][0]:
        return points[0][1]
    for (low, more), (high, less) in pairwise(points):
        if low <= p95_s <= high:
            return more + (less - more) * (p95_s - low) / max(1e-9, high - low)
    return points[-1][1]


# Deadlines


def deadline_rows(seeds: Sequence[int]) -> Iterator[Row]:
    """Served in deadline against the reference, while as much is asked as the nodes can do."""
    policies = [
        Policies(name="reference", scheduling="reference", batching="threshold"),
        Policies(name="balanced"),
    ]
    for path in base_fees():
        name = path.stem.removeprefix("base_fee_")
        wanted = Requests(trace=requests_trace(), bulk_deadline_s=(60, 180))
        given = scenario(name, path, policies, nodes=Nodes(count=10), requests=wanted, duration_s=200.0)
        compared = compare(at_load(given, LOAD), seeds)
        gain = compared.gain("balanced", "reference", "in_deadline_share")
        for policy in ("reference", "balanced"):
            yield Row(f"served in deadline, {policy}, {name}", 100 * compared.of(policy, "in_deadline_share").mean, "%")
        low = 100 * (gain.mean - gain.half_width)
        yield Row(f"gain over reference, {name}", 100 * gain.mean, "points")
        yield Row(f"gain over reference, {name}, low end of its 95 % interval", low, "points", 0)


def at_load(given: Scenario, load: float) -> Scenario:
    """The same with so much asked, of what the nodes can do."""
    flooded = given.requests.model_copy(update={"rate": 3.0})
    balanced = given.model_copy(update={"requests": flooded, "policies": (Policies(name="balanced"),)})
    rate = load * capacity_share(balanced) * flooded.rate
    return given.model_copy(update={"requests": flooded.model_copy(update={"rate": rate})})


def overload_rows(seeds: Sequence[int]) -> Iterator[Row]:
    """Half as much again as the nodes can do, 45 % of it realtime: realtime in deadline, bulk within its bound."""
    steady = Nodes(count=14, mean_up_s=0.0, miss_share=0.0, flaky_share=0.0, liar_share=0.0, new_share=0.0)
    given = scenario("overload", base_fees()[-1], [Policies(name="balanced")], nodes=steady)
    patient = {"realtime_share": 0.45, "realtime_deadline_s": (90, 150), "bulk_deadline_s": (2_000, 3_600)}
    wanted = Requests.model_validate({"trace": requests_trace()} | patient)
    compared = compare(at_load(given.model_copy(update={"requests": wanted}), 1.5), seeds)
    share = compared.of("balanced", "realtime_in_deadline_share").mean
    bound_s = bulk_bound_s(given)
    yield Row("overload of 150 %, 45 % of it realtime: realtime in deadline", 100 * share, "%", 99)
    longest_s = max(run["bulk_wait_max_s"] for run in compared.figures["balanced"])
    yield Row("overload: longest wait of bulk", longest_s, "s", bound_s, at_most=True)
    yield Row("overload: nodes' time in use", 100 * compared.of("balanced", "utilisation_share").mean, "%")


def capacity_share(flooded: Scenario) -> float:
    """Of what came, how much was answered in the time in which it came, by nodes that never rest."""
    trace, blocks = read_requests(flooded.requests.trace), read_blocks(flooded.chain.trace)
    outcome = Run(flooded, 1, flooded.policies[0], trace, blocks).run()
    end_ms = 1000 * flooded.duration_s
    return sum(0 <= fate.answered_ms <= end_ms for fate in outcome.fates) / len(outcome.fates)


def bulk_bound_s(given: Scenario) -> float:
    """The bound of `core.lanes`: the maximum wait, and what may be there before a request over bulk's least share.

    At 150 % of what can be done, bulk comes at 82.5 % of it and is served at 32.5 % while requests come, then at all.
    """
    backlog_s = given.duration_s * (0.825 - 0.325)  # of all nodes' work
    return Policy(name=BALANCED, lanes=SHARED).bulk_max_wait_ms / 1000 + backlog_s / 0.3
