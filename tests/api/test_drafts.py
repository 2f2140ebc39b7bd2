"""Drafts: a prompt becomes a request that the market takes, or a sentence that says why not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from headrace.api.app import create_app
from headrace.core.calls import request_inference_data
from headrace.core.envelope import content_of, hash_payload
from headrace.core.errors import ChainUnavailable
from headrace.core.requests import PackedRequest, request_id, unpack
from headrace.core.scheduling import Offer
from headrace.core.types import Lane, Price
from tests.api.world import MODEL, NODE_SIGNER, REQUESTER_SIGNER, Relayer, error_of, linked_node
from tests.fakes import GWEI, MARKET, MODEL_ID, START_S, FakeSigner

JSON = {"Content-Type": "application/json"}
DRAFT = {"requester": REQUESTER_SIGNER.address, "model": MODEL.name, "prompt": "Why is the sky blue?", "ttl_s": 120}


async def draft(relayer: Relayer, **changes: Any) -> dict[str, Any]:
    wanted = {name: value for name, value in {**DRAFT, **changes}.items() if value is not None}
    response = await relayer.client.post("/v1/requests/draft", json=wanted)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def packed_of(body: dict[str, Any]) -> PackedRequest:
    words = body["request"]
    return PackedRequest(
        words["requester"],
        words["relayer"],
        bytes.fromhex(words["model_id"][2:]),
        bytes.fromhex(words["prompt_hash"][2:]),
        int(words["amounts"]),
        int(words["terms"]),
        words["verifier"],
    )


async def test_draft__plain_prompt__is_a_request_that_can_be_sent(relayer: Relayer) -> None:
    body = await draft(relayer)
    request = unpack(packed_of(body))
    assert body["request_id"] == request_id(request, 31337, MARKET)
    assert body["escrow_wei"] == body["transaction"]["value_wei"] == str(request.escrow_wei)
    assert body["transaction"]["to"] == MARKET
    assert body["transaction"]["data"] == "0x" + request_inference_data(request, b"").hex()
    assert request.deadline_s == START_S + 120
    assert request.lane is Lane.BULK
    assert body["warnings"] == body["obstacles"] == []


async def test_draft__off_chain__stores_a_sealed_payload(relayer: Relayer) -> None:
    body = await draft(relayer)
    payload = relayer.store.payloads[body["params"]["prompt_hash"]]
    assert content_of(payload) == b"Why is the sky blue?"
    assert body["params"]["prompt_bytes"] == len(payload) == 37
    assert (await draft(relayer))["params"]["prompt_hash"] != body["params"]["prompt_hash"]


async def test_draft__public__puts_prompt_and_answer_on_chain(relayer: Relayer) -> None:
    body = await draft(relayer, public=True)
    assert body["params"]["inline_result"] is True
    assert body["params"]["prompt_hash"] == hash_payload(b"Why is the sky blue?")
    assert b"Why is the sky blue?".hex() in body["transaction"]["data"]


async def test_draft__auto_amounts__cover_prices_and_gas(relayer: Relayer) -> None:
    body = await draft(relayer, max_output_tokens=1500, lane="realtime")
    assert body["params"]["max_reward_wei"] == str(10**12 + 2 * 10**13)
    assert body["params"]["gas_budget_wei"] == str((60_000 + 20_000) * 2 * GWEI * 3 // 2)
    assert body["params"]["priority_fee_wei"] == str(10**12)


async def test_draft__dear_node_beside_a_cheap_one__caps_at_twice_the_cheapest(relayer: Relayer) -> None:
    other = FakeSigner(9)
    relayer.link.nodes.append(linked_node(other))
    relayer.chain.facts[other.address] = replace(relayer.chain.facts[NODE_SIGNER.address], key=other.address)
    relayer.chain.node_offers[other.address] = [Offer(MODEL_ID, MODEL.name, Price(0, 10**18))]
    assert (await draft(relayer))["params"]["max_reward_wei"] == str(2 * (10**12 + 10**13))


async def test_draft__chat__is_an_openai_body(relayer: Relayer) -> None:
    messages = [{"role": "user", "content": "Nenne drei Flüsse."}]
    body = await draft(relayer, prompt=None, messages=messages, temperature=0, seed=7)
    content = content_of(relayer.store.payloads[body["params"]["prompt_hash"]])
    assert json.loads(content) == {"messages": messages, "temperature": 0, "seed": 7}


async def test_draft__prompt_with_options__becomes_a_chat(relayer: Relayer) -> None:
    body = await draft(relayer, stop=["."])
    content = content_of(relayer.store.payloads[body["params"]["prompt_hash"]])
    assert json.loads(content)["messages"] == [{"role": "user", "content": "Why is the sky blue?"}]


async def test_draft__salt_and_deadline_given__are_kept(relayer: Relayer) -> None:
    body = await draft(relayer, salt="42", ttl_s=None, deadline_s=START_S + 77)
    assert (body["params"]["salt"], body["params"]["deadline_s"]) == ("42", START_S + 77)


async def test_draft__low_amounts__warns(relayer: Relayer) -> None:
    body = await draft(relayer, max_reward_wei="1", gas_budget_wei="1", priority_fee_wei="0", lane="realtime")
    assert len(body["warnings"]) == 3
    assert body["obstacles"] == body["warnings"][:2]


@pytest.mark.parametrize(("percent", "count"), [(125, 0), (124, 1)])
async def test_draft__gas_budget_near_the_charge__needs_a_margin(relayer: Relayer, percent: int, count: int) -> None:
    charge_wei = (60_000 // 8 + 20_000) * 2 * GWEI
    body = await draft(relayer, gas_budget_wei=str(charge_wei * percent // 100))
    assert len(body["obstacles"]) == count


async def test_draft__model_by_id__is_found(relayer: Relayer) -> None:
    assert (await draft(relayer, model=MODEL_ID.upper().replace("0X", "0x")))["params"]["model_id"] == MODEL_ID


@pytest.mark.parametrize(
    ("changes", "status", "code", "words"),
    [
        ({"model": "gpt-9"}, 400, "UNKNOWN_MODEL", MODEL.name),
        ({"ttl_s": 10}, 400, "DEADLINE_OUT_OF_RANGE", "15 to 86395 seconds"),
        ({"ttl_s": 86_400}, 400, "DEADLINE_OUT_OF_RANGE", "not 86400"),
        ({"ttl_s": None, "deadline_s": 5}, 400, "DEADLINE_OUT_OF_RANGE", "seconds from now"),
        ({"prompt": "x" * 8193, "public": True}, 413, "PROMPT_TOO_LONG", "at most 8192"),
        ({"prompt": "x" * 262_144}, 413, "PROMPT_TOO_LONG", "at most 262144"),
        ({"prompt": ""}, 400, "INVALID_INPUT", "prompt"),
        ({"prompt": "\x01x", "public": True}, 400, "INVALID_INPUT", "U+0001"),
        ({"prompt": "\ud800"}, 400, "INVALID_INPUT", ""),
        ({"prompt": None}, 400, "INVALID_INPUT", "either prompt or messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, 400, "INVALID_INPUT", "either prompt or messages"),
        ({"deadline_s": START_S + 60}, 400, "INVALID_INPUT", "either ttl_s or deadline_s"),
        ({"salt": str(1 << 64)}, 400, "INVALID_INPUT", "64 bits"),
        ({"max_output_tokens": 0}, 400, "INVALID_INPUT", "max_output_tokens"),
        ({"max_output_tokens": 32_769}, 400, "INVALID_INPUT", "at most 32768"),
        ({"max_reward_wei": "-1"}, 400, "INVALID_INPUT", "max_reward_wei"),
        ({"max_reward_wei": str(1 << 80)}, 400, "INVALID_INPUT", "80 bits"),
        ({"max_reward_wei": 5}, 400, "INVALID_INPUT", "max_reward_wei"),
        ({"lane": "express"}, 400, "INVALID_INPUT", "lane"),
        ({"requester": "0x12"}, 400, "INVALID_INPUT", "requester"),
        ({"colour": 1}, 400, "INVALID_INPUT", "colour"),
    ],
)
async def test_draft__bad_input__is_one_clear_sentence(
    relayer: Relayer, changes: dict[str, Any], status: int, code: str, words: str
) -> None:
    wanted = {name: value for name, value in {**DRAFT, **changes}.items() if value is not None}
    response = await relayer.client.post("/v1/requests/draft", content=json.dumps(wanted), headers=JSON)
    error = error_of(response, status)
    assert error["code"] == code
    assert words in error["message"]
    assert relayer.store.payloads == {}


async def test_draft__not_json__is_400(relayer: Relayer) -> None:
    headers = {"Content-Type": "application/json"}
    error_of(await relayer.client.post("/v1/requests/draft", content=b"{", headers=headers), 400)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_draft__not_called_json__is_415(relayer: Relayer, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    response = await relayer.client.post("/v1/requests/draft", content=b"{}", headers=headers)
    assert error_of(response, 415)["code"] == "UNSUPPORTED_TYPE"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
async def test_draft__nested_too_deeply__is_400(relayer: Relayer, encoding: str) -> None:
    body = ('{"a∀": "' + "x∀" * 9 + '", "b": ' + "[" * 100_000).encode(encoding)
    response = await relayer.client.post(
        "/v1/requests/draft", content=body, headers={"Content-Type": "application/json"}
    )
    assert "nested" in error_of(response, 400)["message"]


async def test_draft__nobody_linked__is_refused(relayer: Relayer) -> None:
    relayer.link.nodes.clear()
    error = error_of(await relayer.client.post("/v1/requests/draft", json=DRAFT), 409)
    assert error["code"] == "NO_NODE_FOR_MODEL"


async def test_draft__node_serves_but_offers_at_no_price__is_refused(relayer: Relayer) -> None:
    relayer.chain.node_offers[NODE_SIGNER.address] = []
    error = error_of(await relayer.client.post("/v1/requests/draft", json=DRAFT), 409)
    assert error["code"] == "NO_NODE_FOR_MODEL"


async def test_draft__node_that_leaves__is_not_counted(relayer: Relayer) -> None:
    facts = relayer.chain.facts
    facts[NODE_SIGNER.address] = replace(facts[NODE_SIGNER.address], is_active=False)
    error = error_of(await relayer.client.post("/v1/requests/draft", json=DRAFT), 409)
    assert error["code"] == "NO_NODE_FOR_MODEL"


async def test_draft__chain_does_not_tell_prices__is_503(relayer: Relayer) -> None:
    relayer.chain.fail("offers", ChainUnavailable("no"))
    error_of(await relayer.client.post("/v1/requests/draft", json=DRAFT), 503)


async def test_draft__model_registered_since__is_found(relayer: Relayer) -> None:
    await draft(relayer)
    relayer.clock.advance(5_000)
    new_id = "0x" + "e7" * 32
    relayer.chain.registered_models.append(MODEL.__class__(new_id, "newer", *list(_rest(MODEL))))
    relayer.link.nodes = [linked_node(models=(new_id,))]
    relayer.chain.node_offers[NODE_SIGNER.address] = [Offer(new_id, "newer", Price(1, 1))]
    assert (await draft(relayer, model="newer"))["params"]["model_id"] == new_id


def _rest(model: Any) -> list[Any]:
    return [getattr(model, name) for name in list(model.__dataclass_fields__)[2:]]


async def test_draft__relayer_without_a_bond__is_refused_with_what_to_do(relayer: Relayer) -> None:
    app = create_app(replace(relayer.context, has_bond=lambda: False))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relayer") as client:
        error = error_of(await client.post("/v1/requests/draft", json=DRAFT), 409)
    assert error["code"] == "RELAYER_NOT_BONDED"
    assert "ask another one" in error["message"]
    assert "answered or refunded" in error["hint"]
    assert not relayer.store.payloads
