"""`make bench-relayer`: all that is measured of a relayer, in one table."""

from __future__ import annotations

import json
import logging
import os
import platform
import tempfile
from pathlib import Path

import structlog
from rich.console import Console
from rich.table import Table

from tests.bench.backlog import start_with_backlog
from tests.bench.relayer import calibration, from_end_to_end, indexing, settling
from tests.bench.take_over import take_over

RESULTS = Path(__file__).parent / "results" / "relayer.json"


async def main() -> int:
    """Measure, print, write."""
    seed, seconds = int(os.environ.get("SEED", "1")), int(os.environ.get("SECONDS_E2E", "60"))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    rows = [calibration()]
    screen = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, work in (
            ("indexing", indexing(folder, seed)),
            ("settling", settling(folder, seed)),
            ("few requests", from_end_to_end(folder, seed, 20, 10)),
            ("end to end", from_end_to_end(folder, seed, seconds, int(os.environ.get("PER_BLOCK", "330")))),
            ("take-over", take_over(folder / "pair", seed)),
            ("start with a backlog", start_with_backlog(folder, seed)),
        ):
            screen.print(f"[dim]{title} …[/dim]")
            rows += await work
    table = Table("measure", "value", "target", "ok", title=f"Relayer, {platform.processor() or platform.machine()}")
    for row in rows:
        target = "" if row.target is None else f"{'≤' if row.at_most else '≥'} {row.target:,g}"
        verdict = "" if row.target is None else "yes" if row.is_met else "[red]no"
        table.add_row(row.measure, f"{row.value:,.1f} {row.unit}", target, verdict)
    screen.print(table)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    documents = [
        {"measure": row.measure, "value": row.value, "unit": row.unit, "target": row.target, "ok": row.is_met}
        for row in rows
    ]
    RESULTS.write_text(json.dumps(documents, indent=2) + "\n", encoding="utf-8")
    return 0
