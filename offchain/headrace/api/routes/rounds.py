"""Rounds: records, decisions with proofs, snapshots. Public, so that anyone can audit."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from headrace.api import schemas
from headrace.api.context import ApiContext
from headrace.api.dependencies import Context, HashPath, HashText, RoundPath
from headrace.api.documenting import errors
from headrace.api.rates import Cost, costs
from headrace.api.routing import GuardedRoute
from headrace.api.views import accept_view, decision_view, round_view
from headrace.core.errors import NotFound, Refused
from headrace.core.merkle import leaf_of, proof_of
from headrace.ports import StoredRound

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["rounds"])

FOREVER = "public, max-age=31536000, immutable"


class RoundOpen(Refused):
    """A round has leaves once it is closed."""

    code = "ROUND_OPEN"


@router.get("/rounds", summary="List rounds, newest first", responses=errors(400))
async def list_rounds(
    context: Context,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[int | None, Query(ge=1, lt=1 << 63)] = None,
) -> schemas.RoundList:
    """Rounds of this relayer."""
    found = await context.store.rounds(limit=limit + 1, before=before)
    page = found[:limit]
    next_before = page[-1].round if len(found) > limit else None
    return schemas.RoundList(rounds=[round_view(each) for each in page], next_before=next_before)


@router.get("/rounds/{round_number}", summary="A round with its record and cycles", responses=errors(400, 404))
async def get_round(round_number: RoundPath, context: Context) -> schemas.RoundView:
    """What an audit needs: the record, and the hashes of the snapshots in their order."""
    stored = await _known(context, round_number)
    cycles = await context.store.cycles(round_number)
    return schemas.RoundView(
        **round_view(stored).model_dump(),
        relayer=context.relayer,
        cycles=[
            schemas.CycleView(
                cycle=each.cycle,
                snapshot_hash=each.snapshot_hash,
                anchor_block=each.anchor.block,
                anchor_hash=each.anchor.hash,
                planned_at_ms=each.planned_at_ms,
                decisions=len(each.plan.decisions),
            )
            for each in cycles
        ],
    )


@router.get(
    "/rounds/{round_number}/decisions",
    summary="The leaves of a round, with proofs",
    responses=errors(400, 404, 409, 429),
)
@costs(Cost.HEAVY_READ)
async def list_decisions(
    round_number: RoundPath,
    context: Context,
    request_id: Annotated[HashText | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 500,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> schemas.DecisionList:
    """The leaves in their order; those of one request come with their proofs."""
    stored = await _known(context, round_number)
    if stored.record is None:
        raise RoundOpen(f"round {round_number} is open; its leaves are fixed when it is closed")
    leaves = await context.store.leaves(round_number)
    numbered = list(enumerate(leaves))
    if request_id is not None:
        hashes = [leaf_of(each) for each in leaves]
        chosen = [(index, proof_of(hashes, index)) for index, each in numbered if each.request_id == request_id]
        if not chosen:
            raise NotFound(f"round {round_number} decided nothing on the request {request_id}")
        views = [
            schemas.LeafView(**decision_view(leaves[index]).model_dump(), index=index, proof=proof)
            for index, proof in chosen
        ]
        return schemas.DecisionList(round=round_number, count=len(leaves), leaves=views, next_offset=None)
    page = numbered[offset : offset + limit]
    return schemas.DecisionList(
        round=round_number,
        count=len(leaves),
        leaves=[schemas.LeafView(**decision_view(each).model_dump(), index=index, proof=None) for index, each in page],
        next_offset=offset + limit if offset + limit < len(leaves) else None,
    )


@router.get(
    "/rounds/{round_number}/accepts",
    summary="The accepts of a round's assignments",
    responses=errors(400, 404, 429),
)
@costs(Cost.HEAVY_READ)
async def list_accepts(
    round_number: RoundPath,
    context: Context,
    limit: Annotated[int, Query(ge=1, le=1000)] = 500,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> schemas.AcceptList:
    """What nodes signed when they took tasks of this round: with one, anyone can prove a miss."""
    await _known(context, round_number)
    accepted = [each for each in await context.store.assignments_of_round(round_number) if each.accept_signature]
    return schemas.AcceptList(
        round=round_number,
        accepts=[accept_view(each) for each in accepted[offset : offset + limit]],
        next_offset=offset + limit if offset + limit < len(accepted) else None,
    )


@router.get(
    "/snapshots/{snapshot_hash}",
    summary="A cycle's snapshot",
    response_class=Response,
    responses={
        200: {
            "content": {"application/json": {"schema": {"type": "object"}}},
            "description": "Canonical JSON under its keccak256.",
        },
        **errors(400, 404, 429),
    },
)
@costs(Cost.HEAVY_READ)
async def get_snapshot(snapshot_hash: HashPath, context: Context) -> Response:
    """All that a cycle decided on, byte for byte as it was hashed."""
    snapshot = await context.store.snapshot(snapshot_hash)
    if snapshot is None:
        raise NotFound(f"no snapshot {snapshot_hash} is known to this relayer")
    return Response(snapshot, media_type="application/json", headers={"Cache-Control": FOREVER})


async def _known(context: ApiContext, round_number: int) -> StoredRound:
    stored = await context.store.round(round_number)
    if stored is None:
        raise NotFound(f"this relayer has no round {round_number}")
    return stored
