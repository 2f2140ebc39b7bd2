"""The metrics that there are, those that are used and those that are documented are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.adapters.prometheus import COUNTERS, GAUGES, HISTOGRAMS, PrometheusMetrics

ROOT = Path(__file__).parents[2]
NAMES = {*COUNTERS, *GAUGES, *HISTOGRAMS}


def _used() -> set[str]:
    calls = re.compile(r'\.(?:count|gauge|observe)\(\s*"(headrace_\w+)"')
    return {name for path in (ROOT / "offchain").rglob("*.py") for name in calls.findall(path.read_text("utf-8"))}


def test_table__holds__exactly_what_the_code_counts() -> None:
    assert _used() == NAMES


def test_operations__documents__exactly_the_table() -> None:
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    assert set(re.findall(r"`(headrace_[a-z_]+)(?:\{[a-z,]+\})?`", text)) == NAMES


@pytest.mark.parametrize("name", sorted(COUNTERS))
def test_documented_labels__are_those_of_the_table(name: str) -> None:
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    labels = COUNTERS[name].labels
    shown = f"`{name}{{{','.join(labels)}}}`" if labels else f"`{name}`"
    assert shown in text


def test_text__after_a_count__shows_it() -> None:
    metrics = PrometheusMetrics()
    metrics.count("headrace_expired_total", 3)
    metrics.gauge("headrace_linked_nodes", 2)
    text = metrics.text()
    assert "headrace_expired_total 3.0" in text
    assert "headrace_linked_nodes 2.0" in text
    with pytest.raises(KeyError):
        metrics.count("headrace_unheard_of_total")
