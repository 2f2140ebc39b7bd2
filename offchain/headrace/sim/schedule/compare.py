"""Policies over seeds: what each gives, and by how much one is better than another, with its confidence interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from headrace.sim.schedule.measures import Measures, measures_of
from headrace.sim.schedule.run import Run
from headrace.sim.schedule.scenario import Policies, Scenario
from headrace.sim.traces import read_blocks, read_requests

# Of Student's t, two-sided 95 %, by degrees of freedom; the last stands for all above.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and half the width of its 95 % confidence interval; 0 of a single seed."""

    mean: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Compared:
    """The figures of each policy by seed, as `figures[policy][seed number]`."""

    scenario: Scenario
    seeds: Sequence[int]
    figures: dict[str, list[Measures]]

    def of(self, policy: str, name: str) -> Interval:
        """A figure of a policy."""
        return interval([each.get(name, 0.0) for each in self.figures[policy]])

    def gain(self, policy: str, other: str, name: str) -> Interval:
        """By how much a policy has more of a figure than another, seed by seed."""
        pairs = zip(self.figures[policy], self.figures[other], strict=True)
        return interval([mine.get(name, 0.0) - theirs.get(name, 0.0) for mine, theirs in pairs])

    @property
    def names(self) -> list[str]:
        """Of all figures."""
        return list(dict.fromkeys(name for runs in self.figures.values() for run in runs for name in run))


def interval(values: Sequence[float]) -> Interval:
    """The mean of values with its 95 % confidence interval by Student's t."""
    if len(values) < 2:
        return Interval(values[0], 0.0)
    t = _T[min(len(values) - 1, len(_T)) - 1]
    return Interval(fmean(values), t * stdev(values) / sqrt(len(values)))


def compare(
    scenario: Scenario, seeds: Sequence[int], on_progress: Callable[[Policies, int], None] = lambda *_: None
) -> Compared:
    """Run each pair of policies of a scenario with each seed.

    Raises:
        InvalidInput: a trace cannot be read.
    """
    trace, blocks = read_requests(scenario.requests.trace), read_blocks(scenario.chain.trace)
    figures: dict[str, list[Measures]] = {policies.name: [] for policies in scenario.policies}
    for seed in seeds:
        for policies in scenario.policies:
            on_progress(policies, seed)
            outcome = Run(scenario, seed, policies, trace, blocks).run()
            figures[policies.name].append(measures_of(scenario, outcome))
    return Compared(scenario, seeds, figures)
