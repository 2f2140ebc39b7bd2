"""`headrace dead-letters`: results that a relayer gave up, why, and how to have them tried again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from headrace.cli import screens
from headrace.cli.options import Json, request_id
from headrace.cli.session import Session, session_of
from headrace.core.errors import NotFound
from headrace.core.refusals import moment
from headrace.core.types import Hash32
from headrace.ports import Store, StoredDeadLetter

app = typer.Typer(help="See what was given up, and have it tried again.", no_args_is_help=True)

Database = Annotated[
    Path | None, typer.Option("--store", help="The relayer's database [default: HEADRACE_RELAYER__DATABASE].")
]
_MOST = 10_000


@app.command("list")
def list_letters(context: typer.Context, store: Database = None, as_json: Json = False) -> None:
    """Show what was given up, newest first."""
    session = session_of(context)
    letters = asyncio.run(_letters(session, store))
    if as_json:
        screens.show_json(session.console, [_document(each) for each in letters])
        return
    if not letters:
        session.console.print("Nothing was given up.")
        return
    table = Table(padding=(0, 1))
    for column in ("since", "request", "why", "the chain said"):
        table.add_column(column, overflow="fold")
    for each in letters:
        cells = (moment(each.at_ms // 1000), each.request_id, each.reason, each.error)
        table.add_row(*(Text(screens.printable(cell)) for cell in cells))
    session.console.print(table)


@app.command("show")
def show_letter(
    context: typer.Context,
    request: Annotated[str, typer.Argument(metavar="ID", help="Of the request.")],
    store: Database = None,
    as_json: Json = False,
) -> None:
    """Show one with the call that was simulated, for `cast call` or a debugger."""
    session, id_ = session_of(context), request_id(request)
    letter = next((each for each in asyncio.run(_letters(session, store)) if each.request_id == id_), None)
    if letter is None:
        raise NotFound(f"the request {id_} was not given up: `headrace dead-letters list` shows what was")
    if as_json:
        screens.show_json(session.console, _document(letter))
        return
    rows = [
        ("request", letter.request_id),
        ("since", moment(letter.at_ms // 1000)),
        ("why", letter.reason),
        ("error", letter.error),
        ("after block", str(letter.block_number)),
    ]
    if letter.call is not None:
        rows += [("call to", letter.call.to), ("call data", "0x" + letter.call.data.hex())]
    screens.show_rows(session.console, rows)


@app.command("replay")
def replay_letter(
    context: typer.Context,
    request: Annotated[str, typer.Argument(metavar="ID", help="Of the request.")],
    store: Database = None,
) -> None:
    """Have a relayer try it again; one that runs on the database does so at once."""
    session, id_ = session_of(context), request_id(request)
    if not asyncio.run(_replay(session, store, id_)):
        raise NotFound(f"the request {id_} was not given up: `headrace dead-letters list` shows what was")
    session.console.print(Text(f"{id_} will be in the next batch."), soft_wrap=True)


@contextlib.asynccontextmanager
async def _open(session: Session, path: Path | None) -> AsyncIterator[Store]:
    database = path or session.settings.relayer.database
    if not await asyncio.to_thread(database.is_file):
        raise NotFound(f"there is no database {database}: correct --store or HEADRACE_RELAYER__DATABASE")
    async with session.open_store(database) as store:
        yield store


async def _letters(session: Session, path: Path | None) -> list[StoredDeadLetter]:
    async with _open(session, path) as store:
        return await store.dead_letters(_MOST)


async def _replay(session: Session, path: Path | None, request_id_: Hash32) -> bool:
    async with _open(session, path) as store:
        return await store.replay_dead_letter(request_id_, session.clock.now_ms())


def _document(letter: StoredDeadLetter) -> dict[str, Any]:
    call = None if letter.call is None else {"to": letter.call.to, "data": "0x" + letter.call.data.hex()}
    return {
        "request_id": letter.request_id,
        "reason": letter.reason,
        "error": letter.error,
        "block_number": letter.block_number,
        "at_ms": letter.at_ms,
        "call": call,
    }
