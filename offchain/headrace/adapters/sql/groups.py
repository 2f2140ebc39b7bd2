"""Write transactions that are committed together: one wait for the disk is shared by all that came during the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

MOST_MEMBERS = 256
"""Of a group, so that the first does not wait for ever."""


class WritersQueue:
    """Writers, one at a time. While a commit waits for the disk the next ones queue up; they then work one after the
    other in one transaction, which the last commits. None returns before its work is on the disk.

    A writer that fails takes back its own work only. When the commit fails, or SQLite gives up the whole transaction,
    as it does when the disk is full, all of the group fail.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        on_begin: Callable[[AsyncConnection], Awaitable[None]],
        most_members: int = MOST_MEMBERS,
    ) -> None:
        """
        Args:
            engine: its transactions begin as the only writer.
            on_begin: called within each transaction, before any writer. What it raises, the first writer raises.
            most_members: of a group; 1 = each is committed alone.
        """
        self._engine = engine
        self._on_begin = on_begin
        self._most_members = most_members
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._group: _Group | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[AsyncConnection]:
        """Work that is kept whole, once this returns, or not at all."""
        async with self._next():
            if self._group is None:
                self._group = await _Group.begin(self._engine, self._on_begin)
            group = self._group
            try:
                async with group.member():
                    yield group.connection
            finally:
                if not self._waiting or group.is_broken or group.members >= self._most_members:
                    await self._end()
        # The next writer is at work meanwhile.
        await group.kept()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[AsyncConnection]:
        """As `turn`, in a transaction of its own and without `on_begin`."""
        async with self._next():
            await self._end()
            async with self._engine.begin() as connection:
                yield connection

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """While nobody writes."""
        async with self._next():
            await self._end()
            yield

    @asynccontextmanager
    async def _next(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._waiting -= 1
            self._leave_to_nobody()
            raise
        self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()

    async def _end(self) -> None:
        """Commit what is open. A caller that is cancelled does not keep it from its end."""
        group, self._group = self._group, None
        if group is not None:
            await asyncio.shield(group.ending())

    def _leave_to_nobody(self) -> None:
        """A writer that the open transaction was left to does not come any more."""
        if self._group is not None and not self._waiting and not self._lock.locked():
            group, self._group = self._group, None
            group.ending()


class _Group:
    """A transaction of several writers."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self.members = 0
        self._broken: BaseException | None = None
        self._kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def begin(cls, engine: AsyncEngine, on_begin: Callable[[AsyncConnection], Awaitable[None]]) -> _Group:
        connection = await engine.connect()
        try:
            await connection.begin()
            await on_begin(connection)
        except BaseException:
            await connection.close()
            raise
        return cls(connection)

    @property
    def is_broken(self) -> bool:
        """Whether nothing of it can be kept."""
        return self._broken is not None

    @asynccontextmanager
    async def member(self) -> AsyncIterator[None]:
        """One writer's work. The first one's is the whole transaction, so that a lone writer needs no savepoint."""
        is_first = self.members == 0
        if not is_first:
            await self.connection.exec_driver_sql("SAVEPOINT member")
        try:
            yield
        except BaseException as exc:
            if is_first:
                self._broken = exc
            else:
                await self._take_back()
            raise
        if not is_first:
            await self.connection.exec_driver_sql("RELEASE member")
        self.members += 1

    async def _take_back(self) -> None:
        try:
            await self.connection.exec_driver_sql("ROLLBACK TO member")
            await self.connection.exec_driver_sql("RELEASE member")
        except DBAPIError as exc:
            # SQLite has ended the transaction by itself, with the work of those before.
            self._broken = exc

    def ending(self) -> asyncio.Task[None]:
        """Commit, or take everything back. The task never fails; `kept` tells."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        return self._ending

    async def _end(self) -> None:
        try:
            if self._broken is None:
                await self.connection.commit()
            else:
                await self.connection.rollback()
        except Exception as exc:  # noqa: BLE001 - whatever it is, each member is told
            self._broken = exc
        try:
            await self.connection.close()
        finally:
            if self._broken is None:
                self._kept.set_result(None)
            else:
                self._kept.set_exception(self._broken)
                self._kept.exception()  # a lone writer that failed does not ask

    async def kept(self) -> None:
        """Return once it is committed; raises why it is not."""
        await asyncio.shield(self._kept)
