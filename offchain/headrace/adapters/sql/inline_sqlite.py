"""SQLite for SQLAlchemy's asyncio: statements run on the event loop, and only waits for the disk or a lock elsewhere.

The driver that SQLAlchemy brings has a thread for each connection and crosses over to it four times a statement: to
make a cursor, execute, fetch and close. Most of a relayer's statements touch a few rows that are in memory and take 20
to 100 µs, less than a crossing. What waits is crossed over for: `BEGIN IMMEDIATE` for other writers, `COMMIT` for the
disk.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Self

from sqlalchemy import URL
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.pool import AsyncAdaptedQueuePool, Pool, StaticPool
from sqlalchemy.util import await_only

DRIVER = "sqlite+inline"
BEGIN_WRITE = "BEGIN IMMEDIATE"
"""Starts a transaction as the only writer, once the others are done or the busy timeout is over."""


class _Cursor(sqlite3.Cursor):
    """Gives SQLAlchemy the switch that it demands of each statement of an asynchronous driver."""

    connection: InlineConnection

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        if sql == BEGIN_WRITE:
            self.connection.wait_for(partial(super().execute, sql))
        else:
            await_only(_nothing())
            super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Self:
        await_only(_nothing())
        return super().executemany(sql, parameters)

    async def _async_soft_close(self) -> None:
        """SQLAlchemy asks for it after each result; what is read is read."""


class InlineConnection(sqlite3.Connection):
    """A connection that does everything where it is called, within SQLAlchemy's greenlets. For databases in memory."""

    def cursor(self, factory: Any = _Cursor) -> Any:
        """One for use within greenlets."""
        return super().cursor(factory)

    def commit(self) -> None:
        """As any connection's; none is begun, or SQLite ended it by itself: nothing."""
        if self.in_transaction:
            self.wait_for(super().commit)

    def wait_for(self, work: Callable[[], object]) -> None:
        """Do what may wait."""
        await_only(_nothing())
        work()


class WaitingConnection(InlineConnection):
    """One that waits for the disk, and for other writers, in another thread. For files."""

    def wait_for(self, work: Callable[[], object]) -> None:
        """Do it in another thread, and come back."""
        await_only(_done_elsewhere(work))


class InlineSqlite(SQLiteDialect_pysqlite):
    """The dialect of SQLAlchemy's synchronous driver, used from asyncio."""

    driver = "inline"
    is_async = True
    supports_statement_cache = True

    @classmethod
    def get_pool_class(cls, url: URL) -> type[Pool]:
        """One connection for a database in memory, several for a file."""
        return StaticPool if _is_in_memory(url) else AsyncAdaptedQueuePool

    def create_connect_args(self, url: URL) -> Any:
        """Connections go from thread to thread, one at a time."""
        arguments, options = super().create_connect_args(url)
        factory = InlineConnection if _is_in_memory(url) else WaitingConnection
        return arguments, {**options, "check_same_thread": False, "factory": factory}


registry.register("sqlite.inline", __name__, "InlineSqlite")


async def _nothing() -> None:
    pass


async def _done_elsewhere(work: Callable[[], object]) -> None:
    """Work in a thread. Who is cancelled waits for its end all the same: SQLAlchemy would close the connection next,
    and the process does not survive that in the midst of a statement."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()
        raise


def _is_in_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:")
