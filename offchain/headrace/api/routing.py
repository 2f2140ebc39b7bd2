"""What every route does before its own work: it holds callers to their rate, and bodies to JSON of a sane depth."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from headrace.api.rates import Rates, cost_of
from headrace.core.errors import InvalidInput
from headrace.core.nesting import MAX_DEPTH, is_too_deep, text_of

JSON = "application/json"


class GuardedRoute(APIRoute):
    """A route with its guards; an error of theirs has the shape of all errors."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler behind its guards."""
        handle = super().get_route_handler()
        cost, takes_json = cost_of(self.endpoint), self.body_field is not None

        async def guarded(request: Request) -> Response:
            if cost is not None:
                rates: Rates = request.app.state.rates
                rates.take(cost, request)
            if takes_json:
                await _require_plain_json(request)
            return await handle(request)

        return guarded


async def _require_plain_json(request: Request) -> None:
    """FastAPI reads the body before anything else of ours can, so what could hurt its reader is refused here."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    try:
        text = text_of(await request.body())
    except ValueError:
        raise InvalidInput("the body is not text in UTF-8") from None
    if is_too_deep(text):
        raise InvalidInput(f"the body is JSON that is nested more than {MAX_DEPTH} deep")
