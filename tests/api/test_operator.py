"""What is the operator's only: metrics, and why the relayer is not ready."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from headrace.api import create_app
from headrace.api.context import OperatorDoor
from headrace.bootstrap.relayer_wiring import _operator_door
from headrace.settings import ApiSettings, RelayerSettings
from tests.api.world import RELAYER_SIGNER, Relayer, error_of

TOKEN = "a-token-of-the-operator"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@asynccontextmanager
async def door(relayer: Relayer, **fields: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(replace(relayer.context, operator=OperatorDoor(**fields)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relayer") as client:
        yield client


@pytest.mark.parametrize("header", [None, "Bearer", f"Bearer {TOKEN[:-1]}", f"bearer {TOKEN}", f"Bearer {TOKEN} ", "ä"])
async def test_metrics__without_the_token__are_401(relayer: Relayer, header: str | None) -> None:
    async with door(relayer, token=TOKEN) as client:
        response = await client.get("/metrics", headers={"Authorization": header.encode()} if header else {})
    assert error_of(response, 401)["code"] == "OPERATOR_ONLY"
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "headrace_up" not in response.text


async def test_metrics__with_the_token__are_shown(relayer: Relayer) -> None:
    async with door(relayer, token=TOKEN, is_private=False) as client:
        assert (await client.get("/metrics", headers=BEARER)).text == "headrace_up 1\n"


async def test_metrics__open_to_others_and_no_token__are_401(relayer: Relayer) -> None:
    async with door(relayer, is_private=False) as client:
        error_of(await client.get("/metrics", headers={"Authorization": "Bearer "}), 401)


async def test_readyz__not_the_operator__is_told_that_but_not_why(relayer: Relayer) -> None:
    relayer.chain.balances[RELAYER_SIGNER.address] = 5
    async with door(relayer, token=TOKEN) as client:
        public, own = await client.get("/readyz"), await client.get("/readyz", headers=BEARER)
    assert (public.status_code, own.status_code) == (503, 503)
    assert public.json() == {"ready": False, "reasons": ["The operator sees why, with its token."]}
    assert "has 5 wei" in own.json()["reasons"][0]


def test_operator_door__shown__hides_the_token() -> None:
    assert TOKEN not in repr(OperatorDoor(TOKEN))


@pytest.mark.parametrize(
    ("host", "proxies", "is_private"),
    [
        ("127.0.0.1", 0, True),
        ("::1", 0, True),
        ("localhost", 0, True),
        ("0.0.0.0", 0, False),
        ("203.0.113.7", 0, False),
        ("relayer.example", 0, False),
        ("127.0.0.1", 1, False),
    ],
)
def test_operator_door__no_token__is_open_on_the_loopback_only(host: str, proxies: int, is_private: bool) -> None:
    made = _operator_door(RelayerSettings(api_host=host, api=ApiSettings(trusted_proxies=proxies)))
    assert (made.is_private, made.token) == (is_private, "")


def test_operator_door__token__is_that_of_the_settings() -> None:
    made = _operator_door(RelayerSettings(api=ApiSettings(operator_token=SecretStr(TOKEN))))
    assert made.token == TOKEN
