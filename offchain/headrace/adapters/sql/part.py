"""What the parts of the store have in common."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from itertools import count
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError

from headrace.adapters.sql.database import Database
from headrace.adapters.sql.holding import Hold, is_patient, problem_of
from headrace.core.errors import StoreUnavailable
from headrace.ports import Clock

_P = ParamSpec("_P")
_T = TypeVar("_T")


class StorePart:
    """A part of the store. The clock dates what is learnt from the chain, whose calls carry no time.

    Public calls run to their end even when their caller is cancelled, which learns of it afterwards: a connection that
    is dropped in the middle of a transaction would keep the database locked.

    What the disk has no room for, or a lock keeps out, is tried again for a patient caller (`holding.patiently`), who
    may be cancelled meanwhile; others get StoreUnavailable.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @property
    def hold(self) -> Hold:
        """Whether the store takes writes now."""
        return self._database.hold

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if inspect.iscoroutinefunction(member) and not name.startswith("_"):
                setattr(cls, name, _uninterrupted(member))


def _uninterrupted(call: Callable[_P, Awaitable[_T]]) -> Callable[_P, Awaitable[_T]]:
    @wraps(call)
    async def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return await _whole(call(*args, **kwargs))
        except DBAPIError as exc:
            hold = _held(args[0], exc)
        with hold.waiter():
            for tries in count():
                await hold.wait(tries)
                try:
                    return await _whole(call(*args, **kwargs))
                except DBAPIError as exc:
                    _held(args[0], exc)
        raise AssertionError("it is tried for ever")

    return wrapper


async def _whole(work: Awaitable[_T]) -> _T:
    """Work that is not left in the middle, whoever is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise


def _held(part: Any, error: DBAPIError) -> Hold:
    """What is to be waited for before a call is made again. Raises unless it may be, and the caller waits."""
    problem = problem_of(error)
    if problem is None:
        raise error
    hold: Hold = part.hold
    hold.begin(problem)
    if not is_patient():
        raise StoreUnavailable(f"{problem}: {error.orig}") from error
    return hold
