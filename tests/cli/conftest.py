"""The command line over fakes: a relayer's API on a port of its own thread, a chain in memory, keys by number."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from eth_abi.abi import decode
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_utils.crypto import keccak
from hexbytes import HexBytes
from rich.console import Console

import headrace.cli
from headrace.adapters.sql import copies
from headrace.api import bind, create_app, serve
from headrace.cli.session import OpenChain, Session
from headrace.core.calls import request_inference_data
from headrace.core.types import Hash32, Lane, Mode, Request
from headrace.ports import Store
from headrace.settings import Settings, load_settings
from tests.api.world import REQUESTER_SIGNER, Relayer, make_relayer
from tests.cli.ledger import Anvil, Ledger, anvil
from tests.client.conftest import Waits
from tests.fakes import make_request

PARAMS = (
    "(address,bytes32,bytes32,uint64,uint40,uint32,uint24,uint24,uint8,bool,bool,uint8,uint8,uint8,address,"
    "uint80,uint80,uint80)"
)


@dataclass
class Desk:
    """What a test of a command arranges and reads."""

    relayer: Relayer
    waits: Waits
    capture: pytest.CaptureFixture[str]
    posted: list[Request] = field(default_factory=list)
    posted_in: list[Hash32] = field(default_factory=list)
    on_posted: Callable[[Request], None] = lambda _: None
    out: str = ""
    error: str = ""

    def run(self, *arguments: str) -> int:
        """A command's exit code; `out` and `error` are what it wrote."""
        code = headrace.cli.run(arguments)
        captured = self.capture.readouterr()
        self.out, self.error = captured.out, captured.err
        return code

    def json(self, *arguments: str) -> Any:
        assert self.run(*arguments, "--json") == 0, self.error
        return json.loads(self.out)

    def refusal(self, *arguments: str, code: int = 1) -> str:
        """The one sentence that a command ends with."""
        assert self.run(*arguments) == code
        assert self.error.count("\n") == 1, self.error
        assert "Traceback" not in self.error
        return self.error.strip()

    async def send_raw(self, raw: bytes) -> None:
        """The chain takes a transaction; a request in it reaches the relayer's store."""
        await type(self.relayer.chain).send_raw(self.relayer.chain, raw)
        data = bytes(TypedTransaction.from_bytes(HexBytes(raw)).as_dict()["data"])
        if data[:4] == request_inference_data(make_request(), b"")[:4]:
            request = _request_of(data)
            self.posted.append(request)
            self.posted_in.append("0x" + keccak(raw).hex())
            self.on_posted(request)


def _request_of(data: bytes) -> Request:
    params, _ = decode((PARAMS, "bytes"), data[4:])
    names = [field for field in Request.__dataclass_fields__ if field != "requester"]
    fields = dict(zip(names, params, strict=True))
    fields |= {"model_id": "0x" + fields["model_id"].hex(), "prompt_hash": "0x" + fields["prompt_hash"].hex()}
    fields |= {"lane": Lane(fields["lane"]), "mode": Mode(fields["mode"])}
    return Request(requester=REQUESTER_SIGNER.address, **fields)


@contextlib.contextmanager
def relayer_in_a_thread() -> Iterator[tuple[Relayer, str]]:
    """Commands run their own event loop, so the API that they call needs another."""
    started: Future[tuple[Relayer, str]] = Future()
    stopping = threading.Event()

    async def work() -> None:
        async with make_relayer() as relayer:
            listener = bind("127.0.0.1", 0)  # listens from now on: a call waits until it is served
            serving = asyncio.create_task(serve(create_app(relayer.context), listener))
            started.set_result((relayer, f"http://127.0.0.1:{listener.getsockname()[1]}"))
            await asyncio.to_thread(stopping.wait)
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as exc:
            if started.done():
                raise
            started.set_exception(exc)

    thread = threading.Thread(target=run, name="api")
    thread.start()
    try:
        yield started.result(timeout=30)
    finally:
        stopping.set()
        thread.join()


@pytest.fixture(autouse=True)
def event_loop_of_the_thread() -> Iterator[None]:
    """A command's own loop takes the place of the one that pytest's plugins leave in this thread.

    That one would be collected unclosed, in whatever test runs then; so it is kept and given back.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # where there is none, older Pythons make one
        try:
            left = asyncio.get_event_loop()
        except RuntimeError:
            left = None
    yield
    asyncio.set_event_loop(left)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command sends the log to the stderr of its test, which is closed after it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def running_anvil() -> Iterator[Anvil]:
    with anvil() as running:
        yield running


@pytest.fixture
def ledger(
    running_anvil: Anvil, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Ledger]:
    with running_anvil.as_it_was():
        yield Ledger(running_anvil, monkeypatch, capsys, tmp_path)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with relayer_in_a_thread() as (relayer, url):
        relayer.chain.automine = True
        made = Desk(relayer, Waits(relayer.clock), capsys)
        monkeypatch.setattr(relayer.chain, "send_raw", made.send_raw)
        monkeypatch.setenv("HEADRACE_REQUESTER__API_URL", url)

        @contextlib.asynccontextmanager
        async def open_chain(_settings: Settings) -> AsyncIterator[OpenChain]:
            yield OpenChain(relayer.chain, 0, relayer.chain)

        @contextlib.asynccontextmanager
        async def open_store(_path: Path) -> AsyncIterator[Store]:
            yield relayer.store  # type: ignore[misc]

        def make_session(settings: Settings) -> Session:
            return Session(
                settings=settings,
                clock=relayer.clock,
                console=Console(),
                open_signer=lambda _settings, _role: REQUESTER_SIGNER,
                open_chain=open_chain,
                open_store=open_store,
                open_idle_store=headrace.cli.open_idle_store,
                open_keystore=headrace.cli.open_keystore,
                open_watch_store=headrace.cli.open_watch_store,
                open_journal=headrace.cli.open_journal,
                copies=copies,
                sleep=made.waits,
            )

        monkeypatch.setattr(headrace.cli, "make_session", make_session)
        load_settings()
        yield made
