"""Retries: full jitter on top of what the server asks for, and errors of any shape as one sentence."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from headrace.client.errors import ApiRefused
from headrace.client.http import ApiCalls, Backoff
from headrace.core.errors import Unavailable

Answers = list[Callable[[], web.StreamResponse]]


class Scripted:
    """A server that gives one answer after the other."""

    def __init__(self) -> None:
        self.answers: Answers = []
        self.slept_s: list[float] = []
        self.calls: ApiCalls

    async def handle(self, _request: web.Request) -> web.StreamResponse:
        return self.answers.pop(0)()

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", scripted.handle)
    async with TestServer(app) as test_server, aiohttp.ClientSession() as session:
        scripted.calls = ApiCalls(
            str(test_server.make_url("/")),
            session,
            backoff=Backoff(base_s=1.0, cap_s=4.0, attempts=4),
            rng=random.Random(3),
            sleep=scripted.sleep,
        )
        yield scripted


def refused(status: int, **headers: str) -> Callable[[], web.StreamResponse]:
    body = {"error": {"code": "QUEUE_FULL", "message": "Full.", "hint": "Later."}}
    return lambda: web.json_response(body, status=status, headers=headers)


def ok(body: Any) -> Callable[[], web.StreamResponse]:
    return lambda: web.json_response(body)


async def test_json__busy_then_well__waits_at_least_as_long_as_asked(server: Scripted) -> None:
    server.answers = [refused(429, **{"Retry-After": "7"}), refused(503), ok({"x": 1})]
    assert await server.calls.json("GET", "/v1/x") == {"x": 1}
    first, second = server.slept_s
    assert 7 <= first <= 8
    assert 0 <= second <= 2


async def test_json__always_busy__ends_with_the_servers_words(server: Scripted) -> None:
    server.answers = [refused(429)] * 4
    with pytest.raises(ApiRefused, match=r"Full\. Later\.") as refusal:
        await server.calls.json("GET", "/v1/x")
    assert refusal.value.code == "QUEUE_FULL"
    assert len(server.slept_s) == 3


async def test_json__refused_for_good__is_not_repeated(server: Scripted) -> None:
    server.answers = [refused(400)]
    with pytest.raises(ApiRefused):
        await server.calls.json("POST", "/v1/x", body={})
    assert server.slept_s == []


@pytest.mark.parametrize("text", ["<html>", "[]", '{"error": 1}'])
async def test_json__not_a_relayer__says_so(server: Scripted, text: str) -> None:
    server.answers = [lambda: web.Response(text=text, status=404, content_type="application/json")]
    with pytest.raises(ApiRefused, match="not as a Headrace relayer does"):
        await server.calls.json("GET", "/v1/x")


async def test_json__answer_is_not_json__is_unavailable(server: Scripted) -> None:
    server.answers = [lambda: web.Response(text="<html>")] * 4
    with pytest.raises(Unavailable, match="does not answer"):
        await server.calls.json("GET", "/v1/x")


async def test_bytes__too_large__is_refused(server: Scripted) -> None:
    server.answers = [lambda: web.Response(body=bytes(4 * 1024 * 1024 + 1))] * 4
    with pytest.raises(Unavailable):
        await server.calls.bytes("/v1/x")
    server.answers = [lambda: web.Response(body=bytes(3 * 1024 * 1024))]
    assert len(await server.calls.bytes("/v1/x")) == 3 * 1024 * 1024


def test_delay_s__grows_to_a_cap__and_starts_at_zero() -> None:
    backoff, rng = Backoff(base_s=1.0, cap_s=4.0), random.Random(5)
    for attempt, most in ((0, 1), (1, 2), (2, 4), (9, 4)):
        delays = [backoff.delay_s(attempt, rng) for _ in range(500)]
        assert 0 <= min(delays) < most * 0.1
        assert most * 0.9 < max(delays) <= most
