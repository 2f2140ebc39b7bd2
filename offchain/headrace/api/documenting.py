"""What /openapi.json says of errors: each route names the statuses that it answers, each with one shape and an example.

`tests/api/world.py` holds every answer of every test of the API to it.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from headrace.api import schemas
from headrace.api.errors import HINTS

# status → what it means, and an example's code and message
_MEANINGS: dict[int, tuple[str, str, str]] = {
    400: ("It is wrong as it is.", "UNKNOWN_MODEL", "No registered model is called 'gpt-9'; there are: smollm2."),
    401: ("It needs a signed, or the operator's, Authorization header.", "SIGN_IN_REQUIRED", "The sign-in ended."),
    402: ("The fee or the credit does not pay for it.", "CREDIT_SHORT", "The credit is 5 wei, and it needs 7."),
    403: ("Who signed in may not have it.", "NOT_ALLOWED", "Only the requester can have a request released."),
    404: ("There is no such thing.", "NOT_FOUND", "This relayer has no round 9."),
    409: ("It cannot be done now.", "NOT_SETTLED", "The request is assigned; prove its result once it is settled."),
    413: (
        "The body or its prompt is too large.",
        "PAYLOAD_TOO_LARGE",
        "A body may have at most 1048576 bytes.",
    ),
    415: ("The body is not application/json.", "UNSUPPORTED_TYPE", "POST /v1/requests: unsupported media type."),
    429: (
        "Too many calls from this address, or too many requests that wait; Retry-After says when to try again.",
        "RATE_LIMITED",
        "From one address, 600 such calls are taken a minute: wait 3 s.",
    ),
    503: (
        "Something that is needed does not answer, or there is no room; Retry-After says when to try again.",
        "CHAIN_UNAVAILABLE",
        "Something that is needed to answer does not answer itself.",
    ),
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}
# FastAPI describes its own answer to bad input, which is a 400 of our shape here.
_NEVER_ANSWERED = "422"
_NEVER_USED = ("HTTPValidationError", "ValidationError")


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Responses of a route, beside what it answers when all is well. Whatever the route, a body may be too large."""
    return {status: _response(status) for status in sorted({413, *statuses})}


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: what the routes say, and nothing that they do not answer."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop(_NEVER_ANSWERED, None)
        for name in _NEVER_USED:
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema


def _response(status: int) -> dict[str, Any]:
    description, code, message = _MEANINGS[status]
    example = {"error": {"code": code, "message": message, "hint": HINTS.get(code, "")}}
    response = {
        "model": schemas.Error,
        "description": description,
        "content": {"application/json": {"example": example}},
    }
    return response | ({"headers": _RETRY_AFTER} if status in (429, 503) else {})
