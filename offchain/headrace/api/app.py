"""Makes the FastAPI application out of the routes, the limits and the error shape."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute

import headrace
from headrace.api.chain_facts import ChainFacts
from headrace.api.context import ApiContext
from headrace.api.counting import CallCounter
from headrace.api.documenting import describe
from headrace.api.errors import add_error_handlers
from headrace.api.limits import BodyLimit, SecurityHeaders
from headrace.api.rates import Rates
from headrace.api.routes import health, network, nodes, payloads, policy, postings, requests, rounds

DESCRIPTION = """\
A relayer's control API: draft requests, follow them, read answers, and audit what was decided.

**Amounts** are wei in decimal text. **Ids** are `0x` and hexadecimal digits. **Errors** all have one shape:
`{"error": {"code", "message", "hint"}}`.

**Gasless**: sign a draft's `gasless.typed_data` and POST it to `/v1/requests`; the relayer sends the transaction, and
escrow and fee come out of the account's credit in the market.

**Signing in**, to read payloads or to have a request released: sign the EIP-712 type
`Access(address account,address relayer,uint40 validUntil)` under the domain `{name: "Headrace", version: "1", chainId,
verifyingContract: <InferenceMarket>}` (see `/v1/network`), at most an hour ahead, and send
`Authorization: Headrace <account>:<validUntil>:<signature>`.
"""


def create_app(context: ApiContext) -> FastAPI:
    """The application over a relayer's ports."""
    app = FastAPI(
        title="Headrace control API",
        version=headrace.__version__,
        description=DESCRIPTION,
        # Their pages load scripts from elsewhere, which the security headers forbid; the schema is at /openapi.json.
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    app.state.context = context
    app.state.facts = ChainFacts(context)
    app.state.rates = Rates(context.rates, context.clock, context.metrics)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    add_error_handlers(app)
    for module in (network, requests, postings, payloads, nodes, rounds, policy):
        router: APIRouter = module.router
        app.include_router(router)
    app.include_router(health.router)
    app.add_middleware(BodyLimit, most=context.limits.body_bytes)
    if context.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(context.cors_origins),
            allow_methods=["GET", "POST", "PUT"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
            max_age=3600,
        )
    app.add_middleware(SecurityHeaders)
    if context.metrics is not None:
        app.add_middleware(CallCounter, metrics=context.metrics)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
