from __future__ import annotations

import asyncio

import pytest

from headrace.core.errors import ChainUnavailable
from headrace.services.together import together


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
