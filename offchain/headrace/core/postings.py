"""Gasless requests: the requester signs, its relayer posts and pays the gas, and both are paid from the requester's
credit in the market.

A posting is such a request at its relayer, from when it is handed in until the chain has it:

    submitted → posted       a block holds it; from then on it is a request like any other
        └─────→ unposted     it can no longer be posted; nothing was escrowed and no fee paid

A posting that is posted is submitted again when a reorg takes its block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace.core import typed_data
from headrace.core.chat_bodies import PromptNotServed, read_prompt
from headrace.core.envelope import content_of, hash_payload
from headrace.core.errors import InvalidInput, Refused, SignatureMismatch, Unavailable
from headrace.core.fees import BPS
from headrace.core.prompts import why_not_deterministic
from headrace.core.refusals import moment, name_of, worded
from headrace.core.types import Address, GasQuote, MarketTerms, Mode, Request

POSTING_MARGIN_S = 5
"""Between a check and the block that the transaction lands in."""


class PostingState(StrEnum):
    """Where a posting stands."""

    SUBMITTED = "submitted"
    POSTED = "posted"
    UNPOSTED = "unposted"


class WrongRelayer(InvalidInput):
    """The request names another relayer than the one that it was handed to, or none."""

    code = "WRONG_RELAYER"


class DeadlineOutOfRange(InvalidInput):
    """The market would refuse the deadline."""

    code = "DEADLINE_OUT_OF_RANGE"


class PromptMismatch(InvalidInput):
    """The prompt's bytes are not those that the request names."""

    code = "PROMPT_MISMATCH"


class PromptMissing(Refused):
    """The prompt's bytes were not handed in for the requester."""

    code = "PROMPT_MISSING"


class SignatureLapsed(Refused):
    """The requester's signature counts no more when the request would be posted."""

    code = "SIGNATURE_LAPSED"


class FeeTooLow(Refused):
    """The relayer's fee does not pay for the gas of posting."""

    code = "RELAYER_FEE_TOO_LOW"
    http_status = 402


class CreditShort(Refused):
    """The requester's credit in the market does not pay for escrow and fee."""

    code = "CREDIT_SHORT"
    http_status = 402


class RequestExists(Refused):
    """The request is on the chain already."""

    code = "REQUEST_EXISTS"


class NotOffered(Refused):
    """This relayer posts requests for nobody."""

    code = "GASLESS_NOT_OFFERED"

    def __init__(self) -> None:
        super().__init__("this relayer posts requests for nobody: send the transaction from the account itself")


class RequestsPaused(Refused):
    """The market takes no new requests now."""

    code = "REQUESTS_PAUSED"


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request, with its requester's word that the relayer that it names may post it."""

    request: Request
    relayer_fee_wei: int
    valid_until_s: int
    signature: bytes

    @property
    def cost_wei(self) -> int:
        """What posting it takes from the requester's credit: escrow and fee."""
        return self.request.escrow_wei + self.relayer_fee_wei


# By the error's name, with its fields as contracts/interfaces/IInferenceMarket.sol names them.
WORDS: Mapping[str, str] = {
    "CallbackGasTooHigh": "a callback may have {most} gas at most, and the request asks for {callbackGas}",
    "DeadlineOutOfRange": "the deadline is {deadline}, and the market takes one from {earliest} to {latest}",
    "EscrowShort": "the escrow and the relayer's fee are {required} wei, and the account's credit in the market is "
    "{available} wei: deposit more, and hand the request in again",
    "InvalidQuorum": "the market takes no quorum of {k} of {n} nodes for this mode",
    "InvalidSignature": "neither the key nor the contract of {signer} signed the request",
    "InvalidTerms": "the market takes no request with these terms",
    "InvalidVerifier": "the market takes no request of this mode with the verifier {verifier}",
    "PromptMismatch": "the prompt that is published is not the one of the request's hash",
    "PromptTooLong": "the prompt has {promptBytes} bytes, and on-chain it may have at most {most}",
    "RequestExists": "the request {requestId} was posted before: nothing is paid twice",
    "RequestsPaused": "the market takes no new requests now: its owner paused them",
    "SignatureExpired": "the requester's signature counted until {validUntil}, and it is {blockTimestamp} now: "
    "sign the request anew",
    "UnsupportedMode": "the market takes no requests of this mode",
}
_PASSING = frozenset({"RequestsPaused"})
_REFUSALS: Mapping[str, type[InvalidInput | Refused]] = {
    "DeadlineOutOfRange": DeadlineOutOfRange,
    "EscrowShort": CreditShort,
    "InvalidSignature": SignatureMismatch,
    "PromptMismatch": PromptMismatch,
    "RequestExists": RequestExists,
    "RequestsPaused": RequestsPaused,
    "SignatureExpired": SignatureLapsed,
}


def fee_floor_wei(quote: GasQuote, gas: int, margin_bps: int) -> int:
    """The least fee for which a relayer posts a request.

    Args:
        quote: what gas costs now.
        gas: of its transaction.
        margin_bps: of that cost; 10,000 = just the cost.
    """
    return -(-gas * quote.price_wei * margin_bps // BPS)


def require_in_time(deadline_s: int, valid_until_s: int, terms: MarketTerms, now_s: int) -> None:
    """Check that the market would still take a request in the next blocks.

    Args:
        deadline_s: of the request.
        valid_until_s: the last second in which its requester's signature counts.
        terms: the market's.
        now_s: the time.

    Raises:
        SignatureLapsed: the signature would not count any more.
        DeadlineOutOfRange: the deadline is too near, or too far.
    """
    if valid_until_s < now_s + POSTING_MARGIN_S:
        raise SignatureLapsed(
            f"the requester's signature counts until {moment(valid_until_s)}, and it is {moment(now_s)} now: "
            "sign the request anew"
        )
    left_s = deadline_s - now_s
    least_s, most_s = terms.min_ttl_s + POSTING_MARGIN_S, terms.max_ttl_s - POSTING_MARGIN_S
    if not least_s <= left_s <= most_s:
        raise DeadlineOutOfRange(f"the deadline must be {least_s} to {most_s} seconds from now, not {left_s}")


def require_prompt(request: Request, payload: bytes) -> None:
    """Check that bytes are the prompt that a request names, and one that a node takes.

    Raises:
        PromptMismatch: they are not.
        PromptNotServed: no node would take it.
        InvalidInput: they are no payload.
    """
    content_of(payload)
    got = hash_payload(payload)
    if got != request.prompt_hash:
        raise PromptMismatch(f"the bytes have the hash {got}, and the request names {request.prompt_hash}")
    if len(payload) != request.prompt_bytes:
        raise PromptMismatch(f"the prompt has {len(payload)} bytes, and the request names {request.prompt_bytes}")
    read_prompt(payload, request.max_output_tokens)
    if request.mode is Mode.QUORUM and (why := why_not_deterministic(content_of(payload))):
        raise PromptNotServed(f"a quorum cannot agree on this prompt, since {why}: give temperature 0 and a seed")


def is_signed_by_key(signed: SignedRequest, domain: typed_data.Domain) -> bool:
    """Whether the requester's own key signed. If not, only its contract can tell (ERC-1271)."""
    struct_hash = typed_data.hash_request_for(signed.request, signed.relayer_fee_wei, signed.valid_until_s)
    try:
        signer = typed_data.signer_of(typed_data.digest(domain, struct_hash), signed.signature)
    except SignatureMismatch:
        return False
    return signer == signed.request.requester


def require_fee(signed: SignedRequest, floor_wei: int) -> None:
    """Check that a fee pays for posting.

    Raises:
        FeeTooLow: the message says what would.
    """
    if signed.relayer_fee_wei < floor_wei:
        raise FeeTooLow(
            f"the relayer's fee is {signed.relayer_fee_wei} wei, and for posting this request now it must be at least "
            f"{floor_wei} wei: sign a higher one"
        )


def require_credit(requester: Address, credit_wei: int, reserved_wei: int, cost_wei: int) -> None:
    """Check that credit pays for escrow and fee.

    Args:
        requester: whose credit.
        credit_wei: in the market.
        reserved_wei: of it, what the requester's other postings will take.
        cost_wei: escrow and fee.

    Raises:
        CreditShort: the message says how much is missing.
    """
    missing_wei = cost_wei - (credit_wei - reserved_wei)
    if missing_wei > 0:
        other = f", of which {reserved_wei} wei are for its requests that are being posted" if reserved_wei else ""
        raise CreditShort(
            f"escrow and fee are {cost_wei} wei, and the account {requester} has {credit_wei} wei of credit in the "
            f"market{other}: deposit {missing_wei} wei more"
        )


def refusal_of(error: str) -> InvalidInput | Refused | Unavailable:
    """What to tell whoever hands in a request that the market would refuse.

    Args:
        error: of its simulation, as the Chain port decodes it.

    Returns:
        Unavailable when it is no word of the market: the chain's node could not say.
    """
    words = worded(error, WORDS)
    if words is None:
        return Unavailable(f"the request could not be simulated: {error}")
    return _REFUSALS.get(name_of(error), InvalidInput)(words)


def why_never(error: str) -> str | None:
    """Why a request can never be posted, as a clause; None when trying again later may help.

    Args:
        error: of its simulation, as the Chain port decodes it.
    """
    return None if name_of(error) in _PASSING else worded(error, WORDS)
