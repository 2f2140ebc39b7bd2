"""Whose turn it is: shares of lanes, fairness between requesters, and a bound on every wait."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.fairness import Account, Accounts, shares_of
from headrace.core.lanes import BULK_SHARE, REALTIME_SHARE, LaneOrder, SharedLanes, Waiting
from headrace.core.types import Lane

ALICE, BOB, CAROL = ("0x" + digit * 40 for digit in "abc")
NAMES = st.sampled_from([ALICE, BOB, CAROL])


class Entry(NamedTuple):
    """A waiting request."""

    request_id: str
    requester: str
    included_at_s: int
    score_e9: int
    work: int
    is_overdue: bool
    row: int


class Order:
    """`LaneOrder` over entries."""

    def __init__(self, entries: list[Entry], accounts: Accounts) -> None:
        self._entries = sorted(entries, key=lambda each: each.request_id)
        self._order = order_of(self._entries, accounts)

    def drain(self) -> list[Entry]:
        taken = []
        while self._order:
            taken.append(self._entries[self._order.pop()])
        return taken


def order_of(entries: list[Entry], accounts: Accounts, among: list[Entry] | None = None) -> LaneOrder:
    """The order of some of the entries, which are in ascending order of their ids."""
    waiting = Waiting(
        [each.requester for each in entries],
        np.array([each.included_at_s for each in entries], dtype=np.int64),
        np.array([each.score_e9 for each in entries], dtype=np.int64),
        np.array([each.work for each in entries], dtype=np.int64),
        np.array([each.is_overdue for each in entries], dtype=bool),
    )
    chosen = {each.request_id for each in (entries if among is None else among)}
    rows = [row for row, each in enumerate(entries) if each.request_id in chosen]
    return LaneOrder(np.array(rows, dtype=np.int64), waiting, accounts)


def entry(number: int, requester: str = ALICE, work: int = 100, score: int = 0, included_at_s: int = 0) -> Entry:
    return Entry(f"0x{number:064x}", requester, included_at_s, score, work, is_overdue=False, row=number)


def serve(waiting: dict[Lane, list[Entry]], accounts: Accounts, lag: int, work: int) -> tuple[list[Entry], int]:
    """A cycle that assigns until so much work is given out."""
    entries = sorted((each for own in waiting.values() for each in own), key=lambda each: each.request_id)
    lanes = SharedLanes(*(order_of(entries, accounts, waiting[lane]) for lane in (Lane.REALTIME, Lane.BULK)), lag)
    served: list[Entry] = []
    while lanes and work > 0:
        lane = lanes.next_lane()
        taken = entries[lanes.pop(lane)]
        lanes.count(lane, taken.work)
        accounts.charge(taken.requester, taken.work)
        waiting[lane].remove(taken)
        served.append(taken)
        work -= taken.work
    return served, lanes.lag


# Order in a lane

ENTRIES = st.lists(
    st.builds(
        lambda requester, work, score, included, overdue: (requester, work, score, included, overdue),
        NAMES,
        st.integers(1, 500),
        st.integers(0, 5),
        st.integers(0, 50),
        st.booleans(),
    ),
    max_size=12,
)


@given(ENTRIES)
def test_order__every_request_has_one_turn_and_overdue_ones_come_first_oldest_first(drawn: list[tuple]) -> None:
    entries = [
        Entry(f"0x{number:064x}", requester, included, score, work, overdue, number)
        for number, (requester, work, score, included, overdue) in enumerate(drawn)
    ]
    order = Order(entries, Accounts([], 0)).drain()
    assert sorted(each.row for each in order) == list(range(len(entries)))
    overdue = [each for each in order if each.is_overdue]
    assert order[: len(overdue)] == sorted(overdue, key=lambda each: (each.included_at_s, each.request_id))


@given(ENTRIES, st.integers(1, 5))
def test_order__score_rises__its_turn_is_no_later(drawn: list[tuple], more: int) -> None:
    entries = [
        Entry(f"0x{number:064x}", requester, included, score, work, overdue, number)
        for number, (requester, work, score, included, overdue) in enumerate(drawn)
    ]
    for number, each in enumerate(entries):
        raised = [each._replace(score_e9=each.score_e9 + more) if each.row == number else each for each in entries]
        before = [one.row for one in Order(entries, Accounts([], 0)).drain()].index(number)
        after = [one.row for one in Order(raised, Accounts([], 0)).drain()]
        own = [one for one in entries if one.requester == each.requester and not one.is_overdue]
        if len({one.work for one in own}) <= 1:  # of different sizes its own others may take longer before it
            assert after.index(number) <= before


def test_order__one_asks_for_much_and_one_for_little__the_little_is_not_behind_the_much() -> None:
    """The reference's fault: a stream of high fees starves the rest for ever."""
    flood = [entry(number, ALICE, score=10**9) for number in range(50)]
    order = Order([*flood, entry(99, BOB, score=1)], Accounts([], 0)).drain()
    assert [each.requester for each in order].index(BOB) <= 1


def test_order__served_less_before__goes_first() -> None:
    accounts = Accounts([Account(ALICE, 1_000)], 0)
    order = Order([entry(1, ALICE, score=9), entry(2, BOB)], accounts).drain()
    assert [each.requester for each in order] == [BOB, ALICE]


# Fairness


@given(st.lists(st.integers(1, 40), min_size=1, max_size=10), st.integers(200, 900))
def test_splitting_a_request_gains_nothing_beyond_one_request(parts: list[int], capacity: int) -> None:
    """Alice asks for the same work in one request or in parts; Bob has much to do all the time."""

    def work_of_alice(sizes: list[int]) -> int:
        own = [entry(number, ALICE, size) for number, size in enumerate(sizes * 12)]
        waiting = {Lane.REALTIME: [], Lane.BULK: [*own, *(entry(1_000 + n, BOB, 40) for n in range(60))]}
        served, _ = serve(waiting, Accounts([], 0), 0, capacity)
        return sum(each.work for each in served if each.requester == ALICE)

    assert work_of_alice(parts) <= work_of_alice([sum(parts)]) + max(sum(parts), 40)
    assert work_of_alice([sum(parts)]) <= work_of_alice(parts) + sum(parts) + 40


@given(st.lists(st.tuples(NAMES, st.integers(1, 60)), min_size=30, max_size=80), st.integers(100, 800))
def test_requesters_that_all_wait_are_served_alike_within_one_request(asked: list[tuple[str, int]], work: int) -> None:
    waiting = {Lane.REALTIME: [], Lane.BULK: [entry(n, who, size) for n, (who, size) in enumerate(asked)]}
    served, _ = serve(waiting, Accounts([], 0), 0, work)
    sums = Counter(dict.fromkeys((ALICE, BOB, CAROL), 0))
    for each in served:
        sums[each.requester] += each.work
    still = {each.requester for each in waiting[Lane.BULK]}
    for one in still:
        assert all(sums[other] <= sums[one] + 60 for other in sums)


def test_accounts__stays_away__starts_where_the_others_are() -> None:
    accounts = Accounts([], 0)
    for _ in range(10):
        accounts.charge(ALICE, 100)
    kept, floor = accounts.closed([ALICE])
    assert (kept, floor) == ((), 1_000)
    assert Accounts(kept, floor).of(BOB) == 1_000


def test_accounts__nobody_waits_for_a_turn__all_start_anew() -> None:
    accounts = Accounts([Account(ALICE, 700)], 100)
    accounts.charge(BOB, 50)
    assert accounts.closed([]) == ((), 700)


@given(st.lists(st.tuples(NAMES, st.integers(1, 99))), st.sets(NAMES))
def test_accounts__floor_never_falls_and_nothing_at_it_is_kept(charges: list[tuple[str, int]], waiting: set) -> None:
    accounts, floor = Accounts([Account(CAROL, 40)], 25), 25
    for who, work in charges:
        accounts.charge(who, work)
    kept, after = accounts.closed(waiting)
    assert after >= floor
    assert all(account.served_work > after for account in kept)
    assert all(Accounts(kept, after).of(who) == max(after, accounts.of(who)) for who in waiting)


def test_jains_index() -> None:
    assert shares_of({ALICE: 5, BOB: 5}) == 1.0
    assert shares_of({ALICE: 5, BOB: 0}) == 0.5
    assert shares_of({}) == 1.0


# Lanes


@given(st.lists(st.integers(1, 60), min_size=40, max_size=60), st.lists(st.integers(1, 60), min_size=40, max_size=60))
def test_lanes__both_wait__share_seven_to_three_within_one_request(realtime: list[int], bulk: list[int]) -> None:
    waiting = {
        Lane.REALTIME: [entry(number, ALICE, work) for number, work in enumerate(realtime)],
        Lane.BULK: [entry(100 + number, BOB, work) for number, work in enumerate(bulk)],
    }
    lag = 0
    while all(waiting.values()):
        _, lag = serve(waiting, Accounts([], 0), lag, 50)
        assert -REALTIME_SHARE * 60 <= lag <= BULK_SHARE * 60


def test_lanes__one_is_empty__the_other_has_all_and_nothing_is_saved_up() -> None:
    waiting = {Lane.REALTIME: [], Lane.BULK: [entry(number, BOB) for number in range(30)]}
    served, lag = serve(waiting, Accounts([], 0), 0, 2_000)
    assert len(served) == 20
    assert lag >= -REALTIME_SHARE * 100
    waiting[Lane.REALTIME] = [entry(100 + number) for number in range(30)]
    served, _ = serve(waiting, Accounts([], 0), lag, 1_000)
    realtime = sum(each.requester == ALICE for each in served)
    assert 7 <= realtime <= 9


# The bound


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=25),  # what waits when it comes
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 10**9)), min_size=10, max_size=60),  # and what comes later
    st.integers(20, 80),
)
@settings(max_examples=60)
def test_starvation_bound__bulk_is_served_within_its_maximum_wait_and_what_was_there(
    backlog: list[int], later: list[tuple[int, int]], work_a_second: int
) -> None:
    """Others pay more and realtime never rests; the bound of `core.lanes` holds with s = 3/10."""
    max_wait_s, largest = 20, 80
    waiting = {Lane.REALTIME: [], Lane.BULK: [entry(n, BOB, size, 10**9) for n, size in enumerate(backlog)]}
    victim = entry(10_000, CAROL, largest, 0)
    waiting[Lane.BULK].append(victim)
    share = work_a_second * BULK_SHARE / (BULK_SHARE + REALTIME_SHARE)
    bound_s = max_wait_s + (sum(backlog) + 2 * largest) / share + 2 * largest / work_a_second + 2
    accounts, lag, credit = Accounts([Account(CAROL, 10**6)], 0), 0, 0
    for now_s in range(int(bound_s) + 2):
        size, score = later[now_s % len(later)]
        waiting[Lane.REALTIME] += [entry(20_000 + now_s * 10 + n, ALICE, 80, 10**9, now_s) for n in range(2)]
        if size:
            waiting[Lane.BULK].append(entry(30_000 + now_s, BOB, size, score, now_s))
        waiting = {
            lane: [each._replace(is_overdue=now_s - each.included_at_s > max_wait_s) for each in entries]
            for lane, entries in waiting.items()
        }
        credit += work_a_second
        served, lag = serve(waiting, accounts, lag, credit)
        credit -= sum(each.work for each in served)
        if any(each.request_id == victim.request_id for each in served):
            return
    raise AssertionError(f"not served within {bound_s} s")
