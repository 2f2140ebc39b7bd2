"""Inputs and outputs of the `reference` policy: only the fields that its formulas read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class ReferenceRequest:
    """A request as the reference sees it. Times are Unix milliseconds.

    Raises InvalidInput if the fee or the memory is negative.
    """

    id: str
    model_id: str
    priority_fee_wei: int
    submitted_at_ms: int
    deadline_ms: int
    required_memory_mb: int
    batchable: bool

    def __post_init__(self) -> None:
        _require_not_negative(priority_fee_wei=self.priority_fee_wei, required_memory_mb=self.required_memory_mb)


@dataclass(frozen=True, slots=True)
class ReferenceNode:
    """A node as the reference sees it: what it can hold, what it holds, and how fast it has been.

    Raises InvalidInput if the latency is negative, infinite or NaN, or if the in-flight count is negative.
    More in flight than `max_in_flight`, and no free memory at all, are states a node can report.
    """

    id: str
    supported_models: frozenset[str]
    free_memory_mb: int
    in_flight: int
    max_in_flight: int
    avg_latency_ms: float

    def __post_init__(self) -> None:
        _require_not_negative(avg_latency_ms=self.avg_latency_ms, in_flight=self.in_flight)


@dataclass(frozen=True, slots=True)
class ReferenceRoute:
    """What serving one request on one node would take; amounts are ether as doubles, never to be paid from."""

    node_id: str
    estimated_latency_ms: float
    gas_cost_eth: float
    total_cost_eth: float
    can_batch: bool


@dataclass(frozen=True, slots=True)
class ReferenceAssignment:
    """The decision that one node serves one request."""

    request_id: str
    node_id: str


@dataclass(frozen=True, slots=True)
class ReferenceSchedule:
    """The decisions of one cycle: each request given to it is in exactly one of the three.

    `assigned` and `skipped` (no node could take it) hold the highest score first; `too_late`, which the
    reference calls expired, keeps the order of the input.
    """

    assigned: tuple[ReferenceAssignment, ...]
    skipped: tuple[str, ...]
    too_late: tuple[str, ...]


def _require_not_negative(**values: float) -> None:
    """Raise InvalidInput, naming the field, for a value that is negative, infinite or NaN."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise InvalidInput(f"{name} must be finite and not negative, got {value}")
