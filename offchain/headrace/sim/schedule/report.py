"""Comparisons as a Markdown table, between two marks of a document that is kept by hand."""

from __future__ import annotations

from pathlib import Path

from headrace.core.errors import InvalidInput
from headrace.sim.schedule.compare import Compared, Interval

ROWS = (
    ("in_deadline_share", "served in deadline", 100, "%"),
    ("realtime_in_deadline_share", "of realtime", 100, "%"),
    ("bulk_in_deadline_share", "of bulk", 100, "%"),
    ("wait_p50_s", "wait, p50", 1, "s"),
    ("wait_p95_s", "wait, p95", 1, "s"),
    ("realtime_latency_p50_s", "latency of realtime, p50", 1, "s"),
    ("realtime_latency_p95_s", "p95", 1, "s"),
    ("realtime_latency_p99_s", "p99", 1, "s"),
    ("bulk_latency_p50_s", "latency of bulk, p50", 1, "s"),
    ("bulk_latency_p95_s", "p95", 1, "s"),
    ("bulk_latency_p99_s", "p99", 1, "s"),
    ("jain_fairness", "fairness between requesters (Jain)", 1, ""),
    ("gas_per_result", "gas a result", 1e-3, "k"),
    ("settling_p95_s", "settled after the answer, p95", 1, "s"),
    ("unpaid_share", "settled too late to be paid", 100, "%"),
    ("requester_cost_gwei", "cost to the requester", 1e-6, "mETH"),
    ("node_profit_gwei", "node's profit a result", 1e-6, "mETH"),
    ("relayer_profit_gwei", "relayer's profit a result", 1e-6, "mETH"),
    ("relayer_loss_share", "results at a loss to the relayer", 100, "%"),
    ("utilisation_share", "nodes' time in use", 100, "%"),
)
"""Of a table: the figure, what it is called, what it is multiplied with, its unit."""


def table(compared: Compared) -> str:
    """A Markdown table: a row for each figure, a column for each policy, and the last policy's gain over the first."""
    policies = list(compared.figures)
    lines = [
        f"{len(compared.seeds)} seeds, {compared.scenario.duration_s:g} s each; mean ± 95 % confidence.",
        "",
        f"| | {' | '.join(policies)} | {policies[-1]} − {policies[0]} |",
        f"|---|{'---|' * (len(policies) + 1)}",
    ]
    for name, title, factor, unit in ROWS:
        cells = [_cell(compared.of(policy, name), factor, unit) for policy in policies]
        cells.append(_cell(compared.gain(policies[-1], policies[0], name), factor, unit))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_into(path: Path, compared: Compared) -> None:
    """Put the table of a scenario into a document, between its marks `<!-- simulate NAME -->` and `<!-- end -->`. What
    stands there is replaced; a document without the marks gets them at its end.

    Raises:
        InvalidInput: the document cannot be read or written, or its mark has no end.
    """
    start, end = f"<!-- simulate {compared.scenario.name} -->", "<!-- end -->"
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if start not in text:
            text = f"{text.rstrip()}\n\n{start}\n{end}\n".lstrip()
        before, _, rest = text.partition(start)
        _, found, after = rest.partition(end)
        if not found:
            raise InvalidInput(f"{path} has {start} without {end} after it")
        path.write_text(f"{before}{start}\n{table(compared)}\n{end}{after}", encoding="utf-8")
    except OSError as exc:
        raise InvalidInput(f"the report {path} cannot be written: {exc.strerror}") from exc


def _cell(found: Interval, factor: float, unit: str) -> str:
    spread = f" ± {_number(found.half_width * factor)}" if found.half_width else ""
    return f"{_number(found.mean * factor)}{spread} {unit}".rstrip()


def _number(value: float) -> str:
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
    return f"{value:.{digits}f}"
