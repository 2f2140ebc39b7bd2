"""What a watcher keeps in the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.adapters.sql.store import SqlStore
from headrace.core.envelope import hash_payload
from headrace.core.faults import Fault
from headrace.core.lifecycle import Cause
from headrace.core.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Decision,
    DecisionKind,
    Hash32,
    Reason,
    Result,
    RoundRecord,
    Status,
)
from headrace.ports import Call, NotedResult, StoredFault
from tests.adapters.steps import ANSWER, NOW_MS, assign, deliver, follow, post, signed
from tests.fakes import NODE, RELAYER, FakeChain

OTHER_NODE = "0x" + "d2" * 20
ID = "0x" + "77" * 32


def noted(request_id: Hash32, answer: bytes, node: str = NODE, round_: int = 1) -> NotedResult:
    return NotedResult(
        node, Result(request_id, hash_payload(answer), 2**95, RELAYER, round_), b"word", "0x" + "99" * 32
    )


def fault(request_id: Hash32 = ID, **changes: object) -> StoredFault:
    made = StoredFault(
        Fault.MISSED,
        NODE,
        request_id,
        ZERO_ADDRESS,
        3,
        Call(RELAYER, b"data"),
        "found",
        "",
        ZERO_HASH,
        NOW_MS,
        tried_at_ms=0,
    )
    return replace(made, **changes)


def record_of(round_: int, assigned: int = 1) -> RoundRecord:
    return RoundRecord(round_, "0x" + "11" * 32, ZERO_HASH, ZERO_HASH, 1, ZERO_HASH, assigned, 0, 0)


def leaf(request_id: Hash32, node: str = NODE, kind: DecisionKind = DecisionKind.ASSIGNED) -> Decision:
    return Decision(request_id, node, kind, Reason.LOWEST_COST, 2**95, 0)


# Signed results


async def test_note_results__first_two_that_differ__are_kept_once(store: SqlStore) -> None:
    first, second, third = (noted(ID, answer) for answer in (b"a", b"b", b"c"))
    other = noted(ID, b"a", OTHER_NODE)
    await store.note_results([first, first, other])
    await store.note_results([second, first, third])
    unknown = "0x" + "78" * 32
    assert await store.noted_results([ID, unknown]) == {ID: [first, other, second], unknown: []}


async def test_noted_results__delivered_here__is_among_them(store: SqlStore, chain: FakeChain) -> None:
    request_id = await signed(store, chain)
    await store.note_results([noted(request_id, b"another")])
    first, second = (await store.noted_results([request_id]))[request_id]
    assert (first.result.result_hash, first.signature, first.transaction_hash) == (
        hash_payload(ANSWER),
        b"signature",
        ZERO_HASH,
    )
    assert second == noted(request_id, b"another")


async def test_noted_in_round__names_each_request_once(store: SqlStore) -> None:
    second = "0x" + "78" * 32
    await store.note_results(
        [noted(second, b"a"), noted(ID, b"a"), noted(ID, b"a", OTHER_NODE), noted(ID, b"b", round_=2)]
    )
    assert await store.noted_in_round(1) == [ID, second]
    assert await store.noted_in_round(2) == [ID]
    assert await store.noted_in_round(3) == []


async def test_equivocated__two_results_of_a_node__are_told_once(store: SqlStore) -> None:
    assert await store.equivocated(0) == ([], 0)
    await store.note_results([noted(ID, b"a"), noted(ID, b"b", OTHER_NODE)])
    found, place = await store.equivocated(0)
    assert found == []
    await store.note_results([noted(ID, b"b")])
    found, place = await store.equivocated(place)
    assert found == [ID]
    assert await store.equivocated(place) == ([], place)
    assert (await store.equivocated(0))[0] == [ID]


async def test_equivocated__against_what_was_delivered__is_told(store: SqlStore, chain: FakeChain) -> None:
    request_id = await signed(store, chain)
    await store.note_results([noted(request_id, ANSWER)])
    assert (await store.equivocated(0))[0] == []
    await store.note_results([noted(request_id, b"another")])
    assert (await store.equivocated(0))[0] == [request_id]


# Rounds


async def test_assignments_of_round__all_of_it__by_request(store: SqlStore, chain: FakeChain) -> None:
    ids = sorted([await post(store, chain, salt=salt) for salt in (1, 2)])
    round_ = await assign(store, *ids)
    await store.end_assignment(ids[0], 1, Cause.ACCEPTED, NOW_MS, "", b"accept")
    found = await store.assignments_of_round(round_)
    assert [(each.request_id, each.accept_signature) for each in found] == [(ids[0], b"accept"), (ids[1], b"")]
    assert await store.assignments_of_round(round_ + 1) == []


async def test_leaves__of_anothers_round__are_kept_and_found_by_request(store: SqlStore, chain: FakeChain) -> None:
    chain.mine(chain.recorded(RELAYER, record_of(1, 2)), chain.recorded(RELAYER, record_of(2)))
    await follow(store, chain)
    assert [each.round for each in await store.rounds_without_leaves(10)] == [1, 2]
    assert [each.round for each in await store.rounds_without_leaves(1)] == [1]
    first = [leaf(ID), leaf("0x" + "78" * 32, kind=DecisionKind.SKIPPED)]
    await store.keep_leaves(1, [leaf("0x" + "01" * 32)])
    await store.keep_leaves(1, first)
    assert await store.leaves(1) == first
    assert [each.round for each in await store.rounds_without_leaves(10)] == [2]
    await store.keep_leaves(2, [leaf(ID, OTHER_NODE)])
    other = "0x" + "78" * 32
    assert await store.rounds_assigning([ID, other]) == {ID: {1, 2}, other: set()}


# Events


async def test_events__by_blocks_names_and_request__in_order(store: SqlStore, chain: FakeChain) -> None:
    request_id = await post(store, chain, salt=1)
    other = await post(store, chain, salt=2)
    block = chain.mine(chain.fulfilled(other), chain.closed(request_id, Status.EXPIRED))
    await follow(store, chain)
    of_both = await store.events_of([request_id, other])
    of_one = of_both[request_id]
    assert [each.name for each in of_both[other]] == ["InferenceRequested", "ResultFulfilled"]
    assert [each.name for each in of_one] == ["InferenceRequested", "RequestClosed"]
    between = await store.events_between(0, block.number, ("RequestClosed", "ResultFulfilled"))
    assert [each.name for each in between] == ["ResultFulfilled", "RequestClosed"]
    assert await store.events_between(block.number + 1, block.number + 9, ("RequestClosed",)) == []
    assert of_one[1] in between


# Faults


async def test_faults__found_once__move_and_come_back_as_they_were(store: SqlStore) -> None:
    late, early = fault(tried_at_ms=9), fault("0x" + "78" * 32, tried_at_ms=5)
    assert await store.add_fault(late)
    assert await store.add_fault(early)
    assert not await store.add_fault(replace(late, found_at_ms=1))
    assert await store.add_fault(replace(late, fault=Fault.EQUIVOCATION, state="proven"))
    assert await store.faults(("found", "sent"), 10) == [early, late]
    assert await store.faults(("found",), 1) == [early]
    assert len(await store.faults(None, 10)) == 3
    sent = replace(late, state="sent", detail="why", transaction_hash="0x" + "55" * 32, tried_at_ms=7)
    await store.set_fault(sent)
    assert await store.faults(("sent",), 10) == [sent]


async def test_add_fault__whose_proof_was_refused__is_taken_up_again(store: SqlStore) -> None:
    await store.add_fault(fault(state="refused", detail="not proven: not expired uncancelled"))
    again = fault(call=Call(RELAYER, b"other data"))
    assert not await store.add_fault(again)
    assert await store.faults(None, 10) == [again]


@pytest.mark.parametrize(("place", "after"), [(9, 3), (2, 2)])
async def test_watched_up_to__reorg__goes_back(store: SqlStore, chain: FakeChain, place: int, after: int) -> None:
    assert await store.watched_up_to() == -1
    chain.mine_many(10)
    await follow(store, chain)
    await store.set_watched_up_to(1)
    await store.set_watched_up_to(place)
    assert await store.watched_up_to() == place
    await store.rewind_to(3)
    assert await store.watched_up_to() == after


async def test_delivered__second_delivery_of_another_answer__does_not_replace_the_first(
    store: SqlStore, chain: FakeChain
) -> None:
    request_id = await signed(store, chain)
    assert not await deliver(store, request_id, 1, answer=b"\x01" + bytes(16) + b"else")
    assert [each.result.result_hash for each in (await store.noted_results([request_id]))[request_id]] == [
        hash_payload(ANSWER)
    ]


async def test_known_requests__of_many__are_those_in_the_store(store: SqlStore, chain: FakeChain) -> None:
    ids = [await post(store, chain, salt=salt) for salt in (1, 2)]
    unknown = ["0x" + f"{number:064x}" for number in range(1_200)]
    known = await store.known_requests([ids[1], *unknown, ids[0]])
    assert known == {each: await store.request(each) for each in ids}
