"""The client against a relayer's real API: it asks, checks what it is told, waits and verifies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.client import ApiRefused, NoRelease, Untrue, WaitEnded, Wanted
from headrace.client.drafts import Network, checked_draft
from headrace.client.http import ApiCalls
from headrace.client.posted import posted_request
from headrace.core.calls import cancel_data, cancel_with_release_data, request_inference_data
from headrace.core.envelope import seal
from headrace.core.errors import NotAllowed, NotFound, Refused, Unavailable
from headrace.core.lifecycle import RequestState
from headrace.core.types import Lane, ResultRef
from tests.api.world import MODEL, NODE_SIGNER, RELAYER_SIGNER, REQUESTER_SIGNER, STRANGER_SIGNER
from tests.client.conftest import FakeSender, World, make_client
from tests.fakes import MARKET, MODEL_ID, START_S, make_request

WANTED = Wanted(model=MODEL.name, prompt="Why is the sky blue?", ttl_s=120)
ANSWER = seal(b"Because of Rayleigh scattering.", bytes(16))


class Verifier:
    def __init__(self, word: bool) -> None:
        self.word = word
        self.asked: list[tuple[str, ResultRef, bytes]] = []

    async def verify_result(self, request_id: str, ref: ResultRef, payload: bytes) -> bool:
        self.asked.append((request_id, ref, payload))
        return self.word


async def test_draft_and_send__sends_call_data_that_was_made_here(world: World) -> None:
    draft = await world.client.draft(WANTED)
    sender = FakeSender()
    assert await world.client.send(draft, sender) == "0x" + "7e" * 32
    (call,) = sender.calls
    assert (call.to, call.value_wei) == (MARKET, draft.request.escrow_wei)
    assert call.data == request_inference_data(draft.request, b"")
    assert draft.request.prompt_hash in world.relayer.store.payloads


async def test_draft__public_chat__matches_what_was_asked(world: World) -> None:
    messages = ({"role": "user", "content": "Name three rivers."},)
    wanted = Wanted(
        model=MODEL_ID,
        messages=messages,
        temperature=0.0,
        seed=7,
        public=True,
        lane=Lane.REALTIME,
        max_reward_wei=5,
        force=True,
    )
    draft = await world.client.draft(wanted)
    assert draft.request.inline_result
    assert draft.request.max_reward_wei == 5
    assert b"Name three rivers." in draft.call.data
    assert draft.warnings


async def test_draft__refused__has_the_apis_words(world: World) -> None:
    with pytest.raises(ApiRefused, match="No registered model is called 'gpt-9'") as refusal:
        await world.client.draft(replace(WANTED, model="gpt-9"))
    assert refusal.value.code == "UNKNOWN_MODEL"
    assert world.waits.slept_s == []


async def test_draft__amount_too_low__is_refused_unless_forced(world: World) -> None:
    with pytest.raises(Refused, match=r"The maximum reward is 5 wei.*--force"):
        await world.client.draft(replace(WANTED, max_reward_wei=5))
    assert (await world.client.draft(replace(WANTED, max_reward_wei=5, force=True))).request.max_reward_wei == 5


async def test_draft__dearer_than_allowed__is_not_signed(world: World) -> None:
    with pytest.raises(Untrue, match="more than the 10 wei that it may"):
        await world.client.draft(replace(WANTED, max_escrow_wei=10))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chain_id": 1}, "serves chain 31337"),
        ({"market": RELAYER_SIGNER.address}, "serves the market"),
    ],
)
async def test_network__of_another_chain__is_refused(world: World, changes: dict[str, Any], words: str) -> None:
    async with world.client_of(REQUESTER_SIGNER, **changes) as client:
        with pytest.raises(Untrue, match=words):
            await client.draft(WANTED)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("relayer", STRANGER_SIGNER.address),
        ("requester", STRANGER_SIGNER.address),
        ("model_id", "0x" + "99" * 32),
        ("prompt_hash", "0x" + "99" * 32),
        ("amounts", str(1)),
        ("terms", "0"),
    ],
)
async def test_checked_draft__relayer_says_something_else__is_untrue(world: World, field: str, value: str) -> None:
    wanted = replace(WANTED, max_reward_wei=10**13)
    response = await world.relayer.client.post("/v1/requests/draft", json=wanted.body(REQUESTER_SIGNER.address))
    body = response.json()
    body["request"][field] = value
    network = Network(31337, MARKET, RELAYER_SIGNER.address, 86_400)
    with pytest.raises(Untrue):
        checked_draft(wanted, body, network, REQUESTER_SIGNER.address, MODEL_ID, START_S)


async def test_checked_draft__other_prompt__is_untrue(world: World) -> None:
    response = await world.relayer.client.post("/v1/requests/draft", json=WANTED.body(REQUESTER_SIGNER.address))
    network = Network(31337, MARKET, RELAYER_SIGNER.address, 86_400)
    with pytest.raises(Untrue, match="another prompt"):
        checked_draft(
            replace(WANTED, prompt="Else"), response.json(), network, REQUESTER_SIGNER.address, MODEL_ID, START_S
        )


# Waiting


async def test_wait__until_settled__shows_each_view(world: World) -> None:
    relayer = world.relayer
    stored = relayer.add_request()
    await relayer.answer(stored, ANSWER)
    del relayer.store.all_requests[stored.request_id]
    world.waits.then = {
        1: lambda: relayer.store.all_requests.update({stored.request_id: stored}),
        2: lambda: relayer.settle(stored, relayer.store.all_results[stored.request_id][-1].result.result_hash),
    }
    seen: list[str] = []
    view = await world.client.wait(stored.request_id, 60, lambda each: seen.append(each["state"]))
    assert seen == ["eligible", "fulfilled"]
    assert view["settlement"]["outcome"] == "fulfilled"


async def test_wait__time_passes__says_how_to_go_on(world: World) -> None:
    stored = world.relayer.add_request()
    with pytest.raises(WaitEnded, match=f"headrace request show {stored.request_id}"):
        await world.client.wait(stored.request_id, 3)
    assert sum(world.waits.slept_s) >= 3


async def test_wait__expired__ends(world: World) -> None:
    stored = world.relayer.add_request(
        state=RequestState.EXPIRED,
        closed={"refund": 5, "transaction_hash": "0x" + "7c" * 32, "block_number": 2},
    )
    assert (await world.client.wait(stored.request_id, 3))["state"] == "expired"


# Answers


async def test_answer__settled__is_verified_by_hash_and_chain(world: World) -> None:
    relayer = world.relayer
    stored = relayer.add_request()
    result = await relayer.answer(stored, ANSWER)
    relayer.settle(stored, result.result.result_hash)
    verifier = Verifier(word=True)
    answer = await world.client.answer(stored.request_id, verifier)
    assert (answer.text, answer.verified) == ("Because of Rayleigh scattering.", True)
    assert answer.ref.nodes == (NODE_SIGNER.address,)
    assert verifier.asked == [(stored.request_id, answer.ref, b"")]
    assert (await world.client.answer(stored.request_id)).verified is False


async def test_answer__chat_completion__text_is_the_message(world: World) -> None:
    relayer = world.relayer
    stored = relayer.add_request()
    result = await relayer.answer(stored, b'{"choices":[{"message":{"content":"The Rhine."}}]}')
    relayer.settle(stored, result.result.result_hash)
    assert (await world.client.answer(stored.request_id)).text == "The Rhine."


async def test_answer__market_says_no__is_untrue(world: World) -> None:
    relayer = world.relayer
    stored = relayer.add_request()
    result = await relayer.answer(stored, ANSWER)
    relayer.settle(stored, result.result.result_hash)
    with pytest.raises(Untrue, match="market does not confirm"):
        await world.client.answer(stored.request_id, Verifier(word=False))


async def test_answer__bytes_swapped__is_untrue(world: World) -> None:
    relayer = world.relayer
    stored = relayer.add_request()
    result = await relayer.answer(stored, ANSWER)
    relayer.settle(stored, result.result.result_hash)
    relayer.store.payloads[result.result.result_hash] = seal(b"Because I say so.", bytes(16))
    with pytest.raises(Untrue, match="not those of the settled answer"):
        await world.client.answer(stored.request_id)


async def test_answer__not_settled_or_not_mine__is_refused(world: World) -> None:
    relayer = world.relayer
    stored = relayer.add_request()
    result = await relayer.answer(stored, ANSWER)
    with pytest.raises(ApiRefused, match="once it is settled"):
        await world.client.answer(stored.request_id)
    relayer.settle(stored, result.result.result_hash)
    async with world.client_of(STRANGER_SIGNER) as stranger:
        with pytest.raises(ApiRefused) as refusal:
            await stranger.answer(stored.request_id)
    assert refusal.value.http_status == 403


# Cancelling


async def test_cancel__unassigned__uses_the_release(world: World) -> None:
    stored = world.relayer.add_request()
    sender = FakeSender()
    _, is_released = await world.client.cancel(stored.request_id, sender)
    assert is_released
    prefix = cancel_with_release_data(stored.request, 0, b"")[:4]
    assert sender.calls[0].data[:4] == prefix


async def test_cancel__assigned__announces_only(world: World) -> None:
    stored = world.relayer.add_request()
    world.relayer.assign(stored)
    sender = FakeSender()
    _, is_released = await world.client.cancel(stored.request_id, sender)
    assert not is_released
    assert sender.calls[0].data == cancel_data(stored.request)


@pytest.mark.parametrize("trouble", ["no releases", "store is down", "another relayer's"])
async def test_cancel__relayer_says_neither__sends_nothing(world: World, trouble: str) -> None:
    stored = world.relayer.add_request()
    if trouble == "no releases":
        object.__setattr__(world.relayer.context, "hold", None)
    elif trouble == "store is down":
        world.relayer.store.failure = Unavailable("locked")
    else:
        stored = world.relayer.add_request(make_request(requester=REQUESTER_SIGNER.address))
    sender = FakeSender()
    with pytest.raises(NoRelease, match=r"Nothing was sent.*--without-release"):
        await world.client.cancel(stored.request_id, sender)
    assert sender.calls == []


async def test_cancel__closed_or_not_mine__is_refused_as_it_is(world: World) -> None:
    sender = FakeSender()
    closed = world.relayer.add_request(state=RequestState.EXPIRED)
    with pytest.raises(ApiRefused, match="is expired already"):
        await world.client.cancel(closed.request_id, sender)
    other = world.relayer.add_request(make_request(relayer=RELAYER_SIGNER.address))
    with pytest.raises(NotAllowed, match="only its requester"):
        await world.client.cancel(other.request_id, sender)
    with pytest.raises(ApiRefused, match="No request 0xabab"):
        await world.client.cancel("0x" + "ab" * 32, sender)
    assert sender.calls == []


@pytest.mark.parametrize("release", [{}, {"valid_until_s": "soon", "signature": "0x"}, []])
async def test_cancel__release_unreadable__is_untrue(world: World, release: Any, monkeypatch: Any) -> None:
    stored = world.relayer.add_request()
    answer = ApiCalls.json

    async def tampered(self: ApiCalls, method: str, path: str, **options: Any) -> Any:
        return release if path.endswith("/release") else await answer(self, method, path, **options)

    monkeypatch.setattr(ApiCalls, "json", tampered)
    with pytest.raises(Untrue, match="release cannot be read"):
        await world.client.cancel(stored.request_id, FakeSender())


async def test_posted_request__is_read_from_the_chain(world: World, monkeypatch: Any) -> None:
    chain, request = world.relayer.chain, make_request(salt=9)
    monkeypatch.setattr("headrace.client.posted.WINDOW_BLOCKS", 2)
    chain.mine(chain.requested(request))
    chain.mine_many(5)
    assert await posted_request(chain, chain.id_of(request), 0) == request
    with pytest.raises(NotFound, match="was posted on chain 31337"):
        await posted_request(chain, "0x" + "ab" * 32, 0)


async def test_requests__own__newest_first(world: World) -> None:
    stored = world.relayer.add_request()
    assert [each["request_id"] for each in await world.client.requests()] == [stored.request_id]
    assert await world.client.requests(state="expired") == []


async def test_unreachable__is_one_sentence_with_the_setting(world: World) -> None:
    async with make_client("http://127.0.0.1:1", world.waits) as client:
        with pytest.raises(Exception, match="HEADRACE_REQUESTER__API_URL"):
            await client.network()
    assert len(world.waits.slept_s) == 3


@pytest.mark.parametrize(("asked", "drafted"), [((2, 3), None), ((3, 3), (2, 3)), ((2, 3), (2, 2)), (None, (2, 3))])
async def test_checked_draft__another_quorum_than_was_asked__is_untrue(
    world: World, asked: tuple[int, int] | None, drafted: tuple[int, int] | None
) -> None:
    """Fewer votes are a worse answer, and more of them cost more."""
    wanted = replace(WANTED, quorum=drafted).body(REQUESTER_SIGNER.address)
    body = (await world.relayer.client.post("/v1/requests/draft", json=wanted)).json()
    network = Network(31337, MARKET, RELAYER_SIGNER.address, 86_400)
    arguments = (body, network, REQUESTER_SIGNER.address, MODEL_ID, START_S)
    with pytest.raises(Untrue, match=r"drafted (mode|k|n) ="):
        checked_draft(replace(WANTED, quorum=asked, force=True), *arguments)
    same = checked_draft(replace(WANTED, quorum=drafted, force=True), *arguments)
    assert (same.request.k, same.request.n) == (drafted or (0, 0))
