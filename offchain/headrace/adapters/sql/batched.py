"""Calls that come one by one and are answered many at a time: a statement costs more than a row of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")
_MOST = 256  # of a batch: one does not keep the database from others for long


class Batched(Generic[_T, _R]):
    """A function of one item, by one of many. What comes while a batch is at work makes the next one.

    An outcome that is an exception is raised to whose it is; what the work raises, to all of its batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[_T]], Awaitable[Sequence[_R | Exception]]],
        key: Callable[[_T], Hashable] | None = None,
    ) -> None:
        """
        Args:
            work: gives the outcome of each item, in order.
            key: items with the same are never in one batch, and keep their order; None = any may be.
        """
        self._work = work
        self._key = key
        self._waiting: list[tuple[_T, asyncio.Future[_R]]] = []
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, item: _T) -> _R:
        """The outcome of an item."""
        future: asyncio.Future[_R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="batched")
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._next()
                try:
                    outcomes = await self._work([item for item, _ in batch])
                except asyncio.CancelledError:
                    for _, future in batch:
                        future.cancel()
                    raise
                except BaseException as exc:  # noqa: BLE001 - raised to each caller
                    for _, future in batch:
                        _fail(future, exc)
                else:
                    for (_, future), outcome in zip(batch, outcomes, strict=True):
                        _settle(future, outcome)
        finally:
            self._running = None
            for _, future in self._waiting:
                future.cancel()

    def _next(self) -> list[tuple[_T, asyncio.Future[_R]]]:
        if self._key is None:
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            return batch
        batch, left, keys = [], [], set()
        for item, future in self._waiting:
            key = self._key(item)
            if key in keys or len(batch) == _MOST:
                left.append((item, future))
            else:
                batch.append((item, future))
            keys.add(key)
        self._waiting = left
        return batch


def _settle(future: asyncio.Future[_R], outcome: _R | Exception) -> None:
    if isinstance(outcome, Exception):
        _fail(future, outcome)
    elif not future.done():
        future.set_result(outcome)


def _fail(future: asyncio.Future[_R], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
