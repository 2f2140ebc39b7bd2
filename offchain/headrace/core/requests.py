"""Packing and identity of requests, as `contracts/libraries/RequestLib.sol` has them."""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.errors import InvalidInput
from headrace.core.keccak import keccak
from headrace.core.types import Address, Hash32, Lane, Mode, Request
from headrace.core.words import encode_words

PACKED_TYPES = ("address", "address", "bytes32", "bytes32", "uint256", "uint256", "address")

# (attribute, bits), low to high.
_TERMS = (
    ("salt", 64),
    ("deadline_s", 40),
    ("prompt_bytes", 32),
    ("max_output_tokens", 24),
    ("callback_gas", 24),
    ("lane", 8),
    ("mode", 8),
    ("k", 8),
    ("n", 8),
)
_AMOUNTS = (("max_reward_wei", 80), ("gas_budget_wei", 80), ("priority_fee_wei", 80))
_FLAGS_SHIFT = sum(bits for _, bits in _TERMS)
MAX_QUORUM = 16
"""Nodes of a quorum that the market takes at most."""
_BATCHABLE = 1
_INLINE_RESULT = 2


class PackedRequest(NamedTuple):
    """The seven words of a request, in the order of the ABI."""

    requester: Address
    relayer: Address
    model_id: bytes
    prompt_hash: bytes
    amounts: int
    terms: int
    verifier: Address


def pack(request: Request) -> PackedRequest:
    """Pack a request into its seven words.

    Raises:
        InvalidInput: a field does not fit its bits; the message names it.
    """
    flags = (_BATCHABLE if request.batchable else 0) | (_INLINE_RESULT if request.inline_result else 0)
    return PackedRequest(
        requester=request.requester,
        relayer=request.relayer,
        model_id=bytes.fromhex(request.model_id[2:]),
        prompt_hash=bytes.fromhex(request.prompt_hash[2:]),
        amounts=_join(request, _AMOUNTS),
        terms=_join(request, _TERMS) | (flags << _FLAGS_SHIFT),
        verifier=request.verifier,
    )


def unpack(packed: PackedRequest) -> Request:
    """Restore a request from its seven words.

    Raises:
        InvalidInput: bits that must be zero are not, or an enum has an unknown value.
    """
    amounts = _split(packed.amounts, _AMOUNTS)
    terms = _split(packed.terms, _TERMS)
    flags = packed.terms >> _FLAGS_SHIFT
    if flags > _BATCHABLE | _INLINE_RESULT or packed.amounts >> 240:
        raise InvalidInput("the packed request has bits set that no field owns")
    try:
        lane, mode = Lane(terms.pop("lane")), Mode(terms.pop("mode"))
    except ValueError as exc:
        raise InvalidInput(f"the packed request has an unknown value: {exc}") from exc
    return Request(
        requester=packed.requester.lower(),
        relayer=packed.relayer.lower(),
        model_id="0x" + packed.model_id.hex(),
        prompt_hash="0x" + packed.prompt_hash.hex(),
        lane=lane,
        mode=mode,
        verifier=packed.verifier.lower(),
        batchable=bool(flags & _BATCHABLE),
        inline_result=bool(flags & _INLINE_RESULT),
        **terms,
        **amounts,
    )


def params_of(request: Request) -> tuple[object, ...]:
    """The fields of `RequestParams` in the order of the ABI: all but the requester, as wallets show and sign them."""
    return (
        request.relayer,
        bytes.fromhex(request.model_id[2:]),
        bytes.fromhex(request.prompt_hash[2:]),
        request.salt,
        request.deadline_s,
        request.prompt_bytes,
        request.max_output_tokens,
        request.callback_gas,
        int(request.lane),
        request.batchable,
        request.inline_result,
        int(request.mode),
        request.k,
        request.n,
        request.verifier,
        request.max_reward_wei,
        request.gas_budget_wei,
        request.priority_fee_wei,
    )


def request_id(request: Request, chain_id: int, market: Address) -> Hash32:
    """keccak256(chain id ‖ market ‖ the request's seven words)."""
    encoded = encode_words(("uint256", "address", *PACKED_TYPES), (chain_id, market, *pack(request)))
    return "0x" + keccak(encoded).hex()


def _join(request: Request, layout: tuple[tuple[str, int], ...]) -> int:
    word, shift = 0, 0
    for name, bits in layout:
        value = int(getattr(request, name))
        if not 0 <= value < 1 << bits:
            raise InvalidInput(f"{name} is {value}, which does not fit into {bits} bits")
        word |= value << shift
        shift += bits
    return word


def _split(word: int, layout: tuple[tuple[str, int], ...]) -> dict[str, int]:
    fields = {}
    for name, bits in layout:
        fields[name] = word & ((1 << bits) - 1)
        word >>= bits
    return fields
