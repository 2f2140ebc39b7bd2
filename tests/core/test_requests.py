from __future__ import annotations

from dataclasses import replace

import pytest
from eth_abi import encode
from eth_utils import keccak
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.requests import PackedRequest, pack, request_id, unpack
from headrace.core.types import ZERO_ADDRESS, Request
from tests.core.strategies import addresses, requests, uints

# (attribute, lowest bit, bits), as RequestLib.sol documents them.
AMOUNTS = (("max_reward_wei", 0, 80), ("gas_budget_wei", 80, 80), ("priority_fee_wei", 160, 80))
TERMS = (
    ("salt", 0, 64),
    ("deadline_s", 64, 40),
    ("prompt_bytes", 104, 32),
    ("max_output_tokens", 136, 24),
    ("callback_gas", 160, 24),
    ("lane", 184, 8),
    ("mode", 192, 8),
    ("k", 200, 8),
    ("n", 208, 8),
)
FLAGS = (("batchable", 216), ("inline_result", 217))
SIZED = [(name, bits) for name, _, bits in AMOUNTS + TERMS if name not in ("lane", "mode")]


def a_request() -> Request:
    return unpack(PackedRequest(ZERO_ADDRESS, ZERO_ADDRESS, bytes(32), bytes(32), 0, 0, ZERO_ADDRESS))


@given(requests)
def test_unpack__packed__is_the_request(request: Request) -> None:
    assert unpack(pack(request)) == request


@given(requests)
def test_pack__each_field__is_at_its_bits(request: Request) -> None:
    packed = pack(request)
    assert packed.amounts == sum(getattr(request, name) << low for name, low, _ in AMOUNTS)
    flags = sum(getattr(request, name) << bit for name, bit in FLAGS)
    assert packed.terms == sum(int(getattr(request, name)) << low for name, low, _ in TERMS) + flags


@given(requests, st.integers(0, 2**256 - 1), addresses)
def test_request_id__is_the_keccak_of_nine_words(request: Request, chain_id: int, market: str) -> None:
    p = pack(request)
    words = [chain_id, int(market, 16), int(p.requester, 16), int(p.relayer, 16)]
    words += [int.from_bytes(p.model_id, "big"), int.from_bytes(p.prompt_hash, "big")]
    words += [p.amounts, p.terms, int(p.verifier, 16)]
    assert request_id(request, chain_id, market) == "0x" + keccak(encode(["uint256"] * 9, words)).hex()


@given(requests, uints(64))
def test_request_id__another_salt__is_another(request: Request, salt: int) -> None:
    other = replace(request, salt=salt)
    assert (request_id(other, 1, request.relayer) == request_id(request, 1, request.relayer)) is (other == request)


@pytest.mark.parametrize(("name", "bits"), SIZED)
def test_pack__value_beyond_its_bits__is_refused_by_name(name: str, bits: int) -> None:
    assert getattr(unpack(pack(replace(a_request(), **{name: 2**bits - 1}))), name) == 2**bits - 1
    for value in (2**bits, -1):
        with pytest.raises(InvalidInput, match=f"{name} is {value},"):
            pack(replace(a_request(), **{name: value}))


@pytest.mark.parametrize("bit", [*range(218, 256)])
def test_unpack__dirty_bit_in_terms__is_refused(bit: int) -> None:
    with pytest.raises(InvalidInput):
        unpack(pack(a_request())._replace(terms=1 << bit))


@pytest.mark.parametrize("bit", [*range(240, 256)])
def test_unpack__dirty_bit_in_amounts__is_refused(bit: int) -> None:
    with pytest.raises(InvalidInput):
        unpack(pack(a_request())._replace(amounts=1 << bit))


@pytest.mark.parametrize("terms", [2 << 184, 255 << 184, 4 << 192, 255 << 192])
def test_unpack__unknown_lane_or_mode__is_refused(terms: int) -> None:
    with pytest.raises(InvalidInput, match="unknown value"):
        unpack(pack(a_request())._replace(terms=terms))


def test_unpack__checksummed_addresses__become_lower_case() -> None:
    mixed = "0x" + "aB" * 20
    request = unpack(pack(a_request())._replace(requester=mixed, relayer=mixed, verifier=mixed))
    assert {request.requester, request.relayer, request.verifier} == {mixed.lower()}
