"""A key's spending limit, held against a plain list of what was signed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ExpiredContext
from headrace.core.spending import WINDOW_MS, Signed, Spending, worst_wei

LIMIT_WEI = 1_000
steps = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, WINDOW_MS), st.integers(0, 700)),  # intent, time passed, cost
    max_size=40,
)


def counted(signed: list[Signed], now_ms: int) -> int:
    """By the definition: of each intent, what each beyond the dearest before it adds, of the last hour."""
    dearest: dict[int, int] = {}
    spent = 0
    for each in signed:
        beyond = max(0, each.worst_wei - dearest.get(each.intent_id, 0))
        dearest[each.intent_id] = max(each.worst_wei, dearest.get(each.intent_id, 0))
        if each.at_ms > now_ms - WINDOW_MS:
            spent += beyond
    return spent


@given(steps)
def test_what_is_let_through_never_exceeds_the_limit_in_any_hour(drawn: list[tuple[int, int, int]]) -> None:
    spending, signed, now_ms = Spending(LIMIT_WEI), [], 10**12
    for intent_id, passed_ms, wei in drawn:
        now_ms += passed_ms
        beyond = spending.beyond_wei(intent_id, wei)
        may = counted(signed, now_ms) + beyond <= LIMIT_WEI
        try:
            spending.require(beyond, now_ms)
        except ExpiredContext:
            assert not may, "what fits is let through"
            continue
        assert may or not beyond
        one = Signed(intent_id, now_ms, wei)
        spending.add(one)
        signed.append(one)
        assert spending.spent_wei(now_ms) == counted(signed, now_ms) <= LIMIT_WEI


@given(steps, st.integers(0, 2 * WINDOW_MS))
def test_a_restart_resets_nothing(drawn: list[tuple[int, int, int]], later_ms: int) -> None:
    before, now_ms, signed = Spending(LIMIT_WEI), 10**12, []
    for intent_id, passed_ms, wei in drawn:
        now_ms += passed_ms
        signed.append(Signed(intent_id, now_ms, wei))
        before.add(signed[-1])
    after = Spending(LIMIT_WEI)
    after.restore(reversed(signed), now_ms)
    for at_ms in (now_ms, now_ms + later_ms):
        assert after.spent_wei(at_ms) == before.spent_wei(at_ms) == counted(signed, at_ms)


@given(steps, st.integers(1, 10 * WINDOW_MS))
def test_a_clock_that_is_set_back_frees_nothing_and_holds_it_for_an_hour(
    drawn: list[tuple[int, int, int]], back_ms: int
) -> None:
    spending, now_ms = Spending(LIMIT_WEI), 10**12
    for intent_id, passed_ms, wei in drawn:
        now_ms += passed_ms
        spending.add(Signed(intent_id, now_ms, wei))
    spent_wei = spending.spent_wei(now_ms)
    assert spending.spent_wei(now_ms - back_ms) == spent_wei
    assert spending.spent_wei(now_ms - back_ms + WINDOW_MS) == 0


@given(st.integers(0, 2**60), st.integers(1, 2**60))
def test_without_a_limit_all_is_let_through(spent: int, more: int) -> None:
    spending = Spending(0)
    spending.add(Signed(1, 0, spent))
    spending.require(more, 0)


def test_when_it_goes_on_is_told_and_true() -> None:
    spending = Spending(LIMIT_WEI)
    spending.add(Signed(1, 0, 600))
    spending.add(Signed(2, 60_000, 300))
    with pytest.raises(ExpiredContext, match=r"900 wei of the spending limit of 1000 .* in 3480 s"):
        spending.require(200, 120_000)
    with pytest.raises(ExpiredContext):
        spending.require(200, 120_000 + 3_480_000 - 1)
    spending.require(200, 120_000 + 3_480_000)
    with pytest.raises(ExpiredContext, match="1001 wei at once are above"):
        spending.require(1_001, 10**12)


def test_an_end_keeps_what_was_taken() -> None:
    spending = Spending(LIMIT_WEI)
    spending.add(Signed(1, 0, 600))
    assert spending.beyond_wei(1, 700) == 100
    spending.forget(1)
    assert spending.beyond_wei(1, 700) == 700
    assert spending.spent_wei(0) == 600
    assert worst_wei(21_000, 5, 7) == 105_007
