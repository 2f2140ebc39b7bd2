from __future__ import annotations

import pytest

from headrace.core.errors import IllegalTransition
from headrace.core.lifecycle import TERMINAL, Cause, RequestState, can_move, next_state

ALLOWED = {
    ("included", "confirmed"): "eligible",
    ("included", "fulfilled"): "fulfilled",
    ("included", "expired"): "expired",
    ("included", "cancelled"): "cancelled",
    ("included", "orphaned"): "withdrawn",
    ("eligible", "assigned"): "assigned",
    ("eligible", "delivered"): "signed",
    ("eligible", "fulfilled"): "fulfilled",
    ("eligible", "expired"): "expired",
    ("eligible", "cancelled"): "cancelled",
    ("eligible", "orphaned"): "withdrawn",
    ("assigned", "accepted"): "computing",
    ("assigned", "refused"): "eligible",
    ("assigned", "lease_expired"): "eligible",
    ("assigned", "delivered"): "signed",
    ("assigned", "dissented"): "eligible",
    ("assigned", "fulfilled"): "fulfilled",
    ("assigned", "expired"): "expired",
    ("assigned", "cancelled"): "cancelled",
    ("assigned", "orphaned"): "withdrawn",
    ("computing", "refused"): "eligible",
    ("computing", "failed"): "eligible",
    ("computing", "lease_expired"): "eligible",
    ("computing", "delivered"): "signed",
    ("computing", "dissented"): "eligible",
    ("computing", "fulfilled"): "fulfilled",
    ("computing", "expired"): "expired",
    ("computing", "cancelled"): "cancelled",
    ("computing", "orphaned"): "withdrawn",
    ("signed", "batched"): "settling",
    ("signed", "unpayable"): "eligible",
    ("signed", "fulfilled"): "fulfilled",
    ("signed", "expired"): "expired",
    ("signed", "cancelled"): "cancelled",
    ("signed", "orphaned"): "withdrawn",
    ("settling", "unbatched"): "signed",
    ("settling", "unpayable"): "eligible",
    ("settling", "fulfilled"): "fulfilled",
    ("settling", "expired"): "expired",
    ("settling", "cancelled"): "cancelled",
    ("settling", "orphaned"): "withdrawn",
    ("fulfilled", "orphaned"): "withdrawn",
    ("fulfilled", "reopened"): "included",
    ("expired", "orphaned"): "withdrawn",
    ("expired", "reopened"): "included",
    ("cancelled", "orphaned"): "withdrawn",
    ("cancelled", "reopened"): "included",
    ("withdrawn", "reincluded"): "included",
}
PAIRS = [(state, cause) for state in RequestState for cause in Cause]


@pytest.mark.parametrize(("state", "cause"), PAIRS, ids=[f"{state}-{cause}" for state, cause in PAIRS])
def test_step(state: RequestState, cause: Cause) -> None:
    expected = ALLOWED.get((state.value, cause.value))
    assert can_move(state, cause) is (expected is not None)
    if expected is not None:
        assert next_state(state, cause) is RequestState(expected)
        return
    with pytest.raises(IllegalTransition, match=f"a request that is {state.value} cannot be moved by {cause.value}"):
        next_state(state, cause)


def test_table__names_only_what_there_is() -> None:
    for (state, cause), target in ALLOWED.items():
        assert RequestState(state) and Cause(cause) and RequestState(target)


def test_terminal__are_left_only_when_a_block_is_gone() -> None:
    assert {state.value for state in TERMINAL} == {"fulfilled", "expired", "cancelled"}
    for state in TERMINAL:
        assert {cause for cause in Cause if can_move(state, cause)} == {Cause.ORPHANED, Cause.REOPENED}


def test_every_state__is_reached_and_leads_to_a_terminal_one() -> None:
    targets = {RequestState.INCLUDED} | {RequestState(target) for target in ALLOWED.values()}
    assert targets == set(RequestState)
    ends = set(TERMINAL)
    steps = [(state, next_state(state, cause)) for state, cause in PAIRS if can_move(state, cause)]
    for _ in RequestState:
        ends |= {state for state, target in steps if target in ends}
    assert ends == set(RequestState)
