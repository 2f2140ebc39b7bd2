"""Requests and their settled answers as the chain has them, for when no relayer is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from headrace.core.errors import ChainUnavailable, NotFound
from headrace.core.events import ChainEvent, request_from_event
from headrace.core.types import Hash32, Request, ResultRef
from headrace.ports import Chain

WINDOW_BLOCKS = 2_000


@dataclass(frozen=True, slots=True)
class Settled:
    """A settled answer. `result` has its bytes if they were delivered inline, else nothing."""

    ref: ResultRef
    result: bytes


async def posted_request(chain: Chain, request_id: Hash32, first_block: int) -> Request:
    """A request from the event that posted it, newest blocks first.

    Args:
        chain: where to look.
        request_id: of the request.
        first_block: of the deployment.

    Raises:
        NotFound: nobody posted it on this chain.
    """
    async for events in _windows(chain, first_block):
        for event in events:
            if event.name == "InferenceRequested" and event.args["requestId"] == request_id:
                return request_from_event(event.args)
    raise NotFound(f"no request {request_id} was posted on chain {chain.chain_id}: check the id")


async def settled_answer(chain: Chain, request_id: Hash32, first_block: int) -> Settled:
    """A settled answer from the events of its settlement, newest blocks first.

    Raises:
        NotFound: the market settled no answer of the request.
        ChainUnavailable: the node has lost the block, or part of it.
    """
    async for events in _windows(chain, first_block):
        for position, event in enumerate(events):
            if event.name == "ResultFulfilled" and event.args["requestId"] == request_id:
                of_transaction = [each for each in events if each.transaction_hash == event.transaction_hash]
                # A set's event comes after those of its items.
                later = [each for each in events[position:] if each.transaction_hash == event.transaction_hash]
                return await _settled(chain, event, of_transaction, later)
    raise NotFound(f"the market settled no answer of the request {request_id}")


async def _settled(
    chain: Chain, event: ChainEvent, of_transaction: Sequence[ChainEvent], later: Sequence[ChainEvent]
) -> Settled:
    batch = next((each for each in later if each.name == "BatchSettled"), None)
    block = await chain.block(event.block_number)
    if batch is None or block is None or block.hash != event.block_hash:
        raise ChainUnavailable(f"the node does not have all of block {event.block_number} any more: ask again")
    delivered = [
        bytes.fromhex(each.args["result"][2:])
        for each in of_transaction
        if each.name == "ResultDelivered" and each.args["requestId"] == event.args["requestId"]
    ]
    ref = ResultRef(
        result_hash=event.args["resultHash"],
        relayer=batch.args["relayer"],
        round=int(batch.args["round"]),
        nodes=tuple(batch.args["nodes"]),
        settled_at_s=block.timestamp_s,
    )
    return Settled(ref, delivered[0] if delivered else b"")


async def _windows(chain: Chain, first_block: int) -> AsyncIterator[list[ChainEvent]]:
    """Events of the contracts, some blocks at a time, the newest first."""
    end = (await chain.head()).number
    while end >= first_block:
        start = max(first_block, end - WINDOW_BLOCKS + 1)
        yield await chain.events(start, end)
        end = start - 1
