"""The scheduling policy: for everybody to read, and for the operator to change."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Depends

from headrace.api import schemas
from headrace.api.auth import require_operator
from headrace.api.dependencies import Context
from headrace.api.documenting import errors
from headrace.api.routing import GuardedRoute
from headrace.core.cycle import Policy
from headrace.core.fields import to_json
from headrace.core.snapshot import policy_hash

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["policy"])


@router.get("/policy", summary="The policy in force, whole", responses=errors())
async def get_policy(context: Context) -> schemas.WholePolicy:
    """Each number of it. Its hash is in the record of each round that it decided."""
    return _view(context.policies.current)


@router.patch(
    "/policy",
    summary="Change numbers of the policy",
    dependencies=[Depends(require_operator)],
    responses=errors(400, 401, 415),
)
async def change_policy(context: Context, change: Annotated[schemas.PolicyChange, Body()]) -> schemas.WholePolicy:
    """For the operator. It counts from the next cycle on, in a round of its own, and after a restart too, until the
    settings' own policy changes."""
    changes = change.model_dump(exclude_none=True)
    return _view(await context.policies.change(**{name: int(value) for name, value in changes.items()}))


def _view(policy: Policy) -> schemas.WholePolicy:
    return schemas.WholePolicy(policy_hash=policy_hash(policy), policy=to_json(policy))
