"""The score of policy `balanced`: what may raise it, and by how much at most."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.priority import MOST_FEE_WEI, SCORE_SCALE, Weights, capped_fee_wei, scores_e9

FEES = st.integers(0, 2**96 - 1)
TIMES_MS = st.integers(-60_000, 2**42)
MEDIANS = st.integers(0, 2**96 - 1)
DEFAULT = Weights()
HALF_WAITS_MS = st.integers(1, 600_000)


def score(
    fee_wei: int,
    age_ms: int,
    left_ms: int,
    median_fee_wei: int = 10**12,
    half_wait_ms: int = 30_000,
    weights: Weights = DEFAULT,
) -> int:
    def one(value: int) -> np.ndarray:
        return np.array([value], dtype=np.int64)

    scores = scores_e9(weights, median_fee_wei, half_wait_ms, one(capped_fee_wei(fee_wei)), one(age_ms), one(left_ms))
    return int(scores[0])


@given(FEES, TIMES_MS, TIMES_MS, MEDIANS, HALF_WAITS_MS)
def test_score_is_within_0_and_1(fee: int, age: int, left: int, median: int, half: int) -> None:
    assert 0 <= score(fee, age, left, median, half) <= SCORE_SCALE


@given(FEES, FEES, TIMES_MS, TIMES_MS, MEDIANS)
def test_score_is_monotone_in_fee(fee: int, other: int, age: int, left: int, median: int) -> None:
    low, high = sorted((fee, other))
    assert score(low, age, left, median) <= score(high, age, left, median)


@given(FEES, TIMES_MS, TIMES_MS, TIMES_MS, HALF_WAITS_MS)
def test_score_is_monotone_in_age(fee: int, age: int, other: int, left: int, half: int) -> None:
    low, high = sorted((age, other))
    assert score(fee, low, left, half_wait_ms=half) <= score(fee, high, left, half_wait_ms=half)


@given(FEES, TIMES_MS, TIMES_MS, TIMES_MS)
def test_score_is_monotone_in_urgency(fee: int, age: int, left: int, other: int) -> None:
    soon, late = sorted((left, other))
    assert score(fee, age, late) <= score(fee, age, soon)


def test_score__reference_fault__no_fee_outweighs_every_wait() -> None:
    """By the reference a fee of 1 ether is worth 60 points, and no wait of any length ever 10."""
    whale = score(10**18, age_ms=0, left_ms=300_000)
    patient = score(10**12, age_ms=120_000, left_ms=60_000)
    assert whale - score(0, age_ms=0, left_ms=300_000) <= 0.6 * SCORE_SCALE
    assert patient > score(10**12, age_ms=0, left_ms=60_000) + 0.2 * SCORE_SCALE


def test_score__known_points() -> None:
    weights = Weights(600, 300, 100)
    assert score(10**12 * 2**20, 0, 2**40, 10**12 * 2**20, weights=weights) == 300 * 10**6
    assert score(0, 30_000, 30_000, weights=weights) == 150 * 10**6 + 50 * 10**6
    assert score(0, 0, 0, weights=weights) == 100 * 10**6


def test_fees_above_the_most_count_as_the_most() -> None:
    assert score(MOST_FEE_WEI, 0, 0) == score(2**96 - 1, 0, 0)
