"""What reasons mean to the requester who waits: one sentence each, with what to do where there is something."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.lifecycle import RequestState
from headrace.core.types import Decision, DecisionKind, Reason

MEANINGS: Mapping[Reason, str] = {
    Reason.NONE: "No reason was given.",
    Reason.LOWEST_COST: "It went to the node whose route costs least.",
    Reason.QUORUM_KEPT: "It stays with a node of its quorum, whose answer counts again beside another node's.",
    Reason.EXPLORATION: "It went to a new node, which earns its name with a share of all requests.",
    Reason.NO_NODE_FOR_MODEL: "No node that is linked offers the model; it waits for one.",
    Reason.NODE_MEMORY: "No node that could take it has the memory for prompt and answer.",
    Reason.NODES_BUSY: "Every node that could take it works at its limit; it waits for one to be free.",
    Reason.NODES_TAKEN: "Every node that could take it was given to requests ahead of it; it waits for the next turn.",
    Reason.PRICE_ABOVE_MAX: "Every node that could take it asks for more than its maximum reward: "
    "cancel it, and post it anew with a higher one.",
    Reason.GAS_BUDGET_SHORT: "Its gas budget does not pay for its settlement now; it waits for gas to become cheaper.",
    Reason.PROBATION: "Its reward is above what the nodes that could take it may earn while they are on probation.",
    Reason.NODES_EXCLUDED: "Every node that could take it failed it before, or was asked just now and could not; it "
    "waits for one.",
    Reason.ATTEMPTS_EXHAUSTED: "As many nodes as the policy allows have failed it; the escrow comes back after the "
    "grace period, or at once on a cancel.",
    Reason.LANE_FULL: "Its lane is full; it waits behind earlier requests.",
    Reason.PROMPT_MISSING: "The relayer does not have the prompt's bytes: hand them in, as they were hashed.",
    Reason.NODES_SILENT: "The nodes that offer the model sent no heartbeat in time; it waits for one to come back.",
    Reason.RELEASED: "The relayer released it for a cancel, and keeps it from nodes while that counts.",
    Reason.ANSWER_TOO_LONG: "The answer that its callback needs may be too long for a transaction: cancel it, and post "
    "it anew with fewer output tokens.",
    Reason.NO_PROOF: "No node that offers the model can prove its answer to the verifier; it waits for one.",
    Reason.OWNERS_TOO_FEW: "Fewer nodes of different owners could take it than its quorum needs; it waits for more.",
    Reason.NOT_DETERMINISTIC: "A quorum cannot agree on it, since its prompt or its model does not fix the answer: "
    "cancel it, and post it anew with temperature 0, a seed and a model of known weights.",
    Reason.ROUND_OF_QUORUM: "Its quorum is of the round that is still open; it is looked at again in the next.",
    Reason.NODES_TOO_SLOW: "No node that could take it is expected to answer before its deadline; it waits for a "
    "faster one.",
    Reason.STAKE_SHORT: "Every node that could take it has as much work in hand as its stake covers; it waits for one.",
    Reason.DEADLINE_PASSED: "Its deadline passed before a node could be given it.",
    Reason.DEADLINE_INFEASIBLE: "No node could have answered before its deadline.",
}


# In any other state what a cycle said last is history: a node has the request, or had it, or it was taken back.
_UNASSIGNED = frozenset({RequestState.INCLUDED, RequestState.ELIGIBLE, RequestState.EXPIRED})


def why_unassigned(decision: Decision | None, state: RequestState) -> str:
    """Why no node has a request that waits, or had one that expired.

    Args:
        decision: the newest on it; None when no cycle looked yet.
        state: where it stands.

    Returns:
        A sentence; empty when a node was given it, nobody looked yet, or it does not wait any more.
    """
    if decision is None or decision.kind is DecisionKind.ASSIGNED or state not in _UNASSIGNED:
        return ""
    return MEANINGS[decision.reason]
