"""When a batch of ready results is sent: policy `threshold`, the reference's rule, and what it shares with `adaptive`.

Full enough, old enough, or a deadline nears: it looks neither at blocks nor at prices. See `core.adaptive_batching`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.types import ItemStatus

NODES_FAULT = frozenset(
    {
        ItemStatus.REWARD_TOO_HIGH,
        ItemStatus.BAD_RESULT,
        ItemStatus.BAD_SIGNATURE,
        ItemStatus.NODE_NOT_JOINED,
        ItemStatus.PROBATION,
        ItemStatus.VERIFICATION_FAILED,
    }
)
"""The node, not the request, is why such an item is not paid: another node may serve it."""


class BatchReason(StrEnum):
    """Why a batch goes out now."""

    FULL = "full"
    AGE = "age"
    DEADLINE = "deadline"
    BLOCK = "block"  # the next block is near, and nothing is worth another one


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The thresholds. `max_items` also bounds a batch."""

    max_items: int = 50
    max_age_ms: int = 1_500
    deadline_margin_ms: int = 5_000


def why_send(
    policy: BatchPolicy, now_ms: int, ready: int, oldest_ready_ms: int, nearest_end_ms: int
) -> BatchReason | None:
    """Whether to send the open batch, and why.

    Args:
        policy: the thresholds.
        now_ms: Unix time.
        ready: results that wait.
        oldest_ready_ms: since when the oldest of them does.
        nearest_end_ms: when the first of them can no longer be paid.

    Returns:
        The reason, or None to wait.
    """
    if ready == 0:
        return None
    if ready >= policy.max_items:
        return BatchReason.FULL
    if nearest_end_ms - now_ms <= policy.deadline_margin_ms:
        return BatchReason.DEADLINE
    if now_ms - oldest_ready_ms >= policy.max_age_ms:
        return BatchReason.AGE
    return None
