"""What a relayer has seen of its nodes, and how much work a request is expected to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.performance import LAST_OUTCOMES, LAST_PACES, Performance
from headrace.core.work import expected_work

NODE, OTHER, MODEL = "0x" + "aa" * 20, "0x" + "bb" * 20, "0x" + "11" * 32


def test_performance__nothing_seen__says_nothing() -> None:
    assert Performance().tally(NODE) == (0, 0)
    assert Performance().us_per_token(NODE, MODEL) == 0


def test_performance__tells_nodes_and_models_apart() -> None:
    seen = Performance()
    for took_ms in (1_000, 3_000, 2_000):
        seen.answered(NODE, MODEL, 100, took_ms)
    seen.missed(NODE)
    assert seen.tally(NODE) == (3, 1)
    assert seen.us_per_token(NODE, MODEL) == 20_000
    assert (seen.tally(OTHER), seen.us_per_token(NODE, "0x" + "22" * 32)) == ((0, 0), 0)


def test_performance__two_answers_only__are_no_pace_yet() -> None:
    seen = Performance()
    seen.answered(NODE, MODEL, 10, 1_000)
    seen.answered(NODE, MODEL, 10, 1_000)
    assert seen.us_per_token(NODE, MODEL) == 0


def test_performance__got_better__what_it_was_is_forgotten() -> None:
    seen = Performance()
    for _ in range(LAST_OUTCOMES):
        seen.missed(NODE)
    for _ in range(max(LAST_OUTCOMES, LAST_PACES)):
        seen.answered(NODE, MODEL, 10, 100)
    assert seen.tally(NODE) == (LAST_OUTCOMES, 0)
    assert seen.us_per_token(NODE, MODEL) == 10_000


def test_performance__clock_was_set_back__is_fast_and_not_an_error() -> None:
    seen = Performance()
    for _ in range(3):
        seen.answered(NODE, MODEL, 10, -5_000)
    assert seen.us_per_token(NODE, MODEL) == 1


@pytest.mark.parametrize(
    ("prompt_bytes", "tokens", "complexity_milli", "work"),
    [(0, 0, 1_000, 1), (3_200, 100, 1_000, 200), (3_200, 100, 5_000, 1_000), (31, 1, 100, 1)],
)
def test_work__known_points(prompt_bytes: int, tokens: int, complexity_milli: int, work: int) -> None:
    assert expected_work(prompt_bytes, tokens, complexity_milli) == work


@given(st.integers(0, 2**32), st.integers(0, 2**24), st.integers(0, 10**6), st.integers(0, 2**20))
def test_work_is_monotone_and_splitting_does_not_make_it_more_than_its_parts(
    prompt_bytes: int, tokens: int, complexity_milli: int, more: int
) -> None:
    work = expected_work(prompt_bytes, tokens, complexity_milli)
    assert work <= expected_work(prompt_bytes + more, tokens + more, complexity_milli + more)
    both = expected_work(prompt_bytes + more, tokens + more, complexity_milli)
    parts = work + expected_work(more, more, complexity_milli)
    assert both - 2 * (1 + complexity_milli // 1_000) <= parts
