from __future__ import annotations

import asyncio

import pytest

from headrace.core.errors import ChainUnavailable
from headrace.services.together import together, unending


async def give(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def test_together__all_go_well__gives_each_in_order() -> None:
    assert await together(give(number) for number in range(3)) == [0, 1, 2]
    assert await together([]) == []


async def test_together__one_fails__cancels_the_others_and_raises_as_it_did() -> None:
    ended: list[str] = []

    async def wait() -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def fail() -> int:
        raise ChainUnavailable("no answer")

    with pytest.raises(ChainUnavailable, match="no answer"):
        await together([wait(), fail(), wait()])
    assert ended == ["cancelled", "cancelled"]


async def test_together__one_failed__leaves_no_cancellation_behind() -> None:
    """On Python 3.11.2 a TaskGroup left one, and the next timeout ended its loop without a word."""

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ChainUnavailable("no answer")

    with pytest.raises(ChainUnavailable):
        await together([fail(), give(1)])
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.get_running_loop().create_future()


async def test_together__is_cancelled__cancels_them_all() -> None:
    ended: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(number)

    waiting = asyncio.ensure_future(together([wait(1), wait(2)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == [1, 2]


async def test_unending__loop_returns__is_an_error() -> None:
    with pytest.raises(RuntimeError, match="the loop settler ended by itself"):
        await unending("settler", give(1))


async def test_unending__loop_is_cancelled_by_nobody__is_an_error() -> None:
    async def stray() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="the loop settler was cancelled from within"):
        await unending("settler", stray())


async def test_unending__is_cancelled__is_cancelled() -> None:
    loop = asyncio.ensure_future(unending("settler", asyncio.Event().wait()))
    await asyncio.sleep(0)
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
