"""`headrace simulate`: policies over traces in virtual time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headrace.cli import screens
from headrace.cli.options import Json
from headrace.cli.session import session_of
from headrace.sim.schedule.compare import Compared, compare
from headrace.sim.schedule.plots import draw
from headrace.sim.schedule.report import ROWS, write_into
from headrace.sim.schedule.scenario import Policies, Scenario, read_scenario

app = typer.Typer(help="Simulate policies over traces of what happened elsewhere.", no_args_is_help=True)


@app.command("schedule")
def schedule(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The scenario, in TOML; see docs/operations.md.")],
    seed: Annotated[int, typer.Option(help="The first seed.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="How many, one after the other.")] = 1,
    plots: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw the figures into this folder.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Put the table into this document.")] = None,
    as_json: Json = False,
) -> None:
    """Compare scheduling and batching policies over a trace of requests and one of base fees.

    The same seed gives the same figures. Every policy meets the same requests, nodes and blocks.
    """
    console = session_of(context).console
    scenario = read_scenario(file)
    compared = _compared(scenario, range(seed, seed + seeds))
    if report is not None:
        write_into(report, compared)
    drawn = draw(compared, plots) if plots is not None else None
    if as_json:
        screens.show_json(console, _document(compared))
        return
    _show(console, compared)
    for path in filter(None, (report, drawn)):
        console.print(f"Written: {path}", soft_wrap=True)


def _compared(scenario: Scenario, seeds: range) -> Compared:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(scenario.name, total=len(seeds) * len(scenario.policies))

        def step(policies: Policies, seed: int) -> None:
            progress.update(bar, advance=1, description=f"{scenario.name}: {policies.name}, seed {seed}")

        return compare(scenario, seeds, step)


def _document(compared: Compared) -> dict[str, object]:
    policies = {
        policy: {
            "by_seed": [{"seed": seed, **run} for seed, run in zip(compared.seeds, runs, strict=True)],
            "mean": {name: dataclasses.asdict(compared.of(policy, name)) for name in compared.names},
        }
        for policy, runs in compared.figures.items()
    }
    first = next(iter(compared.figures))
    gains = {
        policy: {name: dataclasses.asdict(compared.gain(policy, first, name)) for name in compared.names}
        for policy in compared.figures
        if policy != first
    }
    return {
        "scenario": compared.scenario.name,
        "seeds": list(compared.seeds),
        "policies": policies,
        f"over_{first}": gains,
    }


def _show(console: Console, compared: Compared) -> None:
    table = Table(title=f"{compared.scenario.name}, {len(compared.seeds)} seeds")
    table.add_column("")
    for policy in compared.figures:
        table.add_column(policy, justify="right")
    for name, title, factor, unit in ROWS:
        cells = []
        for policy in compared.figures:
            found = compared.of(policy, name)
            spread = f" ± {found.half_width * factor:.3g}" if found.half_width else ""
            cells.append(f"{found.mean * factor:.4g}{spread} {unit}".rstrip())
        table.add_row(title, *cells)
    console.print(table)
