"""How many tasks are with a node that has not answered yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from headrace.core.types import Assignment
from headrace.ports import StoredAssignment
from headrace.services.dispatcher import Dispatcher
from tests.core.strategies import address_number, hash_number
from tests.fakes import RELAYER


class SlowNodes(Dispatcher):
    """Tasks that no node answers before it is told to."""

    def __init__(self, **bounds: int) -> None:
        nothing = cast(Any, None)
        super().__init__(nothing, nothing, nothing, nothing, nothing, {}, lambda: None, **bounds)
        self.sent: list[StoredAssignment] = []
        self.answered = asyncio.Event()

    async def send(self, stored: StoredAssignment) -> None:
        self.sent.append(stored)
        await self.answered.wait()

    def by_node(self) -> Counter[str]:
        return Counter(each.assignment.node for each in self.sent)


def assignment(number: int, node: int) -> StoredAssignment:
    word = Assignment(hash_number(number), RELAYER, address_number(node), 1, 0, 0)
    return StoredAssignment(word.request_id, 1, word, "open", 0, 0, b"", b"", "")


async def until_quiet() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_start__more_than_a_node_looks_at__wait_their_turn() -> None:
    dispatcher = SlowNodes(max_per_node=4)
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            dispatcher.start(group, assignment(number, node=1))
        await until_quiet()
        assert len(dispatcher.sent) == 4
        dispatcher.answered.set()
    assert [each.request_id for each in dispatcher.sent] == [hash_number(number) for number in range(10)]


async def test_start__a_slow_node__does_not_hold_up_another() -> None:
    dispatcher = SlowNodes(max_concurrent=6, max_per_node=4)
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            dispatcher.start(group, assignment(number, node=1))
        dispatcher.start(group, assignment(30, node=2))
        await until_quiet()
        assert dispatcher.by_node() == {address_number(1): 4, address_number(2): 1}
        dispatcher.answered.set()


async def test_start__again_before_it_is_answered__is_one_task() -> None:
    dispatcher = SlowNodes()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            dispatcher.start(group, assignment(1, node=1))
        await until_quiet()
        dispatcher.answered.set()
    assert len(dispatcher.sent) == 1
