"""The command line: `headrace relayer | node | key | request | credit | stake | bond | owner | verifier | store |
audit | watch | simulate`.

Errors are one red sentence on stderr: exit code 1, or 2 for a command that is typed wrongly; 3 and 64 of `audit` and
`watch`, whose 1 and 2 are verdicts. HEADRACE_DEBUG shows where errors come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import headrace
from headrace import wiring
from headrace.cli import (
    audits,
    bond,
    callbacks,
    changes,
    credit,
    dead_letters,
    owner,
    reconcile,
    requests,
    screens,
    simulate,
    stake,
    stake_keys,
    stake_prices,
    stores,
    verdicts,
    verifier,
    watching,
)
from headrace.cli.amounts import with_ether
from headrace.cli.api_words import in_options
from headrace.cli.session import OpenChain, Session, session_of
from headrace.cli.stopping import INTERRUPTED, until_stopped
from headrace.client import ApiRefused
from headrace.core.errors import (
    ChainUnavailable,
    ConfigurationError,
    HeadraceError,
    InvalidInput,
    Refused,
    sentence,
)
from headrace.logging import configure
from headrace.ports import AssignmentJournal, Signer, Store, WatchStore
from headrace.settings import PREFIX, Settings, load_settings
from headrace.wiring import Role

USAGE = 2

app = typer.Typer(
    name="headrace",
    help="AI inference, requested and paid on-chain.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
key_app = typer.Typer(help="Make and show keys.", no_args_is_help=True)
app.add_typer(key_app, name="key")
app.add_typer(requests.app, name="request")
app.add_typer(credit.app, name="credit")
app.add_typer(stake.app, name="stake")
app.add_typer(bond.app, name="bond")
app.add_typer(owner.app, name="owner")
app.add_typer(verifier.app, name="verifier")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(stores.app, name="store")
app.add_typer(simulate.app, name="simulate")
stake.app.command("prices")(stake_prices.set_prices)
stake.app.command("withdraw-models")(stake_prices.withdraw_models)
stake.app.command("rotate-key")(stake_keys.rotate_key)
requests.app.command("cancel")(changes.cancel_request)
requests.app.command("raise")(changes.raise_request)
requests.app.command("retry-callback")(callbacks.retry_callback)
app.command("audit")(audits.audit_rounds)
app.command("watch")(watching.watch_relayer)
app.command("reconcile")(reconcile.reconcile)


class KeyRole(StrEnum):
    """Whose key."""

    RELAYER = "relayer"
    NODE = "node"
    REQUESTER = "requester"
    OWNER = "owner"
    WATCHER = "watcher"
    ATTESTATION = "attestation"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run a command; every error that Headrace raises on purpose is one sentence."""
    is_judging = verdicts.is_judging(arguments)
    try:
        app(args=list(arguments), prog_name="headrace")
    except verdicts.Verdict as verdict:
        return verdict.code
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        return verdicts.MISTYPED if is_judging and code == USAGE else code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as exc:
        if os.environ.get(f"{PREFIX}DEBUG"):
            raise
        screens.show_error(_sentence(exc))
        if not is_judging:
            return 1
        return verdicts.MISTYPED if isinstance(_cause(exc), InvalidInput) else verdicts.NOT_JUDGED
    return 0


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(headrace.__version__)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings [env: HEADRACE_CONFIG].")] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    context.obj = lambda: make_session(load_settings(config))


@app.command("relayer")
def run_relayer(
    context: typer.Context,
    standby: Annotated[
        bool, typer.Option("--standby", help="While another process leads with this database, wait to take over.")
    ] = False,
) -> None:
    """Run a relayer. It indexes, schedules, settles, and serves the API and the nodes' links."""
    from headrace import bootstrap

    settings = session_of(context).settings
    if standby:
        settings = settings.model_copy(update={"relayer": settings.relayer.model_copy(update={"standby": True})})
    _serve(settings, bootstrap.run_relayer)


@app.command("node")
def run_node(context: typer.Context) -> None:
    """Run a node: link to a relayer, run models, sign answers."""
    from headrace import bootstrap

    _serve(session_of(context).settings, bootstrap.run_node)


@key_app.command("new")
def new_key(
    path: Annotated[Path, typer.Argument(help="Where the encrypted keystore goes; a file that exists is kept.")],
    password_file: Annotated[
        Path | None, typer.Option(help="Holds the password [env: HEADRACE_KEYSTORE_PASSWORD].")
    ] = None,
) -> None:
    """Make a key in a new encrypted keystore and show its address."""
    from headrace.adapters.keystore import create_keystore

    if path.exists():
        raise ConfigurationError(f"the keystore {path} exists; it is not replaced: choose another name")
    typer.echo(screens.with_checksums(create_keystore(path, _password(password_file, confirm=True)).address))


@key_app.command("show")
def show_key(
    context: typer.Context, role: Annotated[KeyRole, typer.Argument(help="Whose key, by the settings.")]
) -> None:
    """Show the address of a key that the settings name. The key itself is never shown."""
    role_name: Role = role.value
    typer.echo(screens.with_checksums(session_of(context).signer(role_name).address))


# Wiring


def make_session(settings: Settings) -> Session:
    """A session over the real adapters."""
    from headrace.adapters.clock import SystemClock
    from headrace.adapters.sql import copies

    return Session(
        settings=settings,
        clock=SystemClock(),
        console=Console(),
        open_signer=wiring.open_signer,
        open_chain=open_chain,
        open_store=open_store,
        open_idle_store=open_idle_store,
        open_keystore=open_keystore,
        open_watch_store=open_watch_store,
        open_journal=open_journal,
        copies=copies,
    )


@contextlib.asynccontextmanager
async def open_idle_store(path: Path) -> AsyncIterator[Store | None]:
    """A relayer's database that no relayer works with, kept so; None when there is no such file.

    Raises:
        Refused: a relayer works with it.
    """
    from headrace.adapters.file_lock import Held, alone_with

    if not await asyncio.to_thread(path.exists):
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(alone_with(path))
        except Held as exc:
            raise Refused(f"a relayer (process {exc.pid}) works with {path}: stop it first") from None
        async with open_store(path) as store:
            yield store


@contextlib.asynccontextmanager
async def open_watch_store(path: Path) -> AsyncIterator[WatchStore]:
    """A watcher's database, which it has alone; it is made when it is missing.

    Raises:
        Refused: another watcher works with it.
    """
    from headrace.adapters.file_lock import Held, alone_with

    await asyncio.to_thread(path.parent.mkdir, mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(alone_with(path))
        except Held as exc:
            raise Refused(
                f"another watch (process {exc.pid}) works with {path}: stop it, or set {PREFIX}WATCHER__FOLDER"
            ) from None
        async with open_store(path) as store:
            yield store


def open_journal(path: Path) -> AssignmentJournal:
    """What a relayer assigned to a node, by the node's journal."""
    from headrace.adapters.node_journal import JournalAssignments

    return JournalAssignments(path)


def open_keystore(path: Path, password_file: Path | None) -> Signer:
    """The key in a keystore, which is made when there is no such file.

    Raises:
        ConfigurationError: it cannot be opened or made; the message says why.
    """
    from headrace.adapters import keystore

    if not path.exists():
        return keystore.create_keystore(path, _password(password_file, confirm=True))
    return keystore.open_keystore(path, _password(password_file, confirm=False))


def _password(password_file: Path | None, *, confirm: bool) -> str:
    """A keystore's password, from a file, the environment, or whoever sits at the terminal."""
    from headrace.adapters.keystore import PASSWORD_VARIABLE, read_password

    if password_file is None and PASSWORD_VARIABLE not in os.environ and sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=confirm))
    return read_password(password_file, os.environ)


@contextlib.asynccontextmanager
async def open_chain(settings: Settings) -> AsyncIterator[OpenChain]:
    """The chain of the settings, checked against its deployment."""
    async with wiring.open_chain(settings) as chain:
        yield OpenChain(chain, chain.deployment.first_block, chain)


@contextlib.asynccontextmanager
async def open_store(path: Path) -> AsyncIterator[WatchStore]:
    """A relayer's database."""
    from headrace.adapters.clock import SystemClock
    from headrace.adapters.sql.store import SqlStore

    store = await SqlStore.open(f"sqlite:///{path}", SystemClock())
    try:
        yield store
    finally:
        await store.close()


def _serve(settings: Settings, entry: Callable[[Settings], Coroutine[Any, Any, None]]) -> None:
    """Run a service until it ends or is told to by a signal; then let it drain. A second signal does not wait."""
    configure(settings.log.level, settings.log.style)
    # Stores hold prompts and answers: they are their operator's only.
    os.umask(0o077)
    asyncio.run(until_stopped(entry(settings)))


def _sentence(exc: BaseException) -> str:
    """What happened and what to do, of the error that a person can do something about."""
    cause = _cause(exc)
    if isinstance(cause, ChainUnavailable):
        return sentence(f"{cause}: check {PREFIX}CHAIN__RPC_URL and that the chain's node runs")
    if isinstance(cause, ApiRefused):
        return with_ether(in_options(cause))
    if isinstance(cause, HeadraceError):
        return with_ether(sentence(str(cause) or type(cause).__name__))
    if isinstance(cause, OSError) or hasattr(cause, "orig"):  # of a disk, or of a database by way of SQLAlchemy
        return sentence(f"{getattr(cause, 'orig', cause)}: the disk, or the store on it, cannot be used now")
    return f"Something went wrong in Headrace itself ({type(cause).__name__}): set HEADRACE_DEBUG=1 to see where."


def _cause(exc: BaseException) -> BaseException:
    """The first error of a group that was raised on purpose, or else the first of all."""
    if not isinstance(exc, BaseExceptionGroup):
        return exc
    causes = [_cause(each) for each in exc.exceptions]
    return next((each for each in causes if isinstance(each, HeadraceError)), causes[0])


__all__ = ["app", "main", "make_session", "run"]
