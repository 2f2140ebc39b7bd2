"""What a run is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from headrace.core.fairness import shares_of
from headrace.core.types import Lane
from headrace.sim.schedule.run import EPOCH_MS, Fate, Outcome
from headrace.sim.schedule.scenario import Scenario
from headrace.sim.schedule.settling import Settled

Measures = dict[str, float]


def measures_of(scenario: Scenario, outcome: Outcome) -> Measures:
    """The figures of a run, by name with the unit at its end.

    Shares are of all requests that came into a block. A request is served in deadline when a node answered by then; its
    latency is from its block to the answer, its wait from there to the assignment that was answered.
    """
    found: Measures = {"requests": len(outcome.fates), "cycles": outcome.cycles}
    found |= _lane_measures("", outcome.fates)
    for lane in Lane:
        own = [fate for fate in outcome.fates if fate.asked.lane is lane]
        found |= _lane_measures(f"{lane.name.lower()}_", own)
    found["jain_fairness"] = shares_of(_served_shares(outcome))
    span_ms = max((fate.answered_ms for fate in outcome.fates), default=0)
    places = sum(node.places for node in outcome.nodes)
    found["utilisation_share"] = sum(outcome.busy_ms.values()) / max(1, places * span_ms)
    return found | _money(scenario, outcome)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so many are not above: of those that there are, the nearest rank."""
    if not values:
        return 0.0
    rank = -(-round(share * 1000) * len(values) // 1000)
    return sorted(values)[min(len(values), max(1, rank)) - 1]


def _lane_measures(name: str, fates: Sequence[Fate]) -> Measures:
    answered = [fate for fate in fates if fate.answered_ms >= 0]
    in_deadline = sum(fate.answered_ms <= fate.deadline_ms for fate in answered)
    waits_s = [(fate.assigned_ms - fate.included_ms) / 1000 for fate in answered]
    latencies_s = [(fate.answered_ms - fate.included_ms) / 1000 for fate in answered]
    return {
        f"{name}in_deadline_share": in_deadline / len(fates) if fates else 1.0,
        f"{name}wait_p50_s": percentile(waits_s, 0.5),
        f"{name}wait_p95_s": percentile(waits_s, 0.95),
        f"{name}wait_max_s": max(waits_s, default=0.0),
        f"{name}latency_p50_s": percentile(latencies_s, 0.5),
        f"{name}latency_p95_s": percentile(latencies_s, 0.95),
        f"{name}latency_p99_s": percentile(latencies_s, 0.99),
    }


def _served_shares(outcome: Outcome) -> dict[str, int]:
    """Of what each requester asked for, how much it was served, in thousandths: who asks for more is due more."""
    asked: dict[str, int] = {}
    served: dict[str, int] = {}
    for fate in outcome.fates:
        requester = fate.asked.requester
        asked[requester] = asked.get(requester, 0) + 1
        is_served = 0 <= fate.answered_ms <= fate.deadline_ms
        served[requester] = served.get(requester, 0) + is_served
    return {requester: 1000 * served[requester] // count for requester, count in asked.items()}


def _money(scenario: Scenario, outcome: Outcome) -> Measures:
    settled = outcome.chain.settled
    if not settled:
        return {"settled": 0}
    settle_s = [(each.at_ms + EPOCH_MS - each.result.ready_at_ms) / 1000 for each in settled]
    losses = [each for each in settled if each.relayer_wei < 0]
    busy_s = sum(outcome.busy_ms.values()) / 1000
    income_wei = sum(each.node_wei for each in settled) - round(busy_s * scenario.nodes.cost_wei_per_s)
    return {
        "settled": len(settled),
        "results_per_batch": fmean(outcome.chain.batches) if outcome.chain.batches else 0.0,
        "gas_per_result": outcome.chain.gas_used / len(settled),
        "unpaid_share": outcome.chain.late / (outcome.chain.late + len(settled)),
        "settling_p50_s": percentile(settle_s, 0.5),
        "settling_p95_s": percentile(settle_s, 0.95),
        "requester_cost_gwei": _mean_gwei(settled, "requester_wei"),
        "node_profit_gwei": income_wei / len(settled) / 1e9,
        "relayer_profit_gwei": _mean_gwei(settled, "relayer_wei"),
        "relayer_loss_share": len(losses) / len(settled),
    }


def _mean_gwei(settled: Sequence[Settled], name: str) -> float:
    return fmean(getattr(each, name) for each in settled) / 1e9
