from __future__ import annotations

import json
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import pytest
from eth_utils import keccak
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.canonical import MAX_SAFE_INTEGER, canonical_json, content_hash
from headrace.core.errors import InvalidInput

text = st.text(st.characters(exclude_categories=["Cs"]))
keys = st.text(st.characters(codec="ascii"))
values = st.recursive(
    st.none() | st.booleans() | text | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


class Colour(IntEnum):
    GREEN = 2


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_canonical__read_back__is_the_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(values)
def test_canonical__order_of_keys__does_not_matter(value: Any) -> None:
    assert canonical_json(reordered(value)) == canonical_json(value)
    assert content_hash(value) == "0x" + keccak(canonical_json(value)).hex()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": [True, None, "x"], "B": {}}, '{"B":{},"a":[true,null,"x"],"b":1}'),
        ({"a10": 0, "a9": 0, "": 0}, '{"":0,"a10":0,"a9":0}'),
        ("Zürich 水 \U0001f30a", '"Zürich 水 \U0001f30a"'),
        ('"\\/\b\f\n\r\t\x00\x1f\x7f\u2028', '"\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\u2028"'),
        ((1, (2,)), "[1,[2]]"),
        (Colour.GREEN, "2"),
        (MappingProxyType({"b": MappingProxyType({}), "a": 1}), '{"a":1,"b":{}}'),
        (MAX_SAFE_INTEGER, "9007199254740991"),
        (-MAX_SAFE_INTEGER, "-9007199254740991"),
    ],
)
def test_canonical__text(value: Any, expected: str) -> None:
    assert canonical_json(value) == expected.encode()


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (1.0, r"\$ is a float"),
        ({"a": [0, float("nan")]}, r"\$\.a\[1\] is a float"),
        (2**53, r"\$ is 9007199254740992"),
        ([-(2**53)], r"\$\[0\] is -9007199254740992"),
        ({"a": b""}, r"\$\.a is a bytes"),
        ({"a": {1}}, r"\$\.a is a set"),
        ({1: 0}, r"\$ has the key 1"),
        ({None: 0}, r"\$ has the key None"),
        ({"é": 0}, r"\$ has the key 'é'"),  # languages do not agree on how to sort it
        ({"a": ["\ud800"]}, r"surrogate"),
    ],
)
def test_canonical__what_json_readers_would_disagree_on__is_refused(value: Any, where: str) -> None:
    with pytest.raises(InvalidInput, match=where):
        canonical_json(value)
