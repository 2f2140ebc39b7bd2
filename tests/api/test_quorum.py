"""A quorum as the API shows it: who was listed, what each of them signed, and the proof of what was settled."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.lifecycle import RequestState
from headrace.core.types import Mode
from headrace.ports import StoredRequest
from tests.api.world import NODE_SIGNER, RELAYER_SIGNER, REQUESTER_SIGNER, Relayer, error_of
from tests.fakes import FakeSigner, make_request

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
