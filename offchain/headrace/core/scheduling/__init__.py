"""One pass of the scheduler: who is served and where, with the reason for each, as a pure function of its inputs."""

from __future__ import annotations

from headrace.core.cycle import (
    BALANCED,
    POLICIES,
    REFERENCE,
    SHARED,
    STRICT,
    Anchor,
    Carried,
    CycleInputs,
    CyclePlan,
    NodeView,
    Offer,
    PlannedDecision,
    Policy,
    WaitingRequest,
)
from headrace.core.errors import InvalidInput
from headrace.core.scheduling.reference import plan_reference
from headrace.core.scheduling.rules import LISTINGS_AN_ASSIGNMENT, RELEASE_MARGIN_S

__all__ = [
    "BALANCED",
    "LISTINGS_AN_ASSIGNMENT",
    "POLICIES",
    "REFERENCE",
    "RELEASE_MARGIN_S",
    "SHARED",
    "STRICT",
    "Anchor",
    "Carried",
    "CycleInputs",
    "CyclePlan",
    "NodeView",
    "Offer",
    "PlannedDecision",
    "Policy",
    "WaitingRequest",
    "plan_cycle",
]


def plan_cycle(inputs: CycleInputs) -> CyclePlan:
    """Decide on every waiting request.

    Returns:
        One decision for each request of `inputs`, in the order in which they were taken; k for a quorum that is placed.

    Raises:
        InvalidInput: the policy is none that this version has. A replay must not take another for it.
    """
    named = (inputs.policy.name, inputs.policy.lanes)
    if named not in POLICIES:
        raise InvalidInput(f"there is no policy {named[0]} with lanes {named[1]} in this version")
    if inputs.policy.name == REFERENCE:
        return plan_reference(inputs)
    # Here, since NumPy would cost every command of the command line a tenth of a second.
    from headrace.core.scheduling.balanced import plan_balanced

    return plan_balanced(inputs)
