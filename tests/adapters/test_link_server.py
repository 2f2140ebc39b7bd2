"""The link server against clients that do not play by the rules, and what it tells the relayer's services."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import NotAllowed, Unavailable, Unknown
from headrace.core.link_messages import (
    MAX_FRAME_BYTES,
    MAX_PAYLOAD_BYTES,
    Challenge,
    GaveUp,
    HeartbeatMessage,
    Hello,
    NodeMessage,
    Rejected,
    RejectionCode,
    SetSignature,
    SignSet,
    TaskMessage,
    Welcome,
    encode,
    heartbeat_digest,
    hello_digest,
    parse_relayer_message,
)
from headrace.core.tasks import Heartbeat, Refusal, RefusalReason
from headrace.core.typed_data import digest, hash_result, hash_result_set
from headrace.core.types import Result
from headrace.ports import NodeLink
from tests.fakes import START_S, FakeSigner
from tests.node.conftest import world as world
from tests.node.world import DEADLINE_S, DOMAIN, MODEL, NODE_KEY, RELAYER_KEY, World, make_task

NODE = NODE_KEY.address
RELAYER = RELAYER_KEY.address


class RawNode:
    """A node made of a bare socket."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket
        self.sequence = 0

    async def hear(self) -> Any:
        """The relayer's next message, or None when the link is closed."""
        async with asyncio.timeout(DEADLINE_S):
            frame = await self.socket.receive()
        return parse_relayer_message(frame.data) if frame.type is WSMsgType.TEXT else None

    async def say(self, message: NodeMessage) -> None:
        await self.socket.send_str(encode(message))

    async def open(self, signer: FakeSigner = NODE_KEY, node: str = NODE, relayer: str = RELAYER) -> Any:
        challenge = await self.hear()
        assert isinstance(challenge, Challenge)
        proof = signer.sign_digest(hello_digest(DOMAIN, node, relayer, challenge.challenge))
        await self.say(Hello(node=node, signature="0x" + proof.hex()))
        return await self.hear()

    def heartbeat(self, signer: FakeSigner = NODE_KEY, **changes: Any) -> HeartbeatMessage:
        self.sequence += 1
        models = (MODEL.model_id,)
        beat = Heartbeat(NODE, self.sequence, START_S * 1000, 4096, 0, 1, 0, models, models, 900, "local")
        beat = dataclasses.replace(beat, **changes)
        return HeartbeatMessage.of(beat, signer.sign_digest(heartbeat_digest(DOMAIN, RELAYER, beat)))


@contextlib.asynccontextmanager
async def connected(world: World) -> AsyncIterator[RawNode]:
    url = f"http://127.0.0.1:{world.link.port}/link"
    async with aiohttp.ClientSession() as http, http.ws_connect(url, max_msg_size=MAX_FRAME_BYTES) as socket:
        yield RawNode(socket)


@contextlib.asynccontextmanager
async def linked(world: World) -> AsyncIterator[RawNode]:
    async with connected(world) as node:
        assert isinstance(await node.open(), Welcome)
        await node.say(node.heartbeat())
        await world.linked()
        yield node


async def rejected(node: RawNode) -> Rejected:
    """The last word of the relayer; after it the link is closed."""
    while not isinstance(word := await node.hear(), Rejected):
        assert word is not None, "the link was closed without a word"
    assert await node.hear() is None
    return word


async def test_it_is_a_node_link(world: World) -> None:
    link: NodeLink = world.link
    assert link.linked() == []
    with pytest.raises(Unavailable, match="not linked"):
        await link.dispatch(make_task(), 1)
    assert await link.sign_set(NODE, 3, [], 1) is None


async def test_a_node_is_there_from_its_first_heartbeat_on(world: World) -> None:
    async with world.serving() as link, connected(world) as node:
        assert isinstance(await node.open(), Welcome)
        assert world.events.admitted == [NODE]
        assert link.linked() == []
        message = node.heartbeat()
        await node.say(message)
        there = await world.linked()
        assert there.heartbeat == message.heartbeat()
        assert there.signature == message.signature_bytes()
        assert there.received_at_ms == world.clock.now_ms()
        changes = world.events.changes
        await node.socket.close()
        await world.bell.until(lambda: world.events.changes > changes)
        assert link.linked() == []


async def test_only_what_matters_to_a_plan_is_told(world: World) -> None:
    async with world.serving(), linked(world) as node:
        changes = world.events.changes
        await node.say(node.heartbeat(load_milli=999, free_memory_mb=4100))
        await node.say(node.heartbeat(in_flight=1))
        await world.bell.until(lambda: world.events.changes > changes)
        last = world.linked_now()
        assert last is not None
        assert last.heartbeat.in_flight == 1
        assert world.events.changes == changes + 1


async def test_every_link_has_a_challenge_of_its_own(world: World) -> None:
    challenges = set()
    async with world.serving():
        for _ in range(3):
            async with connected(world) as node:
                challenges.add((await node.hear()).challenge)
    assert len(challenges) == 3


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"signer": FakeSigner(99)}, RejectionCode.BAD_SIGNATURE),
        ({"relayer": "0x" + "b9" * 20}, RejectionCode.BAD_SIGNATURE),
    ],
)
async def test_a_key_that_is_not_proved_is_refused(world: World, changes: dict[str, Any], code: RejectionCode) -> None:
    async with world.serving(), connected(world) as node:
        answer = await node.open(**changes)
    assert isinstance(answer, Rejected)
    assert answer.code is code
    assert not world.events.admitted


async def test_a_node_that_may_not_link_hears_why(world: World) -> None:
    world.events.admit_error = NotAllowed("register the node first")
    async with world.serving() as link, connected(world) as node:
        answer = await node.open()
        assert answer == Rejected(code=RejectionCode.NOT_ALLOWED, message="register the node first")
        assert await node.hear() is None
        assert not link.linked()


async def test_a_node_that_cannot_be_checked_may_come_again(world: World) -> None:
    world.events.admit_error = Unavailable("the chain at http://secret.example does not answer")
    async with world.serving(), connected(world) as node:
        answer = await node.open()
    assert answer.code is RejectionCode.UNAVAILABLE
    assert "secret" not in answer.message


@pytest.mark.parametrize("hello", [{"protocol_version": 2}, {"protocol_version": 2, "new": True}])
async def test_another_version_is_refused_in_a_sentence(world: World, hello: dict[str, Any]) -> None:
    async with world.serving(), connected(world) as node:
        await node.hear()
        proof = "0x" + "00" * 65
        await node.socket.send_str(json.dumps({"type": "hello", "node": NODE, "signature": proof, **hello}))
        word = await rejected(node)
    assert word.code is RejectionCode.PROTOCOL_MISMATCH
    assert word.message.endswith("speaks version 2 of the link and the relayer version 1: update the relayer")


async def test_a_node_that_does_not_open_is_dropped(world: World) -> None:
    async with world.serving(handshake_timeout_s=0.02), connected(world) as node:
        assert (await rejected(node)).code is RejectionCode.SILENT


async def test_a_silent_node_is_dropped(world: World) -> None:
    async with world.serving(heartbeat_timeout_s=0.05) as link, linked(world) as node:
        assert (await rejected(node)).code is RejectionCode.SILENT
        await world.bell.until(lambda: not link.linked())


async def test_frames_that_are_no_heartbeats_do_not_keep_a_link(world: World) -> None:
    refusal = GaveUp.of(Refusal("0x" + "12" * 32, 1, RefusalReason.BUSY, ""))

    async def chatter(node: RawNode) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await node.say(refusal)
                await asyncio.sleep(0)

    async with world.serving(heartbeat_timeout_s=0.1), linked(world) as node:
        talking = asyncio.ensure_future(chatter(node))
        try:
            assert (await rejected(node)).code is RejectionCode.SILENT
        finally:
            talking.cancel()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sequence": 1}, "does not come after 1"),
        ({"sequence": 0}, "does not come after 1"),
        ({"signer": FakeSigner(99)}, "is signed by"),
        ({"node": "0x" + "99" * 20}, "is of the node 0x99"),
        ({"sent_at_ms": (START_S + 61) * 1000}, "\\+61 s off"),
        ({"sent_at_ms": (START_S - 61) * 1000}, "-61 s off"),
        ({"warm_models": ("0x" + "12" * 32,)}, "only what it serves"),
    ],
)
async def test_a_heartbeat_that_is_wrong_ends_the_link(world: World, changes: dict[str, Any], says: str) -> None:
    async with world.serving() as link, linked(world) as node:
        await node.say(node.heartbeat(**changes))
        word = await rejected(node)
        await world.bell.until(lambda: not link.linked())
    assert word.code is RejectionCode.BAD_HEARTBEAT
    assert re.search(says, word.message)


async def test_a_newer_link_replaces_the_older(world: World) -> None:
    async with world.serving() as link, linked(world) as older:
        waiting = asyncio.ensure_future(link.dispatch(make_task(), DEADLINE_S))
        assert isinstance(await older.hear(), TaskMessage)
        async with connected(world) as newer:
            assert isinstance(await newer.open(), Welcome)
            assert (await rejected(older)).code is RejectionCode.REPLACED
            with pytest.raises(Unknown):
                await waiting
            await newer.say(newer.heartbeat(in_flight=1))
            assert (await world.linked()).heartbeat.in_flight == 1


async def test_a_task_that_is_not_answered_is_unknown(world: World) -> None:
    async with world.serving() as link, linked(world) as node:
        with pytest.raises(Unknown, match="did not answer"):
            await link.dispatch(make_task(), 0.01)
        assert isinstance(await node.hear(), TaskMessage)
        waiting = asyncio.ensure_future(link.dispatch(make_task(), DEADLINE_S))
        await node.hear()
        await node.socket.close()
        with pytest.raises(Unknown, match="broke"):
            await waiting


async def test_a_prompt_that_no_link_carries_is_refused_here(world: World) -> None:
    prompt = bytes(MAX_PAYLOAD_BYTES + 1)
    async with world.serving() as link, linked(world):
        answer = await link.dispatch(make_task(prompt=prompt), DEADLINE_S)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.BAD_PROMPT


async def test_the_longest_prompt_fits(world: World) -> None:
    prompt = random.Random(1).randbytes(MAX_PAYLOAD_BYTES)
    async with world.serving() as link, linked(world) as node:
        waiting = asyncio.ensure_future(link.dispatch(make_task(prompt=prompt), DEADLINE_S))
        heard = await node.hear()
        assert heard.task().prompt == prompt
        await node.socket.close()
        with pytest.raises(Unknown):
            await waiting


async def test_a_node_that_does_not_read_gets_no_more(world: World) -> None:
    prompt = bytes(MAX_PAYLOAD_BYTES)
    async with world.serving() as link, linked(world) as node:
        node.socket._reader._protocol.pause_reading()
        waiting = [
            asyncio.ensure_future(link.dispatch(make_task(prompt=prompt, salt=salt), DEADLINE_S)) for salt in range(60)
        ]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE_S)
        assert done
        for over in done:
            assert isinstance(over.exception(), Unavailable)
            assert not isinstance(over.exception(), Unknown)
        node.socket._reader._protocol.resume_reading()
        await node.socket.close()
        await asyncio.wait(waiting)
        assert {type(over.exception()) for over in waiting} == {Unavailable, Unknown}


RESULT = Result("0x" + "12" * 32, "0x" + "13" * 32, 10, RELAYER, 3)


async def test_a_set_that_is_not_signed_right_counts_as_not_signed(world: World) -> None:
    struct_hash = hash_result_set(RELAYER, 3, [hash_result(RESULT)])
    set_hash = "0x" + struct_hash.hex()
    right = NODE_KEY.sign_digest(digest(DOMAIN, struct_hash))
    wrong = FakeSigner(99).sign_digest(digest(DOMAIN, struct_hash))
    async with world.serving() as link, linked(world) as node:
        for signature, expected in ((wrong, None), (bytes(65), None), (None, None), (right, right)):
            waiting = asyncio.ensure_future(link.sign_set(NODE, 3, [RESULT], DEADLINE_S))
            asked = await node.hear()
            assert isinstance(asked, SignSet)
            assert (asked.set_hash, asked.core_results()) == (set_hash, [RESULT])
            await node.say(SetSignature.of(set_hash, signature))
            assert await waiting == expected
        assert await link.sign_set(NODE, 3, [RESULT], 0.01) is None
        waiting = asyncio.ensure_future(link.sign_set(NODE, 3, [RESULT], DEADLINE_S))
        await node.hear()
        await node.hear()
        await node.socket.close()
        assert await waiting is None


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "{}",
        "[]",
        "nonsense",
        '{"type":"welcome"}',
        '{"type":"gave_up"}',
        '{"type":"hello","protocol_version":1}',
        "[" * 50_000,
    ],
)
async def test_a_malformed_frame_ends_the_link(world: World, frame: str) -> None:
    async with world.serving() as link, linked(world) as node:
        await node.socket.send_str(frame)
        assert (await rejected(node)).code is RejectionCode.MALFORMED
        await world.bell.until(lambda: not link.linked())


async def test_a_second_hello_and_a_binary_frame_end_the_link(world: World) -> None:
    async with world.serving():
        async with linked(world) as node:
            await node.say(Hello(node=NODE, signature="0x" + "00" * 65))
            assert (await rejected(node)).code is RejectionCode.MALFORMED
        async with linked(world) as node:
            await node.socket.send_bytes(b"\x00")
            assert (await rejected(node)).code is RejectionCode.MALFORMED
        async with connected(world) as node:
            await node.say(node.heartbeat())
            assert (await rejected(node)).code is RejectionCode.MALFORMED


async def test_an_oversized_frame_ends_the_link(world: World) -> None:
    async with world.serving() as link, linked(world) as node:
        await node.socket.send_str(" " * (MAX_FRAME_BYTES + 1))
        while await node.hear() is not None:
            pass
        assert node.socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
        await world.bell.until(lambda: not link.linked())


async def test_no_more_links_than_allowed(world: World) -> None:
    async with world.serving(max_links=1), linked(world):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with connected(world):
                pass
    assert refused.value.status == 503
    assert refused.value.headers is not None
    assert refused.value.headers["Retry-After"] == "5"


async def test_a_browser_is_told_what_this_is(world: World) -> None:
    async with world.serving() as link, aiohttp.ClientSession() as http:
        response = await http.get(f"http://127.0.0.1:{link.port}/link")
        assert response.status == 426
        assert "connect with a WebSocket" in await response.text()


async def test_a_node_that_sends_too_fast_is_read_more_slowly(world: World) -> None:
    async with world.serving(frames_per_s=200.0), linked(world) as node:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        for count in range(450):
            await node.say(node.heartbeat(in_flight=count))
        await world.bell.until(lambda: (there := world.linked_now()) and there.heartbeat.in_flight == 449)
        # 400 go at once, the rest at 200 a second.
        assert loop.time() - started_s >= 0.24


async def test_a_relayer_that_stops_says_so(world: World) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with world.serving() as link:
            node = await stack.enter_async_context(linked(world))
            waiting = asyncio.ensure_future(link.dispatch(make_task(), DEADLINE_S))
            assert isinstance(await node.hear(), TaskMessage)
        assert (await rejected(node)).code is RejectionCode.SHUTTING_DOWN
        with pytest.raises(Unknown):
            await waiting
        assert not link.linked()


async def test_a_port_that_is_taken_is_said(world: World) -> None:
    async with world.serving() as link:
        with pytest.raises(OSError, match="address already in use"):
            await world.new_link(port=link.port).run(world.events)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.text(max_size=200) | st.binary(max_size=200), min_size=1, max_size=5))
async def test_whatever_a_client_sends_the_server_lives(tmp_path: Path, frames: list[str | bytes]) -> None:
    world = World(tmp_path)
    async with world.serving(handshake_timeout_s=0.2):
        async with connected(world) as node:
            with contextlib.suppress(ConnectionError):
                for frame in frames:
                    if isinstance(frame, str):
                        await node.socket.send_str(frame.encode("utf-8", "replace").decode())
                    else:
                        await node.socket.send_bytes(frame)
            await rejected(node)
        async with linked(world):
            pass
