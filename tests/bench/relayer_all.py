"""`make bench-relayer`: all that is measured of a relayer, in one table."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import structlog
from rich.console import Console

from tests.bench.backlog import start_with_backlog
from tests.bench.relayer import calibration, from_end_to_end, indexing, settling
from tests.bench.rows import show, write
from tests.bench.take_over import take_over


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
    show(screen, "Relayer", rows)
    write("relayer", rows)
    return 0
