"""The score of the default policy, `balanced`: fee, wait and deadline, each within [0, 1], weighted.

    score = fee_weight · fee + wait_weight · wait + deadline_weight · deadline

`fee = f / (f + m)`, with f the priority fee and m the median of what fulfilled requests paid: half at the median,
always more for more, never 1. The reference's `f / 0.01 ether` has no upper bound: one fee outweighs every wait.
`wait = a / (a + h)`, with a the age and h a quarter of the lane's maximum wait: four fifths when the request is due
by order alone. `deadline = 30 / (30 + left)`, in seconds: half when 30 s are left, 1 at the end.

Scores are integers × 10⁹, computed from integers in int64, so that every replay has the same. They order requests of
one requester, and requesters that were served alike (`core.fairness`); they never route.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SCORE_SCALE = 10**9
_TERM_SCALE = 10**6  # terms are in millionths, weights in thousandths
URGENT_MS = 30_000
MOST_FEE_WEI = 2**62
"""Fees above this (4.6 ether) count as this."""
_FEE_SHIFT = 20  # fees are compared in units of 2^20 wei, so that millionths of them fit into 63 bits
_MOST_MS = 2**40


@dataclass(frozen=True, slots=True)
class Weights:
    """Thousandths that each term counts with. Together they are the highest score, 1,000 by default."""

    fee_milli: int = 600
    wait_milli: int = 300
    deadline_milli: int = 100


def scores_e9(
    weights: Weights, median_fee_wei: int, half_wait_ms: Ints | int, fees_wei: Ints, ages_ms: Ints, left_ms: Ints
) -> Ints:
    """The scores of many requests.

    Args:
        weights: of the terms.
        median_fee_wei: m; at least 1 is taken.
        half_wait_ms: h of each request's lane, at least 1.
        fees_wei: priority fees, at most `MOST_FEE_WEI`; see `capped_fee_wei`.
        ages_ms: since the blocks that included them; a block's time may be ahead of `now`, which counts as 0.
        left_ms: until their deadlines; below 0 counts as 0.
    """
    median = max(1, capped_fee_wei(median_fee_wei) >> _FEE_SHIFT)
    fees = fees_wei >> _FEE_SHIFT
    ages = np.clip(ages_ms, 0, _MOST_MS)
    left = np.clip(left_ms, 0, _MOST_MS)
    fee_term = fees * _TERM_SCALE // (fees + median)
    wait_term = ages * _TERM_SCALE // (ages + half_wait_ms)
    deadline_term = URGENT_MS * _TERM_SCALE // (URGENT_MS + left)
    score: Ints = weights.fee_milli * fee_term + weights.wait_milli * wait_term + weights.deadline_milli * deadline_term
    return score


def capped_fee_wei(fee_wei: int) -> int:
    """A fee as scores count it."""
    return min(fee_wei, MOST_FEE_WEI)
