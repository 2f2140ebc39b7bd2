"""`headrace reconcile`: hold a relayer's store against the chain, request by request."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from headrace.cli import screens
from headrace.cli.amounts import show_wei
from headrace.cli.options import Json, address
from headrace.cli.session import Session, session_of
from headrace.cli.unmeasured import Unmeasured
from headrace.cli.verdicts import FOUND, Verdict
from headrace.core.errors import InvalidInput, NotFound
from headrace.core.reconciliation import Discrepancy
from headrace.core.types import Address
from headrace.services.reconciler import Reconciler, Reconciliation


def reconcile(
    context: typer.Context,
    from_block: Annotated[int | None, typer.Option(min=0, help="First block [default: the deployment's].")] = None,
    to_block: Annotated[int | None, typer.Option(min=0, help="Last block [default: the store's last].")] = None,
    relayer: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Whose [default: the relayer's key].")] = None,
    store: Annotated[Path | None, typer.Option(help="Its database [default: HEADRACE_RELAYER__DATABASE].")] = None,
    as_json: Json = False,
) -> None:
    """Compare chain and store, request by request. Of those in a range of blocks; it may run beside the relayer.

    Exit code 0: they agree; 1: a request is lost, duplicated, unpaid or stuck; 3: nothing was compared, for the reason
    on stderr; 64: the command was typed wrongly.
    """
    session = session_of(context)
    path = store or session.settings.relayer.database
    if not path.is_file():
        raise NotFound(f"there is no database {path}: correct --store or HEADRACE_RELAYER__DATABASE")
    if from_block is not None and to_block is not None and from_block > to_block:
        raise InvalidInput(f"--from-block {from_block} is after --to-block {to_block}: exchange them")
    whose = address(relayer) if relayer else session.signer("relayer").address
    done = asyncio.run(_compare(session, path, whose, from_block, to_block))
    if as_json:
        screens.show_json(session.console, _document(done, whose))
    else:
        show(session.console, done, whose)
    if done.findings:
        raise Verdict(FOUND)


async def _compare(
    session: Session, path: Path, relayer: Address, first: int | None, last: int | None
) -> Reconciliation:
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(session.open_chain(session.settings))
        store = await stack.enter_async_context(session.open_store(path))
        reached = await store.last_block()
        if reached is None:
            raise NotFound(f"the database {path} has no block yet: start the relayer, or correct --store")
        start = opened.first_block if first is None else first
        end = reached.number if last is None else min(last, reached.number)
        terms = await opened.chain.market_terms()
        reconciler = Reconciler(opened.chain, store, Unmeasured(), relayer, start, terms)
        console = Console(stderr=True)
        columns = (TextColumn("reading blocks"), BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f}"))
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("blocks", total=max(0, reached.number - start + 1))
            return await reconciler.compare(start, end, lambda blocks: progress.advance(task, blocks))


def _document(done: Reconciliation, relayer: Address) -> dict[str, Any]:
    return {
        "relayer": relayer,
        "first_block": done.first_block,
        "last_block": done.last_block,
        "requests": done.requests,
        "fulfilled": done.fulfilled,
        "expired": done.expired,
        "cancelled": done.cancelled,
        "open": done.open,
        **{str(kind): done.count(kind) for kind in Discrepancy},
        "underpaid_wei": str(done.underpaid_wei),
        "findings": [
            {"kind": str(each.kind), "request_id": each.request_id, "why": each.why, "wei": str(each.wei)}
            for each in done.findings
        ],
    }


def show(console: Console, done: Reconciliation, relayer: Address) -> None:
    """What was compared and what differs, as a table."""
    blocks = f"blocks {done.first_block}..{done.last_block}"
    ends = f"{done.fulfilled} fulfilled, {done.expired} expired, {done.cancelled} cancelled, {done.open} open"
    counted = screens.with_checksums(f"{done.requests} requests to relayer {relayer} in {blocks}: {ends}")
    console.print(Text(counted), soft_wrap=True)
    if not done.findings:
        console.print(Text("✔ Chain and store agree on each of them.", style="green"), soft_wrap=True)
        return
    table = Table(padding=(0, 1))
    for column in ("what", "request", "why", "worth"):
        table.add_column(column, overflow="fold")
    for each in done.findings:
        table.add_row(str(each.kind), each.request_id, each.why, show_wei(each.wei) if each.wei else "")
    console.print(table)
    counts = ", ".join(f"{kind}={done.count(kind)}" for kind in Discrepancy)
    console.print(Text(f"✘ {counts}, underpaid_wei={done.underpaid_wei}", style="bold red"), soft_wrap=True)
