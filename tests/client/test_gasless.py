"""Requests that are only signed: by the client's key or by what a contract account brings, for no more than is fair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from headrace.client import ApiRefused, GaslessRequest, Untrue, Wanted, fair_fee_wei
from headrace.client.drafts import Draft
from headrace.core.errors import NotAllowed, Refused
from headrace.core.lifecycle import RequestState
from headrace.core.postings import PostingState
from headrace.core.types import GasQuote
from tests.api.world import MODEL, NODE_SIGNER, REQUESTER_SIGNER, STRANGER_SIGNER
from tests.client.conftest import World
from tests.fakes import GWEI, START_S

WANTED = Wanted(model=MODEL.name, prompt="Why is the sky blue?", ttl_s=300)
WALLET = "0x" + "77" * 20


@pytest.fixture(autouse=True)
def credit(world: World) -> None:
    for account in (REQUESTER_SIGNER.address, WALLET):
        world.relayer.chain.credits[account] = 10**18
        world.relayer.chain.balances[account] = 0


async def drafted(world: World, **changes: Any) -> Draft:
    return await world.client.draft(replace(WANTED, **changes))


async def test_submit__own_key__is_taken_and_followed_to_its_end(world: World) -> None:
    request = await world.client.gasless(await drafted(world))
    id_ = await world.client.submit(request)
    assert id_ == request.draft.request_id
    stored = world.relayer.store.all_postings[id_]
    assert (stored.request, stored.relayer_fee_wei) == (request.draft.request, request.relayer_fee_wei)
    assert stored.valid_until_s == START_S + 300
    seen: list[str] = []
    closed = {"refund": 5, "status": 6, "transaction_hash": "0x" + "7c" * 32, "block_number": 2}
    world.waits.then = {
        1: lambda: world.relayer.add_request(stored.request, state=RequestState.INCLUDED),
        2: lambda: world.relayer.add_request(stored.request, state=RequestState.EXPIRED, closed=closed),
    }
    view = await world.client.wait(id_, 60, lambda view: seen.append(view["state"]))
    assert (seen, view["state"]) == (["submitted", "included", "expired"], "expired")


async def test_submit__again__is_the_same_request(world: World) -> None:
    request = await world.client.gasless(await drafted(world))
    assert await world.client.submit(request) == await world.client.submit(request)
    assert len(world.relayer.store.all_postings) == 1


async def test_submit__published_prompt__is_in_the_relayers_call(world: World) -> None:
    id_ = await world.client.submit(await world.client.gasless(await drafted(world, public=True)))
    assert b"Why is the sky blue?" in world.relayer.store.all_postings[id_].data


async def test_submit__signed_by_a_wallet__is_the_same_as_by_the_key(world: World) -> None:
    request = await world.client.gasless(await drafted(world))
    document = encode_typed_data(full_message=request.document())
    signed = bytes(Account.sign_message(document, REQUESTER_SIGNER._key.to_bytes()).signature)
    assert signed == REQUESTER_SIGNER.sign_digest(request.digest())
    async with world.client_of(STRANGER_SIGNER) as other:
        assert await other.submit(request, signed) == request.draft.request_id


async def test_submit__contract_account__its_own_signature_is_handed_on(world: World) -> None:
    world.relayer.chain.wallets[WALLET] = b"two of three"
    draft = await world.client.draft(WANTED, requester=WALLET)
    request = await world.client.gasless(draft)
    with pytest.raises(NotAllowed, match=WALLET):
        await world.client.submit(request)
    id_ = await world.client.submit(request, b"two of three")
    assert world.relayer.store.all_postings[id_].request.requester == WALLET


async def test_submit__contract_account_that_does_not_sign__is_refused(world: World) -> None:
    request = await world.client.gasless(await world.client.draft(WANTED, requester=WALLET))
    with pytest.raises(ApiRefused, match=WALLET) as refusal:
        await world.client.submit(request, b"one of three")
    assert refusal.value.code == "SIGNATURE_MISMATCH"


async def test_submit__credit_short__has_the_apis_words(world: World) -> None:
    request = await world.client.gasless(await drafted(world))
    world.relayer.chain.credits[REQUESTER_SIGNER.address] = 3
    with pytest.raises(ApiRefused, match=rf"deposit {request.cost_wei - 3} wei more.*headrace credit deposit"):
        await world.client.submit(request)


async def test_submit__too_many_wait__is_tried_again_after_retry_after(world: World) -> None:
    for _ in range(8):
        await world.client.submit(await world.client.gasless(await drafted(world)))
    request = await world.client.gasless(await drafted(world))
    store = world.relayer.store
    first = next(iter(store.all_postings))
    posted = replace(store.all_postings[first], state=PostingState.POSTED)
    world.waits.then = {1: lambda: store.all_postings.__setitem__(first, posted)}
    assert await world.client.submit(request) == request.draft.request_id
    assert len(world.waits.slept_s) == 1
    assert world.waits.slept_s[0] >= 2


async def test_submit__relayer_takes_another__is_untrue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    request = await world.client.gasless(await drafted(world))
    other = replace(request, draft=replace(request.draft, request_id="0x" + "99" * 32))
    with pytest.raises(Untrue, match="another request"):
        await world.client.submit(other)


# What is signed


async def test_gasless__fee__is_the_relayers_or_ones_own_within_a_bound(world: World) -> None:
    draft = await drafted(world)
    assert draft.relayer_fee_wei is not None
    request = await world.client.gasless(draft)
    assert request.relayer_fee_wei == draft.relayer_fee_wei
    assert request.cost_wei == draft.request.escrow_wei + draft.relayer_fee_wei
    assert (await world.client.gasless(draft, relayer_fee_wei=7)).relayer_fee_wei == 7
    assert (await world.client.gasless(draft, most_fee_wei=draft.relayer_fee_wei)) == request
    with pytest.raises(Untrue, match=r"asks for \d+ wei for posting.*--max-relayer-fee"):
        await world.client.gasless(draft, most_fee_wei=draft.relayer_fee_wei - 1)


async def test_gasless__drafted_fee__is_fair_and_ten_times_as_much_is_not(world: World) -> None:
    draft = await drafted(world)
    assert draft.relayer_fee_wei is not None
    fair_wei = fair_fee_wei(world.relayer.chain.gas, draft)
    assert fair_wei == 3 * 77_500 * 2 * GWEI
    assert draft.relayer_fee_wei < fair_wei < 10 * draft.relayer_fee_wei
    assert fair_fee_wei(GasQuote(1, 0), replace(draft, is_published=True)) > fair_fee_wei(GasQuote(1, 0), draft)


async def test_gasless__signature__never_outlives_the_deadline(world: World) -> None:
    draft = await drafted(world, ttl_s=60)
    assert (await world.client.gasless(draft)).valid_until_s == START_S + 60
    assert (await world.client.gasless(draft, valid_for_s=20)).valid_until_s == START_S + 20


async def test_gasless__relayer_posts_for_nobody__says_what_to_do(world: World) -> None:
    with pytest.raises(Refused, match="send the transaction yourself, or ask another relayer"):
        await world.client.gasless(replace(await drafted(world), relayer_fee_wei=None))


@pytest.mark.parametrize("signing", [{}, {"relayer_fee_wei": "a lot"}, 5])
async def test_draft__fee_unreadable__is_untrue(world: World, signing: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.client.http import ApiCalls

    json_of = ApiCalls.json

    async def other(self: ApiCalls, method: str, path: str, **options: Any) -> Any:
        body = await json_of(self, method, path, **options)
        return {**body, "gasless": signing} if path.endswith("/draft") else body

    monkeypatch.setattr(ApiCalls, "json", other)
    with pytest.raises(Untrue, match="fee cannot be read"):
        await drafted(world)


async def test_wait__unposted__ends_with_the_reason(world: World) -> None:
    id_ = await world.client.submit(await world.client.gasless(await drafted(world)))
    ended = replace(world.relayer.store.all_postings[id_], state=PostingState.UNPOSTED, reason="No credit.")
    world.waits.then = {1: lambda: world.relayer.store.all_postings.__setitem__(id_, ended)}
    view = await world.client.wait(id_, 60)
    assert (view["state"], view["posting"]["reason"]) == ("unposted", "No credit.")


def test_body__has_nothing_that_json_rounds() -> None:
    from tests.fakes import make_request

    draft = Draft(make_request(salt=2**64 - 1, max_reward_wei=2**80 - 1), "0x" + "ab" * 32, None, ())  # type: ignore[arg-type]
    body = GaslessRequest(draft, 2**96 - 1, START_S, None).body(b"\x01")  # type: ignore[arg-type]
    numbers = [value for value in {**body, **body["params"]}.values() if type(value) is int]
    assert all(abs(number) < 2**53 for number in numbers)
    assert NODE_SIGNER.address not in str(body)
