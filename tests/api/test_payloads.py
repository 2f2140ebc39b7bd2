"""Payloads: stored under their hash, read by whom they concern, answers only once they are settled."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.envelope import hash_payload, seal
from headrace.core.errors import NoRoom
from headrace.core.lifecycle import RequestState
from headrace.ports import StoredRequest
from tests.api.test_drafts import DRAFT
from tests.api.world import NODE_SIGNER, RELAYER_SIGNER, REQUESTER_SIGNER, STRANGER_SIGNER, Relayer, error_of
from tests.fakes import FakeSigner, make_request

PROMPT = seal(b"Why is the sky blue?", bytes(16))
ANSWER = seal(b"Because of Rayleigh scattering.", bytes(range(16)))


FOR = {"requester": REQUESTER_SIGNER.address}


def path(payload: bytes) -> str:
    return f"/v1/payloads/{hash_payload(payload)}"


async def request_with_prompt(relayer: Relayer, **changes: Any) -> StoredRequest:
    await relayer.store.put_prompt(PROMPT, REQUESTER_SIGNER.address, 0)
    request = make_request(
        requester=REQUESTER_SIGNER.address, relayer=RELAYER_SIGNER.address, prompt_hash=hash_payload(PROMPT)
    )
    return relayer.add_request(request, **changes)


async def read(relayer: Relayer, payload: bytes, signer: FakeSigner, **sign_in: Any) -> Any:
    return await relayer.client.get(path(payload), headers=relayer.headers(signer, **sign_in))


async def test_put_payload__right_hash__is_stored_and_may_be_repeated(relayer: Relayer) -> None:
    for _ in range(2):
        response = await relayer.client.put(path(PROMPT), params=FOR, content=PROMPT)
        assert response.status_code == 201
        assert response.json() == {"payload_hash": hash_payload(PROMPT), "payload_bytes": len(PROMPT)}
    assert relayer.store.payloads == {hash_payload(PROMPT): PROMPT}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b" \n", "is empty"),
        (b'{"messages": []}', "a list of 1 to 256"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "must be text"),
        (b'{"messages": [{"role": "user", "content": "Hi"}], "tools": []}', "asks for tools"),
        (b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": 3}', "between 0 and 2"),
        (b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": NaN}', "no JSON"),
    ],
)
async def test_put_payload__no_node_would_take_it__is_refused_at_the_door(
    relayer: Relayer, content: bytes, says: str
) -> None:
    for payload in (content, seal(content, bytes(16))):
        error = error_of(await relayer.client.put(path(payload), params=FOR, content=payload), 400)
        assert error["code"] == "PROMPT_NOT_SERVED"
        assert says in error["message"]
    assert relayer.store.payloads == {}


@pytest.mark.parametrize(
    ("where", "payload", "status"),
    [
        (path(PROMPT), b"something else", 400),
        (path(b""), b"", 400),
        (path(b"\x01short"), b"\x01short", 400),
        (path(bytes(262_145)), bytes(262_145), 413),
        ("/v1/payloads/0x12", PROMPT, 400),
    ],
)
async def test_put_payload__wrong__is_refused(relayer: Relayer, where: str, payload: bytes, status: int) -> None:
    error_of(await relayer.client.put(where, params=FOR, content=payload), status)
    assert relayer.store.payloads == {}


async def test_get_payload__prompt__is_for_requester_and_assigned_node(relayer: Relayer) -> None:
    stored = await request_with_prompt(relayer)
    assert (await read(relayer, PROMPT, REQUESTER_SIGNER)).content == PROMPT
    error_of(await read(relayer, PROMPT, NODE_SIGNER), 403)
    relayer.assign(stored)
    response = await read(relayer, PROMPT, NODE_SIGNER)
    assert response.content == PROMPT
    assert response.headers["Cache-Control"] == "no-store"


async def test_put_payload_and_draft__no_room__are_asked_to_come_again(relayer: Relayer) -> None:
    def full(_: int) -> None:
        raise NoRoom("there is no room for more prompts now")

    object.__setattr__(relayer.context, "room", full)
    response = await relayer.client.put(path(PROMPT), params=FOR, content=PROMPT)
    assert error_of(response, 503)["code"] == "NO_ROOM"
    assert int(response.headers["Retry-After"]) > 0
    refused = error_of(await relayer.client.post("/v1/requests/draft", json=DRAFT), 503)
    assert (refused["code"], refused["message"]) == ("NO_ROOM", "There is no room for more prompts now.")
    assert relayer.store.payloads == {}


async def test_put_payload__nobody_named__is_refused(relayer: Relayer) -> None:
    error_of(await relayer.client.put(path(PROMPT), content=PROMPT), 400)


async def test_get_payload__request_that_only_names_a_strangers_prompt__gets_nothing(relayer: Relayer) -> None:
    await request_with_prompt(relayer)
    thief = make_request(
        requester=STRANGER_SIGNER.address, relayer=RELAYER_SIGNER.address, prompt_hash=hash_payload(PROMPT)
    )
    relayer.add_request(thief)
    error_of(await read(relayer, PROMPT, STRANGER_SIGNER), 403)


async def test_get_payload__answer_named_as_a_prompt__gets_nothing(relayer: Relayer) -> None:
    stored = await request_with_prompt(relayer, state=RequestState.SIGNED)
    result = await relayer.answer(stored, ANSWER)
    thief = make_request(
        requester=STRANGER_SIGNER.address, relayer=RELAYER_SIGNER.address, prompt_hash=result.result.result_hash
    )
    relayer.add_request(thief)
    error_of(await read(relayer, ANSWER, STRANGER_SIGNER), 403)
    relayer.settle(stored, result.result.result_hash)
    error_of(await read(relayer, ANSWER, STRANGER_SIGNER), 403)


async def test_get_payload__answer__waits_for_its_settlement(relayer: Relayer) -> None:
    stored = await request_with_prompt(relayer, state=RequestState.SIGNED)
    result = await relayer.answer(stored, ANSWER)
    assert error_of(await read(relayer, ANSWER, REQUESTER_SIGNER), 409)["code"] == "NOT_SETTLED"
    assert (await read(relayer, ANSWER, NODE_SIGNER)).content == ANSWER
    relayer.settle(stored, result.result.result_hash)
    assert (await read(relayer, ANSWER, REQUESTER_SIGNER)).content == ANSWER


async def test_get_payload__settled_with_another_answer__stays_closed(relayer: Relayer) -> None:
    stored = await request_with_prompt(relayer, state=RequestState.SIGNED)
    await relayer.answer(stored, ANSWER)
    relayer.settle(stored, "0x" + "99" * 32)
    error_of(await read(relayer, ANSWER, REQUESTER_SIGNER), 409)


async def test_get_payload__stranger__learns_nothing(relayer: Relayer) -> None:
    await request_with_prompt(relayer)
    known = error_of(await read(relayer, PROMPT, STRANGER_SIGNER), 403)
    unknown = error_of(await read(relayer, b"never seen", STRANGER_SIGNER), 403)
    assert known["code"] == unknown["code"] == "NOT_ALLOWED"


async def test_get_payload__never_handed_in__is_404(relayer: Relayer) -> None:
    await request_with_prompt(relayer)
    relayer.store.payloads.clear()
    error_of(await read(relayer, PROMPT, REQUESTER_SIGNER), 404)


@pytest.mark.parametrize(
    ("sign_in", "status", "code"),
    [
        ({"valid_for_s": -1}, 401, "SIGN_IN_REQUIRED"),
        ({"valid_for_s": 3_601}, 401, "SIGN_IN_REQUIRED"),
        ({"at_relayer": STRANGER_SIGNER.address}, 400, "SIGNATURE_MISMATCH"),
        ({"account": STRANGER_SIGNER.address}, 400, "SIGNATURE_MISMATCH"),
    ],
)
async def test_get_payload__sign_in_does_not_count__is_refused(
    relayer: Relayer, sign_in: dict[str, Any], status: int, code: str
) -> None:
    await request_with_prompt(relayer)
    assert error_of(await read(relayer, PROMPT, REQUESTER_SIGNER, **sign_in), status)["code"] == code


@pytest.mark.parametrize("header", [None, "", "Bearer x", "Headrace a:b:c", "Headrace 0x12:1:0x00"])
async def test_get_payload__no_sign_in__is_401(relayer: Relayer, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    response = await relayer.client.get(path(PROMPT), headers=headers)
    error = error_of(response, 401)
    assert error["code"] == "SIGN_IN_REQUIRED"
    assert ("another form than `Headrace <account>:<validUntil>:<signature>`" in error["message"]) == bool(header)
    assert response.headers["WWW-Authenticate"] == "Headrace"
