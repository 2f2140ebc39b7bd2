"""Calls are counted by route and status, never by what a caller wrote."""

from __future__ import annotations

import dataclasses

import httpx

from headrace.api import create_app
from tests.api.world import Relayer
from tests.fakes import FakeMetrics


async def test_calls__found_and_not__are_counted_by_route(relayer: Relayer) -> None:
    metrics = FakeMetrics()
    app = create_app(dataclasses.replace(relayer.context, metrics=metrics))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relayer") as client:
        await client.get("/v1/requests/0x" + "ab" * 32)
        await client.get("/v1/requests/0x" + "cd" * 32)
        await client.get("/healthz")
        await client.get("/no/such/place")
    name = "headrace_http_requests_total"
    assert metrics.counts == {
        (name, "route=/v1/requests/{request_id}", "status=404"): 2,
        (name, "route=/healthz", "status=200"): 1,
        (name, "route=none", "status=404"): 1,
    }
