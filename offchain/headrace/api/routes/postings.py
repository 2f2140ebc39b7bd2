"""Requests that their requesters only sign: this relayer posts them."""

from __future__ import annotations

from fastapi import APIRouter

from headrace.api import schemas
from headrace.api.dependencies import Context
from headrace.api.documenting import errors
from headrace.api.errors import PayloadTooLarge
from headrace.api.rates import Cost, costs
from headrace.api.routing import GuardedRoute
from headrace.api.views import posting_view, request_of
from headrace.core.errors import InvalidInput
from headrace.core.postings import NotOffered, SignedRequest
from headrace.services.intake import HandedIn

router = APIRouter(prefix="/v1/requests", route_class=GuardedRoute, tags=["requests"])


@router.post(
    "",
    summary="Have a signed request posted",
    status_code=202,
    responses=errors(400, 402, 409, 415, 429, 503),
)
@costs(Cost.WRITE)
async def submit_request(submitted: schemas.SubmitRequest, context: Context) -> schemas.SubmittedView:
    """Post a request for its requester, who signed it as `RequestFor` and pays, with a fee for the gas, from its credit
    in the market. The same request again is the same posting: nothing is sent or paid twice."""
    if context.intake is None:
        raise NotOffered
    request = request_of(submitted.params, submitted.requester)
    signature = bytes.fromhex(submitted.signature[2:])
    signed = SignedRequest(request, int(submitted.relayer_fee_wei), submitted.valid_until_s, signature)
    payload = _handed_payload(submitted)
    if payload is not None and len(payload) > context.limits.payload_bytes:
        raise PayloadTooLarge(f"a payload may have at most {context.limits.payload_bytes} bytes")
    stored = await context.intake.take(HandedIn(signed, payload, submitted.publish_prompt))
    return schemas.SubmittedView(request_id=stored.request_id, state=stored.state.value, posting=posting_view(stored))


def _handed_payload(submitted: schemas.SubmitRequest) -> bytes | None:
    if submitted.payload is not None:
        return bytes.fromhex(submitted.payload[2:])
    if submitted.prompt is None:
        return None
    try:
        return submitted.prompt.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput("the prompt holds characters that UTF-8 does not have") from exc
