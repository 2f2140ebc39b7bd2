"""The reference score: `0.6 · fee + 0.3 · wait + 0.1 · deadline`, and its fixed-point form.

Source: `tests/vectors/reference/priority.json`.
"""

from __future__ import annotations

import math
from typing import Final

from headrace.core.errors import InvalidInput
from headrace.core.reference.types import ReferenceRequest

FEE_WEIGHT: Final = 0.6
WAIT_WEIGHT: Final = 0.3
DEADLINE_WEIGHT: Final = 0.1

FEE_UNIT_WEI: Final = 1e16
"""The priority fee that is worth one point before weighting: 0.01 ether."""

URGENT_S: Final = 30.0
"""Seconds before the deadline at which the deadline term begins to rise above 1."""

EXPIRED_SCORE: Final = -1.0
"""The score of an expired request. Every other score is positive, so the sign alone tells them apart."""

SCORE_SCALE: Final = 10**9


def score_of(request: ReferenceRequest, now_ms: int) -> float:
    """The score of a request at `now_ms`; higher is served first, EXPIRED_SCORE once it is expired.

    The fee term has no upper bound: that is a listed fault of the reference, kept as it is.
    Raises OverflowError for a fee beyond the largest double (a uint256 is far below it).
    """
    if is_expired(request, now_ms):
        return EXPIRED_SCORE
    fee = request.priority_fee_wei / FEE_UNIT_WEI
    wait = _wait_term((now_ms - request.submitted_at_ms) / 1000)
    deadline = _deadline_term((request.deadline_ms - now_ms) / 1000)
    return FEE_WEIGHT * fee + WAIT_WEIGHT * wait + DEADLINE_WEIGHT * deadline


def is_expired(request: ReferenceRequest, now_ms: int) -> bool:
    """Whether no time is left. The deadline itself counts as expired; no vector comes that close."""
    return request.deadline_ms <= now_ms


def score_e9(score: float) -> int:
    """The score as it stands in a snapshot: the double's exact value × 10⁹, rounded half away from zero.

    Integer arithmetic throughout, so that every language which knows the double finds the same integer.
    Raises InvalidInput if the score is infinite or NaN.
    """
    if not math.isfinite(score):
        raise InvalidInput(f"score must be finite, got {score}")
    numerator, denominator = abs(score).as_integer_ratio()
    rounded = (2 * numerator * SCORE_SCALE + denominator) // (2 * denominator)
    return -rounded if score < 0 else rounded


def _wait_term(age_s: float) -> float:
    """`log2(1 + age_s)`. A block's timestamp may be ahead of `now`: such a request has not waited at all,
    where the original formula would fall below zero and, from one second on, give NaN."""
    return math.log2(1 + max(age_s, 0.0))


def _deadline_term(left_s: float) -> float:
    """1 while at least URGENT_S are left, then up to e. It cannot overflow: `left_s` is positive here."""
    return math.exp((URGENT_S - left_s) / URGENT_S) if left_s < URGENT_S else 1.0
