"""What passes between a relayer and a node about one request, in their own terms (the link puts it on the wire)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.types import Address, Assignment, Hash32, Request, Result


class RefusalReason(StrEnum):
    """Why a node does not take a task, or gives it up."""

    BAD_ASSIGNMENT = "bad_assignment"  # wrong node, relayer, signature or request id
    BAD_PROMPT = "bad_prompt"  # hash, length or form
    PROMPT_TOO_LONG = "prompt_too_long"  # with its answer, for the model's context
    UNKNOWN_MODEL = "unknown_model"
    REWARD_TOO_LOW = "reward_too_low"
    UNPAYABLE = "unpayable"  # the chain says that an answer would not be paid
    CHAIN_UNAVAILABLE = "chain_unavailable"  # so whether it would is not known
    DEADLINE_INFEASIBLE = "deadline_infeasible"
    BUSY = "busy"
    BACKEND_UNAVAILABLE = "backend_unavailable"
    BACKEND_FAILED = "backend_failed"
    SHUTTING_DOWN = "shutting_down"

    @property
    def passes(self) -> bool:
        """Whether it says something of the node now and nothing of the task: it may be asked again, later."""
        return self in _PASSING


_PASSING = frozenset(
    {
        RefusalReason.BUSY,
        RefusalReason.CHAIN_UNAVAILABLE,
        RefusalReason.BACKEND_UNAVAILABLE,
        RefusalReason.SHUTTING_DOWN,
    }
)


@dataclass(frozen=True, slots=True)
class Task:
    """A relayer hands a node a request. The request id is the idempotency key: the same task twice is one inference."""

    assignment: Assignment
    assignment_signature: bytes
    request: Request
    model_name: str
    prompt: bytes  # payload bytes, envelope included


@dataclass(frozen=True, slots=True)
class Accept:
    """The node has checked the prompt and will answer by the deadline; signed as `Accept`."""

    request_id: Hash32
    round: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """The node does not take the task, or could not finish it."""

    request_id: Hash32
    round: int
    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A signed result with the answer's payload bytes."""

    node: Address
    result: Result
    signature: bytes
    payload: bytes  # envelope, or bare content when the request asked for inline delivery
    output_tokens: int
    compute_ms: int
    proof: bytes = b""  # for the request's verifier


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a node says of itself, signed as `Heartbeat` over its canonical JSON. Frozen as part of the snapshot."""

    node: Address
    sequence: int
    sent_at_ms: int
    free_memory_mb: int
    in_flight: int
    max_in_flight: int
    load_milli: int  # 1-minute load per core, thousandths
    models: tuple[str, ...]  # model ids that it serves
    warm_models: tuple[str, ...]  # of these, those loaded now
    avg_latency_ms: int  # of a 7B-class answer: measured time over the model's complexity
    region: str
    verifiers: tuple[Address, ...] = ()  # contracts to which it can prove its answers


@dataclass(frozen=True, slots=True)
class LinkedNode:
    """A node that is linked now, with its last heartbeat."""

    node: Address
    heartbeat: Heartbeat
    signature: bytes
    received_at_ms: int
