"""Waiting for a disk that is full, or a database that another process keeps locked. Nothing of the call that met it is
kept, so it can be made again as it was; what is not stored is not sent meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import structlog
from sqlalchemy.exc import DBAPIError

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_IS_PATIENT: ContextVar[bool] = ContextVar("headrace_store_is_patient", default=False)

# Of all that SQLite says of a disk, only these are certain: nothing was written. An I/O error may come after a commit.
_PROBLEMS = {
    sqlite3.SQLITE_FULL: "the disk of the relayer's database is full",
    sqlite3.SQLITE_BUSY: "another process keeps the relayer's database locked",
}


async def patiently(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a loop whose calls of the store wait until it takes them. Others are told at once that it does not."""
    token = _IS_PATIENT.set(True)
    try:
        return await work
    finally:
        _IS_PATIENT.reset(token)


def is_patient() -> bool:
    """Whether the caller waits."""
    return _IS_PATIENT.get()


def problem_of(error: DBAPIError) -> str | None:
    """What keeps a store from taking anything, if the call can be made again as it was."""
    code = getattr(error.orig, "sqlite_errorcode", 0)
    return _PROBLEMS.get(code & 0xFF)


class Hold:
    """Whether the store takes writes, and how callers wait until it does.

    `problem` says what keeps it from that, and is empty when nothing does. `on_change` is told.
    """

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.problem = ""
        self.on_change: Callable[[str], None] = lambda problem: None
        self.sleep = sleep
        self._waiting = 0

    def begin(self, problem: str) -> None:
        """A write met this."""
        if not self.problem:
            log.error("store_held", problem=problem, hint="nothing is sent or lost; it goes on by itself")
            self._set(problem)

    def end(self) -> None:
        """A write was kept. A small one may be, when those that others wait for are not."""
        if self.problem and not self._waiting:
            log.warning("store_takes_writes_again", problem=self.problem)
            self._set("")

    @contextmanager
    def waiter(self) -> Iterator[None]:
        """Of somebody who waits: it is over once this one's call is done."""
        self._waiting += 1
        try:
            yield
        except BaseException:
            self._waiting -= 1
            raise
        self._waiting -= 1
        self.end()

    async def wait(self, times: int) -> None:
        """Before the next try, after so many."""
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(times, 10))
        log.error("store_still_held", problem=self.problem, again_in_s=pause_s)
        await self.sleep(pause_s)

    def _set(self, problem: str) -> None:
        self.problem = problem
        self.on_change(problem)
