"""Postings: stored once, tied to the transaction that posts them, and followed through its ends and reorgs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.adapters.sql.store import SqlStore
from headrace.core.errors import NotFound
from headrace.core.postings import PostingState
from headrace.core.types import Hash32
from headrace.ports import Call, StoredAttempt, StoredIntent, StoredPosting
from tests.adapters.steps import NOW_MS, follow
from tests.fakes import MARKET, REQUESTER, FakeChain, make_request

PROMPT = b"Why is the sky blue?"
TRANSACTION: Hash32 = "0x" + "7a" * 32


def posting(chain: FakeChain, **changes: object) -> StoredPosting:
    request = make_request(**{"salt": 2**64 - 1, "max_reward_wei": 2**80 - 1, **changes})
    return StoredPosting(
        request_id=chain.id_of(request),
        request=request,
        relayer_fee_wei=2**96 - 1,
        valid_until_s=2**40 - 1,
        data=b"call data",
        submitted_at_ms=NOW_MS,
    )


async def intend(store: SqlStore, id_: Hash32, requester: str = REQUESTER) -> StoredIntent:
    detail = {"request_id": id_, "requester": requester}
    return await store.add_intent("request_for", f"request_for:{id_}", detail, Call(MARKET, b"d"), 10**5, 0, NOW_MS)


async def attempt(store: SqlStore, intent: StoredIntent, transaction_hash: Hash32 = TRANSACTION) -> None:
    await store.add_attempt(intent.intent_id, StoredAttempt(transaction_hash, b"raw", 1, 1, NOW_MS))


async def the(store: SqlStore, id_: Hash32) -> StoredPosting:
    found = await store.posting(id_)
    assert found is not None
    return found


async def test_add__is_kept_exactly_with_its_prompt(store: SqlStore, chain: FakeChain) -> None:
    given = posting(chain)
    assert await store.add_posting(given, PROMPT) == given
    assert await store.posting(given.request_id) == given
    assert await store.postings(PostingState.SUBMITTED) == [given]
    held = (given.request.prompt_hash, REQUESTER)
    assert await store.held_prompts({held, (held[0], MARKET)}) == {held}, "I29: it counts for its requester only"
    assert given.cost_wei == given.request.escrow_wei + 2**96 - 1


async def test_add__without_bytes__leaves_prompts_alone(store: SqlStore, chain: FakeChain) -> None:
    given = await store.add_posting(posting(chain), None)
    assert await store.held_prompts({(given.request.prompt_hash, REQUESTER)}) == set()


async def test_add__again__is_the_first(store: SqlStore, chain: FakeChain) -> None:
    first = await store.add_posting(posting(chain), PROMPT)
    again = await store.add_posting(replace(first, relayer_fee_wei=1, data=b"other"), PROMPT)
    assert again == first == await the(store, first.request_id)


async def test_add__unposted_before__is_submitted_anew(store: SqlStore, chain: FakeChain) -> None:
    first = await store.add_posting(posting(chain), PROMPT)
    await store.end_posting(first.request_id, PostingState.UNPOSTED, "Its credit is spent.", NOW_MS + 1)
    ended = await the(store, first.request_id)
    assert (ended.state, ended.reason, ended.ended_at_ms) == ("unposted", "Its credit is spent.", NOW_MS + 1)
    anew = replace(first, relayer_fee_wei=1, submitted_at_ms=NOW_MS + 2)
    assert await store.add_posting(anew, PROMPT) == anew == await the(store, first.request_id)


async def test_postings__by_state_and_requester__are_newest_first(store: SqlStore, chain: FakeChain) -> None:
    given = [
        replace(posting(chain, salt=n, requester=who), submitted_at_ms=NOW_MS + n)
        for n, who in enumerate([REQUESTER, MARKET, REQUESTER])
    ]
    for each in given:
        await store.add_posting(each, None)
    assert await store.postings(PostingState.SUBMITTED) == given[::-1]
    assert await store.postings(PostingState.SUBMITTED, requester=REQUESTER) == [given[2], given[0]]
    assert await store.postings(PostingState.SUBMITTED, limit=1) == [given[2]]
    await store.end_posting(given[1].request_id, PostingState.POSTED, "", NOW_MS)
    assert [each.request_id for each in await store.postings(PostingState.POSTED)] == [given[1].request_id]


async def test_end__unknown__is_not_found(store: SqlStore) -> None:
    with pytest.raises(NotFound):
        await store.end_posting("0x" + "99" * 32, PostingState.POSTED, "", NOW_MS)


async def test_intent__is_seen_with_its_last_attempt(store: SqlStore, chain: FakeChain) -> None:
    id_ = (await store.add_posting(posting(chain), PROMPT)).request_id
    assert ((await the(store, id_)).intent_state, (await the(store, id_)).transaction_hash) == ("", "")
    intent = await intend(store, id_)
    assert ((await the(store, id_)).intent_state, (await the(store, id_)).transaction_hash) == ("open", "")
    await attempt(store, intent)
    await attempt(store, intent, "0x" + "7b" * 32)
    assert (await the(store, id_)).transaction_hash == "0x" + "7b" * 32
    assert await intend(store, id_) == (await store.open_intents())[0], "one intent for one request"


async def test_intent__included__is_posted_until_a_reorg_takes_its_block(store: SqlStore, chain: FakeChain) -> None:
    id_ = (await store.add_posting(posting(chain), PROMPT)).request_id
    chain.mine()
    await follow(store, chain)
    block = chain.mine()
    await follow(store, chain)
    intent = await intend(store, id_)
    await attempt(store, intent)
    await store.end_intent(intent.intent_id, "included", block.number, {})
    assert ((await the(store, id_)).state, (await the(store, id_)).ended_at_ms) == ("posted", NOW_MS)
    chain.rollback(1)
    await store.rewind_to(block.number - 1)
    again = await the(store, id_)
    assert (again.state, again.intent_state, again.ended_at_ms) == ("submitted", "open", 0)


async def test_intent__dropped__waits_for_another(store: SqlStore, chain: FakeChain) -> None:
    id_ = (await store.add_posting(posting(chain), PROMPT)).request_id
    intent = await intend(store, id_)
    await store.end_intent(intent.intent_id, "dropped", 0, {})
    assert ((await the(store, id_)).state, (await the(store, id_)).intent_state) == ("submitted", "")
    assert (await intend(store, id_)).intent_id != intent.intent_id


async def test_intent__reverted__is_counted_against_its_requester(store: SqlStore, chain: FakeChain) -> None:
    id_ = (await store.add_posting(posting(chain), PROMPT)).request_id
    intent = await intend(store, id_)
    await store.end_intent(intent.intent_id, "reverted", 1, {})
    assert ((await the(store, id_)).state, (await the(store, id_)).intent_state) == ("submitted", "reverted")
    assert await store.reverted_postings(REQUESTER, NOW_MS) == 1
    assert await store.reverted_postings(REQUESTER, NOW_MS + 1) == 0
    assert await store.reverted_postings(MARKET, NOW_MS) == 0
    await store.end_posting(id_, PostingState.UNPOSTED, "No.", NOW_MS)
    await store.add_posting(posting(chain), PROMPT)
    assert await store.reverted_postings(REQUESTER, NOW_MS) == 1, "handing it in again does not wipe it out"
