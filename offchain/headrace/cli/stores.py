"""`headrace store`: copies of a relayer's database."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.text import Text

from headrace.cli import screens
from headrace.cli.options import Json
from headrace.cli.session import session_of

app = typer.Typer(help="Copy a relayer's database, and put a copy back.", no_args_is_help=True)

Database = Annotated[
    Path | None, typer.Option("--store", help="The relayer's database [default: HEADRACE_RELAYER__DATABASE].")
]
_MIB = 1024**2


@app.command("backup")
def back_up_store(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; nothing is overwritten.")],
    store: Database = None,
) -> None:
    """Copy the database, also while the relayer runs."""
    session = session_of(context)
    with Progress(console=session.console, transient=True, disable=not session.console.is_terminal) as progress:
        bar = progress.add_task("copying", total=None)
        facts = session.copies.back_up(
            store or session.settings.relayer.database,
            file,
            lambda done, total: progress.update(bar, completed=done, total=total),
        )
    size = facts.size_bytes / _MIB
    session.console.print(
        Text(f"{file}: {size:.1f} MiB, {facts.requests} requests, up to block {facts.last_block}."), soft_wrap=True
    )


@app.command("check")
def check_store(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A copy, or the database of a relayer that is stopped.")],
    as_json: Json = False,
) -> None:
    """Look through a copy: whether it is whole, and what is in it."""
    session = session_of(context)
    facts = asdict(session.copies.look_through(file))
    if as_json:
        screens.show_json(session.console, facts)
        return
    screens.show_rows(session.console, [(name.replace("_", " "), str(value)) for name, value in facts.items()])


@app.command("restore")
def restore_store(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `headrace store backup` made.")],
    store: Database = None,
) -> None:
    """Put a copy in the place of the database of a relayer that is stopped. What was there is kept."""
    session = session_of(context)
    database = store or session.settings.relayer.database
    former = session.copies.put_back(file, database)
    kept = f" What was there is {former}." if former else ""
    session.console.print(
        Text(f"{database} is now the copy. At its next start the relayer makes up for what the copy lacks.{kept}"),
        soft_wrap=True,
    )
