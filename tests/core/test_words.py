from __future__ import annotations

from typing import Any

import pytest
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.words import encode_words

WORDS: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("bytes32"), st.binary(min_size=32, max_size=32)),
    st.tuples(st.just("address"), st.binary(min_size=20, max_size=20).map(lambda raw: "0x" + raw.hex())),
    st.tuples(st.just("bool"), st.booleans()),
    st.integers(1, 32).flatmap(lambda size: st.tuples(st.just(f"uint{8 * size}"), st.integers(0, 2 ** (8 * size) - 1))),
)


@given(st.lists(WORDS, max_size=12))
def test_encode_words__any_values__are_what_the_abi_library_gives(words: list[tuple[str, Any]]) -> None:
    kinds, values = [kind for kind, _ in words], [value for _, value in words]
    assert encode_words(kinds, values) == encode(kinds, values)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bytes32", b"short"),
        ("bytes32", "0x" + "11" * 32),
        ("address", "0x" + "11" * 19),
        ("address", "0x" + "1g" * 20),
        ("address", "11" * 21),
        ("address", b"\x11" * 20),
        ("address", "0x " + "11" * 19 + " "),
        ("bool", 1),
        ("uint8", 256),
        ("uint8", -1),
        ("uint8", True),
        ("uint64", 1.0),
        ("uint64", "1"),
        ("uint7", 1),
        ("uint264", 1),
        ("uint", 1),
        ("string", "a"),
        ("uint8[]", [1]),
    ],
)
def test_encode_words__value_or_kind_that_does_not_fit__is_refused(kind: str, value: object) -> None:
    with pytest.raises(InvalidInput):
        encode_words([kind], [value])


def test_encode_words__another_number_of_values__is_refused() -> None:
    with pytest.raises(InvalidInput, match="2 values for 1 words"):
        encode_words(["bool"], [True, False])
