"""Several questions at once, and loops that must not end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")


async def together(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """What each gives, in order. When one fails the others are cancelled, and what it raised is raised.

    Not by a TaskGroup: before Python 3.13, one whose task fails while it is left cancels its parent and never takes
    that back. Up to 3.11.3 the parent's next timeout then cancels it, in place of a TimeoutError.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unending(name: str, loop: Coroutine[Any, Any, object]) -> NoReturn:
    """Run a loop that ends by an error, or when it is cancelled, and not by itself.

    A task group takes no notice of a task that returns, or that is cancelled from within: a relayer would go on
    without one of its loops, and nobody would know.

    Raises:
        RuntimeError: it ended by itself.
    """
    task = asyncio.current_task()
    assert task is not None  # it is awaited in one
    try:
        await loop
    except asyncio.CancelledError:
        if task.cancelling():
            raise
        raise RuntimeError(f"the loop {name} was cancelled from within, which is a fault of Headrace") from None
    raise RuntimeError(f"the loop {name} ended by itself, which is a fault of Headrace")
