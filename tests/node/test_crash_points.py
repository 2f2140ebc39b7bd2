"""The node is killed at each step from a task to its answer's acknowledgement, and started again on the same journal.
It stands by its word: the model runs once more at most, and only if no answer was on the disk; of a request in a round
one result is signed, and that one is delivered."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.adapters.node_journal import SqlNodeJournal
from headrace.core.errors import Unavailable, Unknown
from headrace.core.journal import TaskState
from headrace.core.tasks import Accept, Task
from headrace.core.typed_data import hash_result
from headrace.core.types import Mode, Result
from headrace.node import executor
from headrace.node.executor import Executor
from headrace.ports import Generation
from tests.node.world import DEADLINE_S, Bell, ScriptedBackend, World, make_task


@contextlib.contextmanager
def frozen(bell: Bell, owner: type, method: str, *, before: bool) -> Iterator[list[str]]:
    """Have a method come to a stand for ever, before it does anything or once it is done: all that is left for whoever
    calls it is to be killed. Yields a list that is filled once it stands."""
    original, reached = getattr(owner, method), list[str]()

    async def stands(*values: Any, **named: Any) -> Any:
        if not before:
            await original(*values, **named)
        reached.append(method)
        bell.ring()
        await asyncio.Event().wait()

    assert inspect.iscoroutinefunction(original)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, stands)
        yield reached


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """The results that the node signs, over all its lives."""
    results: list[Result] = []

    def noted(result: Result) -> bytes:
        results.append(result)
        return hash_result(result)

    monkeypatch.setattr(executor, "hash_result", noted)
    return results


def never_twice_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that says something else each time: whoever signs two of its answers equivocates."""
    original = ScriptedBackend.generate

    async def generate(backend: ScriptedBackend, *values: Any) -> Generation:
        backend.text = f"answer {len(backend.calls)}"
        return await original(backend, *values)

    monkeypatch.setattr(ScriptedBackend, "generate", generate)


async def dispatched(world: World, task: Task) -> None:
    """Hand a task to a node that may be killed before it answers."""
    with contextlib.suppress(Unknown, Unavailable):
        await world.link.dispatch(task, DEADLINE_S)


POINTS = [
    # (what stands still, before or after it, inferences over both lives)
    (Executor, "_ask_around", False, 1),
    (Executor, "_promise", False, 1),
    (SqlNodeJournal, "put", True, 1),
    (SqlNodeJournal, "put", False, 1),
    (Executor, "_answer", True, 1),
    (ScriptedBackend, "generate", False, 2),
    (Executor, "_fix", True, 2),
    (SqlNodeJournal, "add_result", True, 2),
    (SqlNodeJournal, "add_result", False, 1),
    (Executor, "_delivery", True, 1),
    (Executor, "_delivery", False, 1),
    (Executor, "undelivered", False, 1),
    (Executor, "acknowledged", True, 1),
    (SqlNodeJournal, "end_delivery", True, 1),
    (SqlNodeJournal, "end_delivery", False, 1),
]


@pytest.mark.parametrize(
    ("owner", "method", "before", "inferences"),
    POINTS,
    ids=[f"{'before' if before else 'after'} {method}" for _, method, before, _ in POINTS],
)
async def test_kill__at_each_step__same_answer_is_signed_and_delivered_once_started_again(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    signed: list[Result],
    owner: type,
    method: str,
    before: bool,
    inferences: int,
) -> None:
    never_twice_the_same(monkeypatch)
    task = make_task()
    async with world.serving():
        with frozen(world.bell, owner, method, before=before) as reached:
            async with world.node():
                await world.linked()
                dispatching = asyncio.create_task(dispatched(world, task))
                await world.bell.until(lambda: reached, method)
        await dispatching
        async with world.node() as again:
            await world.linked()
            accept = await world.link.dispatch(task, DEADLINE_S)
            assert isinstance(accept, Accept)
            await world.delivered()
            await until_acknowledged(world, again.journal, task)
            entry = await again.journal.entry(task.assignment.request_id)
    assert entry is not None
    assert entry.accept_signature == accept.signature
    assert len(world.backend.calls) == inferences
    assert {each.result for each in world.events.deliveries} == {entry.result} == set(signed)
    assert {each.signature for each in world.events.deliveries} == {world.events.deliveries[0].signature}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("method", ["_promise", "move_to_round"])
async def test_kill__while_a_quorum_is_listed_again__one_hash_and_one_result_a_round(
    world: World, monkeypatch: pytest.MonkeyPatch, signed: list[Result], method: str, before: bool
) -> None:
    never_twice_the_same(monkeypatch)
    changes: dict[str, Any] = {"mode": Mode.QUORUM, "k": 2, "n": 3}
    first = make_task(**changes)
    second = make_task(**changes, word={"round": 5, "reward_wei": 2 * 10**14})
    owner = Executor if method == "_promise" else SqlNodeJournal
    async with world.serving():
        async with world.node() as node:
            await world.linked()
            await world.link.dispatch(first, DEADLINE_S)
            await until_acknowledged(world, node.journal, first)
        with frozen(world.bell, owner, method, before=before) as reached:
            async with world.node():
                await world.linked()
                dispatching = asyncio.create_task(dispatched(world, second))
                await world.bell.until(lambda: reached, method)
        await dispatching
        async with world.node() as again:
            await world.linked()
            assert isinstance(await world.link.dispatch(second, DEADLINE_S), Accept)
            await world.bell.until(lambda: any(each.result.round == 5 for each in world.events.deliveries))
            await until_acknowledged(world, again.journal, second)
    assert len(world.backend.calls) == 1
    assert len({each.result_hash for each in signed}) == 1
    assert {(each.round, each.reward_wei) for each in signed} == {(3, 10**14), (5, 2 * 10**14)}
    assert len(set(signed)) == 2


async def test_kill__before_the_answer_is_on_the_disk__nothing_was_signed(
    world: World, monkeypatch: pytest.MonkeyPatch, signed: list[Result]
) -> None:
    """What would make a second inference dangerous never happens: a signature before the journal has the answer."""
    never_twice_the_same(monkeypatch)
    with frozen(world.bell, SqlNodeJournal, "add_result", before=True) as reached:
        async with world.serving(), world.node():
            await world.linked()
            await world.link.dispatch(make_task(), DEADLINE_S)
            await world.bell.until(lambda: reached)
    assert signed == []
    assert world.events.deliveries == []


async def until_acknowledged(world: World, journal: SqlNodeJournal, task: Task) -> None:
    """Wait until the node knows that its relayer has the answer."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            entry = await journal.entry(task.assignment.request_id)
            if entry is not None and entry.state is TaskState.ACKNOWLEDGED and entry.round == task.assignment.round:
                return
            await asyncio.sleep(0)
