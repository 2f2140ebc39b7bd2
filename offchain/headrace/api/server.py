"""Runs the application on a port until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from headrace.core.errors import ConfigurationError

DRAIN_S = 10
# Beyond it callers get 503. Half-open connections must leave file descriptors for the chain and the store.
MAX_CONNECTIONS = 512


class Front:
    """One application now and another later, at the same port: of a relayer that stands by, then of one that leads."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a call to the application of now."""
        await self.app(scope, receive, send)


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the whole process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int, setting: str = "HEADRACE_RELAYER__API_PORT", *, listens: bool = True) -> socket.socket:
    """A socket that has a port.

    Args:
        host: an address of this machine.
        port: 0 takes a free one.
        setting: the variable to name when the port cannot be had.
        listens: False = callers are refused until somebody has it listen.

    Raises:
        ConfigurationError: the port is in use, or the address is not this machine's.
    """
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if listens:
            listener.listen(1024)
        listener.setblocking(False)
    except OSError as exc:
        if listener is not None:
            listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port {port} on {host} is in use: stop the program that has it, or set {setting} to another"
            ) from exc
        raise ConfigurationError(f"cannot listen on {host}:{port} ({exc.strerror or exc}): correct {setting}") from exc
    return listener


async def serve(app: FastAPI | Front, listener: socket.socket) -> None:
    """Serve until cancelled, then let calls that are running finish."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # It would take the word of every peer on the loopback for who calls; `rates.client_of` asks the settings.
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN_S,
        limit_concurrency=MAX_CONNECTIONS,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="api")
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise
    finally:
        listener.close()
