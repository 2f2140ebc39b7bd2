from __future__ import annotations

import contextlib

import pytest
from eth_account import Account
from eth_keys import keys
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SignatureMismatch
from headrace.core.typed_data import (
    Domain,
    digest,
    hash_accept,
    hash_register_node,
    hash_release,
    hash_result_set,
    require_signer,
    signer_of,
)

N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
KEY = keys.PrivateKey(b"\x17" * 32)
ADDRESS = Account.from_key(b"\x17" * 32).address.lower()
DIGEST = b"\x2a" * 32
DOMAIN = Domain(31337, "0x" + "aa" * 20)


def sign(digest_: bytes, key: keys.PrivateKey = KEY) -> bytes:
    signature = key.sign_msg_hash(digest_)
    return signature.r.to_bytes(32, "big") + signature.s.to_bytes(32, "big") + bytes([27 + signature.v])


SIGNATURE = sign(DIGEST)


@given(st.binary(min_size=32, max_size=32), st.integers(1, N - 1))
def test_signer__any_key_and_digest__is_recovered(digest_: bytes, secret: int) -> None:
    key = keys.PrivateKey(secret.to_bytes(32, "big"))
    assert signer_of(digest_, sign(digest_, key)) == Account.from_key(key.to_bytes()).address.lower()


def test_signer__upper_half_s__is_refused() -> None:
    s = int.from_bytes(SIGNATURE[32:64], "big")
    mirrored = SIGNATURE[:32] + (N - s).to_bytes(32, "big") + bytes([27 + 28 - SIGNATURE[64]])
    with pytest.raises(SignatureMismatch, match="upper half"):
        signer_of(DIGEST, mirrored)


@pytest.mark.parametrize("s", [N // 2 + 1, N - 1, N, 2**256 - 1])
def test_signer__s_above_half__is_refused(s: int) -> None:
    with pytest.raises(SignatureMismatch, match="upper half"):
        signer_of(DIGEST, SIGNATURE[:32] + s.to_bytes(32, "big") + SIGNATURE[64:])


def test_signer__s_of_exactly_half__is_not_refused_for_it() -> None:
    signature = SIGNATURE[:32] + (N // 2).to_bytes(32, "big") + SIGNATURE[64:]
    assert signer_of(DIGEST, signature) != ADDRESS


@pytest.mark.parametrize("v", [0, 1, 26, 29, 35, 255])
def test_signer__v_other_than_27_or_28__is_refused(v: int) -> None:
    with pytest.raises(SignatureMismatch, match="27 or 28"):
        signer_of(DIGEST, SIGNATURE[:64] + bytes([v]))


@pytest.mark.parametrize("signature", [b"", SIGNATURE[:64], SIGNATURE + b"\0", SIGNATURE[:-2] + SIGNATURE[-1:]])
def test_signer__wrong_length__is_refused(signature: bytes) -> None:
    with pytest.raises(SignatureMismatch, match="65 bytes"):
        signer_of(DIGEST, signature)


@pytest.mark.parametrize(("r", "s"), [(0, 1), (1, 0), (0, 0), (N, 1), (2**256 - 1, 1), (5, 1)])
def test_signer__no_point_on_the_curve__is_refused(r: int, s: int) -> None:
    with pytest.raises(SignatureMismatch):
        signer_of(DIGEST, r.to_bytes(32, "big") + s.to_bytes(32, "big") + b"\x1b")


@given(st.binary(min_size=64, max_size=64), st.sampled_from([27, 28]))
def test_signer__noise__gives_an_address_or_the_error_that_is_documented(noise: bytes, v: int) -> None:
    with contextlib.suppress(SignatureMismatch):
        assert len(signer_of(DIGEST, noise + bytes([v]))) == 42


def test_require_signer__someone_else__is_named() -> None:
    require_signer(ADDRESS, DIGEST, SIGNATURE, "result")
    require_signer("0x" + ADDRESS[2:].upper(), DIGEST, SIGNATURE, "result")
    other = "0x" + "11" * 20
    with pytest.raises(SignatureMismatch, match=f"the result is signed by {ADDRESS}, not by {other}"):
        require_signer(other, DIGEST, SIGNATURE, "result")


def test_digest__another_chain_or_contract__is_another() -> None:
    struct_hash = hash_release("0x" + "01" * 32, 5)
    domains = [DOMAIN, Domain(1, DOMAIN.verifying_contract), Domain(31337, "0x" + "ab" * 20)]
    assert len({digest(domain, struct_hash) for domain in domains}) == 3


def test_hash__order_of_results_and_of_fields__counts() -> None:
    a, b = b"\x01" * 32, b"\x02" * 32
    relayer = "0x" + "aa" * 20
    assert hash_result_set(relayer, 1, [a, b]) != hash_result_set(relayer, 1, [b, a])
    assert hash_result_set(relayer, 1, [a]) != hash_result_set(relayer, 1, [a, a])
    assert hash_register_node(relayer, ADDRESS) != hash_register_node(ADDRESS, relayer)
    assert hash_accept("0x" + "01" * 32, relayer, 1, 2) != hash_accept("0x" + "01" * 32, relayer, 2, 1)
