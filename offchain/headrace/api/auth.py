"""Who asks: `Authorization: Headrace <account>:<validUntil>:<signature>`.

The signature is EIP-712 over `Access(account, relayer, validUntil)` under the market's domain, so one signature opens
everything that an account may read at one relayer until it lapses, and nothing at another relayer or market.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header

from headrace.api.context import ApiContext
from headrace.api.dependencies import Context
from headrace.api.errors import SignInRequired
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


def _caller(
    context: Context,
    authorization: Annotated[
        str | None, Header(description="`Headrace <account>:<validUntil>:<signature>`, see the description above.")
    ] = None,
) -> Address:
    return account_of(context, authorization)


Caller = Annotated[Address, Depends(_caller)]
"""The account that signed in; the route is refused without one."""
