"""Whether a requester can be called with its answer, before it pays for that."""

from __future__ import annotations

from typing import Protocol

from headrace.core.errors import InvalidInput
from headrace.core.types import Address, Request


class Accounts(Protocol):
    """What of the Chain port tells whether an account can be called."""

    async def has_code(self, account: Address) -> bool:
        """Whether a call of the account runs anything."""
        ...


async def require_callable(chain: Accounts, request: Request) -> None:
    """Refuse gas for a call that nothing would take. A call of a plain account succeeds, so nobody else would notice.

    Raises:
        InvalidInput: the request asks for a callback, and its requester has no code. An account that lends itself code
            (EIP-7702) has some, as has a wallet that is a contract.
    """
    if request.callback_gas and not await chain.has_code(request.requester):
        raise InvalidInput(
            f"the account {request.requester} has no code, so there is nothing to call with the answer. Nothing was "
            "sent: leave out --callback-gas, or have a contract ask (InferenceConsumer)"
        )
