"""What a node writes down about a task: enough to go on after a restart, and to never sign two results of a request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.types import Hash32, Result


class TaskState(StrEnum):
    """Where a task stands at its node."""

    REFUSED = "refused"
    ACCEPTED = "accepted"  # the node gave its word; the answer is being computed
    COMPUTED = "computed"  # the answer is fixed, and is delivered until the relayer has it
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"  # given up, or rejected by the relayer for good


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A task. `result` and what follows it is set once, when the answer is there, and never changed."""

    request_id: Hash32
    round: int
    state: TaskState
    task: str  # its frame, as it came; empty once pruned
    accept_signature: bytes
    result: Result | None
    payload: bytes  # empty once pruned
    output_tokens: int
    compute_ms: int
    detail: str
    received_at_ms: int
    changed_at_ms: int
    proof: bytes = b""  # of the result, for the request's verifier
