"""The states of a request at a relayer, and the only steps between them.

    included → eligible → assigned → computing → signed → settling → fulfilled
                   ↑__________|__________|          ↑________|
    and from every state that is not terminal: expired, cancelled (the chain says so), withdrawn (its block is gone).

`fulfilled`, `expired` and `cancelled` mirror the chain; they are terminal until a reorg takes back what made them so.
"""

from __future__ import annotations

from enum import StrEnum

from headrace.core.errors import IllegalTransition


class RequestState(StrEnum):
    """Where a request stands."""

    INCLUDED = "included"
    ELIGIBLE = "eligible"
    ASSIGNED = "assigned"
    COMPUTING = "computing"
    SIGNED = "signed"
    SETTLING = "settling"
    FULFILLED = "fulfilled"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    WITHDRAWN = "withdrawn"


class Cause(StrEnum):
    """Why a request moves."""

    CONFIRMED = "confirmed"
    ASSIGNED = "assigned"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    FAILED = "failed"
    LEASE_EXPIRED = "lease_expired"
    DELIVERED = "delivered"
    DISSENTED = "dissented"
    BATCHED = "batched"
    UNBATCHED = "unbatched"
    UNPAYABLE = "unpayable"
    FULFILLED = "fulfilled"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"
    REINCLUDED = "reincluded"
    REOPENED = "reopened"


TERMINAL = frozenset({RequestState.FULFILLED, RequestState.EXPIRED, RequestState.CANCELLED})

_S, _C = RequestState, Cause
_STEPS: dict[tuple[RequestState, Cause], RequestState] = {
    (_S.INCLUDED, _C.CONFIRMED): _S.ELIGIBLE,
    (_S.ELIGIBLE, _C.ASSIGNED): _S.ASSIGNED,
    (_S.ASSIGNED, _C.ACCEPTED): _S.COMPUTING,
    (_S.ASSIGNED, _C.REFUSED): _S.ELIGIBLE,
    (_S.ASSIGNED, _C.LEASE_EXPIRED): _S.ELIGIBLE,
    (_S.ASSIGNED, _C.DELIVERED): _S.SIGNED,
    # A quorum computes as soon as one of its nodes does: another may refuse then.
    (_S.COMPUTING, _C.REFUSED): _S.ELIGIBLE,
    (_S.COMPUTING, _C.FAILED): _S.ELIGIBLE,
    (_S.COMPUTING, _C.LEASE_EXPIRED): _S.ELIGIBLE,
    (_S.COMPUTING, _C.DELIVERED): _S.SIGNED,
    (_S.ASSIGNED, _C.DISSENTED): _S.ELIGIBLE,
    (_S.COMPUTING, _C.DISSENTED): _S.ELIGIBLE,
    # A node that was given up may still deliver: its answer is as good as another's, and already computed.
    (_S.ELIGIBLE, _C.DELIVERED): _S.SIGNED,
    (_S.SIGNED, _C.BATCHED): _S.SETTLING,
    (_S.SETTLING, _C.UNBATCHED): _S.SIGNED,
    (_S.SIGNED, _C.UNPAYABLE): _S.ELIGIBLE,
    (_S.SETTLING, _C.UNPAYABLE): _S.ELIGIBLE,
    (_S.WITHDRAWN, _C.REINCLUDED): _S.INCLUDED,
}
for _state in _S:
    if _state not in TERMINAL and _state is not _S.WITHDRAWN:
        _STEPS[_state, _C.FULFILLED] = _S.FULFILLED
        _STEPS[_state, _C.EXPIRED] = _S.EXPIRED
        _STEPS[_state, _C.CANCELLED] = _S.CANCELLED
    if _state is not _S.WITHDRAWN:
        _STEPS[_state, _C.ORPHANED] = _S.WITHDRAWN
for _state in TERMINAL:
    # What closed it was in a block that is gone: it waits again, and what is known of it (a result) moves it on.
    _STEPS[_state, _C.REOPENED] = _S.INCLUDED


def next_state(state: RequestState, cause: Cause) -> RequestState:
    """Where a cause moves a request.

    Raises:
        IllegalTransition: there is no such step.
    """
    try:
        return _STEPS[state, cause]
    except KeyError:
        raise IllegalTransition(f"a request that is {state} cannot be moved by {cause}") from None


def can_move(state: RequestState, cause: Cause) -> bool:
    """Whether a cause moves a request in this state."""
    return (state, cause) in _STEPS
