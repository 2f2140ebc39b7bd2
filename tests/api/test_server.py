"""Serving: a port in use is one sentence, and a stop ends the server."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest

from headrace.api import bind, create_app, serve
from headrace.core.errors import ConfigurationError
from tests.api.world import Relayer


def test_bind__port_in_use__names_the_setting() -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port} .* is in use: .*HEADRACE_RELAYER__API_PORT"):
            bind("127.0.0.1", port)


def test_bind__not_an_address__names_the_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 0)


async def test_serve__cancelled__drains_and_ends(relayer: Relayer) -> None:
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    serving = asyncio.create_task(serve(create_app(relayer.context), listener))
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=5)) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/healthz")).json() == {"status": "ok"}
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert listener.fileno() == -1
