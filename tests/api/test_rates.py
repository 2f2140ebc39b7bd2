"""How often one address may call, and how an address is found."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from headrace.api import create_app
from headrace.api.rates import Allowance, RateLimits, client_of
from headrace.core.envelope import hash_payload
from tests.api.world import REQUESTER_SIGNER, Relayer, error_of
from tests.fakes import FakeMetrics

HOUR_MS = 3_600_000
HEAVY = ["/v1/rounds/1/decisions", "/v1/rounds/1/accepts", "/v1/snapshots/0x" + "00" * 32]


@asynccontextmanager
async def limited(relayer: Relayer, **limits: int) -> AsyncIterator[tuple[httpx.AsyncClient, FakeMetrics]]:
    metrics = FakeMetrics()
    context = replace(relayer.context, rates=RateLimits(**limits), metrics=metrics)
    transport = httpx.ASGITransport(create_app(context), client=("203.0.113.7", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://relayer") as client:
        yield client, metrics


async def put(client: httpx.AsyncClient, **headers: str) -> httpx.Response:
    params = {"requester": REQUESTER_SIGNER.address}
    return await client.put(f"/v1/payloads/{hash_payload(b'a')}", params=params, content=b"a", headers=headers)


async def test_writes__beyond_the_rate__are_429_until_time_has_passed(relayer: Relayer) -> None:
    async with limited(relayer, writes_per_minute=2) as (client, metrics):
        assert [(await put(client)).status_code for _ in range(2)] == [201, 201]
        refused = await put(client)
        assert error_of(refused, 429)["code"] == "RATE_LIMITED"
        assert refused.headers["Retry-After"] == "30"
        assert metrics.counts["headrace_http_rate_limited_total", "cost=write"] == 1
        relayer.clock.advance(29_000)
        assert (await put(client)).headers["Retry-After"] == "1"
        relayer.clock.advance(1_000)
        assert [(await put(client)).status_code for _ in range(2)] == [201, 429]


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/requests/draft"), ("POST", "/v1/requests"), ("POST", "/v1/requests/0x" + "00" * 32 + "/release")],
)
async def test_writes__of_every_kind__share_one_allowance_and_are_refused_unread(
    relayer: Relayer, method: str, path: str
) -> None:
    async with limited(relayer, writes_per_minute=1) as (client, _):
        await put(client)
        error_of(await client.request(method, path, content=b"{not json"), 429)
        assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("path", HEAVY)
async def test_heavy_reads__beyond_the_rate__are_429_and_writes_go_on(relayer: Relayer, path: str) -> None:
    async with limited(relayer, heavy_reads_per_minute=1) as (client, _):
        error_of(await client.get(path), 404)
        error_of(await client.get(path), 429)
        assert [(await put(client)).status_code for _ in range(3)] == [201] * 3


async def test_rates__zero__are_no_bound(relayer: Relayer) -> None:
    async with limited(relayer) as (client, _):
        assert [(await put(client)).status_code for _ in range(5)] == [201] * 5


async def test_rates__no_proxy_is_trusted__invented_addresses_do_not_help(relayer: Relayer) -> None:
    async with limited(relayer, writes_per_minute=1) as (client, _):
        calls = [await put(client, **{"X-Forwarded-For": f"198.51.100.{number}"}) for number in range(3)]
        assert [call.status_code for call in calls] == [201, 429, 429]


async def test_rates__behind_a_proxy__each_client_has_its_own(relayer: Relayer) -> None:
    async with limited(relayer, writes_per_minute=1, trusted_proxies=1) as (client, _):
        calls = [await put(client, **{"X-Forwarded-For": f"6.6.6.6, 198.51.100.{number}"}) for number in (1, 2, 1)]
        assert [call.status_code for call in calls] == [201, 201, 429]


# Who calls


def request(forwarded: list[str], peer: str | None = "127.0.0.1") -> Request:
    headers = [(b"x-forwarded-for", line.encode("latin-1", "replace")) for line in forwarded]
    return Request({"type": "http", "headers": headers, "client": (peer, 1) if peer else None})


@pytest.mark.parametrize(
    ("forwarded", "trusted", "who"),
    [
        ([], 0, "127.0.0.1"),
        (["1.1.1.1"], 0, "127.0.0.1"),
        (["1.1.1.1"], 1, "1.1.1.1"),
        (["9.9.9.9, 1.1.1.1"], 1, "1.1.1.1"),
        (["9.9.9.9, 1.1.1.1", "2.2.2.2"], 2, "1.1.1.1"),
        (["1.1.1.1"], 2, "127.0.0.1"),
        (["not an address"], 1, "127.0.0.1"),
        (["2001:db8:1:2:3:4:5:6"], 1, "2001:db8:1:2::/64"),
        (["::ffff:1.1.1.1"], 1, "1.1.1.1"),
    ],
)
def test_client_of__trusted_proxies__are_counted_from_the_right(forwarded: list[str], trusted: int, who: str) -> None:
    assert client_of(request(forwarded), trusted) == who


def test_client_of__no_peer__is_one_caller() -> None:
    assert client_of(request([], None), 0) == "unknown"


@given(st.lists(st.text(max_size=40) | st.ip_addresses().map(str), max_size=5), st.integers(0, 16))
def test_client_of__any_header__is_an_address_or_the_peer(forwarded: list[str], trusted: int) -> None:
    assert client_of(request(forwarded), trusted)


# Allowances


@given(st.integers(1, 600), st.lists(st.integers(0, 90_000), min_size=1, max_size=300))
def test_allowance__any_calls__never_more_than_two_minutes_worth_in_a_minute(per_minute: int, gaps: list[int]) -> None:
    allowance, now_ms, passed = Allowance(per_minute), HOUR_MS, []
    for gap in gaps:
        now_ms += gap
        if not allowance.wait_ms("a", now_ms):
            passed.append(now_ms)
        assert sum(now_ms - at < 60_000 for at in passed) <= 2 * per_minute


@given(st.integers(1, 600), st.integers(0, 10**6))
def test_allowance__waited_as_long_as_it_said__passes(per_minute: int, start_ms: int) -> None:
    allowance, now_ms = Allowance(per_minute), HOUR_MS + start_ms
    while not (wait_ms := allowance.wait_ms("a", now_ms)):
        pass
    assert not allowance.wait_ms("a", now_ms + int(wait_ms) + 1)


def test_allowance__more_callers_than_it_keeps__forgets_the_oldest() -> None:
    allowance = Allowance(1, most_callers=2)
    assert [allowance.wait_ms(caller, HOUR_MS) > 0 for caller in "aba"] == [False, False, True]
    assert [allowance.wait_ms(caller, HOUR_MS) > 0 for caller in "cba"] == [False, True, False]
