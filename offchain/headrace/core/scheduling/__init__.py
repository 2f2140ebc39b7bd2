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
from headrace.core.scheduling.engine import Engine, plan_cycle
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
    "Engine",
    "NodeView",
    "Offer",
    "PlannedDecision",
    "Policy",
    "WaitingRequest",
    "plan_cycle",
]
