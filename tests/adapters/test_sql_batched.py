"""Calls that are answered many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headrace.adapters.sql.batched import Batched


class Work:
    """Doubles numbers, refuses odd ones over ten, breaks on -1."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    async def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(items))
        await asyncio.sleep(0)
        if -1 in items:
            raise OSError("broken")
        return [ValueError(str(item)) if item > 10 and item % 2 else 2 * item for item in items]


async def test_batched__calls_at_once__are_one_batch_with_an_outcome_each() -> None:
    work = Work()
    batched = Batched(work)
    outcomes = await asyncio.gather(*(batched(item) for item in (1, 13, 4)), return_exceptions=True)
    assert (outcomes[0], outcomes[2], str(outcomes[1])) == (2, 8, "13")
    assert work.batches == [[1, 13, 4]]


async def test_batched__calls_during_a_batch__make_the_next() -> None:
    work = Work()
    batched = Batched(work)
    first = asyncio.create_task(batched(1))
    while not work.batches:  # noqa: ASYNC110 - a step at a time
        await asyncio.sleep(0)
    assert list(await asyncio.gather(first, batched(2), batched(3))) == [2, 4, 6]
    assert work.batches == [[1], [2, 3]]


async def test_batched__same_key__is_never_twice_in_a_batch_and_keeps_its_order() -> None:
    work = Work()
    batched = Batched(work, key=lambda item: item % 10)
    assert await asyncio.gather(*(batched(item) for item in (2, 4, 12, 22, 6))) == [4, 8, 24, 44, 12]
    assert work.batches == [[2, 4, 6], [12], [22]]


async def test_batched__more_than_a_batch_takes__are_several() -> None:
    work = Work()
    batched = Batched(work)
    await asyncio.gather(*(batched(2 * item) for item in range(600)))
    assert [len(batch) for batch in work.batches] == [256, 256, 88]


async def test_batched__the_work_breaks__all_of_the_batch_hear_it_and_the_next_goes_on() -> None:
    batched = Batched(Work())
    outcomes = await asyncio.gather(batched(-1), batched(2), return_exceptions=True)
    assert [type(each) for each in outcomes] == [OSError, OSError]
    assert await batched(3) == 6


async def test_batched__one_caller_is_cancelled__the_others_are_answered() -> None:
    batched = Batched(Work())
    tasks = [asyncio.create_task(batched(item)) for item in (1, 2, 3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [outcomes[0], outcomes[2]] == [2, 6]
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
