"""No URL is fetched that a stranger names: in a prompt, on the chain, or by a redirect.

Relayer and node call what their own operator has set (RPC, model server, the relayer's link), and nothing else.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import random
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest
from aiohttp import web

from headrace.adapters.openai_backend import OpenAiBackend
from headrace.client.errors import ApiRefused
from headrace.client.http import ApiCalls, Backoff
from headrace.core.chat_bodies import read_prompt
from headrace.core.envelope import hash_payload
from headrace.core.errors import BackendUnavailable, InvalidInput
from headrace.core.tasks import Refusal, RefusalReason
from tests.api.world import MODEL, REQUESTER_SIGNER, error_of, make_relayer
from tests.node.world import NODE_KEY, World, make_task

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "offchain/headrace"
CANARY = "http://169.254.169.254/latest/meta-data"
PARTS = [
    {"type": "image_url", "image_url": {"url": CANARY}},
    {"type": "input_image", "image_url": CANARY},
    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    {"type": "audio_url", "audio_url": {"url": CANARY}},
    {"type": "video_url", "video_url": {"url": CANARY}},
    {"type": "file", "file": {"file_id": "f", "file_data": CANARY}},
    {"type": "text", "text": CANARY},
]
BODIES = [
    *({"messages": [{"role": "user", "content": [part]}]} for part in PARTS),
    *({"messages": [{"role": "user", "content": part}]} for part in PARTS),
    {"messages": [{"role": "user", "content": "x", "images": [CANARY]}]},
    {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "web_search"}]},
    {"messages": [{"role": "user", "content": "x"}], "web_search_options": {}},
    {"messages": [{"role": "user", "content": "x"}], "response_format": {"url": CANARY}},
    {"messages": [{"role": "user", "content": "x"}], "mm_processor_kwargs": {}, "chat_template": CANARY},
]
bodies = pytest.mark.parametrize("body", BODIES, ids=lambda body: json.dumps(body)[:70])

# Which modules open connections, or hold what does. Each calls what its own operator has set.
CALLERS = {
    "adapters/json_rpc.py": "the chain's RPC",
    "adapters/openai_backend.py": "the node's model server",
    "adapters/web3signer.py": "the signer that the operator set",
    "client/client.py": "holds the session of client/http.py",
    "client/http.py": "the relayer's API, for requesters and auditors",
    "node/daemon.py": "the relayer's link",
}
# These listen, or take such a module's types.
LISTENERS = {
    "adapters/link_server.py",
    "api/server.py",
    "bootstrap/relayer.py",
    "bootstrap/relayer_wiring.py",
    "adapters/sql/blocks.py",
}
NETWORK = {"aiohttp", "ftplib", "http", "httpcore", "httpx", "requests", "socket", "urllib", "urllib3", "websockets"}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


# By the source


def test_sources__modules_that_can_call_out__are_the_known_ones() -> None:
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        # Reading a URL is no call, and `http` has the names of statuses.
        if {name for name in imports_of(path) if name.split(".")[0] in NETWORK} - {"urllib.parse", "http"}
    }
    assert found - LISTENERS == set(CALLERS)


def test_sources__urls_of_nodes_and_relayers_on_the_chain__are_read_by_nothing() -> None:
    for path in SOURCES.rglob("*.py"):
        assert not re.search(r"""["'](metadataURI|endpoint)["']""", path.read_text("utf-8")), path


# Prompts


@bodies
def test_read_prompt__parts_that_are_not_text__are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        read_prompt(json.dumps(body).encode(), 100)


@pytest.fixture
def no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail on any attempt to resolve a name or to connect."""

    def refuse(*arguments: Any, **_: Any) -> NoReturn:
        raise AssertionError(f"it calls out: {arguments}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)


@bodies
@pytest.mark.usefixtures("no_calls")
async def test_draft__chat_body_as_a_prompt_that_no_node_takes__is_refused(body: dict[str, Any]) -> None:
    wanted = {"requester": REQUESTER_SIGNER.address, "model": MODEL.name}
    async with make_relayer() as relayer:
        as_text = await relayer.client.post("/v1/requests/draft", json={**wanted, "prompt": json.dumps(body)})
        as_chat = await relayer.client.post("/v1/requests/draft", json={**wanted, **body})
        assert error_of(as_text, 400)["code"] == "PROMPT_NOT_SERVED"
        error_of(as_chat, 400)
        assert not relayer.store.payloads


@pytest.mark.usefixtures("no_calls")
async def test_relayer__prompts_that_name_urls__calls_nobody() -> None:
    prompt = f"Summarise {CANARY} and ![x]({CANARY})".encode()
    async with make_relayer() as relayer:
        wanted = {"requester": REQUESTER_SIGNER.address, "model": MODEL.name, "prompt": prompt.decode()}
        assert (await relayer.client.post("/v1/requests/draft", json=wanted)).status_code == 200
        params = {"requester": REQUESTER_SIGNER.address}
        path = f"/v1/payloads/{hash_payload(prompt)}"
        assert (await relayer.client.put(path, params=params, content=prompt)).status_code == 201
        error_of(await relayer.client.post("/v1/requests/draft", json={**wanted, "model": CANARY}), 400)


@pytest.mark.parametrize("body", BODIES[:7], ids=lambda body: body["messages"][0]["content"][0]["type"])
async def test_node__task_with_parts_that_are_not_text__is_refused_before_it_accepts(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    world = World(tmp_path)
    async with world.serving(), world.node():
        await world.linked()
        answer = await world.link.dispatch(make_task(prompt=json.dumps(body).encode()), 5.0)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.BAD_PROMPT


# Redirects


@contextlib.asynccontextmanager
async def redirecting(calls: asyncio.Queue[str] | None = None) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that sends everybody on to itself, and what it was asked."""
    asked: list[str] = []

    async def handler(request: web.Request) -> NoReturn:
        asked.append(request.path)
        if calls is not None:
            calls.put_nowait(request.path)
        raise web.HTTPTemporaryRedirect("/secret")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def test_backend__model_server_redirects__is_not_followed() -> None:
    async with redirecting() as (place, asked):
        backend = OpenAiBackend(f"http://{place}", {"smol": "smol"})
        with pytest.raises(BackendUnavailable):
            await backend.generate("smol", {"messages": [{"role": "user", "content": CANARY}]}, 5)
        await backend.close()
    assert asked == ["/v1/chat/completions"]


async def test_client__api_redirects__is_not_followed() -> None:
    async with redirecting() as (place, asked), aiohttp.ClientSession() as session:
        calls = ApiCalls(f"http://{place}", session, backoff=Backoff(attempts=1), rng=random.Random(1))
        with pytest.raises(ApiRefused, match="307"):
            await calls.json("GET", "/v1/network", headers={"Authorization": "Headrace x"})
        with pytest.raises(ApiRefused, match="307"):
            await calls.bytes("/v1/payloads/0x")
    assert asked == ["/v1/network", "/v1/payloads/0x"]


async def test_node__link_redirects__is_not_followed(tmp_path: Path) -> None:
    world = World(tmp_path)
    calls: asyncio.Queue[str] = asyncio.Queue()
    async with redirecting(calls) as (place, _), world.node(link_url=f"ws://{place}/link"), asyncio.timeout(5):
        assert {await calls.get() for _ in range(4)} == {"/link"}
    assert world.linked_now(NODE_KEY.address) is None
