"""Measure what the contracts' work costs in gas, on an anvil of its own."""

import json
import os
import sys
from types import ModuleType

import ape
import click
from ape.cli import ConnectedProviderCommand
from ape.logging import LogLevel, logger
from rich.console import Console
from rich.table import Table

from scripts._chain import ROOT

# Packages that install their own `tests` hide this repository's, which is none: pytest is who finds it by itself.
sys.modules["tests"] = ModuleType("tests")
sys.modules["tests"].__path__ = [str(ROOT / "tests")]
from tests.contracts.gas.measure import SNAPSHOT, GasBench, snapshot_of  # noqa: E402

RESULTS = ROOT / "tests" / "bench" / "results" / "gas.json"


@click.command(cls=ConnectedProviderCommand)
@click.option("--update", is_flag=True, help="Rewrite the committed snapshot.")
def cli(update: bool) -> None:
    """Measure what the contracts' work costs in gas."""
    logger.set_level(LogLevel.WARNING)  # not a line for each of some hundred transactions
    seed = int(os.environ.get("SEED", "1"))
    bench = GasBench(ape.project, ape.chain, ape.accounts.test_accounts, seed)
    rows = bench.rows()
    table = Table("measure", title=f"Gas, whole transactions, prague (SEED={seed})")
    for heading in ("value", "target", "ok"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        table.add_row(name, f"{row.gas_per_item:,}", f"{row.target:,}", "yes" if row.ok else "[red]no")
    Console().print(table)
    results = [
        {"measure": name, "value": row.gas_per_item, "unit": "gas", "target": row.target, "ok": row.ok}
        for name, row in rows.items()
    ]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if update:
        SNAPSHOT.write_text(json.dumps(snapshot_of(rows), indent=2) + "\n", encoding="utf-8")
        click.echo(f"Wrote {SNAPSHOT.relative_to(ROOT)}.")
