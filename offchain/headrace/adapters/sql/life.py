"""What the chain's events make of a request: a fold, so that taking events away is folding those that are left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.adapters.sql.book import RequestBook
from headrace.adapters.sql.rows import row_of_request
from headrace.core.events import BlockRef, ChainEvent, request_from_event
from headrace.core.lifecycle import TERMINAL, Cause, RequestState
from headrace.core.types import ZERO_ADDRESS, Address, Status

REQUEST_EVENTS = frozenset(
    {
        "InferenceRequested",
        "RelayerFeePaid",
        "PriorityFeeRaised",
        "CancelAnnounced",
        "ResultFulfilled",
        "CallbackFailed",
        "CallbackRetried",
        "RequestClosed",
    }
)
_CAUSE_OF_STATUS = {Status.EXPIRED: Cause.EXPIRED, Status.CANCELLED: Cause.CANCELLED}
_STATE_OF_CAUSE = {
    Cause.FULFILLED: RequestState.FULFILLED,
    Cause.EXPIRED: RequestState.EXPIRED,
    Cause.CANCELLED: RequestState.CANCELLED,
}


@dataclass(slots=True)
class Life:
    """What the chain says of a request."""

    included: ChainEvent | None = None
    relayer_fee_wei: int = 0
    priority_fee_added_wei: int = 0
    cancelled_at_s: int | None = None
    closing: ChainEvent | None = None
    callback: ChainEvent | None = None  # the last word of a callback that went wrong

    @property
    def cause(self) -> Cause:
        """Why it closed."""
        if self.closing is None or self.closing.name == "ResultFulfilled":
            return Cause.FULFILLED
        return _CAUSE_OF_STATUS[Status(self.closing.args["status"])]


def fold(events: Iterable[ChainEvent]) -> Life:
    """Put together the events of one request, in the order of the chain."""
    life = Life()
    for event in events:
        match event.name:
            case "InferenceRequested":
                life.included = event
            case "RelayerFeePaid":
                life.relayer_fee_wei = event.args["fee"]
            case "PriorityFeeRaised":
                life.priority_fee_added_wei = event.args["total"]
            case "CancelAnnounced":
                life.cancelled_at_s = event.args["effectiveDeadline"]
            case "ResultFulfilled" | "RequestClosed":
                life.closing = event
            case "CallbackFailed" | "CallbackRetried":
                life.callback = event
    return life


def reconcile(book: RequestBook, request_id: str, life: Life, blocks: Mapping[int, BlockRef], relayer: Address) -> None:
    """Bring a request to what the chain says of it.

    Args:
        book: holds the request if it is in the store.
        request_id: whose.
        life: from all its events on the chain.
        blocks: those of new `InferenceRequested` events, by number.
        relayer: who keeps this store; only needed for requests that are new.
    """
    if request_id not in book:
        if life.included is None:
            return
        _enter(book, request_id, life, life.included, blocks, relayer)
    elif life.included is None:
        _withdraw(book, request_id)
        return
    elif book.state(request_id) is RequestState.WITHDRAWN:
        book.move(request_id, Cause.REINCLUDED, _where(life.included))
        book.change(request_id, **_inclusion(life.included, blocks))
    _update_terms(book, request_id, life)
    _close(book, request_id, life)


def _enter(
    book: RequestBook, request_id: str, life: Life, event: ChainEvent, blocks: Mapping[int, BlockRef], relayer: Address
) -> None:
    request = request_from_event(event.args)
    row = {
        "request_id": request_id,
        "servable": request.relayer in (ZERO_ADDRESS, relayer),
        "priority_fee_added_wei": 0,
        "effective_deadline_s": request.deadline_s,
        "released_until_s": 0,
        **_inclusion(event, blocks),
        **row_of_request(request),
    }
    fee = {"relayer_fee_wei": str(life.relayer_fee_wei)} if life.relayer_fee_wei else {}
    book.insert(row, {**_where(event), **fee})


def _inclusion(event: ChainEvent, blocks: Mapping[int, BlockRef]) -> dict[str, Any]:
    return {
        "block_number": event.block_number,
        "block_hash": event.block_hash,
        "transaction_hash": event.transaction_hash,
        "included_at_s": blocks[event.block_number].timestamp_s,
    }


def _withdraw(book: RequestBook, request_id: str) -> None:
    """Its block is gone. The row stays for when it comes back; what its events said does not."""
    if book.state(request_id) is not RequestState.WITHDRAWN:
        book.move(request_id, Cause.ORPHANED, {})
    deadline_s = book.row(request_id)["deadline_s"]
    book.change(request_id, priority_fee_added_wei=0, effective_deadline_s=deadline_s, closed=None)


def _update_terms(book: RequestBook, request_id: str, life: Life) -> None:
    row = book.row(request_id)
    if life.priority_fee_added_wei != row["priority_fee_added_wei"]:
        book.change(request_id, priority_fee_added_wei=life.priority_fee_added_wei)
        book.note(request_id, "priority_fee_changed", {"added_wei": str(life.priority_fee_added_wei)})
    deadline_s = row["deadline_s"] if life.cancelled_at_s is None else life.cancelled_at_s
    if deadline_s != row["effective_deadline_s"]:
        book.change(request_id, effective_deadline_s=deadline_s)
        book.note(request_id, "deadline_changed", {"effective_deadline_s": deadline_s})


def _close(book: RequestBook, request_id: str, life: Life) -> None:
    state = book.state(request_id)
    if life.closing is None:
        if state in TERMINAL:
            book.move(request_id, Cause.REOPENED, {})
            book.change(request_id, closed=None)
        return
    if state is not _STATE_OF_CAUSE[life.cause]:
        if state in TERMINAL:
            book.move(request_id, Cause.REOPENED, {})
        book.move(request_id, life.cause, _where(life.closing))
    closed = {**life.closing.args, **_where(life.closing)}
    if life.cause is Cause.FULFILLED and book.row(request_id)["callback_gas"]:
        closed["callback"] = _callback(life.callback or life.closing)
    before = book.row(request_id)["closed"]
    if closed == before:
        return
    book.change(request_id, closed=closed)
    if life.callback is not None and closed.get("callback") != (before or {}).get("callback"):
        stage = "callback_failed" if life.callback.name == "CallbackFailed" else "callback_retried"
        book.note(request_id, stage, closed["callback"])


def _callback(last: ChainEvent) -> dict[str, Any]:
    """What became of the call of the requester's contract."""
    has_failed = last.name == "CallbackFailed"
    return {"made": not has_failed, "reason": last.args["reason"] if has_failed else None, **_where(last)}


def _where(event: ChainEvent) -> dict[str, Any]:
    return {"transaction_hash": event.transaction_hash, "block_number": event.block_number}
