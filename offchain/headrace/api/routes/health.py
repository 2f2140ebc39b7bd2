"""Whether the process is there, whether it serves, and its measures."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Depends, Response

from headrace.api import schemas
from headrace.api.auth import IsOperator, require_operator
from headrace.api.context import ApiContext
from headrace.api.dependencies import Context
from headrace.api.documenting import errors
from headrace.core.errors import HeadraceError

router = APIRouter(tags=["health"])

NOT_FOR_YOU = "The operator sees why, with its token."


@router.get("/healthz", summary="The process answers", responses=errors())
async def get_health() -> schemas.Health:
    """For a supervisor: restart the process when this fails."""
    return schemas.Health(status="ok")


@router.get(
    "/readyz",
    summary="Whether requests are served",
    responses={503: {"model": schemas.Readiness, "description": "They are not; the reasons say why."}, **errors()},
)
async def get_readiness(context: Context, response: Response, is_operator: IsOperator) -> schemas.Readiness:
    """For a load balancer: send nobody here while this fails. The reasons are for the operator."""
    reasons = [reason async for reason in _reasons(context)]
    if reasons:
        response.status_code = 503
    told = reasons if is_operator or not reasons else [NOT_FOR_YOU]
    return schemas.Readiness(ready=not reasons, reasons=told)


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    dependencies=[Depends(require_operator)],
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The text exposition format."},
        **errors(401),
    },
)
async def get_metrics(context: Context) -> Response:
    """For the operator. The names are in docs/operations.md."""
    return Response(context.metrics_text(), media_type="text/plain; version=0.0.4")


async def _reasons(context: ApiContext) -> AsyncIterator[str]:
    indexed = None
    try:
        indexed = await context.store.last_block()
    except Exception:  # noqa: BLE001 - whatever it is that a store raises, it is not ready
        yield "The store does not answer: check the database file and the disk it is on."
    try:
        head = await context.from_chain(context.chain.head())
        balance_wei = await context.from_chain(context.chain.balance_wei(context.relayer))
        is_bonded = await context.from_chain(context.chain.is_bonded(context.relayer))
    except HeadraceError:
        yield "The chain does not answer: check HEADRACE_CHAIN__RPC_URL and the endpoint behind it."
    else:
        lag = head.number - indexed.number if indexed else head.number
        if lag > context.limits.lag_blocks:
            yield f"The index is {lag} blocks behind the chain; it is catching up, or the indexer is stuck."
        if balance_wei < context.limits.min_balance_wei:
            yield (
                f"The relayer {context.relayer} has {balance_wei} wei and needs {context.limits.min_balance_wei} for "
                "gas: send it some."
            )
        if not is_bonded:
            yield (
                f"The bond of the relayer {context.relayer} does not count, so it begins nothing new and settles "
                "what is left: `headrace bond show` says why; add to it, or register anew once it is withdrawn."
            )
    for reason in context.readiness():
        yield reason
