"""Requests that their requesters only sign: handed in, followed from "submitted" on, listed, and refused in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from headrace.api import create_app, schemas
from headrace.core import typed_data
from headrace.core.envelope import hash_payload, seal
from headrace.core.errors import ChainUnavailable
from headrace.core.lifecycle import RequestState
from headrace.core.postings import PostingState
from headrace.core.types import Request
from headrace.services.intake import Intake, IntakeSettings
from tests.api.world import MODEL, RELAYER_SIGNER, REQUESTER_SIGNER, STRANGER_SIGNER, Relayer, error_of
from tests.fakes import MARKET, START_S, FakeMetrics, FakeSigner

PROMPT = seal(b"Why is the sky blue?", bytes(16))
FEE_WEI = 10**15
DOMAIN = typed_data.Domain(31337, MARKET)


@pytest.fixture(autouse=True)
def credit(relayer: Relayer) -> None:
    """The requester has credit in the market and no wei to send a transaction with."""
    relayer.chain.credits[REQUESTER_SIGNER.address] = 10**18
    relayer.chain.balances[REQUESTER_SIGNER.address] = 0


async def draft(relayer: Relayer, **changes: Any) -> dict[str, Any]:
    wanted = {
        "requester": REQUESTER_SIGNER.address,
        "model": MODEL.name,
        "prompt": "Why is the sky blue?",
        "ttl_s": 300,
    }
    response = await relayer.client.post("/v1/requests/draft", json={**wanted, **changes})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def signed(drafted: dict[str, Any], signer: FakeSigner = REQUESTER_SIGNER, **changes: Any) -> dict[str, Any]:
    """The body of a hand-in, signed as a wallet signs the draft's document."""
    signing = drafted["gasless"]
    document = encode_typed_data(full_message=signing["typed_data"])
    signature = Account.sign_message(document, signer._key.to_bytes()).signature
    body = {
        "params": drafted["params"],
        "requester": REQUESTER_SIGNER.address,
        "relayer_fee_wei": signing["relayer_fee_wei"],
        "valid_until_s": signing["valid_until_s"],
        "signature": "0x" + bytes(signature).hex(),
    }
    return {**body, **changes}


def resigned(drafted: dict[str, Any], fee_wei: int, **params: Any) -> dict[str, Any]:
    """Signed for another fee, or other terms."""
    changed = {**drafted, "params": {**drafted["params"], **params}}
    message = changed["gasless"]["typed_data"]["message"]
    message["relayerFee"] = str(fee_wei)
    changed["gasless"]["relayer_fee_wei"] = str(fee_wei)
    return signed(changed)


async def submit(relayer: Relayer, body: dict[str, Any]) -> httpx.Response:
    return await relayer.client.post("/v1/requests", json=body)


async def view(relayer: Relayer, id_: str) -> dict[str, Any]:
    response = await relayer.client.get(f"/v1/requests/{id_}")
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def reached(body: dict[str, Any]) -> list[str]:
    return [stage["stage"] for stage in body["stages"] if stage["reached"]]


def request_of(relayer: Relayer, id_: str) -> Request:
    return relayer.store.all_postings[id_].request


# Terms


async def test_network__posts_for_others__says_the_least_fee_of_now(relayer: Relayer) -> None:
    gasless = (await relayer.client.get("/v1/network")).json()["gasless"]
    floor_wei = 77_500 * relayer.chain.gas.price_wei * 12 // 10
    expected = {"fee_margin_bps": 12_000, "max_open": 200, "max_open_per_requester": 8}
    assert gasless == {"relayer_fee_floor_wei": str(floor_wei), **expected}


async def test_network__chain_down__is_told_without_the_fee(relayer: Relayer) -> None:
    await relayer.client.get("/v1/network")
    relayer.clock.advance(5_000)
    relayer.chain.fail("gas_quote", ChainUnavailable("down"))
    response = await relayer.client.get("/v1/network")
    assert response.status_code == 200
    assert response.json()["gasless"]["relayer_fee_floor_wei"] is None


async def test_draft__has_a_fee_with_room_and_the_document_to_sign(relayer: Relayer) -> None:
    drafted = await draft(relayer)
    signing = drafted["gasless"]
    floor_wei = int((await relayer.client.get("/v1/network")).json()["gasless"]["relayer_fee_floor_wei"])
    assert int(signing["relayer_fee_wei"]) == floor_wei * 125 // 100
    assert signing["valid_until_s"] == START_S + 290
    message = signing["typed_data"]["message"]
    assert message["requester"] == REQUESTER_SIGNER.address
    assert message["params"]["promptHash"] == drafted["params"]["prompt_hash"]
    assert message["relayerFee"] == signing["relayer_fee_wei"]


async def test_draft__published_prompt__has_a_fee_by_its_bytes(relayer: Relayer) -> None:
    fees = [int((await draft(relayer, public=public))["gasless"]["relayer_fee_wei"]) for public in (False, True)]
    assert fees[1] > fees[0]


@pytest.mark.parametrize("is_wired", [True, False])
async def test_posting_for_nobody__is_said_everywhere(relayer: Relayer, is_wired: bool) -> None:
    drafted = await draft(relayer)
    settings = IntakeSettings(max_open=0)
    address, terms = RELAYER_SIGNER.address, relayer.chain.terms
    intake = Intake(
        relayer.chain,
        relayer.store,  # type: ignore[arg-type]
        relayer.clock,
        FakeMetrics(),
        address,
        terms,
        lambda: None,
        settings,
    )
    app = create_app(replace(relayer.context, intake=intake if is_wired else None))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relayer") as client:
        assert (await client.get("/v1/network")).json()["gasless"] is None
        wanted = {"requester": REQUESTER_SIGNER.address, "model": MODEL.name, "prompt": "Hi"}
        assert (await client.post("/v1/requests/draft", json=wanted)).json()["gasless"] is None
        error = error_of(await client.post("/v1/requests", json=signed(drafted)), 409)
        assert error["code"] == "GASLESS_NOT_OFFERED"


# Handing in


async def test_submit__signed_by_a_wallet__is_202_and_seen_from_submitted_on(relayer: Relayer) -> None:
    drafted = await draft(relayer)
    response = await submit(relayer, signed(drafted))
    assert response.status_code == 202, response.text
    assert response.json()["request_id"] == drafted["request_id"]
    assert response.json()["state"] == "submitted"
    body = await view(relayer, drafted["request_id"])
    assert (body["state"], reached(body)) == ("submitted", ["submitted"])
    assert (body["block_number"], body["transaction_hash"], body["included_at_s"]) == (None, None, None)
    assert body["params"] == drafted["params"]
    assert body["request"] == drafted["request"]
    assert body["escrow_wei"] == drafted["escrow_wei"]
    assert body["model_name"] == MODEL.name
    assert body["posting"] == {
        "submitted_at_ms": START_S * 1000,
        "relayer_fee_wei": drafted["gasless"]["relayer_fee_wei"],
        "valid_until_s": drafted["gasless"]["valid_until_s"],
        "reason": "",
    }


async def test_submit__again__is_the_same_answer(relayer: Relayer) -> None:
    body = signed(await draft(relayer))
    first, second = [(await submit(relayer, body)).json() for _ in range(2)]
    assert first == second
    assert len(relayer.store.all_postings) == 1


async def test_get_request__sent_and_included__goes_on_like_any_other(relayer: Relayer) -> None:
    drafted = await draft(relayer)
    await submit(relayer, signed(drafted))
    id_ = drafted["request_id"]
    sent = replace(relayer.store.all_postings[id_], intent_state="open", transaction_hash="0x" + "7d" * 32)
    relayer.store.all_postings[id_] = sent
    body = await view(relayer, id_)
    assert (body["state"], reached(body), body["transaction_hash"]) == (
        "submitted",
        ["submitted", "sent"],
        "0x" + "7d" * 32,
    )
    relayer.store.all_postings[id_] = replace(sent, state=PostingState.POSTED)
    assert (await view(relayer, id_))["state"] == "submitted", "its block is not indexed yet"
    relayer.add_request(request_of(relayer, id_), state=RequestState.INCLUDED)
    body = await view(relayer, id_)
    assert (body["state"], reached(body)) == ("included", ["submitted", "sent", "included"])
    assert body["posting"]["reason"] == ""


async def test_get_request__sent_by_its_requester__has_no_posting(relayer: Relayer) -> None:
    body = await view(relayer, relayer.add_request().request_id)
    assert body["posting"] is None
    assert "submitted" not in [stage["stage"] for stage in body["stages"]]


async def test_get_request__unposted__says_why(relayer: Relayer) -> None:
    drafted = await draft(relayer)
    await submit(relayer, signed(drafted))
    id_ = drafted["request_id"]
    relayer.store.all_postings[id_] = replace(
        relayer.store.all_postings[id_],
        state=PostingState.UNPOSTED,
        reason="Its credit is spent.",
        ended_at_ms=START_S * 1000 + 7,
    )
    body = await view(relayer, id_)
    assert (body["state"], reached(body)) == ("unposted", ["submitted", "closed"])
    assert body["stages"][-1]["at_ms"] == START_S * 1000 + 7
    assert body["posting"]["reason"] == "Its credit is spent."
    assert body["settlement"] is None
    again = (await submit(relayer, signed(drafted))).json()
    assert again["state"] == "submitted"


@pytest.mark.parametrize("path", ["result-proof", "release"])
async def test_submitted__what_needs_a_block__is_not_yet(relayer: Relayer, path: str) -> None:
    drafted = await draft(relayer)
    await submit(relayer, signed(drafted))
    method = "POST" if path == "release" else "GET"
    url = f"/v1/requests/{drafted['request_id']}/{path}"
    response = await relayer.client.request(method, url, headers=relayer.headers(REQUESTER_SIGNER))
    assert error_of(response, 409)["code"] == "NOT_POSTED"


# Prompts


@pytest.mark.parametrize("form", ["prompt", "payload"])
async def test_submit__prompt_in_the_body__is_kept_for_its_requester(relayer: Relayer, form: str) -> None:
    payload = b"Why is the sky red?" if form == "prompt" else seal(b"Why is the sky red?", bytes(16))
    drafted = await draft(relayer)
    params = {"prompt_hash": hash_payload(payload), "prompt_bytes": len(payload)}
    message = drafted["gasless"]["typed_data"]["message"]["params"]
    message |= {"promptHash": params["prompt_hash"], "promptBytes": str(len(payload))}
    given = {"prompt": payload.decode()} if form == "prompt" else {"payload": "0x" + payload.hex()}
    body = signed({**drafted, "params": {**drafted["params"], **params}}, **given)
    response = await submit(relayer, body)
    assert response.status_code == 202, response.text
    assert relayer.store.payloads[hash_payload(payload)] == payload
    assert (hash_payload(payload), REQUESTER_SIGNER.address) in relayer.store.holders


async def test_submit__prompt_of_nobody__is_asked_for(relayer: Relayer) -> None:
    body = signed(await draft(relayer))
    relayer.store.holders.clear()
    error = error_of(await submit(relayer, body), 409)
    assert error["code"] == "PROMPT_MISSING"
    assert "PUT /v1/payloads" in error["hint"]


async def test_submit__refused__keeps_no_prompt(relayer: Relayer) -> None:
    drafted = await draft(relayer)
    relayer.store.payloads.clear()
    relayer.store.holders.clear()
    relayer.chain.credits.clear()
    body = signed(drafted, payload=drafted["payload"])
    assert error_of(await submit(relayer, body), 402)["code"] == "CREDIT_SHORT"
    assert (relayer.store.payloads, relayer.store.holders) == ({}, set())


# Refused


async def test_submit__credit_short__says_how_to_add_to_it(relayer: Relayer) -> None:
    drafted = await draft(relayer)
    relayer.chain.credits[REQUESTER_SIGNER.address] = 0
    error = error_of(await submit(relayer, signed(drafted)), 402)
    cost_wei = int(drafted["escrow_wei"]) + int(drafted["gasless"]["relayer_fee_wei"])
    assert f"deposit {cost_wei} wei more" in error["message"]
    assert "headrace credit deposit" in error["hint"]


async def test_submit__fee_below_the_floor__says_what_would_do(relayer: Relayer) -> None:
    drafted = await draft(relayer)
    floor_wei = int((await relayer.client.get("/v1/network")).json()["gasless"]["relayer_fee_floor_wei"])
    error = error_of(await submit(relayer, resigned(drafted, floor_wei - 1)), 402)
    assert error["code"] == "RELAYER_FEE_TOO_LOW"
    assert str(floor_wei) in error["message"]
    assert (await submit(relayer, resigned(drafted, floor_wei))).status_code == 202


async def test_submit__signed_by_a_stranger__is_refused(relayer: Relayer) -> None:
    error = error_of(await submit(relayer, signed(await draft(relayer), STRANGER_SIGNER)), 400)
    assert error["code"] == "SIGNATURE_MISMATCH"
    assert "RequestFor" in error["hint"]


async def test_submit__posted_by_its_requester__exists(relayer: Relayer) -> None:
    drafted = await draft(relayer)
    body = signed(drafted)
    await submit(relayer, body)
    request = request_of(relayer, drafted["request_id"])
    relayer.store.all_postings.clear()
    relayer.add_request(request)
    assert error_of(await submit(relayer, body), 409)["code"] == "REQUEST_EXISTS"


async def test_submit__too_many_wait__is_429_with_a_time(relayer: Relayer) -> None:
    for _ in range(8):
        assert (await submit(relayer, signed(await draft(relayer)))).status_code == 202
    response = await submit(relayer, signed(await draft(relayer)))
    assert error_of(response, 429)["code"] == "QUEUE_FULL"
    assert response.headers["Retry-After"].isdecimal()


async def test_submit__chain_down__is_503_with_a_time(relayer: Relayer) -> None:
    body = signed(await draft(relayer))
    relayer.chain.fail("simulate", ChainUnavailable("http://secret refused"))
    response = await submit(relayer, body)
    assert error_of(response, 503)["code"] == "CHAIN_UNAVAILABLE"
    assert response.headers["Retry-After"].isdecimal()
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": "Hi", "payload": "0x01"}, "give either prompt or payload"),
        ({"relayer_fee_wei": str(2**96)}, "must fit into 96 bits"),
        ({"relayer_fee_wei": "-1"}, "relayer_fee_wei"),
        ({"valid_until_s": 2**40}, "valid_until_s"),
        ({"signature": "0x1"}, "signature"),
        ({"signature": "0x" + "00" * 4097}, "signature"),
        ({"requester": "me"}, "requester"),
        ({"surprise": 1}, "surprise"),
        ({"payload": "0x"}, "empty"),
    ],
)
async def test_submit__malformed__says_what(relayer: Relayer, changes: dict[str, Any], words: str) -> None:
    error = error_of(await submit(relayer, signed(await draft(relayer), **changes)), 400)
    assert words in error["message"].lower()


@pytest.mark.parametrize(
    ("param", "value", "words"),
    [
        ("salt", "-1", "salt"),
        ("salt", str(2**64), "salt is 18446744073709551616"),
        ("prompt_bytes", -1, "prompt_bytes is -1"),
        ("k", 256, "k is 256"),
        ("lane", "express", "lane"),
        ("mode", "trust", "mode"),
        ("max_reward_wei", str(2**80), "does not fit into 80 bits"),
    ],
)
async def test_submit__terms_out_of_range__say_which(relayer: Relayer, param: str, value: object, words: str) -> None:
    body = signed(await draft(relayer))
    body["params"][param] = value
    assert words in error_of(await submit(relayer, body), 400)["message"].lower()


async def test_submit__prompt_too_long__is_413(relayer: Relayer) -> None:
    body = signed(await draft(relayer), payload="0x" + "aa" * (256 * 1024 + 1))
    assert error_of(await submit(relayer, body), 413)["code"] == "PAYLOAD_TOO_LARGE"


# Lists


async def test_list__submitted__are_first_and_only_once(relayer: Relayer) -> None:
    waiting, included = [await draft(relayer) for _ in range(2)]
    for each in (waiting, included):
        await submit(relayer, signed(each))
    relayer.add_request(request_of(relayer, included["request_id"]), state=RequestState.INCLUDED)
    listed = (await relayer.client.get("/v1/requests", params={"requester": REQUESTER_SIGNER.address})).json()[
        "requests"
    ]
    assert [(each["request_id"], each["state"]) for each in listed] == [
        (waiting["request_id"], "submitted"),
        (included["request_id"], "included"),
    ]
    others = (await relayer.client.get("/v1/requests", params={"requester": RELAYER_SIGNER.address})).json()["requests"]
    assert others == []
    paged = (await relayer.client.get("/v1/requests", params={"before_block": 9})).json()["requests"]
    assert [each["state"] for each in paged] == ["included"]


async def test_list__unposted__only_when_it_is_asked_for(relayer: Relayer) -> None:
    drafted = await draft(relayer)
    await submit(relayer, signed(drafted))
    id_ = drafted["request_id"]
    ended = replace(relayer.store.all_postings[id_], state=PostingState.UNPOSTED, reason="No.")
    relayer.store.all_postings[id_] = ended
    assert (await relayer.client.get("/v1/requests")).json()["requests"] == []
    (only,) = (await relayer.client.get("/v1/requests", params={"state": "unposted"})).json()["requests"]
    assert (only["request_id"], only["state"]) == (id_, "unposted")
    response = await relayer.client.get("/v1/requests", params={"state": "posted"})
    assert error_of(response, 400)["code"] == "INVALID_INPUT"


# The description


async def test_openapi__example__is_valid(relayer: Relayer) -> None:
    document = (await relayer.client.get("/openapi.json")).json()
    for example in document["components"]["schemas"]["SubmitRequest"]["examples"]:
        schemas.SubmitRequest.model_validate(example)
    assert set(document["paths"]["/v1/requests"]) == {"get", "post"}
