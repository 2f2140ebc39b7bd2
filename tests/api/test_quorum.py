"""A quorum as the API shows it: who was listed, what each of them signed, and the proof of what was settled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.core.lifecycle import RequestState
from headrace.core.scheduling import Offer
from headrace.core.types import ZERO_HASH, Mode, Price
from headrace.ports import StoredRequest
from tests.api.world import MODEL, NODE_SIGNER, RELAYER_SIGNER, REQUESTER_SIGNER, Relayer, error_of, linked_node
from tests.fakes import GWEI, MODEL_ID, FakeSigner, make_request

SECOND, THIRD = FakeSigner(71), FakeSigner(72)
GOOD, OTHER = b"\x01" + bytes(16) + b"Because.", b"\x01" + bytes(16) + b"Magic."


def posted(relayer: Relayer) -> StoredRequest:
    request = make_request(
        requester=REQUESTER_SIGNER.address, relayer=RELAYER_SIGNER.address, mode=Mode.QUORUM, k=2, n=3
    )
    return relayer.add_request(request, state=RequestState.COMPUTING)


def outvoted(relayer: Relayer) -> StoredRequest:
    """The first node said something else; round 2 has the other one with a spare."""
    stored = posted(relayer)
    relayer.answer_at_once(stored, OTHER, NODE_SIGNER.address)
    relayer.answer_at_once(stored, GOOD, SECOND.address)
    for node in (SECOND, THIRD):
        relayer.answer_at_once(stored, GOOD, node.address, 2)
    return stored


async def test_view__quorum__shows_its_nodes_and_what_each_signed(relayer: Relayer) -> None:
    stored = outvoted(relayer)
    body = (await relayer.client.get(f"/v1/requests/{stored.request_id}")).json()
    assert (body["params"]["mode"], body["params"]["k"], body["params"]["n"]) == ("quorum", 2, 3)
    assert [(each["round"], each["node"]) for each in body["assignments"]] == [
        (1, NODE_SIGNER.address),
        (1, SECOND.address),
        (2, SECOND.address),
        (2, THIRD.address),
    ]
    said = {(each["round"], each["node"]): each["result_hash"] for each in body["results"]}
    good, other = said[2, THIRD.address], said[1, NODE_SIGNER.address]
    assert good != other
    assert said == {
        (1, NODE_SIGNER.address): other,
        (1, SECOND.address): good,
        (2, SECOND.address): good,
        (2, THIRD.address): good,
    }
    assert (body["result"]["round"], body["result"]["result_hash"]) == (2, good)


async def test_view__not_all_agree_yet__has_votes_and_no_result(relayer: Relayer) -> None:
    stored = posted(relayer)
    relayer.answer_at_once(stored, GOOD, NODE_SIGNER.address)
    relayer.assign(stored, "accepted", SECOND.address)
    body = (await relayer.client.get(f"/v1/requests/{stored.request_id}")).json()
    assert body["result"] is None
    assert [each["node"] for each in body["results"]] == [NODE_SIGNER.address]


async def test_result_proof__quorum__names_all_nodes_that_were_paid(relayer: Relayer) -> None:
    stored = outvoted(relayer)
    result = await relayer.store.result(stored.request_id)
    assert result is not None
    relayer.settle(stored, result.result.result_hash)
    body = (await relayer.client.get(f"/v1/requests/{stored.request_id}/result-proof")).json()
    assert body["ref"]["nodes"] == sorted([SECOND.address, THIRD.address])
    assert (body["ref"]["round"], body["ref"]["result_hash"]) == (2, result.result.result_hash)


async def test_payload__of_a_quorums_answer__is_for_its_authors_before_it_is_settled(relayer: Relayer) -> None:
    stored = outvoted(relayer)
    result = await relayer.store.result(stored.request_id)
    assert result is not None
    path = f"/v1/payloads/{result.payload_hash}"
    for signer in (SECOND, THIRD):
        assert (await relayer.client.get(path, headers=relayer.headers(signer))).content == GOOD
    # Who said something else, and the requester, may have it once it is settled.
    for signer in (NODE_SIGNER, REQUESTER_SIGNER):
        error_of(await relayer.client.get(path, headers=relayer.headers(signer)), 409)
    relayer.settle(relayer.store.all_requests[stored.request_id], result.result.result_hash)
    assert (await relayer.client.get(path, headers=relayer.headers(REQUESTER_SIGNER))).content == GOOD


async def test_view__single_request__has_its_one_result_in_both_places(relayer: Relayer) -> None:
    stored = replace(relayer.add_request(), state=RequestState.SIGNED)
    await relayer.answer(stored, GOOD)
    body = (await relayer.client.get(f"/v1/requests/{stored.request_id}")).json()
    assert body["results"] == [body["result"]]


# Drafts


DRAFT = {
    "requester": REQUESTER_SIGNER.address,
    "model": MODEL.name,
    "prompt": "Why is the sky blue?",
    "ttl_s": 120,
    "k": 2,
    "n": 3,
}


def add_node(relayer: Relayer, signer: FakeSigner, price: Price, owner: str | None = None) -> None:
    relayer.link.nodes.append(linked_node(signer))
    facts = replace(relayer.chain.facts[NODE_SIGNER.address], key=signer.address, owner=owner or signer.address)
    relayer.chain.facts[signer.address] = facts
    relayer.chain.node_offers[signer.address] = [Offer(MODEL_ID, MODEL.name, price)]


async def draft(relayer: Relayer, **changes: Any) -> dict[str, Any]:
    wanted = {name: value for name, value in {**DRAFT, **changes}.items() if value is not None}
    response = await relayer.client.post("/v1/requests/draft", json=wanted)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_draft__quorum__covers_k_nodes_at_the_dearest_of_n(relayer: Relayer) -> None:
    add_node(relayer, SECOND, Price(0, 5 * 10**13))
    add_node(relayer, THIRD, Price(0, 3 * 10**13))
    add_node(relayer, FakeSigner(73), Price(0, 10**16))
    body = await draft(relayer)
    params = body["params"]
    assert (params["mode"], params["k"], params["n"]) == ("quorum", 2, 3)
    # The fourth is dearer than any that is needed.
    assert params["max_reward_wei"] == str(2 * 5 * 10**13)
    gas = 60_000 + 20_000 + 15_000
    assert params["gas_budget_wei"] == str(gas * 2 * GWEI * 3 // 2)
    assert body["obstacles"] == body["warnings"] == []


async def test_draft__quorum_of_dear_nodes_only__warns_of_a_low_maximum(relayer: Relayer) -> None:
    add_node(relayer, SECOND, Price(0, 5 * 10**13))
    add_node(relayer, THIRD, Price(0, 6 * 10**13))
    enough = await draft(relayer, max_reward_wei=str(2 * 5 * 10**13))
    assert enough["obstacles"] == []
    short = await draft(relayer, max_reward_wei=str(2 * 5 * 10**13 - 1))
    (obstacle,) = short["obstacles"]
    assert "the cheapest 2 ask for 100000000000000 wei together" in obstacle


async def test_draft__quorum__two_nodes_of_one_owner_are_not_enough(relayer: Relayer) -> None:
    add_node(relayer, SECOND, Price(0, 1), owner=relayer.chain.facts[NODE_SIGNER.address].owner)
    (obstacle,) = (await draft(relayer))["obstacles"]
    assert obstacle == "Its quorum needs 2 nodes of different owners, and 1 are linked."


async def test_draft__quorum_with_fewer_spares_than_it_may_ask__warns_only(relayer: Relayer) -> None:
    add_node(relayer, SECOND, Price(0, 1))
    body = await draft(relayer)
    assert body["obstacles"] == []
    (warning,) = body["warnings"]
    assert "Nodes of 2 owners are linked, and the quorum may ask 3" in warning
    assert (await draft(relayer, n=2))["warnings"] == []


@pytest.mark.parametrize("percent", [125, 124])
async def test_draft__quorum__gas_of_its_further_nodes_counts(relayer: Relayer, percent: int) -> None:
    add_node(relayer, SECOND, Price(0, 1))
    charge_wei = (60_000 // 8 + 20_000 + 15_000) * 2 * GWEI
    body = await draft(relayer, n=2, gas_budget_wei=str(charge_wei * percent // 100))
    assert len(body["obstacles"]) == (0 if percent == 125 else 1)


async def test_draft__quorum_of_a_chat_that_fixes_its_answer__is_drafted(relayer: Relayer) -> None:
    add_node(relayer, SECOND, Price(0, 1))
    assert (await draft(relayer, temperature=0, seed=7))["params"]["mode"] == "quorum"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k": None}, "both k and n"),
        ({"n": None}, "both k and n"),
        ({"k": 3, "n": 2}, "k at most n"),
        ({"k": 1, "n": 2}, "In k"),
        ({"k": 2, "n": 17}, "In n"),
        ({"verifier": "0x" + "a4" * 20}, "either a quorum or a verifier"),
        ({"temperature": 0.7, "seed": 1}, "its temperature is not 0"),
        ({"seed": 1}, "its temperature is not 0"),
        ({"temperature": 0}, "it has no seed"),
    ],
)
async def test_draft__quorum_that_cannot_be__is_one_clear_sentence(
    relayer: Relayer, changes: dict[str, Any], words: str
) -> None:
    wanted = {name: value for name, value in {**DRAFT, **changes}.items() if value is not None}
    error = error_of(await relayer.client.post("/v1/requests/draft", json=wanted), 400)
    assert words in error["message"]
    assert relayer.store.payloads == {}


async def test_draft__quorum_over_weights_that_nobody_knows__is_refused(relayer: Relayer) -> None:
    relayer.chain.registered_models = [replace(MODEL, weights_hash=ZERO_HASH)]
    error = error_of(await relayer.client.post("/v1/requests/draft", json=DRAFT), 400)
    assert "does not fix the weights" in error["message"]
