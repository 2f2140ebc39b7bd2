"""Nodes: linked or registered, also when the chain is slow."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from headrace.api import create_app
from headrace.api.context import ApiLimits
from headrace.core.errors import ChainUnavailable
from tests.api.world import NODE_SIGNER, STRANGER_SIGNER, Relayer, error_of, linked_node
from tests.fakes import MODEL_ID, FakeSigner


async def test_list_nodes__linked__has_heartbeat_facts_and_offers(relayer: Relayer) -> None:
    body = (await relayer.client.get("/v1/nodes")).json()
    (node,) = body["nodes"]
    assert body["linked_count"] == 1
    assert node["key"] == NODE_SIGNER.address
    assert node["heartbeat"]["warm_models"] == [MODEL_ID]
    assert node["facts"]["stake_wei"] == str(10**18)
    assert node["offers"][0]["per_thousand_tokens_wei"] == str(10**13)


async def test_list_nodes__chain_fails_for_one__shows_null(relayer: Relayer) -> None:
    relayer.chain.fail("node_facts", ChainUnavailable("no"))
    (node,) = (await relayer.client.get("/v1/nodes")).json()["nodes"]
    assert (node["facts"], node["offers"]) == (None, None)
    assert node["heartbeat"] is not None


async def test_list_nodes__chain_hangs_for_one__shows_the_others(
    relayer: Relayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = FakeSigner(9)
    relayer.link.nodes.append(linked_node(slow))
    prompt_read = relayer.chain.node_facts

    async def node_facts(key: str) -> Any:
        if key == slow.address:
            await asyncio.Event().wait()
        return await prompt_read(key)

    monkeypatch.setattr(relayer.chain, "node_facts", node_facts)
    context = replace(relayer.context, limits=ApiLimits(chain_timeout_s=0.02))
    transport = httpx.ASGITransport(create_app(context))
    async with httpx.AsyncClient(transport=transport, base_url="http://relayer") as client:
        nodes = (await client.get("/v1/nodes")).json()["nodes"]
    assert {node["key"]: node["facts"] is None for node in nodes} == {NODE_SIGNER.address: False, slow.address: True}


async def test_list_nodes__nobody__is_empty(relayer: Relayer) -> None:
    relayer.link.nodes.clear()
    assert (await relayer.client.get("/v1/nodes")).json() == {"nodes": [], "linked_count": 0}


async def test_get_node__registered_but_not_linked__is_shown(relayer: Relayer) -> None:
    relayer.link.nodes.clear()
    body = (await relayer.client.get(f"/v1/nodes/{NODE_SIGNER.address}")).json()
    assert (body["linked"], body["heartbeat"]) == (False, None)
    assert body["facts"]["settled_count"] == 12


async def test_get_node__unknown__is_404_and_malformed_400(relayer: Relayer) -> None:
    error_of(await relayer.client.get(f"/v1/nodes/{STRANGER_SIGNER.address}"), 404)
    error_of(await relayer.client.get("/v1/nodes/0x12"), 400)


async def test_get_node__unknown_while_chain_is_down__is_503(relayer: Relayer) -> None:
    relayer.chain.fail("node_facts", ChainUnavailable("no"))
    error_of(await relayer.client.get(f"/v1/nodes/{STRANGER_SIGNER.address}"), 503)
