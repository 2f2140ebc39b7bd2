"""Runs as pictures: what each policy gives, with its confidence interval, and how latencies are spread."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigurationError
from headrace.sim.schedule.compare import Compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = (
    ("in_deadline_share", "served in deadline, all"),
    ("realtime_in_deadline_share", "served in deadline, realtime"),
    ("bulk_in_deadline_share", "served in deadline, bulk"),
    ("latency_p95_s", "95 % answered within, s"),
    ("wait_p95_s", "95 % assigned within, s"),
    ("jain_fairness", "fairness (Jain)"),
    ("gas_per_result", "gas a result"),
    ("settling_p95_s", "95 % settled within, s"),
    ("unpaid_share", "settled too late to be paid"),
    ("relayer_profit_gwei", "relayer's profit a result, gwei"),
    ("relayer_loss_share", "results at a loss"),
    ("utilisation_share", "nodes' time in use"),
)
_COLUMNS = 3


def draw(compared: Compared, folder: Path) -> Path:
    """Draw the figures of all policies into `<folder>/<scenario>.png`.

    Raises:
        ConfigurationError: Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ConfigurationError("plots need Matplotlib: install headrace[plots], or leave --plots out") from exc
    rows = -(-len(_PANELS) // _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 2.4 * rows), layout="constrained")
    axes: Any = figure.subplots(rows, _COLUMNS)
    for panel, (name, title) in zip(axes.flat, _PANELS, strict=True):
        _bars(panel, compared, name, title)
    figure.suptitle(f"{compared.scenario.name}: {len(compared.seeds)} seeds, 95 % confidence")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{compared.scenario.name}.png"
    figure.savefig(path, dpi=130)
    return path


def _bars(panel: Axes, compared: Compared, name: str, title: str) -> None:
    policies = list(compared.figures)
    found = [compared.of(policy, name) for policy in policies]
    places = range(len(policies))
    panel.barh(places, [each.mean for each in found], xerr=[each.half_width for each in found], height=0.6)
    panel.set_yticks(places, labels=policies, fontsize=8)
    panel.invert_yaxis()
    panel.set_title(title, fontsize=9, loc="left")
    panel.tick_params(axis="x", labelsize=8)
    panel.grid(axis="x", alpha=0.3)
