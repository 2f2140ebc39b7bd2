"""Requests: draft, follow, prove, release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from headrace.api import schemas
from headrace.api.auth import Caller
from headrace.api.chain_facts import ChainFacts
from headrace.api.context import ApiContext
from headrace.api.dependencies import AddressText, Context, Facts, HashPath
from headrace.api.documenting import errors
from headrace.api.drafts import Drafter
from headrace.api.errors import AlreadyAssigned, NotPosted, NotSettled
from headrace.api.rates import Cost, costs
from headrace.api.routing import GuardedRoute
from headrace.api.timeline import stages_of, stages_of_posting
from headrace.api.views import (
    assignment_view,
    decision_view,
    packed_view,
    params_view,
    posting_view,
    result_view,
    signing_view,
    submitted_summary,
    summary_view,
    transaction_view,
)
from headrace.core import typed_data
from headrace.core.calls import cancel_with_release_data
from headrace.core.canonical import MAX_SAFE_INTEGER
from headrace.core.errors import NotAllowed, NotFound, Refused, Unavailable
from headrace.core.lifecycle import TERMINAL, RequestState
from headrace.core.postings import PostingState
from headrace.core.reasons import why_unassigned
from headrace.core.types import Address, Hash32, Request
from headrace.logging import bind_request
from headrace.ports import Call, StoredPosting, StoredRequest

router = APIRouter(prefix="/v1/requests", route_class=GuardedRoute, tags=["requests"])

MOST_OF_A_BLOCK = 10_000


@router.post("/draft", summary="Draft a request and store its prompt", responses=errors(400, 409, 415, 429, 503))
@costs(Cost.WRITE)
async def draft_request(wanted: schemas.DraftRequest, context: Context, facts: Facts) -> schemas.DraftView:
    """Turn a prompt into a request at current prices. Nothing is sent: sign and send the transaction yourself."""
    draft = await Drafter(context, facts).draft(wanted)
    return schemas.DraftView(
        request_id=draft.request_id,
        params=params_view(draft.request),
        request=packed_view(draft.request),
        payload="0x" + draft.payload.hex(),
        escrow_wei=str(draft.request.escrow_wei),
        transaction=transaction_view(draft.call, context.chain.chain_id),
        gasless=signing_view(draft.request, draft.signing, context.domain) if draft.signing else None,
        obstacles=list(draft.obstacles),
        warnings=list(draft.warnings),
    )


@router.get("", summary="List requests, newest first", responses=errors(400))
async def list_requests(
    context: Context,
    facts: Facts,
    requester: Annotated[AddressText | None, Query()] = None,
    state: Annotated[list[RequestState | schemas.PostingName] | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before_block: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
) -> schemas.RequestList:
    """Requests of this relayer. A page never ends within a block, so it may be a little shorter or longer. Those that
    no block has yet are on the first page; those that are unposted are listed when `state` asks for them."""
    wanted = state or [*(each for each in RequestState if each is not RequestState.WITHDRAWN), "submitted"]
    states = [each for each in wanted if isinstance(each, RequestState)]
    names = await _names_if_known(facts)
    first = [] if before_block is not None else await _submitted(context, wanted, requester, limit, names)
    found = await context.store.requests(states=states, requester=requester, limit=limit + 1, before_block=before_block)
    if len(found) <= limit:
        return _list(first, found, None, names)
    cut = found[limit].block_number
    page = [each for each in found if each.block_number > cut]
    if page:
        return _list(first, page, cut + 1, names)
    whole = await context.store.requests(
        states=states, requester=requester, limit=MOST_OF_A_BLOCK, before_block=cut + 1
    )
    return _list(first, [each for each in whole if each.block_number == cut], cut, names)


@router.get("/{request_id}", summary="A request with its full timeline", responses=errors(400, 404, 503))
async def get_request(request_id: HashPath, context: Context, facts: Facts) -> schemas.RequestView:
    """Stages, decisions, assignments, the answer's hash and who was paid what."""
    with bind_request(request_id):
        posting = await context.store.posting(request_id)
        if posting is not None and await context.store.request(request_id) is None:
            return await _view_of_posting(posting, facts)
        return await _view(await _known(context, request_id), posting, context, facts)


@router.get("/{request_id}/result-proof", summary="What verifyResult takes", responses=errors(400, 404, 409))
async def get_result_proof(request_id: HashPath, context: Context) -> schemas.ResultProofView:
    """The preimage of the digest that the market keeps of a fulfilled request."""
    stored = await _known(context, request_id)
    if stored.state is not RequestState.FULFILLED or stored.closed is None:
        raise NotSettled(f"the request is {stored.state}; its result can be proven once it is settled")
    result = await context.store.result(request_id)
    if result is None or result.result.result_hash != stored.closed["resultHash"]:
        raise NotFound("the settled result did not come through this relayer, so it has no proof of it")
    block = await context.store.block(int(stored.closed["block_number"]))
    if block is None:
        raise NotSettled("the block of its settlement is not known yet")
    # Of a quorum all k signed the same, for the round that was settled.
    same = [each for each in await context.store.results(request_id) if each.result == result.result]
    return schemas.ResultProofView(
        request_id=request_id,
        request=packed_view(stored.request),
        ref=schemas.ResultRefView(
            result_hash=result.result.result_hash,
            relayer=result.result.relayer,
            round=result.result.round,
            nodes=sorted(each.node for each in same),
            settled_at_s=block.timestamp_s,
        ),
    )


@router.post(
    "/{request_id}/release",
    summary="Release an unassigned request, for a refund at once",
    responses=errors(400, 401, 403, 404, 409, 429, 503),
)
@costs(Cost.WRITE)
async def release_request(request_id: HashPath, context: Context, caller: Caller) -> schemas.ReleaseView:
    """Give the requester the relayer's word that the request is not assigned, and keep it so while the word counts."""
    with bind_request(request_id):
        stored = await _known(context, request_id)
        if caller != stored.request.requester:
            raise NotAllowed("only the requester can have a request released")
        if stored.request.relayer != context.relayer:
            raise NotAllowed("the request names no relayer, or another, so this one cannot release it")
        if context.hold is None:
            raise Unavailable("releases are not given now")
        valid_until_s = context.clock.now_ms() // 1000 + context.limits.release_s
        # First the promise, then the look: a release beside a live decision would be this relayer's fault.
        is_held = await context.hold(request_id, (valid_until_s + 1) * 1000)
        await _require_unassigned(context, request_id, is_held)
        struct_hash = typed_data.hash_release(request_id, valid_until_s)
        signature = await context.signer.sign_typed(context.domain, struct_hash)
        call = Call(context.chain.market, cancel_with_release_data(stored.request, valid_until_s, signature))
        return schemas.ReleaseView(
            request_id=request_id,
            valid_until_s=valid_until_s,
            signature="0x" + signature.hex(),
            transaction=transaction_view(call, context.chain.chain_id),
        )


async def _require_unassigned(context: ApiContext, request_id: Hash32, is_held: bool) -> None:
    stored = await _known(context, request_id)
    if stored.state in TERMINAL:
        raise Refused(f"the request is {stored.state} already")
    is_waiting = stored.state in (RequestState.INCLUDED, RequestState.ELIGIBLE)
    if not is_held or not is_waiting or await context.store.assignments(request_id):
        raise AlreadyAssigned("a node was assigned to the request, so it is not released")


async def _known(context: ApiContext, request_id: Hash32) -> StoredRequest:
    stored = await context.store.request(request_id)
    if stored is None and await context.store.posting(request_id) is not None:
        raise NotPosted("no block has the request yet")
    if stored is None:
        raise NotFound(f"no request {request_id} is known to this relayer")
    return stored


def _list(
    first: Sequence[schemas.RequestSummary],
    page: Sequence[StoredRequest],
    next_before: int | None,
    names: Mapping[Hash32, str],
) -> schemas.RequestList:
    views = (summary_view(each, names.get(each.request.model_id, "")) for each in page)
    return schemas.RequestList(requests=[*first, *views], next_before_block=next_before)


async def _names_if_known(facts: ChainFacts) -> dict[Hash32, str]:
    """Names of models, by id. A list is worth having without them, when the chain does not answer."""
    try:
        return {model.model_id: model.name for model in await facts.models()}
    except Unavailable:
        return {}


async def _submitted(
    context: ApiContext, states: Sequence[str], requester: Address | None, limit: int, names: Mapping[Hash32, str]
) -> list[schemas.RequestSummary]:
    """Requests that no block has yet."""
    found: list[StoredPosting] = []
    for state in (PostingState.SUBMITTED, PostingState.UNPOSTED):
        if state in states:
            found += await context.store.postings(state, requester=requester, limit=limit)
    unseen = [each for each in found if await context.store.request(each.request_id) is None]
    return [submitted_summary(each, names.get(each.request.model_id, "")) for each in unseen]


async def _view_of_posting(posting: StoredPosting, facts: ChainFacts) -> schemas.RequestView:
    request = posting.request
    return schemas.RequestView(
        **submitted_summary(posting, await _model_name(request, facts)).model_dump(),
        params=params_view(request),
        request=packed_view(request),
        priority_fee_added_wei="0",
        effective_deadline_s=request.deadline_s,
        refund_from_s=request.deadline_s + (await facts.terms()).grace_s,
        cancel_announced_at_s=None,
        posting=posting_view(posting),
        released_until_s=None,
        stages=stages_of_posting(posting),
        events=[],
        decision=None,
        why_unassigned="",
        assignments=[],
        result=None,
        results=[],
        settlement=None,
    )


async def _view(
    stored: StoredRequest, posting: StoredPosting | None, context: ApiContext, facts: ChainFacts
) -> schemas.RequestView:
    store, request_id = context.store, stored.request_id
    entries = await store.timeline(request_id)
    decision = (await store.last_decisions([request_id])).get(request_id)
    result = await store.result(request_id)
    head = await store.last_block()
    settled_at_s = None
    if stored.closed is not None:
        block = await store.block(int(stored.closed["block_number"]))
        settled_at_s = block.timestamp_s if block else None
    final_block = head.number - context.confirmations if head else -1
    return schemas.RequestView(
        **summary_view(stored, await _model_name(stored.request, facts)).model_dump(),
        params=params_view(stored.request),
        request=packed_view(stored.request),
        priority_fee_added_wei=str(stored.priority_fee_added_wei),
        effective_deadline_s=stored.effective_deadline_s,
        refund_from_s=stored.effective_deadline_s + (await facts.terms()).grace_s,
        # A cancel needs time that is left, so it always moves the deadline.
        cancel_announced_at_s=(
            stored.effective_deadline_s if stored.effective_deadline_s != stored.request.deadline_s else None
        ),
        posting=posting_view(posting) if posting else None,
        released_until_s=stored.released_until_s or None,
        stages=stages_of(stored, entries, decision, settled_at_s, final_block, posting),
        events=[
            schemas.EventView(at_ms=each.at_ms, stage=each.stage, detail=_safe(dict(each.detail))) for each in entries
        ],
        decision=decision_view(decision) if decision else None,
        why_unassigned=why_unassigned(decision, stored.state),
        assignments=[assignment_view(each) for each in await store.assignments(request_id)],
        result=result_view(result) if result else None,
        results=[result_view(each) for each in await store.results(request_id)],
        settlement=await _settlement(stored, context),
    )


async def _model_name(request: Request, facts: ChainFacts) -> str:
    models = await facts.models()
    return next((model.name for model in models if model.model_id == request.model_id), "")


async def _settlement(stored: StoredRequest, context: ApiContext) -> schemas.SettlementView | None:
    closed = stored.closed
    if closed is None or stored.state not in TERMINAL:
        return None
    intent = await context.store.intent_of_transaction(closed["transaction_hash"])
    requests = intent.detail.get("request_ids") if intent else None
    return schemas.SettlementView(
        outcome=stored.state.value,
        transaction_hash=closed["transaction_hash"],
        block_number=int(closed["block_number"]),
        batch_size=len(requests) if requests else None,
        node_wei=str(int(closed.get("nodePaid", 0))),
        relayer_wei=str(int(closed.get("relayerPaid", 0))),
        refund_wei=str(int(closed["refund"])),
        callback=schemas.CallbackView(**closed["callback"]) if closed.get("callback") else None,
    )


def _safe(value: Any) -> Any:
    """Integers that JSON readers would round become text."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_SAFE_INTEGER:
        return str(value)
    if isinstance(value, dict):
        return {str(key): _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    return value
