"""What benches give: rows, as a table and as a file."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One measured figure. Without a target it is there to be compared with."""

    measure: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        """Whether it is what it should be."""
        if self.target is None:
            return True
        return self.value <= self.target if self.at_most else self.value >= self.target


def show(screen: Console, title: str, rows: Sequence[Row]) -> None:
    """Print them."""
    table = Table("measure", "value", "target", "ok", title=f"{title}, Python {platform.python_version()}, {_cpu()}")
    for row in rows:
        target = "" if row.target is None else f"{'≤' if row.at_most else '≥'} {row.target:,g}"
        verdict = "" if row.target is None else "yes" if row.is_met else "[red]no"
        table.add_row(row.measure, f"{row.value:,.{_decimals(row.value)}f} {row.unit}", target, verdict)
    screen.print(table)


def write(name: str, rows: Sequence[Row]) -> None:
    """Write them to `tests/bench/results/NAME.json`."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    documents = [
        {"measure": row.measure, "value": row.value, "unit": row.unit, "target": row.target, "ok": row.is_met}
        for row in rows
    ]
    (RESULTS / f"{name}.json").write_text(json.dumps(documents, indent=2) + "\n", encoding="utf-8")


def _decimals(value: float) -> int:
    return 1 if abs(value) >= 10 else 3


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
