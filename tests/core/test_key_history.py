"""Keys and leavings out of events."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.events import ChainEvent
from headrace.core.key_history import keys_of, leaves_at_s

A, B, C, OTHER = ("0x" + letter * 40 for letter in "abcd")
MARKET, ELSEWHERE = "0x" + "11" * 20, "0x" + "22" * 20


def event(name: str, block: int, index: int = 0, **args: Any) -> ChainEvent:
    return ChainEvent(block, "0x" + "00" * 32, "0x" + "00" * 32, index, "0x" + "00" * 20, name, args)


def rotated(old: str, new: str, block: int, index: int = 0) -> ChainEvent:
    return event("KeyRotated", block, index, oldKey=old, newKey=new)


def left(key: str, block: int, leaves_at: int, market: str = MARKET, index: int = 0) -> ChainEvent:
    return event("MarketLeft", block, index, key=key, market=market, leavesAt=leaves_at)


ROTATIONS = [rotated(A, B, 10), rotated(OTHER, "0x" + "ee" * 20, 15), rotated(B, C, 20)]


def test_keys_of__rotations__are_followed_from_the_first() -> None:
    assert keys_of(A, ROTATIONS) == (A, B, C)
    assert keys_of(B, ROTATIONS) == (B, C)
    assert keys_of(C, ROTATIONS) == (C,)
    assert keys_of(A, []) == (A,)


@pytest.mark.parametrize(
    ("leavings", "expected"),
    [
        ([], 0),
        ([left(B, 12, 500)], 500),
        ([left(B, 12, 500), left(B, 13, 600)], 600),
        # Before the rotation the place was the old key's, and went over as it was.
        ([left(A, 9, 400)], 400),
        ([left(A, 9, 400), left(B, 12, 500)], 500),
        # After it, what the old key does with its own place is no matter of the new one's.
        ([left(A, 11, 700)], 0),
        ([left(A, 9, 400), left(A, 11, 700)], 400),
        ([left(B, 12, 500, market=ELSEWHERE)], 0),
        ([left(OTHER, 9, 500)], 0),
        # Of the same block, in the order of the logs.
        ([left(A, 10, 450, index=0)], 0),
        ([left(B, 12, 500, index=7), left(B, 12, 400, index=3)], 500),
    ],
)
def test_leaves_at_s__of_the_second_key__is_the_last_that_concerns_its_place(
    leavings: list[ChainEvent], expected: int
) -> None:
    assert leaves_at_s([A, B], MARKET, leavings, ROTATIONS) == expected


def test_leaves_at_s__same_block_as_the_rotation__goes_by_the_order_of_the_logs() -> None:
    rotations = [rotated(A, B, 10, index=5)]
    assert leaves_at_s([A, B], MARKET, [left(A, 10, 450, index=4)], rotations) == 450
    assert leaves_at_s([A, B], MARKET, [left(A, 10, 450, index=6)], rotations) == 0


def test_leaves_at_s__handed_down_twice__is_the_first_key_s() -> None:
    assert leaves_at_s([A, B, C], MARKET, [left(A, 9, 400)], ROTATIONS) == 400
    assert leaves_at_s([A, B, C], MARKET, [left(A, 9, 400), left(B, 21, 900)], ROTATIONS) == 400
