"""A relayer's API on a real port, and a client of it whose waits pass at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from headrace.api import bind, create_app, serve
from headrace.client import HeadraceClient
from headrace.client.http import Backoff
from headrace.core.types import Hash32
from headrace.ports import Call, Receipt
from tests.api.world import REQUESTER_SIGNER, Relayer, make_relayer
from tests.fakes import FakeClock, FakeSigner


@dataclass
class Waits:
    """A sleep that moves a clock instead, and runs what a test planned for the n-th wait."""

    clock: FakeClock
    slept_s: list[float] = field(default_factory=list)
    then: dict[int, Callable[[], object]] = field(default_factory=dict)

    async def __call__(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.clock.advance(round(seconds * 1000))
        self.then.get(len(self.slept_s), lambda: None)()
        await asyncio.sleep(0)


@dataclass
class FakeSender:
    """Remembers what it was given to send."""

    address: str = REQUESTER_SIGNER.address
    calls: list[Call] = field(default_factory=list)

    async def send(self, call: Call, *, call_out_gas: int = 0, remedy: str = "") -> Hash32:
        self.calls.append(call)
        return "0x" + "7e" * 32

    async def wait(self, transaction_hash: Hash32, timeout_s: float) -> Receipt | None:
        raise AssertionError("nobody waits for this one")


@dataclass
class World:
    """A relayer with its API on a port."""

    relayer: Relayer
    url: str
    waits: Waits
    client: HeadraceClient

    def client_of(self, signer: FakeSigner, **options: object) -> HeadraceClient:
        return make_client(self.url, self.waits, signer, **options)


def make_client(url: str, waits: Waits, signer: FakeSigner = REQUESTER_SIGNER, **options: object) -> HeadraceClient:
    backoff = Backoff(base_s=1.0, cap_s=8.0, attempts=4)
    return HeadraceClient(url, signer, waits.clock, rng=random.Random(1), sleep=waits, backoff=backoff, **options)  # type: ignore[arg-type]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with make_relayer() as relayer:
        listener = bind("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = asyncio.create_task(serve(create_app(relayer.context), listener))
        waits = Waits(relayer.clock)
        async with make_client(url, waits) as client:
            yield World(relayer, url, waits, client)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
