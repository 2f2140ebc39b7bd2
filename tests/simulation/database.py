"""The relayer's SQL store on a file, without threads, which fails and ends the process where the weather says so.

One thread is what makes a run repeat: with the driver's own, the machine would decide which of two goes on first.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from headrace.adapters.sql.database import Database, _set_up_sqlite, upgrade
from headrace.adapters.sql.inline_sqlite import DRIVER, InlineConnection
from headrace.adapters.sql.store import SqlStore
from headrace.ports import Clock
from tests.simulation.faults import Killed, Weather


def _engine(file: Path) -> AsyncEngine:
    # The connection of databases in memory: it waits for nothing in another thread.
    engine = create_async_engine(f"{DRIVER}:///{file}", connect_args={"factory": InlineConnection})
    _set_up_sqlite(engine)

    @event.listens_for(engine.sync_engine, "connect")
    def _on_connect(connection: Any, _: Any) -> None:
        # The power never fails here, and a disk is slow.
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = OFF")
        cursor.close()

    return engine


class FaultyDatabase(Database):
    """Writes fail, before they are made or before they are kept, and leave nothing; a process may end around them."""

    def __init__(self, engine: AsyncEngine, weather: Weather) -> None:
        super().__init__(engine, is_shared=False)
        self._weather = weather

    @asynccontextmanager
    async def write(self, *, is_fenced: bool = True) -> AsyncIterator[AsyncConnection]:
        self._weather.hazard()
        error = self._weather.store_fault()
        is_early = error is not None and self._weather.rng.random() < 0.5
        if error is not None and is_early:
            raise error
        async with super().write(is_fenced=is_fenced) as connection:
            yield connection
            self._weather.hazard()
            if error is not None:
                raise error
        self._weather.hazard()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        if self._weather.is_dead:
            raise Killed
        async with super().read() as connection:
            yield connection


async def make_empty(file: Path) -> None:
    """A store with its tables, to be copied: making them takes longer than many a run."""
    database = Database(_engine(file), is_shared=False)
    async with database.write() as connection:
        await connection.run_sync(upgrade)
    async with database.read() as connection:
        await connection.exec_driver_sql("SELECT 1")
    await database.close()


def copy_empty(empty: Path, file: Path) -> None:
    """A new store."""
    shutil.copyfile(empty, file)


def open_store(file: Path, clock: Clock, weather: Weather) -> SqlStore:
    """A store as a process opens it."""
    return SqlStore(FaultyDatabase(_engine(file), weather), clock)


class Witness:
    """Looks into a store from outside, at what is committed. Of every transaction on the wire it wants to see the row,
    and of every nonce one intent."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file)
        self._intents: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        self._connection.close()

    def objection(self, transaction_hash: str) -> str:
        """What is wrong with sending this now, or nothing."""
        query = (
            "SELECT i.intent_id, i.sender, i.nonce FROM attempts a JOIN intents i USING (intent_id) "
            "WHERE a.transaction_hash = ?"
        )
        row = self._connection.execute(query, (transaction_hash,)).fetchone()
        if row is None:
            return f"{transaction_hash} was sent before it was stored"
        intent_id, sender, nonce = row
        first = self._intents.setdefault((sender, nonce), intent_id)
        return "" if first == intent_id else f"nonce {nonce} is of intent {first} and of intent {intent_id}"

    def cursor(self) -> str | None:
        """Hash of the last block that the relayer has."""
        row = self._connection.execute("SELECT hash FROM blocks ORDER BY number DESC LIMIT 1").fetchone()
        return row[0] if row else None

    def open_intents(self) -> list[tuple[int, int]]:
        """Ids and nonces of those that have not ended."""
        query = "SELECT intent_id, nonce FROM intents WHERE state = 'open' ORDER BY intent_id"
        return list(self._connection.execute(query))

    def states(self) -> dict[str, str]:
        """Of all requests."""
        return dict(self._connection.execute("SELECT request_id, state FROM requests ORDER BY request_id"))
