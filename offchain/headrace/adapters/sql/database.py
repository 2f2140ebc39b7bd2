"""Connections, transactions and the schema's version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, event, make_url
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from headrace.adapters.sql.fence import Fence
from headrace.adapters.sql.groups import MOST_MEMBERS, WritersQueue
from headrace.adapters.sql.holding import Hold
from headrace.adapters.sql.inline_sqlite import BEGIN_WRITE, DRIVER
from headrace.core.errors import ConfigurationError

_MIGRATIONS = Path(__file__).parent / "migrations"
_WRITES = "headrace_writes"
_BUSY_TIMEOUT_MS = 10_000
# SQLite takes 32,766 variables in a statement; half a thousand keeps statements small and cached.
_CHUNK = 500

_T = TypeVar("_T")


class Database:
    """Read and write transactions. There is one writer at a time; readers see what was committed last."""

    def __init__(self, engine: AsyncEngine, *, is_shared: bool, fence: Fence | None = None) -> None:
        """
        Args:
            engine: where the tables are.
            is_shared: all transactions go over one connection (an in-memory database), so readers wait too.
            fence: is asked in each write transaction; None = whoever has the database may write.
        """
        self.fence = fence
        self.hold = Hold()
        self._engine = engine
        writing = engine.execution_options(**{_WRITES: True})
        self._writers = WritersQueue(writing, self._require_fence, 1 if is_shared else MOST_MEMBERS)
        self._is_shared = is_shared

    @classmethod
    async def open(cls, url: str, fence: Fence | None = None, *, migrate: bool = True) -> Database:
        """Open a database and bring its tables up to date.

        Args:
            url: for SQLAlchemy, such as `sqlite:///relayer.db`.
            fence: is asked in each write transaction.
            migrate: False = leave the tables as they are, since another process works with them.

        Raises:
            ConfigurationError: it cannot be opened, or was made by a newer Headrace; or by an older one, when its
                tables are to stay as they are.
        """
        parsed = make_url(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        engine = create_async_engine(parsed.set(drivername=DRIVER) if is_sqlite else parsed)
        if is_sqlite:
            _set_up_sqlite(engine)
        in_memory = is_sqlite and parsed.database in (None, "", ":memory:")
        if is_sqlite and not in_memory:
            _require_folder(Path(str(parsed.database)))
        database = cls(engine, is_shared=in_memory, fence=fence)
        try:
            if migrate:
                async with database.write(is_fenced=False) as connection:
                    await connection.run_sync(upgrade)
            else:
                async with database.read() as connection:
                    await connection.run_sync(_require_up_to_date)
        except ConfigurationError:
            await engine.dispose()
            raise
        except CommandError as exc:
            await engine.dispose()
            raise ConfigurationError(f"the store was made by another version of Headrace: {exc}") from exc
        except DatabaseError as exc:
            await engine.dispose()
            raise ConfigurationError(f"the store {parsed.render_as_string()} cannot be opened: {exc.orig}") from exc
        return database

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that sees one state of the store and changes nothing."""
        if self._is_shared:
            async with self._writers.paused(), self._engine.begin() as connection:
                yield connection
        else:
            async with self._engine.begin() as connection:
                yield connection

    @asynccontextmanager
    async def write(self, *, is_fenced: bool = True) -> AsyncIterator[AsyncConnection]:
        """A transaction that may change the store: all of it is kept, or nothing.

        Raises:
            NotLeader: the fence does not let this process write; nothing of it is kept.
        """
        async with self._writers.turn() if is_fenced else self._writers.alone() as connection:
            yield connection
        self.hold.end()

    async def _require_fence(self, connection: AsyncConnection) -> None:
        """No other writer comes between this and the commit, so neither does a take-over."""
        if self.fence is not None:
            await self.fence.require(connection)

    async def close(self) -> None:
        """Wait for the writer and close all connections."""
        async with self._writers.paused():
            await self._engine.dispose()


def upgrade(connection: Connection) -> None:
    """Bring the tables up to date."""
    command.upgrade(_config(connection), "head")


def downgrade(connection: Connection, revision: str = "base") -> None:
    """Take the tables back to an earlier revision."""
    command.downgrade(_config(connection), revision)


def _require_up_to_date(connection: Connection) -> None:
    newest = ScriptDirectory.from_config(_config(connection)).get_heads()
    found = MigrationContext.configure(connection).get_current_heads()
    if set(found) != set(newest):
        raise ConfigurationError(
            f"the store's tables are of version {', '.join(found) or 'none'}, and this Headrace's of "
            f"{', '.join(newest)}: who leads brings them up to date, so start a leader of this version first"
        )


def chunks(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Parts of a list that fit into one statement."""
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _require_folder(file: Path) -> None:
    """The driver would leave a thread behind when it cannot make the file."""
    if not file.parent.is_dir():
        raise ConfigurationError(f"the store {file} cannot be opened: there is no folder {file.parent}")


def _set_up_sqlite(engine: AsyncEngine) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def _on_connect(connection: Any, _: ConnectionPoolEntry) -> None:
        # Transactions are begun below: the driver begins them too late, after the first reads.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode = WAL")
        # NORMAL may lose the last commits when the power fails. A transaction that was stored and sent must not be
        # forgotten: its nonce and hash would be lost. The price is one fsync a commit.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _on_begin(connection: Connection) -> None:
        # A writer that starts as a reader cannot become one when another process wrote in between.
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql(BEGIN_WRITE if writes else "BEGIN")
