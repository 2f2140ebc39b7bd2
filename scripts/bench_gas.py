"""Measure what the contracts' work costs in gas, on an anvil of its own."""

import json
import os
import sys
import tomllib
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
from tests.contracts.gas.measure import SNAPSHOT, GasBench, Row, snapshot_of  # noqa: E402

PEERS = ROOT / "tests" / "contracts" / "gas" / "peers.toml"

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
    screen = Console()
    screen.print(table)
    # A file has no width of its own.
    screen.print(_beside_peers(rows), width=None if screen.is_terminal else 160)
    results = [
        {"measure": name, "value": row.gas_per_item, "unit": "gas", "target": row.target, "ok": row.ok}
        for name, row in rows.items()
    ]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if update:
        SNAPSHOT.write_text(json.dumps(snapshot_of(rows), indent=2) + "\n", encoding="utf-8")
        click.echo(f"Wrote {SNAPSHOT.relative_to(ROOT)}.")


def _beside_peers(rows: dict[str, Row]) -> Table:
    """What the same work costs elsewhere, with what each figure buys."""
    table = Table("measure", "elsewhere", title="Beside others (their figures are not measured here)")
    for heading in ("gas there", "gas here", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("payload and guarantees there")
    for peer in tomllib.loads(PEERS.read_text(encoding="utf-8"))["peer"]:
        here = rows[peer["row"]].gas_per_item
        ratio = f"{peer['gas'] / here:.1f}x"
        said = f"{peer['payload']}; {peer['guarantees']}"
        table.add_row(peer["row"], peer["system"], f"{peer['gas']:,}", f"{here:,}", ratio, said)
    table.caption = "Here: escrow and status stored, node and relayer paid, decisions recorded; by hash unless said."
    return table
