"""What the parts of the store have in common."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from headrace.adapters.sql.database import Database
from headrace.ports import Clock

_P = ParamSpec("_P")
_T = TypeVar("_T")


class StorePart:
    """A part of the store. The clock dates what is learnt from the chain, whose calls carry no time.

    Public calls run to their end even when their caller is cancelled, which learns of it afterwards: a connection that
    is dropped in the middle of a transaction would keep the database locked.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if inspect.iscoroutinefunction(member) and not name.startswith("_"):
                setattr(cls, name, _uninterrupted(member))


def _uninterrupted(call: Callable[_P, Awaitable[_T]]) -> Callable[_P, Awaitable[_T]]:
    @wraps(call)
    async def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        task = asyncio.ensure_future(call(*args, **kwargs))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
            raise

    return wrapper
