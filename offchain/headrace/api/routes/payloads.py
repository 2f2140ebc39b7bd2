"""Payloads: the bytes behind a prompt hash or a result hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from headrace.api import schemas
from headrace.api.auth import Caller
from headrace.api.context import ApiContext
from headrace.api.dependencies import AddressText, Context, HashPath
from headrace.api.documenting import errors
from headrace.api.errors import NotSettled, PayloadTooLarge
from headrace.api.rates import Cost, costs
from headrace.api.routing import GuardedRoute
from headrace.core.chat_bodies import read_prompt
from headrace.core.envelope import hash_payload
from headrace.core.errors import InvalidInput, NotAllowed, NotFound
from headrace.core.lifecycle import RequestState
from headrace.core.types import Address, Hash32
from headrace.ports import StoredRequest

router = APIRouter(prefix="/v1/payloads", route_class=GuardedRoute, tags=["payloads"])

_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.put(
    "/{payload_hash}",
    summary="Hand in a payload",
    status_code=201,
    responses=errors(400, 429, 503),
    openapi_extra={"requestBody": {"required": True, "content": _BYTES}},
)
@costs(Cost.WRITE)
async def put_payload(
    payload_hash: HashPath,
    requester: Annotated[AddressText, Query(description="Whose requests the prompt is for.")],
    request: Request,
    context: Context,
) -> schemas.PayloadView:
    """Store the bytes of a prompt before the request that names their hash is sent. Safe to repeat.

    The prompt counts for requests of that account only: others that name its hash never get it. What no node would
    take is refused as `PROMPT_NOT_SERVED`.
    """
    most = context.limits.payload_bytes
    payload = bytearray()
    async for chunk in request.stream():
        payload += chunk
        if len(payload) > most:
            raise PayloadTooLarge(f"a payload may have at most {most} bytes")
    got = hash_payload(bytes(payload))
    if got != payload_hash:
        raise InvalidInput(f"the bytes have the hash {got}, not {payload_hash}")
    # What every node refuses is not worth an escrow. How long an answer may be, only its request says.
    read_prompt(bytes(payload), context.limits.max_output_tokens)
    context.room(len(payload))
    await context.store.put_prompt(bytes(payload), requester, context.clock.now_ms())
    return schemas.PayloadView(payload_hash=payload_hash, payload_bytes=len(payload))


@router.get(
    "/{payload_hash}",
    summary="Read a payload",
    response_class=Response,
    responses={
        200: {"content": _BYTES, "description": "The payload's bytes, envelope included."},
        **errors(400, 401, 403, 404, 409),
    },
)
async def get_payload(payload_hash: HashPath, context: Context, caller: Caller) -> Response:
    """The bytes of a prompt, or of an answer once its settlement is included, for the requester and its node."""
    requests = await context.store.requests_of_payload(payload_hash)
    uses = [use for stored in requests for use in await _uses(context, stored, payload_hash)]
    mine = [use for use in uses if await _may_read(context, use.stored, caller)]
    if not mine:
        # The same answer whether it exists or not: a hash is no reason to learn who asked what.
        raise NotAllowed(
            f"{caller} is neither requester nor assigned node of a request with the payload {payload_hash}"
        )
    if not any(use.is_open or caller in use.authors for use in mine):
        raise NotSettled("the answer can be read once its settlement is included")
    payload = await context.store.payload(payload_hash)
    if payload is None:
        raise NotFound(f"the bytes of {payload_hash} were not handed in")
    return Response(payload, media_type="application/octet-stream")


@dataclass(frozen=True, slots=True)
class _Use:
    """What a payload is to a request. An answer is open once it is settled; its authors, the nodes, know it anyway."""

    stored: StoredRequest
    is_open: bool
    authors: frozenset[Address] = frozenset()


async def _uses(context: ApiContext, stored: StoredRequest, payload_hash: Hash32) -> list[_Use]:
    """As its prompt, if its requester handed it in; as its answer. Hashes are public, so naming one proves nothing."""
    uses = []
    prompt = (payload_hash, stored.request.requester)
    if stored.request.prompt_hash == payload_hash and await context.store.held_prompts({prompt}):
        uses.append(_Use(stored, is_open=True))
    results = await context.store.results(stored.request_id)
    authors = frozenset(each.node for each in results if each.result.result_hash == payload_hash)
    if authors:
        uses.append(_Use(stored, _is_settled(stored, payload_hash), authors))
    return uses


async def _may_read(context: ApiContext, stored: StoredRequest, caller: Address) -> bool:
    if stored.request.requester == caller:
        return True
    return caller in {each.assignment.node for each in await context.store.assignments(stored.request_id)}


def _is_settled(stored: StoredRequest, payload_hash: Hash32) -> bool:
    closed = stored.closed
    return stored.state is RequestState.FULFILLED and closed is not None and closed["resultHash"] == payload_hash
