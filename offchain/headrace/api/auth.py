"""Who asks: `Authorization: Headrace <account>:<validUntil>:<signature>`, or the operator by its token.

The signature is EIP-712 over `Access(account, relayer, validUntil)` under the market's domain, so one signature opens
everything that an account may read at one relayer until it lapses, and nothing at another relayer or market.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPBase

from headrace.api.context import ApiContext
from headrace.api.dependencies import Context
from headrace.api.errors import OperatorOnly, SignInRequired
from headrace.core import typed_data
from headrace.core.types import Address

_CREDENTIALS = re.compile(r"Headrace (0x[0-9a-fA-F]{40}):(\d{1,12}):(0x[0-9a-fA-F]{130})")


def account_of(context: ApiContext, authorization: str | None) -> Address:
    """The account that signed in.

    Raises:
        SignInRequired: the header is missing, of another form, lapsed, or valid for too long.
        SignatureMismatch: another account signed.
    """
    match = _CREDENTIALS.fullmatch(authorization or "")
    if not authorization:
        raise SignInRequired("this needs a signed Authorization header")
    if match is None:
        raise SignInRequired(
            "the Authorization header has another form than `Headrace <account>:<validUntil>:<signature>`: an address, "
            "a Unix time in seconds and 65 bytes in hexadecimal"
        )
    account, valid_until_s, signature = match[1].lower(), int(match[2]), bytes.fromhex(match[3][2:])
    now_s = context.clock.now_ms() // 1000
    if valid_until_s < now_s:
        raise SignInRequired(f"the sign-in ended at {valid_until_s}, and it is {now_s} now: sign a new one")
    if valid_until_s > now_s + context.limits.access_s:
        raise SignInRequired(f"a sign-in may be valid for at most {context.limits.access_s} seconds from now")
    digest = typed_data.digest(context.domain, typed_data.hash_access(account, context.relayer, valid_until_s))
    typed_data.require_signer(account, digest, signature, "sign-in")
    return account


_SIGNED = HTTPBase(
    scheme="Headrace",
    scheme_name="SignedAccess",
    auto_error=False,
    description="`Headrace <account>:<validUntil>:<signature>`; the description of this API says what is signed.",
)
_TOKEN = HTTPBearer(
    scheme_name="OperatorToken", auto_error=False, description="The operator's token, if the relayer has one."
)


# FastAPI's schemes only document the header: what is wrong with one is said in words.
def _caller(context: Context, request: Request, _: Annotated[object, Security(_SIGNED)]) -> Address:
    return account_of(context, request.headers.get("authorization"))


def _is_operator(context: Context, request: Request, _: Annotated[object, Security(_TOKEN)]) -> bool:
    return context.operator.lets_in(request.headers.get("authorization"))


Caller = Annotated[Address, Depends(_caller)]
"""The account that signed in; the route is refused without one."""

IsOperator = Annotated[bool, Depends(_is_operator)]
"""Whether the operator calls."""


def require_operator(is_operator: IsOperator) -> None:
    """For routes that are the operator's only.

    Raises:
        OperatorOnly: somebody else calls.
    """
    if not is_operator:
        raise OperatorOnly("this is for the relayer's operator only")
