"""`headrace watch`: find what nodes and a relayer did wrong, and have it proven."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.cli import screens
from headrace.cli.options import Json
from headrace.cli.session import Session, session_of
from headrace.cli.stopping import until_stopped
from headrace.cli.unmeasured import Unmeasured
from headrace.cli.verdicts import FOUND, WITHHELD, Verdict
from headrace.client.watching import SingleProofs
from headrace.core.errors import InvalidInput
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Address, Hash32
from headrace.logging import configure
from headrace.ports import StoredFault, WatchStore
from headrace.services.dossiers import Dossiers
from headrace.services.indexer import Indexer, IndexerSettings
from headrace.services.prover import Prover, ProverSettings
from headrace.services.watch import Watch, WatchSettings

_MOST = 100_000


@dataclass(frozen=True, slots=True)
class ShownFault:
    """A fault as it is shown. `node`: whom a relayer's was done to. `state`: found, sent, proven or refused."""

    fault: str
    culprit: Address
    request_id: Hash32
    node: Address | None
    round: int
    state: str
    detail: str
    transaction_hash: Hash32 | None


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What a watch found in a relayer's rounds. `withheld`: rounds whose leaves or accepts could not be had."""

    relayer: Address
    first: int | None
    last: int | None
    faults: tuple[ShownFault, ...]
    withheld: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was asked for."""

    url: str | None
    journal: Path | None
    rounds: range | None
    min_return_bps: int
    is_once: bool
    is_dry: bool


@dataclass(frozen=True, slots=True)
class _Parts:
    """A watch, wired."""

    store: WatchStore
    dossiers: Dossiers
    indexer: Indexer
    watch: Watch
    prover: Prover | None


def watch_relayer(
    context: typer.Context,
    relayer: Annotated[
        str | None, typer.Option(metavar="URL", help="Whose API is asked [default: REQUESTER__API_URL].")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="A node's journal: hold what it was assigned against the record.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look at all there is, report, and end.")] = False,
    from_round: Annotated[int | None, typer.Option(min=1, help="With --once: the first round.")] = None,
    to_round: Annotated[int | None, typer.Option(min=1, help="With --once: the last round.")] = None,
    always: Annotated[bool, typer.Option("--always", help="Prove also what does not pay for its gas.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Prove nothing; this needs no key.")] = False,
    as_json: Json = False,
) -> None:
    """Find what nodes and a relayer did wrong, and have it proven. A proof that does not pay for its gas waits.

    Exit code with --once: 0: nothing was found; 1: faults were; 2: data is withheld or not what was recorded. With or
    without it, 3: nothing was judged, for the reason on stderr; 64: the command was typed wrongly.
    """
    if not once and (as_json or from_round is not None or to_round is not None):
        raise InvalidInput("--from-round, --to-round and --json go with --once, since a watch without it has no end")
    if from_round is not None and to_round is not None and from_round > to_round:
        raise InvalidInput("--from-round comes after --to-round")
    session = session_of(context)
    min_return_bps = 0 if always else session.settings.watcher.min_return_bps
    rounds = None
    if from_round is not None or to_round is not None:
        rounds = range(from_round or 1, (to_round or (1 << 63)) + 1)
    wanted = _Wanted(relayer, journal, rounds, min_return_bps, once, dry_run)
    # The store has what the relayer's requesters published, and keeps proofs until they are sent.
    os.umask(0o077)
    if once:
        configure("ERROR", session.settings.log.style)
        _show(session, asyncio.run(_once(session, wanted)), as_json)
        return
    configure(session.settings.log.level, session.settings.log.style)
    asyncio.run(until_stopped(_for_ever(session, wanted)))


def _show(session: Session, report: WatchReport, as_json: bool) -> None:
    if as_json:
        screens.show_json(session.console, asdict(report))
    else:
        show_report(session.console, report)
    if report.withheld:
        raise Verdict(WITHHELD)
    if report.faults:
        raise Verdict(FOUND)


async def _for_ever(session: Session, wanted: _Wanted) -> None:
    async with AsyncExitStack() as stack:
        parts = await _open(session, wanted, stack)
        async with asyncio.TaskGroup() as group:
            group.create_task(parts.indexer.run(), name="indexer")
            await parts.indexer.caught_up.wait()
            group.create_task(parts.watch.run(), name="watch")


async def _once(session: Session, wanted: _Wanted) -> WatchReport:
    async with AsyncExitStack() as stack:
        parts = await _open(session, wanted, stack)
        while not parts.indexer.caught_up.is_set():
            if not await parts.indexer.step():
                await session.sleep(session.settings.chain.poll_ms / 1000)
        await parts.watch.look()
        if parts.prover is not None:
            await _prove_all(parts.store, parts.prover)
        found = [each for each in await parts.store.faults(None, _MOST) if parts.dossiers.is_chosen(each.round)]
        return WatchReport(
            relayer=parts.dossiers.relayer,
            first=wanted.rounds.start if wanted.rounds else None,
            last=wanted.rounds.stop - 1 if wanted.rounds and wanted.rounds.stop <= 1 << 63 else None,
            faults=tuple(_shown(each) for each in sorted(found, key=_order)),
            withheld=tuple(await parts.watch.withheld()),
        )


async def _prove_all(store: WatchStore, prover: Prover) -> None:
    """Try every fault once, and look once more at what was sent."""
    tried: set[tuple[int, Address, Hash32, Address]] = set()
    while True:
        waiting = await store.faults(("found", "sent"), _MOST)
        untried = {(int(each.fault), each.culprit, each.request_id, each.node) for each in waiting} - tried
        await prover.step(at_once=True)
        if not untried:
            return
        tried |= untried


async def _open(session: Session, wanted: _Wanted, stack: AsyncExitStack) -> _Parts:
    opened = await stack.enter_async_context(session.open_chain(session.settings))
    chain, settings, metrics = opened.chain, session.settings, Unmeasured()
    client = await stack.enter_async_context(session.client(None, chain, wanted.url))
    relayer, confirmations = (await client.network()).relayer, settings.chain.confirmations
    prover_signer = None if wanted.is_dry else session.signer("watcher")
    file = settings.watcher.folder / f"{chain.chain_id}-{relayer}.db"
    store = await stack.enter_async_context(session.open_watch_store(file))
    dossiers = Dossiers(chain, store, client.words(relayer), relayer, wanted.rounds)
    prover = None
    if prover_signer is not None:
        proofs = SingleProofs(chain, session.sender(chain, prover_signer), session.clock)
        proving = ProverSettings(wanted.min_return_bps, confirmations)
        terms = await chain.fault_terms()
        prover = Prover(chain, store, session.clock, metrics, proofs, terms, proving)
    watching = WatchSettings(is_once=wanted.is_once, confirmations=confirmations)
    journal = session.open_journal(wanted.journal) if wanted.journal is not None else None
    watch = Watch(chain, store, session.clock, metrics, dossiers, prover, watching, journal)
    indexing = IndexerSettings(
        poll_ms=settings.chain.poll_ms, confirmations=confirmations, max_rewind=settings.chain.max_rewind
    )
    indexer = Indexer(chain, store, session.clock, metrics, relayer, opened.first_block, lambda: None, indexing)
    return _Parts(store, dossiers, indexer, watch, prover)


def show_report(console: Console, report: WatchReport) -> None:
    """What a watch found, as a table."""
    is_part = report.first is not None or report.last is not None
    span = f"rounds {report.first or 1}..{report.last or ''}" if is_part else "all rounds"
    rounds = screens.with_checksums(f"{span} of relayer {report.relayer}")
    if report.faults:
        table = Table(title=f"faults in {rounds}", title_justify="left", padding=(0, 1))
        for column in ("round", "fault", "culprit", "request", "state"):
            table.add_column(column, overflow="fold")
        for each in report.faults:
            state = f"{each.state}: {each.detail}" if each.detail else each.state
            cells = (each.fault, each.culprit, each.request_id, state)
            table.add_row(str(each.round), *(Text(screens.with_checksums(screens.printable(cell))) for cell in cells))
        console.print(table)
    if report.withheld:
        numbers = ", ".join(str(number) for number in report.withheld)
        text = f"✘ Leaves or accepts are withheld, or not what was recorded, so nothing is known of round {numbers}."
        console.print(Text(text, style="bold red"), soft_wrap=True)
    if not report.faults and not report.withheld:
        console.print(Text(f"✔ {rounds}: nothing was done wrong that can be seen.", style="green"), soft_wrap=True)


def _order(fault: StoredFault) -> tuple[Any, ...]:
    return fault.round, fault.request_id, fault.fault, fault.culprit, fault.node


def _shown(fault: StoredFault) -> ShownFault:
    return ShownFault(
        fault=fault.fault.name.lower(),
        culprit=fault.culprit,
        request_id=fault.request_id,
        node=None if fault.node == ZERO_ADDRESS else fault.node,
        round=fault.round,
        state=fault.state,
        detail=fault.detail,
        transaction_hash=None if fault.transaction_hash == ZERO_HASH else fault.transaction_hash,
    )
