"""Laws of the reference score."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.reference import ReferenceRequest, score_e9, score_of
from headrace.core.reference.priority import EXPIRED_SCORE

NOW_MS = 1_800_000_000_000
MAX_UINT256 = 2**256 - 1
DAY_MS = 86_400_000

REQUEST = ReferenceRequest(
    id="request",
    model_id="llama-7b",
    priority_fee_wei=10**16,
    submitted_at_ms=NOW_MS - 1_000,
    deadline_ms=NOW_MS + 60_000,
    required_memory_mb=512,
    batchable=True,
)

fees_wei = st.integers(0, MAX_UINT256)
ages_ms = st.integers(-DAY_MS, 30 * DAY_MS)
times_left_ms = st.integers(1, DAY_MS)
requests = st.builds(
    lambda fee_wei, age_ms, left_ms: replace(
        REQUEST,
        priority_fee_wei=fee_wei,
        submitted_at_ms=NOW_MS - age_ms,
        deadline_ms=NOW_MS + left_ms,
    ),
    fees_wei,
    ages_ms,
    times_left_ms,
)


def test_score__one_unit_of_each_term__is_the_sum_of_the_weights() -> None:
    assert score_of(REQUEST, NOW_MS) == 0.6 * 1 + 0.3 * 1 + 0.1 * 1


@given(requests, fees_wei)
def test_score_is_monotone_in_fee(request_: ReferenceRequest, other_fee_wei: int) -> None:
    low, high = sorted((request_.priority_fee_wei, other_fee_wei))
    low_score = score_of(replace(request_, priority_fee_wei=low), NOW_MS)
    high_score = score_of(replace(request_, priority_fee_wei=high), NOW_MS)
    assert low_score <= high_score
    if high - low >= 10**12 and high < 10**22:  # far enough apart for the double to show it
        assert low_score < high_score


@given(ages_ms, ages_ms)
def test_score_is_monotone_in_age(age_ms: int, other_age_ms: int) -> None:
    low, high = sorted((age_ms, other_age_ms))
    low_score = score_of(replace(REQUEST, submitted_at_ms=NOW_MS - low), NOW_MS)
    high_score = score_of(replace(REQUEST, submitted_at_ms=NOW_MS - high), NOW_MS)
    assert low_score < high_score if max(low, 0) < high else low_score == high_score


@given(times_left_ms, times_left_ms)
def test_score_rises_as_the_deadline_nears_within_30_s(left_ms: int, other_left_ms: int) -> None:
    near, far = sorted((left_ms, other_left_ms))
    near_score = score_of(replace(REQUEST, deadline_ms=NOW_MS + near), NOW_MS)
    far_score = score_of(replace(REQUEST, deadline_ms=NOW_MS + far), NOW_MS)
    assert near_score > far_score if near < min(far, 30_000) else near_score == far_score


def test_deadline_term_is_continuous_at_30_s() -> None:
    inside = score_of(replace(REQUEST, deadline_ms=NOW_MS + 29_999), NOW_MS)
    outside = score_of(replace(REQUEST, deadline_ms=NOW_MS + 30_000), NOW_MS)
    assert inside - outside == pytest.approx(0.1 * 0.001 / 30, rel=1e-3)


@given(requests)
def test_score_of_a_live_request_is_positive_and_finite(request_: ReferenceRequest) -> None:
    assert 0.1 <= score_of(request_, NOW_MS) < math.inf


@given(requests, st.integers(0, 100 * 365 * DAY_MS))
def test_score_of_an_expired_request_is_minus_one(request_: ReferenceRequest, late_ms: int) -> None:
    assert score_of(request_, request_.deadline_ms + late_ms) == EXPIRED_SCORE == -1


@given(requests, st.integers(-(10**15), 10**15))
def test_score_depends_on_time_differences_only(request_: ReferenceRequest, shift_ms: int) -> None:
    shifted = replace(
        request_,
        submitted_at_ms=request_.submitted_at_ms + shift_ms,
        deadline_ms=request_.deadline_ms + shift_ms,
    )
    assert score_of(shifted, NOW_MS + shift_ms) == score_of(request_, NOW_MS)


@pytest.mark.parametrize("ahead_ms", [1, 999, 1_000, 1_001, DAY_MS])
def test_score__submitted_after_now__has_not_waited(ahead_ms: int) -> None:
    ahead = score_of(replace(REQUEST, submitted_at_ms=NOW_MS + ahead_ms), NOW_MS)
    assert ahead == score_of(replace(REQUEST, submitted_at_ms=NOW_MS), NOW_MS)


@pytest.mark.parametrize("field", ["priority_fee_wei", "required_memory_mb"])
def test_request__negative_amount__is_refused_by_name(field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        replace(REQUEST, **{field: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (0.0, 0),
        (-0.0, 0),
        (-1.0, -1_000_000_000),
        (2.8587031591986323, 2_858_703_159),
        (1 / 1024, 976_563),  # exactly 976,562.5
        (-1 / 1024, -976_563),
        (3 / 1024, 2_929_688),  # exactly 2,929,687.5: half to even would agree
        (5 / 1024, 4_882_813),  # exactly 4,882,812.5: half to even would not
        (0.5e-9, 1),  # the nearest double is just above one half
        (0.49e-9, 0),
        (5e-324, 0),
    ],
)
def test_score_e9__rounds_half_away_from_zero(score: float, expected: int) -> None:
    assert score_e9(score) == expected


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_score_e9_is_the_nearest_integer(score: float) -> None:
    assert abs(score_e9(score) - Fraction(score) * 10**9) <= Fraction(1, 2)
    assert score_e9(-score) == -score_e9(score)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_score_e9_keeps_the_order(score: float, other: float) -> None:
    low, high = sorted((score, other))
    assert score_e9(low) <= score_e9(high)


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_score_e9__not_finite__is_refused(score: float) -> None:
    with pytest.raises(InvalidInput, match="finite"):
        score_e9(score)
