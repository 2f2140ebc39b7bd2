"""Blocks and events in the store: what they make of requests and rounds, and how a reorg undoes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.adapters.sql.store import SqlStore
from headrace.core.errors import InvalidInput
from headrace.core.lifecycle import RequestState
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, RoundRecord, Status
from headrace.ports import StoredAttempt
from tests.adapters.steps import NOW_MS, assign, batch, deliver, follow, post, signed, stages_of, state_of
from tests.fakes import RELAYER, START_S, FakeChain, FakeClock, make_request

OTHER_RELAYER = "0x" + "b2" * 20
RECORD = RoundRecord(1, ZERO_HASH, ZERO_HASH, "0x" + "55" * 32, 1, ZERO_HASH, 1, 0, 0)


async def test_add_blocks__request__is_kept_with_all_its_fields(store: SqlStore, chain: FakeChain) -> None:
    request = make_request(salt=2**64 - 1, max_reward_wei=2**80 - 1, gas_budget_wei=0, inline_result=True)
    block = chain.mine(chain.requested(request, b"Why is the sky blue?"))
    await follow(store, chain)

    stored = await store.request(chain.id_of(request))
    assert stored is not None
    assert stored.request == request
    assert stored.state is RequestState.INCLUDED
    assert (stored.block_number, stored.block_hash, stored.included_at_s) == (1, block.hash, block.timestamp_s)
    assert stored.effective_deadline_s == request.deadline_s
    assert stored.closed is None
    assert await store.payload(request.prompt_hash) == b"Why is the sky blue?"
    assert await store.last_block() == block
    assert await store.block(0) == chain.all_blocks()[0]
    assert await store.block(9) is None


async def test_confirm_up_to__only_blocks_so_deep__become_eligible(store: SqlStore, chain: FakeChain) -> None:
    early, late = make_request(salt=1), make_request(salt=2)
    chain.mine(chain.requested(early))
    chain.mine(chain.requested(late))
    await follow(store, chain)
    assert await store.confirm_up_to(1, NOW_MS) == 1
    assert await store.confirm_up_to(1, NOW_MS) == 0
    assert [stored.request for stored in await store.eligible(10)] == [early]
    assert await store.confirm_up_to(2, NOW_MS) == 1
    assert [stored.request for stored in await store.eligible(10)] == [early, late]
    assert [stored.request for stored in await store.eligible(1)] == [early]


async def test_confirm_up_to__request_of_another_relayer__stays_out(store: SqlStore, chain: FakeChain) -> None:
    theirs, anyones = make_request(relayer=OTHER_RELAYER), make_request(relayer=ZERO_ADDRESS)
    chain.mine(chain.requested(theirs), chain.requested(anyones))
    await follow(store, chain)
    assert await store.confirm_up_to(1, NOW_MS) == 1
    assert [stored.request for stored in await store.eligible(10)] == [anyones]
    assert await state_of(store, chain.id_of(theirs)) is RequestState.INCLUDED
    assert [stored.request for stored in await store.expirable(START_S + 9999, 10)] == [anyones]


async def test_add_blocks__terms_change__are_followed_and_undone(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    chain.mine(chain.raised(id_, 2**95, 2**95))
    chain.mine(chain.raised(id_, 5, 2**95 + 5), chain.cancel_announced(id_, START_S + 77))
    await follow(store, chain)
    stored = await store.request(id_)
    assert stored is not None
    assert (stored.priority_fee_added_wei, stored.effective_deadline_s) == (2**95 + 5, START_S + 77)
    assert await store.rewind_to(2) == [id_]
    stored = await store.request(id_)
    assert stored is not None
    assert (stored.priority_fee_added_wei, stored.effective_deadline_s) == (2**95, START_S + 3600)
    assert stored.state is RequestState.ELIGIBLE


@pytest.mark.parametrize(
    ("status", "state"), [(Status.EXPIRED, RequestState.EXPIRED), (Status.CANCELLED, RequestState.CANCELLED)]
)
async def test_add_blocks__closed__is_terminal_until_a_reorg(
    store: SqlStore, chain: FakeChain, status: Status, state: RequestState
) -> None:
    id_ = await post(store, chain)
    chain.mine(chain.closed(id_, status, refund=2**90))
    await follow(store, chain)
    stored = await store.request(id_)
    assert stored is not None and stored.closed is not None
    assert stored.state is state
    assert stored.closed["refund"] == 2**90
    assert stored.closed["block_number"] == 2
    assert stored.closed["transaction_hash"] == chain.all_events()[-1].transaction_hash
    assert await store.expirable(START_S + 9999, 10) == []

    chain.reorg(1)
    await follow(store, chain)
    assert await state_of(store, id_) is RequestState.INCLUDED
    await store.confirm_up_to(2, NOW_MS)
    assert await state_of(store, id_) is RequestState.ELIGIBLE


async def test_rewind_to__request_gone__keeps_row_timeline_and_result(store: SqlStore, chain: FakeChain) -> None:
    id_ = await signed(store, chain)
    chain.reorg(1)
    await follow(store, chain)
    assert await state_of(store, id_) is RequestState.WITHDRAWN
    assert await store.ready_results(10) == []
    assert await store.result(id_) is not None

    back = chain.mine(chain.requested(make_request()))
    await follow(store, chain)
    stored = await store.request(id_)
    assert stored is not None
    assert (stored.state, stored.block_hash) == (RequestState.INCLUDED, back.hash)
    await store.confirm_up_to(back.number, NOW_MS)
    assert [ready.result.request_id for (ready,) in await store.ready_results(10)] == [id_]
    assert await stages_of(store, id_) == [
        *("included", "confirmed", "assigned", "delivered"),
        *("orphaned", "reincluded", "confirmed", "delivered"),
    ]


async def test_confirm_up_to__reincluded_with_a_running_lease__is_not_assigned_again(
    store: SqlStore, chain: FakeChain
) -> None:
    id_ = await post(store, chain)
    await assign(store, id_)
    chain.reorg(1, [chain.requested(make_request())])
    await follow(store, chain)
    await store.confirm_up_to(1, NOW_MS)
    assert await state_of(store, id_) is RequestState.ASSIGNED


async def test_add_blocks__same_event_at_another_index__is_one_event(store: SqlStore, chain: FakeChain) -> None:
    """F02: the log index is block-wide and moves."""
    first, second = make_request(salt=1), make_request(salt=2)
    chain.mine(chain.requested(first), chain.requested(second))
    await follow(store, chain)
    chain.reorg(1, [chain.requested(second)], [chain.requested(first)])
    await follow(store, chain)
    assert await stages_of(store, chain.id_of(first)) == ["included", "orphaned", "reincluded"]
    stored = await store.request(chain.id_of(first))
    assert stored is not None and stored.block_number == 2
    assert len(await store.requests()) == 2


async def test_add_blocks__node_lists_an_event_twice__is_one_event(store: SqlStore, chain: FakeChain) -> None:
    chain.mine(chain.requested(make_request()))
    blocks, (event,) = chain.all_blocks(), chain.all_events()
    await store.add_blocks(blocks, [event, event], RELAYER)
    assert len(await store.requests()) == 1


async def test_add_blocks__event_of_an_earlier_block__is_refused_whole(store: SqlStore, chain: FakeChain) -> None:
    chain.mine(chain.requested(make_request()))
    await follow(store, chain)
    block = chain.mine()
    (event,) = chain.all_events()
    moved = replace(event, block_number=block.number, block_hash=block.hash)
    with pytest.raises(InvalidInput, match="already"):
        await store.add_blocks([block], [moved], RELAYER)
    with pytest.raises(InvalidInput, match="not added"):
        await store.add_blocks([block], [event], RELAYER)
    last = await store.last_block()
    assert last is not None and last.number == 1


async def test_add_blocks__that_do_not_follow__are_refused(store: SqlStore, chain: FakeChain) -> None:
    chain.mine_many(3)
    blocks = chain.all_blocks()
    await store.add_blocks(blocks[:2], [], RELAYER)
    with pytest.raises(InvalidInput, match="does not follow"):
        await store.add_blocks(blocks[3:], [], RELAYER)
    with pytest.raises(InvalidInput, match="does not follow"):
        await store.add_blocks([replace(blocks[2], parent_hash=ZERO_HASH)], [], RELAYER)
    await store.add_blocks([], [], RELAYER)
    assert await store.last_block() == blocks[1]


async def test_add_blocks__events_of_unknown_requests_and_other_contracts__change_nothing(
    store: SqlStore, chain: FakeChain
) -> None:
    unknown = "0x" + "99" * 32
    chain.mine(chain.raised(unknown, 1, 1), chain.fulfilled(unknown), chain.recorded(OTHER_RELAYER, RECORD))
    await follow(store, chain)
    assert await store.requests() == []
    assert await store.rounds() == []
    assert await store.rewind_to(0) == [unknown]


async def test_add_blocks__our_round_is_recorded__and_unrecorded_by_a_reorg(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    round_ = await assign(store, id_)
    await store.close_round(round_, RECORD, [])
    chain.mine(chain.recorded(RELAYER, RECORD))
    await follow(store, chain)
    stored = await store.round(round_)
    assert stored is not None
    assert (stored.state, stored.recorded_block, stored.record) == ("recorded", 2, RECORD)
    assert stored.transaction_hash == chain.all_events()[-1].transaction_hash
    chain.reorg(1)
    await follow(store, chain)
    stored = await store.round(round_)
    assert stored is not None
    assert (stored.state, stored.recorded_block, stored.record) == ("closed", 0, RECORD)
    assert stored.transaction_hash == ZERO_HASH


async def test_add_blocks__round_of_a_lost_store__is_not_numbered_again(store: SqlStore, chain: FakeChain) -> None:
    chain.mine(chain.recorded(RELAYER, RECORD))
    await follow(store, chain)
    assert (await store.open_round(NOW_MS, 1)).round == 2


async def test_rewind_to__settled_request__goes_back_into_its_batch(store: SqlStore, chain: FakeChain) -> None:
    """F01: the settlement is reorged out. Its intent is open again with the same attempt; nothing is batched anew."""
    id_ = await signed(store, chain)
    intent = await batch(store, id_)
    settlement = chain.fulfilled(id_)
    block = chain.mine(settlement)
    attempt = StoredAttempt(chain.all_events()[-1].transaction_hash, b"raw", 2**70, 1, NOW_MS)
    await store.add_attempt(intent.intent_id, attempt)
    await store.end_intent(intent.intent_id, "included", block.number, {"unpaid": {}})
    await follow(store, chain)
    assert await state_of(store, id_) is RequestState.FULFILLED
    assert await store.open_intents() == []

    chain.reorg(1)
    await follow(store, chain)
    await store.confirm_up_to(block.number, NOW_MS)
    (reopened,) = await store.open_intents()
    assert (reopened.attempts, reopened.nonce, reopened.block_number) == ((attempt,), intent.nonce, 0)
    assert await state_of(store, id_) is RequestState.SETTLING
    assert await store.ready_results(10) == []

    chain.mine(settlement)
    await store.end_intent(intent.intent_id, "included", 3, {"unpaid": {}})
    await follow(store, chain)
    assert await state_of(store, id_) is RequestState.FULFILLED
    assert await store.open_intents() == []


async def test_add_blocks__receipt_of_a_block_that_never_came__is_looked_for_again(
    store: SqlStore, chain: FakeChain
) -> None:
    id_ = await signed(store, chain)
    intent = await batch(store, id_)
    await store.add_attempt(intent.intent_id, StoredAttempt("0x" + "42" * 32, b"raw", 1, 1, NOW_MS))
    await store.end_intent(intent.intent_id, "reverted", 2, {})
    assert await state_of(store, id_) is RequestState.SIGNED
    chain.mine()
    await follow(store, chain)
    assert [each.intent_id for each in await store.open_intents()] == [intent.intent_id]
    assert await state_of(store, id_) is RequestState.SETTLING
    # What is said of a block that the store has seen stands.
    await store.end_intent(intent.intent_id, "reverted", 2, {})
    chain.mine()
    await follow(store, chain)
    assert await store.open_intents() == []


async def test_timeline__entries_are_dated_by_the_clock(store: SqlStore, chain: FakeChain, clock: FakeClock) -> None:
    clock.advance(1234)
    id_ = await post(store, chain)
    await store.note(id_, NOW_MS + 9, "seen", {"by": "test"})
    entries = await store.timeline(id_)
    assert [(entry.at_ms, entry.stage) for entry in entries] == [
        (NOW_MS + 1234, "included"),
        (NOW_MS, "confirmed"),
        (NOW_MS + 9, "seen"),
    ]
    assert entries[0].detail == {"transaction_hash": chain.all_events()[0].transaction_hash, "block_number": 1}
    assert entries[1].detail["state"] == "eligible"
    assert entries[2].detail == {"by": "test"}


async def test_add_result__of_a_withdrawn_request__waits_for_it(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    round_ = await assign(store, id_)
    chain.reorg(1)
    await follow(store, chain)
    assert await deliver(store, id_, round_)
    assert await state_of(store, id_) is RequestState.WITHDRAWN
    chain.mine(chain.requested(make_request()))
    await follow(store, chain)
    await store.confirm_up_to(2, NOW_MS)
    assert await state_of(store, id_) is RequestState.SIGNED
