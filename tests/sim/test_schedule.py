"""The scheduling simulator: same seed, same figures; nothing is made up, and nobody is paid twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.errors import InvalidInput
from headrace.core.types import Lane
from headrace.sim.schedule.compare import Compared, Interval, compare, interval
from headrace.sim.schedule.measures import measures_of, percentile
from headrace.sim.schedule.plots import draw
from headrace.sim.schedule.population import Population
from headrace.sim.schedule.report import table, write_into
from headrace.sim.schedule.run import Outcome, Run
from headrace.sim.schedule.scenario import Policies, Scenario, read_scenario
from headrace.sim.traces import read_blocks, read_requests

FILE = Path(__file__).parent / "small.toml"
BALANCED = Policies(name="balanced")


def scenario(**changes: Any) -> Scenario:
    """The small one, with parts of it changed."""
    found = read_scenario(FILE)
    parts = {
        name: getattr(found, name).model_copy(update=change) if isinstance(change, dict) else change
        for name, change in changes.items()
    }
    return found.model_copy(update={"duration_s": 45.0} | parts)


def ran(of: Scenario, seed: int = 1, policies: Policies = BALANCED) -> Outcome:
    return Run(of, seed, policies, read_requests(of.requests.trace), read_blocks(of.chain.trace)).run()


@pytest.mark.parametrize("policies", read_scenario(FILE).policies, ids=lambda each: each.name)
def test_run__twice__is_the_same_and_another_seed_is_not(policies: Policies) -> None:
    given = scenario()
    first, again, other = (measures_of(given, ran(given, seed, policies)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_run__every_request__is_answered_once_at_most_and_settled_once_at_most(seed: int) -> None:
    outcome = ran(scenario(), seed)
    settled = Counter(each.result.request.request_id for each in outcome.chain.settled)
    assert max(settled.values()) == 1
    answered = sum(fate.answered_ms >= 0 for fate in outcome.fates)
    assert len(settled) + outcome.chain.late == answered
    for fate in outcome.fates:
        assert fate.assignments <= 3
        if fate.answered_ms >= 0:
            assert fate.asked.at_ms <= fate.included_ms <= fate.assigned_ms < fate.answered_ms


def test_run__money__adds_up_to_the_escrow_at_most() -> None:
    for each in ran(scenario()).chain.settled:
        request = each.result.request
        most_wei = each.result.reward_wei + request.gas_budget_wei + request.priority_fee_wei
        assert 0 < each.requester_wei <= most_wei
        assert each.node_wei >= each.result.reward_wei


def test_run__all_policies__meet_the_same_requests() -> None:
    given = scenario()
    asked = [[fate.asked for fate in ran(given, 4, policies).fates] for policies in given.policies]
    assert asked[0] == asked[1] == asked[2]


def test_run__nodes_that_always_miss__answer_nothing_and_end() -> None:
    outcome = ran(scenario(nodes={"miss_share": 1.0, "flaky_miss_share": 1.0}))
    assert all(fate.answered_ms < 0 for fate in outcome.fates)
    assert measures_of(scenario(), outcome)["in_deadline_share"] == 0.0


def test_run__more_nodes__serve_more() -> None:
    few, many = (scenario(nodes={"count": count}, requests={"rate": 2.0}) for count in (3, 30))
    shares = [measures_of(given, ran(given))["in_deadline_share"] for given in (few, many)]
    assert shares[0] < shares[1]


def test_run__liars__are_found_out_by_their_pace() -> None:
    """Half of the nodes say that they are eight times faster than they are; the answers show it."""
    given = scenario(nodes={"liar_share": 0.5, "lie_factor": 8.0, "mean_up_s": 0.0})
    honest = scenario(nodes={"liar_share": 0.0, "mean_up_s": 0.0})
    lies, truth = (measures_of(each, ran(each))["latency_p95_s"] for each in (given, honest))
    assert lies < 3 * truth


def test_run__a_trace_that_is_shorter__goes_on_from_its_beginning() -> None:
    trace = read_requests(scenario().requests.trace)
    given = scenario(requests={"rate": 3 * trace[-1].at_s / 45.0, "offset_s": 0.0})
    asked = Population(given, 1).requests(trace)
    assert 2.9 * len(trace) < len(asked) < 3.1 * len(trace)
    assert max(each.at_ms for each in asked) < 45_000


def test_run__realtime__is_answered_sooner_than_bulk_under_load() -> None:
    given = scenario(nodes={"count": 5}, requests={"rate": 0.8})
    outcome = ran(given)
    found = measures_of(given, outcome)
    assert found["realtime_wait_p95_s"] < found["bulk_wait_p95_s"]
    assert {fate.asked.lane for fate in outcome.fates} == set(Lane)


# Figures


def test_interval__is_students() -> None:
    """By hand: mean 2, deviation 1, three values: 4.303 / √3."""
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.half_width) == (2.0, pytest.approx(2.4843, abs=1e-3))
    assert interval([5.0]) == Interval(5.0, 0.0)


def test_percentile__is_of_the_nearest_rank() -> None:
    values = list(range(1, 101))
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([], 0.5) == 0.0
    assert percentile([7.0], 0.01) == 7.0


# Files and commands

GOOD = "name = 'x'\nrequests.trace = 'a'\nchain.trace = 'b'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "not TOML"),
        ("name = 'x'", "requests"),
        ("name = 'x'\n[requests]\ntrace = 'a'\nrat = 2\n[chain]\ntrace = 'b'", "requests.rat"),
        ("name = 'x'\n[requests]\ntrace = 'a'\nrate = 0\n[chain]\ntrace = 'b'", "requests.rate"),
        (
            "name = 'x'\npolicies = [{name = 'a'}, {name = 'a'}]\n[requests]\ntrace = 'a'\n[chain]\ntrace = 'b'",
            "differ",
        ),
    ],
)
def test_scenario__is_not_as_it_must_be__says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=message):
        read_scenario(path)


def test_run__no_request_in_its_time__says_so() -> None:
    with pytest.raises(InvalidInput, match="no request"):
        ran(scenario(requests={"offset_s": 10.0**9, "rate": 0.001}).model_copy(update={"duration_s": 0.001}))


def small_comparison() -> Compared:
    quick = tuple(each for each in scenario().policies if each.scheduling == "balanced")
    return compare(scenario().model_copy(update={"policies": quick}), [1, 2])


def test_report__table_is_put_between_its_marks_and_replaced(tmp_path: Path) -> None:
    compared, path = small_comparison(), tmp_path / "report.md"
    path.write_text("# Report\n\n<!-- simulate small -->\nold\n<!-- end -->\n\nAfter.\n", encoding="utf-8")
    for _ in range(2):
        write_into(path, compared)
    text = path.read_text(encoding="utf-8")
    assert text == f"# Report\n\n<!-- simulate small -->\n{table(compared)}\n<!-- end -->\n\nAfter.\n"
    write_into(tmp_path / "new.md", compared)
    assert (tmp_path / "new.md").read_text(encoding="utf-8").startswith("<!-- simulate small -->\n")
    path.write_text("<!-- simulate small -->", encoding="utf-8")
    with pytest.raises(InvalidInput, match="without"):
        write_into(path, compared)


def test_plots__are_a_picture(tmp_path: Path) -> None:
    path = draw(small_comparison(), tmp_path / "plots")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_command__json__has_each_seed_and_the_means(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    text = FILE.read_text(encoding="utf-8").replace("duration_s = 180", "duration_s = 40")
    path.write_text(text.replace('"traces/', f'"{FILE.parent}/traces/'), encoding="utf-8")
    done = CliRunner().invoke(app, ["simulate", "schedule", str(path), "--seed", "7", "--seeds", "2", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["seeds"] == [7, 8]
    runs = document["policies"]["balanced"]["by_seed"]
    assert [run["seed"] for run in runs] == [7, 8]
    mean = document["policies"]["balanced"]["mean"]["gas_per_result"]
    assert mean["mean"] == pytest.approx(sum(run["gas_per_result"] for run in runs) / 2)
    assert document["over_reference"]["balanced"]["gas_per_result"]["mean"] < 0
