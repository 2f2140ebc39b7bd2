"""Requests that their requester only signs: the relayer posts them, and is paid from the requester's credit."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from headrace.client.drafts import Draft
from headrace.client.errors import Untrue
from headrace.core import typed_data
from headrace.core.errors import Refused
from headrace.core.fees import posting_gas
from headrace.core.types import GasQuote, Request

SIGNATURE_S = 300
# A fee pays for gas that may become dearer, and for the relayer's risk; what is far above is no such fee.
FAIR_FACTOR = 3
_AS_TEXT = frozenset({"salt", "max_reward_wei", "gas_budget_wei", "priority_fee_wei"})


@dataclass(frozen=True, slots=True)
class GaslessRequest:
    """A draft, with what its requester signs to have the relayer post it.

    Args:
        draft: the checked request.
        relayer_fee_wei: for the relayer, from the requester's credit in the market.
        valid_until_s: the last second in which it may be posted.
        domain: the market's.
    """

    draft: Draft
    relayer_fee_wei: int
    valid_until_s: int
    domain: typed_data.Domain

    @property
    def cost_wei(self) -> int:
        """What posting it takes from the requester's credit: escrow and fee."""
        return self.draft.request.escrow_wei + self.relayer_fee_wei

    def document(self) -> dict[str, object]:
        """The EIP-712 document, for a wallet to show and sign (`eth_signTypedData_v4`)."""
        message = typed_data.request_for_message(self.draft.request, self.relayer_fee_wei, self.valid_until_s)
        return typed_data.typed_message(self.domain, "RequestFor", message)

    def struct_hash(self) -> bytes:
        """Struct hash of what is signed."""
        return typed_data.hash_request_for(self.draft.request, self.relayer_fee_wei, self.valid_until_s)

    def digest(self) -> bytes:
        """The 32 bytes that are signed, and that a contract's `isValidSignature` is asked about."""
        return typed_data.digest(self.domain, self.struct_hash())

    def body(self, signature: bytes) -> dict[str, Any]:
        """As the API takes it. The prompt is there already: the draft left it."""
        return {
            "params": _params(self.draft.request),
            "requester": self.draft.request.requester,
            "relayer_fee_wei": str(self.relayer_fee_wei),
            "valid_until_s": self.valid_until_s,
            "signature": "0x" + signature.hex(),
            "publish_prompt": self.draft.is_published,
        }


def fair_fee_wei(quote: GasQuote, draft: Draft) -> int:
    """The most that a relayer should ask for posting a draft, by the requester's own view of the gas price."""
    published_bytes = draft.request.prompt_bytes if draft.is_published else 0
    return FAIR_FACTOR * posting_gas(published_bytes) * quote.price_wei


def chosen_fee_wei(draft: Draft, wanted_wei: int | None, most_wei: int | None) -> int:
    """The fee to sign.

    Args:
        draft: with what the relayer asks for.
        wanted_wei: to sign this instead.
        most_wei: the most that may be signed; None = any.

    Raises:
        Refused: the relayer posts requests for nobody.
        Untrue: it asks for more than may be signed.
    """
    if draft.relayer_fee_wei is None:
        raise Refused(
            "this relayer posts requests for nobody: send the transaction yourself, or ask another relayer "
            "(HEADRACE_REQUESTER__API_URL)"
        )
    fee_wei = draft.relayer_fee_wei if wanted_wei is None else wanted_wei
    if most_wei is not None and fee_wei > most_wei:
        raise Untrue(
            f"the relayer asks for {fee_wei} wei for posting the request, more than the {most_wei} wei that it may: "
            "raise --max-relayer-fee, or send the transaction yourself"
        )
    return fee_wei


def _params(request: Request) -> dict[str, Any]:
    fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    del fields["requester"]
    texts = {name: str(value) for name, value in fields.items() if name in _AS_TEXT}
    return {**fields, **texts, "lane": request.lane.name.lower(), "mode": request.mode.name.lower()}
