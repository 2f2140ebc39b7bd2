"""Laws of the reference's strict lanes."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.reference import StrictLanes
from headrace.core.types import Lane

STREAK = 3
TAKE: Final = None

operations = st.lists(st.sampled_from([*Lane, TAKE]), max_size=80)
capacities = st.integers(1, 6)


def small_lanes(realtime_capacity: int = 2, bulk_capacity: int = 50) -> StrictLanes[int]:
    return StrictLanes(realtime_capacity, bulk_capacity, realtime_streak=STREAK)


def offer_all(lanes: StrictLanes[str], lane: Lane, names: str) -> list[Lane | None]:
    return [lanes.offer(name, lane) for name in names]


def take_all(lanes: StrictLanes[str]) -> str:
    return "".join(lanes.take() or "-" for _ in range(len(lanes)))


def test_take__nothing_waits__is_none() -> None:
    lanes: StrictLanes[str] = StrictLanes()
    assert (lanes.take(), len(lanes)) == (None, 0)


def test_defaults__are_200_1000_and_20() -> None:
    lanes: StrictLanes[int] = StrictLanes()
    assert [lanes.offer(index, Lane.REALTIME) for index in range(200)] == [Lane.REALTIME] * 200
    assert [lanes.offer(index, Lane.BULK) for index in range(1_000)] == [Lane.BULK] * 1_000
    assert [lanes.offer(-1, lane) for lane in Lane] == [None, None]
    taken = [lanes.take() for _ in range(42)]
    assert taken == [*range(20), 0, *range(20, 40), 1]


def test_take__streak_of_realtime_is_full__gives_one_bulk() -> None:
    lanes: StrictLanes[str] = StrictLanes(10, 10, STREAK)
    offer_all(lanes, Lane.BULK, "xy")
    offer_all(lanes, Lane.REALTIME, "abcdefg")
    assert take_all(lanes) == "abcxdefyg"


def test_take__streak_grew_while_no_bulk_waited__next_bulk_goes_first() -> None:
    lanes: StrictLanes[str] = StrictLanes(10, 10, STREAK)
    offer_all(lanes, Lane.REALTIME, "abcd")
    assert take_all(lanes) == "abcd"
    assert lanes.take() is None  # an empty take leaves the streak alone
    offer_all(lanes, Lane.REALTIME, "e")
    offer_all(lanes, Lane.BULK, "x")
    assert take_all(lanes) == "xe"


def test_offer__realtime_is_full__demotes_then_refuses() -> None:
    lanes: StrictLanes[str] = StrictLanes(2, 2, STREAK)
    assert offer_all(lanes, Lane.REALTIME, "abcde") == [Lane.REALTIME, Lane.REALTIME, Lane.BULK, Lane.BULK, None]
    assert lanes.offer("x", Lane.BULK) is None
    assert [lanes.waiting_in(lane) for lane in Lane] == [2, 2]


def test_offer__bulk_is_full__realtime_is_not_lent() -> None:
    lanes: StrictLanes[str] = StrictLanes(2, 1, STREAK)
    assert offer_all(lanes, Lane.BULK, "xy") == [Lane.BULK, None]


def test_take__demoted_item_by_a_full_streak__begins_the_next_streak_at_one() -> None:
    lanes: StrictLanes[str] = StrictLanes(8, 10, STREAK)
    offer_all(lanes, Lane.REALTIME, "abcdefgh" + "D")
    offer_all(lanes, Lane.BULK, "x")
    assert take_all(lanes) == "abcDdexfgh"


def test_take__demoted_item_because_realtime_is_empty__extends_the_streak() -> None:
    lanes: StrictLanes[str] = StrictLanes(2, 10, STREAK)
    offer_all(lanes, Lane.REALTIME, "ab" + "D")
    offer_all(lanes, Lane.BULK, "x")
    assert [lanes.take() for _ in range(3)] == ["a", "b", "D"]
    offer_all(lanes, Lane.REALTIME, "c")
    assert take_all(lanes) == "xc"


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_lanes__size_below_one__is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        StrictLanes[str](*sizes)


@given(operations, capacities, capacities)
def test_no_item_is_lost_or_given_twice(steps: list[Lane | None], realtime: int, bulk: int) -> None:
    lanes = small_lanes(realtime, bulk)
    accepted: set[int] = set()
    taken: list[int] = []
    for item, step in enumerate(steps):
        if step is TAKE:
            given_item = lanes.take()
            assert (given_item is None) is (accepted == set(taken))
            taken += [] if given_item is None else [given_item]
        elif lanes.offer(item, step) is not None:
            accepted.add(item)
        assert lanes.waiting_in(Lane.REALTIME) <= realtime
        assert lanes.waiting_in(Lane.BULK) <= bulk
        assert len(lanes) == len(accepted) - len(taken)
    assert len(taken) == len(set(taken))
    assert set(taken) <= accepted


@given(operations)
def test_each_lane_is_first_in_first_out(steps: list[Lane | None]) -> None:
    lanes = small_lanes()
    landed: dict[Lane, list[int]] = {lane: [] for lane in Lane}
    taken: list[int] = []
    for item, step in enumerate(steps):
        if step is TAKE:
            given_item = lanes.take()
            taken += [] if given_item is None else [given_item]
        else:
            lane = lanes.offer(item, step)
            assert lane is not None
            landed[lane].append(item)
    for items in landed.values():
        assert [item for item in taken if item in items] == items[: len(set(items) & set(taken))]


@given(operations)
def test_the_head_of_bulk_waits_for_at_most_a_streak_of_realtime(steps: list[Lane | None]) -> None:
    lanes = small_lanes()
    passed_over = 0
    for item, step in enumerate(steps):
        if step is not TAKE:
            lanes.offer(item, step)
            continue
        waiting = lanes.waiting_in(Lane.BULK)
        lanes.take()
        passed_over = passed_over + 1 if waiting and lanes.waiting_in(Lane.BULK) == waiting else 0
        assert passed_over <= STREAK


@given(operations)
def test_realtime_goes_first_unless_a_streak_is_full(steps: list[Lane | None]) -> None:
    lanes = small_lanes(realtime_capacity=80)
    streak = 0
    for item, step in enumerate(steps):
        if step is not TAKE:
            lanes.offer(item, step)
            continue
        realtime, bulk = lanes.waiting_in(Lane.REALTIME), lanes.waiting_in(Lane.BULK)
        lanes.take()
        took_realtime = lanes.waiting_in(Lane.REALTIME) < realtime
        assert took_realtime is (realtime > 0 and not (bulk > 0 and streak >= STREAK))
        streak = streak + 1 if took_realtime else 0 if bulk else streak
