"""Holds what a simulation says of transactions against what they are for, before a key signs them.

The chain's node that simulates may be ill or lie, and an encoder may have a fault: what comes out must be what the
relayer's own arithmetic says, request by request, or nothing is signed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import ExpiredContext
from headrace.core.events import ChainEvent
from headrace.core.fees import payout
from headrace.core.types import Address, Hash32, MarketTerms, Request


@dataclass(frozen=True, slots=True)
class ExpectedItem:
    """An item of a batch: whose result, and what its nodes are promised."""

    request_id: Hash32
    request: Request
    fee_added_wei: int
    reward_wei: int
    result_hash: Hash32


@dataclass(frozen=True, slots=True)
class ExpectedSet:
    """A set of a batch, in the order of the call."""

    round: int
    nodes: tuple[Address, ...]
    items: tuple[ExpectedItem, ...]


def require_recorded(events: Sequence[ChainEvent], relayer: Address, round_: int, decisions_root: Hash32) -> None:
    """Check what the simulation of `recordRound` logs.

    Raises:
        ExpiredContext: it records another round, or none.
    """
    records = [event.args for event in events if event.name == "RoundRecorded"]
    found = [(args["relayer"], args["round"], args["record"]["decisionsRoot"]) for args in records]
    if found != [(relayer, round_, decisions_root)]:
        raise ExpiredContext(f"the simulation of round {round_}'s record logs {found or 'no record'}")


def require_settled(
    events: Sequence[ChainEvent], relayer: Address, sets: Sequence[ExpectedSet], terms: MarketTerms
) -> None:
    """Check what the simulation of a batch logs: every item of it paid, once, in order, and its nodes in full.

    Args:
        events: of the simulated call, in order.
        relayer: whose batch.
        sets: what is in it; all of them are meant to be paid.
        terms: the market's numbers.

    Raises:
        ExpiredContext: something else would happen than is meant.
    """
    batches = [event.args for event in events if event.name == "BatchSettled"]
    told = [(args["relayer"], args["round"], tuple(args["nodes"])) for args in batches]
    if told != [(relayer, each.round, each.nodes) for each in sets]:
        raise ExpiredContext(f"the simulated batch settles {told}, which is not what it was made of")
    paid = {event.args["requestId"]: event.args for event in events if event.name == "ResultFulfilled"}
    count = sum(event.name == "ResultFulfilled" for event in events)
    items = [(each, item) for each in sets for item in each.items]
    if count != len(items) or set(paid) != {item.request_id for _, item in items}:
        raise ExpiredContext(f"the simulated batch pays {count} requests, and {len(items)} are in it")
    for each, item in items:
        _require_paid(item, len(each.nodes), paid[item.request_id], terms)


def _require_paid(item: ExpectedItem, nodes: int, args: Mapping[str, Any], terms: MarketTerms) -> None:
    owed_wei = payout(terms, item.request, item.fee_added_wei, item.reward_wei, 0, nodes).node_wei
    escrow_wei = item.request.escrow_wei + item.fee_added_wei
    out_wei = int(args["nodePaid"]) + int(args["relayerPaid"]) + int(args["refund"])
    if args["resultHash"] != item.result_hash:
        raise ExpiredContext(f"the simulation settles another answer of request {item.request_id}")
    # Somebody may have raised the fee in a block that the relayer has not read yet: then it is more.
    if int(args["nodePaid"]) < owed_wei:
        raise ExpiredContext(
            f"the simulation pays the nodes of request {item.request_id} {args['nodePaid']} wei, and they are promised "
            f"{owed_wei}"
        )
    if out_wei < escrow_wei:
        raise ExpiredContext(f"the simulation pays out {out_wei} wei of an escrow of {escrow_wei}: {item.request_id}")
