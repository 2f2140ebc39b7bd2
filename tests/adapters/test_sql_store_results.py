"""Payloads, results and intents in the store."""

from __future__ import annotations

import pytest

from headrace.adapters.sql.store import SqlStore
from headrace.core.envelope import hash_payload
from headrace.core.errors import IllegalTransition, NotFound
from headrace.core.lifecycle import Cause, RequestState
from headrace.ports import Call, StoredAttempt
from tests.adapters.steps import ANSWER, NOW_MS, assign, batch, deliver, follow, post, signed, stages_of, state_of
from tests.fakes import MARKET, RELAYER, REQUESTER, FakeChain, make_request

OTHER_NODE = "0x" + "d2" * 20


def attempt_named(number: int) -> StoredAttempt:
    return StoredAttempt(f"0x{number:064x}", bytes([number]), 2**70, 2**65, NOW_MS)


async def test_put_prompt__twice__is_kept_once_under_its_hash(store: SqlStore) -> None:
    prompt_hash = await store.put_prompt(b"prompt", REQUESTER, NOW_MS)
    assert prompt_hash == hash_payload(b"prompt")
    assert await store.put_prompt(b"prompt", REQUESTER, NOW_MS) == prompt_hash
    assert await store.payload(prompt_hash) == b"prompt"
    assert await store.payload(hash_payload(b"other")) is None


async def test_held_prompts__are_those_of_their_account_only(store: SqlStore) -> None:
    mine = (await store.put_prompt(b"prompt", REQUESTER, NOW_MS), REQUESTER)
    others = {(hash_payload(bytes([n % 256, n // 256])), REQUESTER) for n in range(1200)}
    assert await store.held_prompts({mine, (mine[0], OTHER_NODE), *others}) == {mine}
    await store.put_prompt(b"prompt", OTHER_NODE, NOW_MS)
    assert await store.held_prompts({mine, (mine[0], OTHER_NODE)}) == {mine, (mine[0], OTHER_NODE)}


async def test_held_prompts__in_a_block__are_everybodys(store: SqlStore, chain: FakeChain) -> None:
    prompt = b"public"
    request = make_request(prompt_hash=hash_payload(prompt), prompt_bytes=len(prompt))
    chain.mine(chain.requested(request, prompt))
    await follow(store, chain)
    assert await store.held_prompts({(request.prompt_hash, OTHER_NODE)}) == {(request.prompt_hash, OTHER_NODE)}


async def test_add_result__first_stays(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    round_ = await assign(store, id_)
    assert await deliver(store, id_, round_)
    assert not await deliver(store, id_, round_, answer=b"another")
    result = await store.result(id_)
    assert result is not None
    assert (result.payload_hash, result.payload_bytes, result.signature) == (
        hash_payload(ANSWER),
        len(ANSWER),
        b"signature",
    )
    assert await store.ready_results(10) == [(result,)]
    assert await store.payload(result.payload_hash) == ANSWER
    assert await store.payload(hash_payload(b"another")) is None
    assert [stored.request_id for stored in await store.requests_of_payload(result.payload_hash)] == [id_]
    (ended,) = await store.assignments(id_)
    assert ended.state == "delivered"
    with pytest.raises(NotFound):
        await deliver(store, "0x" + "99" * 32, round_)


async def test_requests_of_payload__prompt__is_found(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain, prompt_hash=hash_payload(b"prompt"))
    assert [stored.request_id for stored in await store.requests_of_payload(hash_payload(b"prompt"))] == [id_]
    assert await store.requests_of_payload(hash_payload(b"other")) == []


async def test_move__unpayable__makes_room_for_another_result(store: SqlStore, chain: FakeChain) -> None:
    id_ = await signed(store, chain)
    await store.move(id_, Cause.UNPAYABLE, NOW_MS, {"status": "PROBATION"})
    assert await store.result(id_) is None
    dropped = (await store.timeline(id_))[-1]
    assert (dropped.stage, dropped.detail["result_hash"]) == ("result_dropped", hash_payload(ANSWER))
    round_ = await assign(store, id_, node=OTHER_NODE)
    assert await deliver(store, id_, round_, node=OTHER_NODE)
    with pytest.raises(IllegalTransition):
        await store.move(id_, Cause.CONFIRMED, NOW_MS, {})


async def test_add_intent__takes_the_next_nonce_of_all_open(store: SqlStore, chain: FakeChain) -> None:
    first = await store.add_intent("expire", "a", {}, Call(MARKET, b"\x01", 2**100), 10**6, 5, NOW_MS)
    second = await store.add_intent("record_round", "b", {"round": 1}, Call(MARKET, b""), 10**6, 5, NOW_MS)
    assert (first.nonce, second.nonce) == (5, 6)
    assert first.call == Call(MARKET, b"\x01", 2**100)
    assert await store.add_intent("expire", "a", {"other": 1}, Call(MARKET, b""), 1, 9, NOW_MS) == first
    assert await store.open_intents() == [first, second]
    await store.end_intent(first.intent_id, "dropped", 0, {})
    third = await store.add_intent("expire", "a", {}, Call(MARKET, b""), 10**6, 5, NOW_MS)
    assert third.nonce == 7
    await store.end_intent(second.intent_id, "included", 1, {})
    await store.end_intent(third.intent_id, "dropped", 0, {})
    # A node that lags says 6, which is the nonce of what was included.
    assert (await store.add_intent("expire", "c", {}, Call(MARKET, b""), 10**6, 6, NOW_MS)).nonce == 7


async def test_add_intent__nonce_of_a_dropped_one_that_was_signed__is_not_given_again(store: SqlStore) -> None:
    call = Call(MARKET, b"")
    first = await store.add_intent("expire", "a", {}, call, 10**6, 5, NOW_MS)
    await store.add_attempt(first.intent_id, attempt_named(1))
    await store.end_intent(first.intent_id, "dropped", 0, {})
    assert (await store.add_intent("expire", "b", {}, call, 10**6, 5, NOW_MS)).nonce == 6


async def test_add_intent__ended_in_a_block_not_indexed_yet__is_the_same(store: SqlStore, chain: FakeChain) -> None:
    call = Call(MARKET, b"")
    first = await store.add_intent("expire", "a", {}, call, 10**6, 5, NOW_MS)
    await store.end_intent(first.intent_id, "included", chain.mine().number, {})
    again = await store.add_intent("expire", "a", {}, call, 10**6, 6, NOW_MS)
    assert (again.intent_id, again.state) == (first.intent_id, "included")
    await follow(store, chain)
    (reopened,) = await store.open_intents()  # its receipt is looked for once more
    await store.end_intent(reopened.intent_id, "included", (await chain.head()).number, {})
    other = await store.add_intent("expire", "a", {}, call, 10**6, 6, NOW_MS)
    assert other.intent_id != first.intent_id
    assert other.nonce == 6


async def test_fill_nonces__are_taken_where_no_intent_has_them(store: SqlStore) -> None:
    call = Call(MARKET, b"")
    other = "0x" + "77" * 20
    await store.add_intent("expire", "other", {}, call, 10**6, 6, NOW_MS, other)
    included = await store.add_intent("expire", "a", {}, call, 10**6, 5, NOW_MS, RELAYER)
    dropped = await store.add_intent("expire", "b", {}, call, 10**6, 5, NOW_MS, RELAYER)
    await store.add_attempt(dropped.intent_id, attempt_named(1))
    waiting = await store.add_intent("expire", "c", {}, call, 10**6, 9, NOW_MS, RELAYER)
    await store.end_intent(included.intent_id, "included", 1, {})
    await store.end_intent(dropped.intent_id, "dropped", 0, {})
    assert [included.nonce, dropped.nonce, waiting.nonce] == [5, 6, 9]

    filled = await store.fill_nonces(RELAYER, 5, 9, NOW_MS)
    assert [(each.nonce, each.kind, each.state) for each in filled] == [(n, "fill_nonce", "open") for n in (6, 7, 8)]
    assert filled[0].intent_id == dropped.intent_id
    assert filled[0].attempts == (attempt_named(1),)
    assert (filled[1].call, filled[1].gas_limit) == (Call(RELAYER, b""), 21_000)
    assert await store.fill_nonces(RELAYER, 5, 9, NOW_MS) == filled
    assert len(await store.fill_nonces(RELAYER, 100, 1_000, NOW_MS)) == 64


async def test_add_intent__of_two_senders__each_counts_its_own_nonces(store: SqlStore) -> None:
    other = "0x" + "77" * 20
    call = Call(MARKET, b"")
    nonces = [
        (await store.add_intent("expire", str(number), {}, call, 10**6, chain_nonce, NOW_MS, sender)).nonce
        for number, (sender, chain_nonce) in enumerate([(RELAYER, 5), (other, 0), (RELAYER, 5), (other, 0), (other, 9)])
    ]
    assert nonces == [5, 0, 6, 1, 9]
    assert [(intent.sender, intent.nonce) for intent in await store.open_intents()] == [
        (other, 0),
        (other, 1),
        (RELAYER, 5),
        (RELAYER, 6),
        (other, 9),
    ]


async def test_add_intent__batch__moves_its_requests_or_is_refused_whole(store: SqlStore, chain: FakeChain) -> None:
    ready, waiting = await signed(store, chain, salt=1), await post(store, chain, salt=2)
    with pytest.raises(IllegalTransition):
        await batch(store, ready, waiting)
    assert await store.open_intents() == []
    intent = await batch(store, ready)
    assert await state_of(store, ready) is RequestState.SETTLING
    assert await store.ready_results(10) == []
    assert (await store.timeline(ready))[-1].detail["intent"] == intent.intent_id


async def test_add_attempt__all_are_kept_in_order(store: SqlStore) -> None:
    intent = await store.add_intent("expire", "a", {}, Call(MARKET, b""), 10**6, 0, NOW_MS)
    for number in (9, 3):
        await store.add_attempt(intent.intent_id, attempt_named(number))
    (stored,) = await store.open_intents()
    assert stored.attempts == (attempt_named(9), attempt_named(3))
    assert await store.intent_of_transaction(attempt_named(3).transaction_hash) == stored
    assert await store.intent_of_transaction(attempt_named(4).transaction_hash) is None
    with pytest.raises(NotFound):
        await store.add_attempt(99, attempt_named(5))
    await store.end_intent(intent.intent_id, "dropped", 0, {})
    with pytest.raises(IllegalTransition, match="dropped"):
        await store.add_attempt(intent.intent_id, attempt_named(5))


@pytest.mark.parametrize("state", ["reverted", "dropped"])
async def test_end_intent__not_included__gives_its_requests_back(store: SqlStore, chain: FakeChain, state: str) -> None:
    id_ = await signed(store, chain)
    intent = await batch(store, id_)
    await store.end_intent(intent.intent_id, state, 1, {"why": "test"})
    assert await state_of(store, id_) is RequestState.SIGNED
    assert (await stages_of(store, id_))[-1] == "unbatched"
    assert await store.open_intents() == []
    with pytest.raises(IllegalTransition):
        await store.end_intent(intent.intent_id, "included", 1, {})


async def test_end_intent__unpaid_items__go_back_by_whose_fault_it_was(store: SqlStore, chain: FakeChain) -> None:
    paid, early, probation = [await signed(store, chain, salt=salt) for salt in (1, 2, 3)]
    intent = await batch(store, paid, early, probation)
    await store.add_attempt(intent.intent_id, attempt_named(1))
    unpaid = {early: "NO_ROUND", probation: "PROBATION"}
    await store.end_intent(intent.intent_id, "included", 4, {"unpaid": unpaid, "gas_used": 5})
    assert await state_of(store, paid) is RequestState.SETTLING
    assert await state_of(store, early) is RequestState.SIGNED
    assert await state_of(store, probation) is RequestState.ELIGIBLE
    assert await store.result(early) is not None
    assert await store.result(probation) is None
    stored = await store.intent_of_transaction(attempt_named(1).transaction_hash)
    assert stored is not None
    assert (stored.state, stored.block_number) == ("included", 4)
    assert stored.detail == {"request_ids": [paid, early, probation], "unpaid": unpaid, "gas_used": 5}


async def test_end_intent__wrong_words__are_refused(store: SqlStore) -> None:
    with pytest.raises(NotFound):
        await store.end_intent(1, "included", 1, {})
    intent = await store.add_intent("expire", "a", {}, Call(MARKET, b""), 10**6, 0, NOW_MS)
    with pytest.raises(IllegalTransition):
        await store.end_intent(intent.intent_id, "finished", 1, {})
