"""Which keys a node has had, and when each leaves a market: what the stake manager logs, and no view of it tells."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.events import ChainEvent
from headrace.core.types import Address


def keys_of(first: Address, rotations: Sequence[ChainEvent]) -> tuple[Address, ...]:
    """A node's keys, oldest first; the last signs now.

    Args:
        first: the key that it registered with.
        rotations: all `KeyRotated` events.
    """
    heirs = {event.args["oldKey"]: event.args["newKey"] for event in rotations}
    keys = [first]
    while (heir := heirs.get(keys[-1])) is not None:
        keys.append(heir)
    return tuple(keys)


def leaves_at_s(
    keys: Sequence[Address], market: Address, leavings: Sequence[ChainEvent], rotations: Sequence[ChainEvent]
) -> int:
    """When the last of these keys, which is in a market, was said to leave it by `leaveMarket`; 0 = never. What is past
    is of an earlier membership.

    Args:
        keys: a node's keys up to the one in question, oldest first.
        market: which.
        leavings: `MarketLeft` events.
        rotations: `KeyRotated` events.
    """
    until = {event.args["oldKey"]: _position(event) for event in rotations}
    found = [
        event
        for event in leavings
        if event.args["market"] == market
        and event.args["key"] in keys
        # A key takes its place over as it is; what becomes of the old key's own place later is no matter of the heir's.
        and (event.args["key"] == keys[-1] or _position(event) < until[event.args["key"]])
    ]
    return int(max(found, key=_position).args["leavesAt"]) if found else 0


def _position(event: ChainEvent) -> tuple[int, int]:
    return event.block_number, event.log_index
