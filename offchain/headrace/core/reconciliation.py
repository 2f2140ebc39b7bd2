"""Compares what a chain says of requests with what a relayer's store says: lost, duplicated, unpaid, stuck.

The contract is the judge of what was paid; the store is what the relayer acts on. Both tell the same story of every
request, or somebody must look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.core.events import ChainEvent, request_from_event
from headrace.core.fees import payout
from headrace.core.lifecycle import RequestState
from headrace.core.types import Address, Hash32, MarketTerms, Request, Status


class Discrepancy(StrEnum):
    """How chain and store differ."""

    LOST = "lost"  # one of them knows of a request, or of its end, and the other never will
    DUPLICATED = "duplicated"  # more than one payment, or a payment and a refund
    UNPAID = "unpaid"  # a node answered in time and got less than it was promised
    STUCK = "stuck"  # it waits for something that should long have come


@dataclass(frozen=True, slots=True)
class Payment:
    """One settlement of a request, wei."""

    node_wei: int
    relayer_wei: int
    refund_wei: int


@dataclass(frozen=True, slots=True)
class OnChain:
    """A request by the chain's events alone."""

    request: Request
    block_number: int
    effective_deadline_s: int
    fee_added_wei: int = 0
    payments: tuple[Payment, ...] = ()
    closings: tuple[Status, ...] = ()  # expired or cancelled; at most one, if the contract holds

    @property
    def is_open(self) -> bool:
        """Whether neither a payment nor a refund ended it."""
        return not self.payments and not self.closings


@dataclass(frozen=True, slots=True)
class InStore:
    """The same request by the relayer's store.

    Args:
        state: where it stands.
        reward_wei: what each node was promised for the result that is to be settled; None = there is no result.
        nodes: how many nodes share it.
        answered_at_s: when the last of them delivered.
    """

    state: RequestState
    reward_wei: int | None = None
    nodes: int = 1
    answered_at_s: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference. `wei`: what somebody lacks or has too much, where that is known."""

    kind: Discrepancy
    request_id: Hash32
    why: str
    wei: int = 0


@dataclass(frozen=True, slots=True)
class Slack:
    """How long things may take before they count as stuck, seconds."""

    expire_s: int = 120  # after deadline and grace, until the refund is on the chain
    index_s: int = 30  # from a block until the store has what is in it


def ledger(
    events: Iterable[ChainEvent], relayer: Address, before: Mapping[Hash32, OnChain] | None = None
) -> dict[Hash32, OnChain]:
    """What events say of the requests that name a relayer, by request id, in the order of the chain.

    Args:
        events: of the contracts, in order; what is about other requests, and about those posted before, is passed over.
        relayer: whose requests.
        before: what the events before these said.

    Raises:
        InvalidInput: a request's words hold bits that no field owns.
    """
    found = dict(before or {})
    for event in events:
        id_, args = event.args.get("requestId"), event.args
        if event.name == "InferenceRequested" and args["relayer"] == relayer:
            request = request_from_event(args)
            found[args["requestId"]] = OnChain(request, event.block_number, request.deadline_s)
        elif id_ in found:
            found[id_] = _after(found[id_], event)
    return found


def _after(known: OnChain, event: ChainEvent) -> OnChain:
    args = event.args
    match event.name:
        case "PriorityFeeRaised":
            return replace(known, fee_added_wei=int(args["total"]))
        case "CancelAnnounced":
            return replace(known, effective_deadline_s=int(args["effectiveDeadline"]))
        case "ResultFulfilled":
            payment = Payment(int(args["nodePaid"]), int(args["relayerPaid"]), int(args["refund"]))
            return replace(known, payments=(*known.payments, payment))
        case "RequestClosed":
            return replace(known, closings=(*known.closings, Status(int(args["status"]))))
        case _:
            return known


def compare(
    request_id: Hash32, chain: OnChain, store: InStore | None, terms: MarketTerms, now_s: int, slack: Slack
) -> list[Finding]:
    """What differs about a request that is on the chain.

    Args:
        request_id: of the request.
        chain: what the chain says, up to a block that the store has reached.
        store: what the store says; None = nothing.
        terms: the market's numbers.
        now_s: time of that block.
        slack: what is not yet too late.
    """
    reasons = [*_duplicated(chain), *_unpaid(chain, store, terms), *_stuck(chain, terms, now_s, slack)]
    if store is None:
        reasons.append((Discrepancy.LOST, "it is on the chain, and the store does not know it", 0))
    else:
        reasons += _contradicted(chain, store)
    return [Finding(kind, request_id, why, wei) for kind, why, wei in reasons]


_Reason = tuple[Discrepancy, str, int]


def _duplicated(chain: OnChain) -> list[_Reason]:
    ends = len(chain.payments) + len(chain.closings)
    if ends < 2:
        return []
    wei = sum(each.node_wei + each.relayer_wei for each in chain.payments[1:])
    return [(Discrepancy.DUPLICATED, f"it ended {ends} times: {len(chain.payments)} payments", wei)]


def _unpaid(chain: OnChain, store: InStore | None, terms: MarketTerms) -> list[_Reason]:
    if store is None or store.reward_wei is None:
        return []
    owed = payout(terms, chain.request, chain.fee_added_wei, store.reward_wei, 0, store.nodes).node_wei
    if chain.payments:
        short = owed - chain.payments[0].node_wei
        return [(Discrepancy.UNPAID, f"its nodes got {short} wei less than {owed}", short)] if short > 0 else []
    in_time = store.answered_at_s <= chain.effective_deadline_s
    if Status.EXPIRED in chain.closings and in_time:
        return [(Discrepancy.UNPAID, "it was answered in time, not settled, and refunded", owed)]
    return []


def _stuck(chain: OnChain, terms: MarketTerms, now_s: int, slack: Slack) -> list[_Reason]:
    over_s = chain.effective_deadline_s + terms.grace_s
    if chain.is_open and now_s > over_s + slack.expire_s:
        wei = chain.request.escrow_wei + chain.fee_added_wei
        return [(Discrepancy.STUCK, f"nobody refunded it in the {now_s - over_s} seconds after its grace", wei)]
    return []


_ENDS: Mapping[RequestState, Status] = {
    RequestState.FULFILLED: Status.FULFILLED,
    RequestState.EXPIRED: Status.EXPIRED,
    RequestState.CANCELLED: Status.CANCELLED,
}


def _contradicted(chain: OnChain, store: InStore) -> list[_Reason]:
    ended = Status.FULFILLED if chain.payments else chain.closings[0] if chain.closings else None
    told = _ENDS.get(store.state)
    if told is ended:
        return []
    if ended is None or told is not None:
        says = "that it is open" if ended is None else f"{ended.name.lower()}"
        return [(Discrepancy.LOST, f"the store says {store.state}, and the chain {says}", 0)]
    if store.state is RequestState.WITHDRAWN:
        return [(Discrepancy.LOST, "the store took its block for gone, and it is on the chain", 0)]
    return [(Discrepancy.STUCK, f"the chain says {ended.name.lower()}, and the store still {store.state}", 0)]
