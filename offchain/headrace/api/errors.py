"""Errors as answers: one shape, `{"error": {"code", "message", "hint"}}`, and nothing of the program's inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from headrace.core.errors import HeadraceError, InvalidInput, NotAllowed, Refused, Unavailable, sentence
from headrace.core.postings import DeadlineOutOfRange as DeadlineOutOfRange

log = structlog.get_logger(__name__)

RETRY_AFTER_S = 2


class PromptTooLong(InvalidInput):
    """The prompt is longer than what is taken on its way."""

    code = "PROMPT_TOO_LONG"
    http_status = 413


class PayloadTooLarge(InvalidInput):
    """The body is larger than what is read."""

    code = "PAYLOAD_TOO_LARGE"
    http_status = 413


class NoNodeForModel(Refused):
    """No linked node offers the model, so nobody would answer."""

    code = "NO_NODE_FOR_MODEL"


class NotSettled(Refused):
    """It can be had once the request's settlement is included."""

    code = "NOT_SETTLED"


class NotPosted(Refused):
    """It can be done once a block has the request."""

    code = "NOT_POSTED"


class AlreadyAssigned(Refused):
    """A release is only given for a request that no node was assigned to."""

    code = "ALREADY_ASSIGNED"


class SignInRequired(NotAllowed):
    """A request without proof of who asks."""

    code = "SIGN_IN_REQUIRED"
    http_status = 401
    scheme = "Headrace"


class OperatorOnly(SignInRequired):
    """A request for what only the relayer's operator may see."""

    code = "OPERATOR_ONLY"
    scheme = "Bearer"


HINTS: Mapping[str, str] = {
    "UNKNOWN_MODEL": "GET /v1/models lists the models that are registered.",
    "DEADLINE_OUT_OF_RANGE": "GET /v1/network shows the shortest and the longest time that a request may be open.",
    "PROMPT_TOO_LONG": "Shorten the prompt, or leave it off-chain with public = false.",
    "PAYLOAD_TOO_LARGE": "Send less.",
    "UNSUPPORTED_TYPE": "Send JSON, with `Content-Type: application/json`.",
    "NO_NODE_FOR_MODEL": "GET /v1/nodes lists the nodes and what they offer; choose another model or try again later.",
    "NOT_SETTLED": "GET /v1/requests/{id} shows how far it is; try again once it is settled.",
    "ALREADY_ASSIGNED": "Cancel without a release: the escrow comes back after the grace period if nobody answers.",
    "SIGN_IN_REQUIRED": "Send `Authorization: Headrace <account>:<validUntil>:<signature>`, signed as EIP-712 over "
    "Access(account, relayer, validUntil).",
    "OPERATOR_ONLY": "Send `Authorization: Bearer <token>` with the token of HEADRACE_RELAYER__API__OPERATOR_TOKEN.",
    "SIGNATURE_MISMATCH": "Sign the EIP-712 type under the market's domain, Access to sign in and RequestFor to have a "
    "request posted; GET /v1/network has the domain's values.",
    "NOT_POSTED": "GET /v1/requests/{id} shows how far it is; try again once a block has it.",
    "WRONG_RELAYER": "GET /v1/network shows this relayer's address; a draft names it.",
    "PROMPT_NOT_SERVED": "Send UTF-8 text, or a chat body with messages of text and with the options of a draft.",
    "PROMPT_MISSING": "Send the bytes as payload, or hand them in with PUT /v1/payloads/{hash}?requester=….",
    "PROMPT_MISMATCH": "Send the very bytes that were hashed, envelope included.",
    "SIGNATURE_LAPSED": "Sign it anew, with a later validUntil.",
    "RELAYER_FEE_TOO_LOW": "GET /v1/network shows the least fee of now; a draft has one with room for dearer gas.",
    "CREDIT_SHORT": "Anyone may add to an account's credit: `deposit` of the market, or `headrace credit deposit`.",
    "REQUEST_EXISTS": "GET /v1/requests/{id} shows it.",
    "REQUESTS_PAUSED": "A pause ends by itself; try again later.",
    "RELAYER_NOT_BONDED": "What was posted before is answered or refunded. /readyz tells its operator what to do.",
    "GASLESS_NOT_OFFERED": "Send the transaction of the draft yourself.",
    "RATE_LIMITED": "Try again after the seconds of Retry-After, and call less often.",
    "QUEUE_FULL": "Try again after the seconds of Retry-After.",
    "NO_ROOM": "Try again after the seconds of Retry-After.",
    "NOT_FOUND": "Check the id, and that this relayer serves it.",
    "CHAIN_UNAVAILABLE": "The relayer cannot reach its chain; try again shortly.",
    "UNAVAILABLE": "Try again shortly.",
}

_CODES_BY_STATUS = {404: "NO_SUCH_PATH", 405: "METHOD_NOT_ALLOWED", 413: "PAYLOAD_TOO_LARGE", 415: "UNSUPPORTED_TYPE"}


def answer(
    status: int,
    code: str,
    message: str,
    hint: str | None = None,
    *,
    retry_after_s: int = RETRY_AFTER_S,
    scheme: str = SignInRequired.scheme,
) -> JSONResponse:
    """An error as a response."""
    headers = {"Cache-Control": "no-store"}
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        headers["Retry-After"] = str(retry_after_s)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = scheme
    body = {"error": {"code": code, "message": message, "hint": HINTS.get(code, "") if hint is None else hint}}
    return JSONResponse(body, status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Answer every exception in the one shape."""

    @app.exception_handler(HeadraceError)
    async def on_refusal(request: Request, exc: HeadraceError) -> JSONResponse:
        if isinstance(exc, Unavailable):
            log.warning("api_unavailable", path=request.url.path, error=str(exc))
            # The message may quote an endpoint's address, which is nobody's business.
            return answer(exc.http_status, exc.code, "Something that is needed to answer does not answer itself.")
        if exc.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(exc, Refused):
            return _broken(request, exc)
        more = {name: getattr(exc, name) for name in ("retry_after_s", "scheme") if hasattr(exc, name)}
        return answer(exc.http_status, exc.code, sentence(str(exc)), **more)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_request: Request, exc: RequestValidationError) -> JSONResponse:
        return answer(HTTPStatus.BAD_REQUEST, InvalidInput.code, _explain(exc.errors()), "See /openapi.json.")

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, exc: HTTPException) -> JSONResponse:
        code = _CODES_BY_STATUS.get(exc.status_code, "HTTP_ERROR")
        message = f"{request.method} {request.url.path}: {HTTPStatus(exc.status_code).phrase.lower()}."
        return answer(exc.status_code, code, message, HINTS.get(code, "See /openapi.json for what there is."))

    @app.exception_handler(Exception)
    async def on_fault(request: Request, exc: Exception) -> JSONResponse:
        return _broken(request, exc)


def _broken(request: Request, exc: Exception) -> JSONResponse:
    log.error("api_fault", path=request.url.path, exc_info=exc)
    return answer(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "INTERNAL",
        "The relayer made a mistake; its operator finds it in the log.",
        "Try again later; nothing is lost.",
    )


def _explain(errors: Sequence[Any]) -> str:
    """The first thing that is wrong, as a sentence without the value (it may be a secret, or large)."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    message = str(first["msg"]).removeprefix("Value error, ")
    return sentence(f"In {place}: {message}" if place else message)
