"""What there is: the network, its models, health and the frame around every answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from headrace.api import create_app
from headrace.api.context import ApiLimits
from headrace.core.errors import ChainUnavailable
from tests.api.world import MODEL, REGISTRY, RELAYER_SIGNER, Relayer, error_of
from tests.fakes import MARKET, SCHEDULE_LOG


async def test_get_network__all_well__has_what_a_client_needs(relayer: Relayer) -> None:
    body = (await relayer.client.get("/v1/network")).json()
    assert body["chain_id"] == 31337
    assert body["contracts"]["inference_market"] == MARKET
    assert body["contracts"]["schedule_log"] == SCHEDULE_LOG
    assert body["contracts"]["model_registry"] == REGISTRY
    assert body["relayer"] == RELAYER_SIGNER.address
    assert body["terms"]["probation_max_reward_wei"] == "1000000000000000"
    assert [model["name"] for model in body["models"]] == [MODEL.name]


async def test_get_models__read_once__is_cached(relayer: Relayer) -> None:
    for _ in range(3):
        assert (await relayer.client.get("/v1/models")).json()[0]["model_id"] == MODEL.model_id
    assert relayer.chain.calls["models"] == 1


async def test_get_network__chain_down__is_503_without_its_address(relayer: Relayer) -> None:
    relayer.chain.fail("market_terms", ChainUnavailable("http://user:secret@rpc:8545 refused"))
    response = await relayer.client.get("/v1/network")
    assert error_of(response, 503)["code"] == "CHAIN_UNAVAILABLE"
    assert "secret" not in response.text
    assert response.headers["Retry-After"]


async def test_get_network__chain_hangs__is_503_in_time(relayer: Relayer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(relayer.chain, "market_terms", hang)
    context = replace(relayer.context, limits=ApiLimits(chain_timeout_s=0.01))
    transport = httpx.ASGITransport(create_app(context))
    async with httpx.AsyncClient(transport=transport, base_url="http://relayer") as client:
        error_of(await client.get("/v1/network"), 503)


async def test_get_network__program_fault__tells_nothing(relayer: Relayer) -> None:
    relayer.chain.fail("market_terms", KeyError("inside"))
    response = await relayer.client.get("/v1/network")
    assert error_of(response, 500)["code"] == "INTERNAL"
    assert "inside" not in response.text


async def test_healthz__always__is_ok(relayer: Relayer) -> None:
    assert (await relayer.client.get("/healthz")).json() == {"status": "ok"}


async def test_metrics__always__is_prometheus_text(relayer: Relayer) -> None:
    response = await relayer.client.get("/metrics")
    assert response.text == "headrace_up 1\n"
    assert response.headers["content-type"].startswith("text/plain")


async def test_readyz__all_well__is_ready(relayer: Relayer) -> None:
    response = await relayer.client.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"ready": True, "reasons": []})


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda r: r.chain.fail("head", ChainUnavailable("no")), "HEADRACE_CHAIN__RPC_URL"),
        (lambda r: setattr(r.store, "failure", OSError("disk")), "The store does not answer"),
        (lambda r: r.chain.mine_many(31), "31 blocks behind"),
        (lambda r: r.chain.balances.update({RELAYER_SIGNER.address: 5}), "has 5 wei"),
        (lambda r: r.chain.bonded.clear(), "`headrace bond show` says why"),
    ],
)
async def test_readyz__something_missing__says_what_to_do(relayer: Relayer, break_it: Any, words: str) -> None:
    break_it(relayer)
    response = await relayer.client.get("/readyz")
    assert response.status_code == 503
    assert any(words in reason for reason in response.json()["reasons"])


async def test_unknown_path__is_404_in_the_same_shape(relayer: Relayer) -> None:
    assert error_of(await relayer.client.get("/v2/network"), 404)["code"] == "NO_SUCH_PATH"
    assert error_of(await relayer.client.delete("/v1/network"), 405)["code"] == "METHOD_NOT_ALLOWED"


async def test_every_answer__has_security_headers(relayer: Relayer) -> None:
    for path in ("/v1/network", "/nowhere"):
        headers = (await relayer.client.get(path)).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"


async def test_body_too_large__declared_or_not__is_refused(relayer: Relayer) -> None:
    async def endless() -> Any:
        for _ in range(40):
            yield b"x" * 65_536

    declared = await relayer.client.post("/v1/requests/draft", content=b"x" * (1024 * 1024 + 1))
    assert error_of(declared, 413)["code"] == "PAYLOAD_TOO_LARGE"
    streamed = await relayer.client.put(
        "/v1/payloads/0x" + "00" * 32, params={"requester": RELAYER_SIGNER.address}, content=endless()
    )
    assert error_of(streamed, 413)["code"] == "PAYLOAD_TOO_LARGE"


async def test_cors__only_named_origins(relayer: Relayer) -> None:
    context = replace(relayer.context, cors_origins=("https://app.example",))
    transport = httpx.ASGITransport(create_app(context))
    async with httpx.AsyncClient(transport=transport, base_url="http://relayer") as client:
        friend = await client.get("/healthz", headers={"Origin": "https://app.example"})
        stranger = await client.get("/healthz", headers={"Origin": "https://evil.example"})
    assert friend.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in stranger.headers
