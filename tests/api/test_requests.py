"""Requests: their timeline, their lists, their proof and their release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.core import typed_data
from headrace.core.calls import cancel_with_release_data
from headrace.core.errors import ChainUnavailable
from headrace.core.lifecycle import RequestState
from headrace.core.types import ZERO_ADDRESS, Decision, DecisionKind, Reason
from headrace.ports import Call, StoredIntent, TimelineEntry
from tests.api.world import (
    NODE_SIGNER,
    RELAYER_SIGNER,
    REQUESTER_SIGNER,
    STRANGER_SIGNER,
    TRANSACTION,
    Relayer,
    error_of,
)
from tests.fakes import MARKET, START_S, make_request

NOW_MS = START_S * 1000


def stages(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {stage["stage"]: stage for stage in body["stages"]}


def reached(body: dict[str, Any]) -> list[str]:
    return [stage["stage"] for stage in body["stages"] if stage["reached"]]


async def view(relayer: Relayer, request_id: str) -> dict[str, Any]:
    response = await relayer.client.get(f"/v1/requests/{request_id}")
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_get_request__included__has_block_and_transaction(relayer: Relayer) -> None:
    stored = relayer.add_request(state=RequestState.INCLUDED)
    body = await view(relayer, stored.request_id)
    assert reached(body) == ["sent", "included"]
    assert stages(body)["sent"]["transaction_hash"] == TRANSACTION
    assert stages(body)["included"]["block_number"] == 1
    assert body["refund_from_s"] == stored.effective_deadline_s + 300
    assert body["model_name"] == "smollm2-135m-instruct"
    assert body["settlement"] is None


async def test_get_request__waiting__says_why(relayer: Relayer) -> None:
    stored = relayer.add_request()
    relayer.store.entries[stored.request_id] = [TimelineEntry(NOW_MS, "eligible", {})]
    relayer.store.decisions[stored.request_id] = Decision(
        stored.request_id, ZERO_ADDRESS, DecisionKind.SKIPPED, Reason.NODES_BUSY, 0, 0
    )
    body = await view(relayer, stored.request_id)
    assert reached(body) == ["sent", "included", "eligible", "queued"]
    assert stages(body)["queued"]["note"] == "NODES_BUSY"
    assert body["why_unassigned"].startswith("Every node that could take it works at its limit")
    assert body["decision"] == {
        "request_id": stored.request_id,
        "node": None,
        "kind": "skipped",
        "reason": "NODES_BUSY",
        "reward_wei": "0",
        "supersedes_round": 0,
    }


async def test_get_request__cancel__says_when_it_takes_effect(relayer: Relayer) -> None:
    body = await view(relayer, relayer.add_request().request_id)
    assert (body["cancel_announced_at_s"], body["released_until_s"]) == (None, None)
    stored = relayer.add_request(effective_deadline_s=START_S + 5, released_until_s=START_S + 60)
    body = await view(relayer, stored.request_id)
    assert (body["cancel_announced_at_s"], body["released_until_s"]) == (START_S + 5, START_S + 60)
    assert body["refund_from_s"] == START_S + 5 + 300


async def test_get_request__settled__adds_up_to_the_wei(relayer: Relayer) -> None:
    stored = relayer.add_request()
    result = await relayer.answer(stored, b"Because of Rayleigh scattering.")
    relayer.store.entries[stored.request_id] = [
        TimelineEntry(NOW_MS + at, stage, {"reward_wei": 1 << 60})
        for at, stage in enumerate(("included", "eligible", "assigned", "computing", "signed", "settling"))
    ]
    relayer.store.decisions[stored.request_id] = Decision(
        stored.request_id, NODE_SIGNER.address, DecisionKind.ASSIGNED, Reason.LOWEST_COST, 10**13, 0
    )
    relayer.settle(stored, result.result.result_hash)
    relayer.store.intents["0x" + "7b" * 32] = StoredIntent(
        1,
        "submit_results",
        "k",
        {"request_ids": [stored.request_id, "x"]},
        Call(MARKET, b""),
        1,
        0,
        "included",
        (),
        2,
        0,
    )
    body = await view(relayer, stored.request_id)
    assert reached(body) == [
        "sent",
        "included",
        "eligible",
        "queued",
        "assigned",
        "computing",
        "signed",
        "settled",
        "final",
    ]
    assert stages(body)["settled"]["at_ms"] == relayer.store.blocks[2].timestamp_s * 1000
    settlement = body["settlement"]
    assert settlement["batch_size"] == 2
    paid = sum(int(settlement[f"{who}_wei"]) for who in ("node", "relayer", "refund"))
    assert paid == stored.request.escrow_wei == int(body["escrow_wei"])
    assert body["result"]["result_hash"] == result.result.result_hash
    assert body["assignments"][0]["state"] == "delivered"
    assert body["events"][0]["detail"] == {"reward_wei": str(1 << 60)}


async def test_get_request__settled_in_the_last_block__is_not_final(relayer: Relayer) -> None:
    stored = relayer.add_request()
    result = await relayer.answer(stored, b"x")
    relayer.settle(stored, result.result.result_hash, block=3)
    assert "final" not in reached(await view(relayer, stored.request_id))


@pytest.mark.parametrize("state", [RequestState.EXPIRED, RequestState.CANCELLED])
async def test_get_request__closed_without_answer__shows_the_refund(relayer: Relayer, state: RequestState) -> None:
    stored = relayer.add_request()
    closed = {"refund": 5, "status": 6, "transaction_hash": "0x" + "7c" * 32, "block_number": 2}
    relayer.store.all_requests[stored.request_id] = replace(stored, state=state, closed=closed)
    relayer.store.entries[stored.request_id] = [TimelineEntry(NOW_MS, "eligible", {})]
    body = await view(relayer, stored.request_id)
    assert reached(body) == ["sent", "included", "eligible", "closed", "final"]
    assert body["settlement"]["outcome"] == state
    assert body["settlement"]["refund_wei"] == "5"


async def test_get_request__withdrawn_by_a_reorg__is_only_sent(relayer: Relayer) -> None:
    stored = relayer.add_request(state=RequestState.WITHDRAWN)
    assert reached(await view(relayer, stored.request_id)) == ["sent"]


@pytest.mark.parametrize("request_id", ["1", "0x12", "0x" + "zz" * 32, "0x" + "00" * 33])
async def test_get_request__malformed_id__is_400(relayer: Relayer, request_id: str) -> None:
    assert error_of(await relayer.client.get(f"/v1/requests/{request_id}"), 400)["code"] == "INVALID_INPUT"


async def test_get_request__unknown_id__is_404(relayer: Relayer) -> None:
    assert error_of(await relayer.client.get("/v1/requests/0x" + "ab" * 32), 404)["code"] == "NOT_FOUND"


async def test_get_request__upper_case_id__is_the_same(relayer: Relayer) -> None:
    stored = relayer.add_request()
    upper = "0x" + stored.request_id[2:].upper()
    assert (await view(relayer, upper))["request_id"] == stored.request_id


# Lists


async def test_list_requests__pages__never_lose_or_repeat_one(relayer: Relayer) -> None:
    sizes = {1: 1, 2: 3, 3: 1}
    expected = set()
    for block, size in sizes.items():
        for salt in range(size):
            request = make_request(salt=100 * block + salt, requester=REQUESTER_SIGNER.address)
            expected.add(relayer.add_request(request, block_number=block).request_id)
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    for _ in range(10):
        page = (await relayer.client.get("/v1/requests", params=query)).json()
        seen += [each["request_id"] for each in page["requests"]]
        if page["next_before_block"] is None:
            break
        query["before_block"] = page["next_before_block"]
    assert len(seen) == len(set(seen))
    assert set(seen) == expected


async def test_list_requests__filters__by_requester_and_state(relayer: Relayer) -> None:
    mine = relayer.add_request()
    relayer.add_request(make_request(salt=9))
    relayer.add_request(make_request(salt=10, requester=REQUESTER_SIGNER.address), state=RequestState.EXPIRED)
    query = {"requester": REQUESTER_SIGNER.address.upper().replace("0X", "0x"), "state": "eligible"}
    page = (await relayer.client.get("/v1/requests", params=query)).json()
    assert [each["request_id"] for each in page["requests"]] == [mine.request_id]


async def test_list_requests__chain_does_not_answer__is_without_names(relayer: Relayer) -> None:
    stored = relayer.add_request()
    relayer.chain.fail("models", ChainUnavailable("away"))
    (each,) = (await relayer.client.get("/v1/requests")).json()["requests"]
    assert (each["model_name"], each["prompt_hash"]) == ("", stored.request.prompt_hash)
    (each,) = (await relayer.client.get("/v1/requests")).json()["requests"]
    assert each["model_name"] == "smollm2-135m-instruct"


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 501}, {"state": "lost"}, {"requester": "me"}])
async def test_list_requests__bad_query__is_400(relayer: Relayer, query: dict[str, Any]) -> None:
    error_of(await relayer.client.get("/v1/requests", params=query), 400)


# Proofs


async def test_result_proof__settled__has_the_digests_preimage(relayer: Relayer) -> None:
    stored = relayer.add_request()
    result = await relayer.answer(stored, b"Because.")
    relayer.settle(stored, result.result.result_hash)
    body = (await relayer.client.get(f"/v1/requests/{stored.request_id}/result-proof")).json()
    assert body["ref"] == {
        "result_hash": result.result.result_hash,
        "relayer": RELAYER_SIGNER.address,
        "round": 1,
        "nodes": [NODE_SIGNER.address],
        "settled_at_s": relayer.store.blocks[2].timestamp_s,
    }


async def test_result_proof__not_settled__is_409(relayer: Relayer) -> None:
    stored = relayer.add_request()
    await relayer.answer(stored, b"Because.")
    response = await relayer.client.get(f"/v1/requests/{stored.request_id}/result-proof")
    assert error_of(response, 409)["code"] == "NOT_SETTLED"


async def test_result_proof__settled_with_another_result__is_404(relayer: Relayer) -> None:
    stored = relayer.add_request()
    await relayer.answer(stored, b"Because.")
    relayer.settle(stored, "0x" + "99" * 32)
    error_of(await relayer.client.get(f"/v1/requests/{stored.request_id}/result-proof"), 404)


# Releases


async def test_release__unassigned__is_held_signed_and_noted(relayer: Relayer) -> None:
    stored = relayer.add_request()
    response = await relayer.client.post(
        f"/v1/requests/{stored.request_id}/release", headers=relayer.headers(REQUESTER_SIGNER)
    )
    assert response.status_code == 200, response.text
    body = response.json()
    until_s, signature = body["valid_until_s"], bytes.fromhex(body["signature"][2:])
    digest = typed_data.digest(typed_data.Domain(31337, MARKET), typed_data.hash_release(stored.request_id, until_s))
    assert typed_data.signer_of(digest, signature) == RELAYER_SIGNER.address
    assert relayer.held[stored.request_id] > until_s * 1000
    expected = cancel_with_release_data(stored.request, until_s, signature)
    assert body["transaction"]["data"] == "0x" + expected.hex()


async def test_release__assigned__is_refused(relayer: Relayer) -> None:
    stored = relayer.add_request()
    relayer.assign(stored)
    response = await relayer.client.post(
        f"/v1/requests/{stored.request_id}/release", headers=relayer.headers(REQUESTER_SIGNER)
    )
    assert error_of(response, 409)["code"] == "ALREADY_ASSIGNED"


async def test_release__closed__is_refused(relayer: Relayer) -> None:
    stored = relayer.add_request(state=RequestState.EXPIRED)
    response = await relayer.client.post(
        f"/v1/requests/{stored.request_id}/release", headers=relayer.headers(REQUESTER_SIGNER)
    )
    error_of(response, 409)


async def test_release__not_the_requester__is_403(relayer: Relayer) -> None:
    stored = relayer.add_request()
    path = f"/v1/requests/{stored.request_id}/release"
    error_of(await relayer.client.post(path, headers=relayer.headers(STRANGER_SIGNER)), 403)
    error_of(await relayer.client.post(path), 401)
    assert relayer.held == {}


async def test_release__request_of_another_relayer__is_403(relayer: Relayer) -> None:
    stored = relayer.add_request(make_request(requester=REQUESTER_SIGNER.address))
    response = await relayer.client.post(
        f"/v1/requests/{stored.request_id}/release", headers=relayer.headers(REQUESTER_SIGNER)
    )
    error_of(response, 403)
