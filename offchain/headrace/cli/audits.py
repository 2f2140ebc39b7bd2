"""`headrace audit`: replay recorded rounds and compare them with the chain."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import screens
from headrace.cli.options import Json, address
from headrace.cli.session import Session, session_of
from headrace.cli.verdicts import FOUND, WITHHELD, Verdict
from headrace.client.audits import AuditReport, RoundSource, StoreRounds, audit, parse_rounds
from headrace.core.errors import InvalidInput
from headrace.core.types import Address


def audit_rounds(
    context: typer.Context,
    rounds: Annotated[str, typer.Option(metavar="a..b", help="Which rounds [default: all].")] = "1..",
    relayer: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Whose [default: the API's].")] = None,
    store: Annotated[Path | None, typer.Option(help="Read snapshots from this database, not from the API.")] = None,
    as_json: Json = False,
) -> None:
    """Replay recorded rounds and compare them with the chain.

    Exit code 0: they hold; 1: they differ; 2: data is withheld or not what was recorded; 3: nothing was judged, for the
    reason on stderr; 64: the command was typed wrongly.
    """
    first, last = parse_rounds(rounds)
    whose = None if relayer is None else address(relayer)
    if store is not None and whose is None:
        raise InvalidInput("--store needs --relayer ADDRESS, since a database does not say whose it is")
    if store is not None and not store.is_file():
        raise InvalidInput(f"there is no database {store}: correct --store")
    session = session_of(context)
    report = asyncio.run(_audit(session, first, last, whose, store))
    if as_json:
        screens.show_json(session.console, dataclasses.asdict(report))
    else:
        screens.show_audit(session.console, report)
    if report.is_withheld:
        raise Verdict(WITHHELD)
    if report.differs:
        raise Verdict(FOUND)


async def _audit(
    session: Session, first: int | None, last: int | None, relayer: Address | None, store: Path | None
) -> AuditReport:
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(session.open_chain(session.settings))
        source: RoundSource
        if store is not None and relayer is not None:
            source = StoreRounds(await stack.enter_async_context(session.open_store(store)))
            confirmations = session.settings.chain.confirmations
        else:
            client = await stack.enter_async_context(session.client(None, opened.chain))
            network = await client.network()
            source, confirmations = client.rounds(), network.confirmations
            relayer = relayer or network.relayer
        return await audit(
            opened.chain,
            source,
            relayer,
            first=first,
            last=last,
            first_block=opened.first_block,
            confirmations=confirmations,
        )
