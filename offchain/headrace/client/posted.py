"""Requests as the chain has them, for when no relayer is asked."""

from __future__ import annotations

from headrace.core.errors import NotFound
from headrace.core.events import request_from_event
from headrace.core.types import Hash32, Request
from headrace.ports import Chain

WINDOW_BLOCKS = 2_000


async def posted_request(chain: Chain, request_id: Hash32, first_block: int) -> Request:
    """A request from the event that posted it, newest blocks first.

    Args:
        chain: where to look.
        request_id: of the request.
        first_block: of the deployment.

    Raises:
        NotFound: nobody posted it on this chain.
    """
    end = (await chain.head()).number
    while end >= first_block:
        start = max(first_block, end - WINDOW_BLOCKS + 1)
        for event in await chain.events(start, end):
            if event.name == "InferenceRequested" and event.args["requestId"] == request_id:
                return request_from_event(event.args)
        end = start - 1
    raise NotFound(f"no request {request_id} was posted on chain {chain.chain_id}: check the id")
