from __future__ import annotations

import pytest
from eth_utils import keccak
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.envelope import OVERHEAD_BYTES, content_of, hash_payload, seal
from headrace.core.errors import InvalidInput

SALT = bytes(range(16))


@given(st.binary(max_size=60), st.binary(min_size=16, max_size=16))
def test_seal__opened__is_the_content(content: bytes, salt: bytes) -> None:
    payload = seal(content, salt)
    assert payload == b"\x01" + salt + content
    assert content_of(payload) == content
    assert len(payload) == len(content) + OVERHEAD_BYTES


@given(st.binary(min_size=1, max_size=60).filter(lambda content: content[0] != 1))
def test_content__of_bare_bytes__is_all_of_them(content: bytes) -> None:
    assert content_of(content) == content


@given(st.binary(max_size=20))
def test_hash__is_of_all_bytes(payload: bytes) -> None:
    assert hash_payload(payload) == "0x" + keccak(payload).hex()


def test_hash__of_a_sealed_text__hangs_on_the_salt() -> None:
    assert len({hash_payload(payload) for payload in (b"x", seal(b"x", SALT), seal(b"x", bytes(16)))}) == 3


@pytest.mark.parametrize("length", [0, 15, 17])
def test_seal__salt_of_another_length__is_refused(length: int) -> None:
    with pytest.raises(InvalidInput, match=f"16 bytes, not {length}"):
        seal(b"x", bytes(length))


@pytest.mark.parametrize("length", range(OVERHEAD_BYTES))
def test_content__of_less_than_an_envelope__is_refused(length: int) -> None:
    with pytest.raises(InvalidInput):
        content_of(seal(b"", SALT)[:length])


def test_content__of_an_empty_envelope__is_empty() -> None:
    assert content_of(seal(b"", SALT)) == b""
