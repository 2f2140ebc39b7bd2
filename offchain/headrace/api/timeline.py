"""A request's life in stages, from what the store wrote down and what the chain says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.api.schemas import StageName, StageView
from headrace.core.lifecycle import TERMINAL, RequestState
from headrace.core.postings import PostingState
from headrace.core.reasons import why_unassigned
from headrace.core.types import Decision, DecisionKind
from headrace.ports import StoredPosting, StoredRequest, TimelineEntry

# What the store calls an entry (a state, or the cause that led to it) → the stage that it begins.
_STAGES: dict[str, StageName] = {
    "eligible": "eligible",
    "confirmed": "eligible",
    "assigned": "assigned",
    "computing": "computing",
    "accepted": "computing",
    "signed": "signed",
    "delivered": "signed",
}
_ORDER: tuple[StageName, ...] = ("eligible", "queued", "assigned", "computing", "signed")
# How far a state is along that order.
_REACHED = {
    RequestState.WITHDRAWN: 0,
    RequestState.INCLUDED: 0,
    RequestState.ELIGIBLE: 1,
    RequestState.ASSIGNED: 3,
    RequestState.COMPUTING: 4,
    RequestState.SIGNED: 5,
    RequestState.SETTLING: 5,
    RequestState.FULFILLED: 5,
}


def stages_of(
    stored: StoredRequest,
    entries: Sequence[TimelineEntry],
    decision: Decision | None,
    settled_at_s: int | None,
    final_block: int,
    posting: StoredPosting | None = None,
) -> list[StageView]:
    """The stages of a request in their order.

    Args:
        stored: the request.
        posting: how it was handed in, if this relayer posted it.
        entries: its timeline, oldest first.
        decision: the newest on it.
        settled_at_s: time of the block that closed it, if it is closed and the block is known.
        final_block: blocks up to this one are final.
    """
    included = stored.state is not RequestState.WITHDRAWN
    stages = [
        *([_submitted(posting)] if posting else []),
        StageView(stage="sent", reached=True, at_ms=None, transaction_hash=stored.transaction_hash),
        StageView(
            stage="included",
            reached=included,
            at_ms=stored.included_at_s * 1000 if included else None,
            block_number=stored.block_number if included else None,
        ),
    ]
    times = _times(entries)
    if decision is not None and "eligible" in times:
        # It waits in its lane from when it is eligible; a cycle that looked at it is the proof.
        times.setdefault("queued", times["eligible"])
    reached = _reached(stored, times, decision)
    for position, stage in enumerate(_ORDER):
        is_reached = position < reached
        note = _note(stage, decision, stored.state) if is_reached else ""
        stages.append(
            StageView(stage=stage, reached=is_reached, at_ms=times.get(stage) if is_reached else None, note=note)
        )
    return [*stages, *_ending(stored, settled_at_s, final_block)]


def _outcome(state: RequestState, closed: Mapping[str, Any]) -> str:
    callback = closed.get("callback")
    return f"{state}, callback failed" if callback and not callback["made"] else str(state)


def stages_of_posting(posting: StoredPosting) -> list[StageView]:
    """The stages of a request that no block has yet."""
    transaction_hash = posting.transaction_hash or None
    unreached: tuple[StageName, ...] = ("included", *_ORDER, "settled", "final")
    is_over = posting.state is PostingState.UNPOSTED
    return [
        _submitted(posting),
        StageView(stage="sent", reached=bool(transaction_hash), at_ms=None, transaction_hash=transaction_hash),
        *(StageView(stage=stage, reached=False, at_ms=None) for stage in unreached if not is_over),
        *([StageView(stage="closed", reached=True, at_ms=posting.ended_at_ms, note="unposted")] if is_over else []),
    ]


def _submitted(posting: StoredPosting) -> StageView:
    return StageView(stage="submitted", reached=True, at_ms=posting.submitted_at_ms)


def _times(entries: Iterable[TimelineEntry]) -> dict[str, int]:
    """When each stage was last entered, and first for those that only begin."""
    times: dict[str, int] = {}
    for entry in entries:
        stage = _STAGES.get(entry.stage.lower())
        if stage == "eligible":
            times.setdefault(stage, entry.at_ms)
        elif stage is not None:
            times[stage] = entry.at_ms
    return times


def _reached(stored: StoredRequest, times: dict[str, int], decision: Decision | None) -> int:
    if stored.state in _REACHED:
        reached = _REACHED[stored.state]
        return reached + 1 if stored.state is RequestState.ELIGIBLE and decision is not None else reached
    # Expired or cancelled: as far as it came.
    return max((_ORDER.index(stage) + 1 for stage in _ORDER if stage in times), default=0)


def _note(stage: StageName, decision: Decision | None, state: RequestState) -> str:
    if decision is None:
        return ""
    if stage == "queued" and why_unassigned(decision, state):
        return decision.reason.name
    return decision.reason.name if stage == "assigned" and decision.kind is DecisionKind.ASSIGNED else ""


def _ending(stored: StoredRequest, settled_at_s: int | None, final_block: int) -> list[StageView]:
    closed = stored.closed if stored.state in TERMINAL else None
    block = int(closed["block_number"]) if closed else None
    is_final = block is not None and block <= final_block
    end: StageName = "settled" if stored.state not in TERMINAL - {RequestState.FULFILLED} else "closed"
    return [
        StageView(
            stage=end,
            reached=closed is not None,
            at_ms=settled_at_s * 1000 if closed and settled_at_s is not None else None,
            block_number=block,
            transaction_hash=closed["transaction_hash"] if closed else None,
            note=_outcome(stored.state, closed) if closed else "",
        ),
        StageView(stage="final", reached=is_final, at_ms=None, block_number=block if is_final else None),
    ]
