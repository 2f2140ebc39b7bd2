"""ABI values: reader and writer agree with eth_abi, and say what they cannot take."""

from __future__ import annotations

from typing import Any

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.abi_codec import CONTRACTS, ErrorDecoder, load_abi, type_of
from headrace.adapters.abi_reader import MalformedData, ValuesReader
from headrace.adapters.abi_writer import ValuesWriter
from headrace.core.errors import InvalidInput

Kind = dict[str, Any]

WORDS = ("uint256", "uint40", "int256", "address", "bool", "bytes32", "bytes4", "bytes", "string")
SIMPLE = st.sampled_from(WORDS).map(lambda kind: {"type": kind})


def struct_of(parts: list[Kind]) -> Kind:
    return {"type": "tuple", "components": [{**part, "name": f"f{index}"} for index, part in enumerate(parts)]}


def array_of(item: Kind, suffix: str) -> Kind:
    return {**item, "type": item["type"] + suffix}


KINDS = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(struct_of),
        st.tuples(inner, st.sampled_from(["[]", "[2]"])).map(lambda pair: array_of(*pair)),
    ),
    max_leaves=6,
)


def values_of(kind: Kind, name: str) -> st.SearchStrategy[tuple[Any, Any]]:
    """Pairs of what eth_abi is given and what the reader should give."""
    if name.endswith("]"):
        item = values_of(kind, name[: name.rindex("[")])
        size = name[name.rindex("[") + 1 : -1]
        items = st.lists(item, min_size=int(size), max_size=int(size)) if size else st.lists(item, max_size=3)
        return items.map(lambda pairs: ([pair[0] for pair in pairs], [pair[1] for pair in pairs]))
    if name == "tuple":
        parts = kind["components"]
        return st.tuples(*(values_of(part, part["type"]) for part in parts)).map(
            lambda pairs: (
                tuple(pair[0] for pair in pairs),
                {part["name"]: pair[1] for part, pair in zip(parts, pairs, strict=True)},
            )
        )
    if name.startswith("uint"):
        return st.integers(0, 2 ** int(name[4:]) - 1).map(lambda value: (value, value))
    if name == "int256":
        return st.integers(-(2**255), 2**255 - 1).map(lambda value: (value, value))
    if name == "bool":
        return st.booleans().map(lambda value: (value, value))
    if name == "string":
        return st.text(max_size=40).map(lambda value: (value, value))
    size = {"address": 20, "bytes32": 32, "bytes4": 4}.get(name)
    content = st.binary(min_size=size, max_size=size) if size else st.binary(max_size=70)
    return content.map(lambda value: ("0x" + value.hex() if name == "address" else value, "0x" + value.hex()))


CASES = st.lists(KINDS, min_size=1, max_size=3).flatmap(
    lambda kinds: st.tuples(st.just(kinds), st.tuples(*(values_of(kind, kind["type"]) for kind in kinds)))
)


@given(case=CASES)
def test_reader__agrees_with_eth_abi(case: tuple[list[Kind], list[tuple[Any, Any]]]) -> None:
    kinds, pairs = case
    data = encode([type_of(kind) for kind in kinds], [pair[0] for pair in pairs])
    assert ValuesReader(kinds).read(data) == [pair[1] for pair in pairs]


@given(case=CASES)
def test_writer__agrees_with_eth_abi(case: tuple[list[Kind], list[tuple[Any, Any]]]) -> None:
    kinds, pairs = case
    values = [pair[0] for pair in pairs]
    assert ValuesWriter(kinds).write(values) == encode([type_of(kind) for kind in kinds], values)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uint40", 2**40),
        ("uint256", -1),
        ("int256", 2**255),
        ("int256", True),
        ("bool", 1),
        ("address", "0x11"),
        ("bytes32", b"short"),
        ("bytes4", b"12345"),
        ("bytes", "0x11"),
        ("string", b"a"),
        ("uint8[]", 3),
        ("uint8[2]", [1]),
        ("uint8[2]", "12"),
    ],
)
def test_writer__value_that_does_not_fit__is_refused(kind: str, value: object) -> None:
    with pytest.raises(InvalidInput):
        ValuesWriter([{"type": kind}]).write([value])


@given(case=CASES, share=st.floats(0, 0.999))
def test_reader__data_cut_off__is_refused(case: tuple[list[Kind], list[tuple[Any, Any]]], share: float) -> None:
    kinds, pairs = case
    data = encode([type_of(kind) for kind in kinds], [pair[0] for pair in pairs])
    try:
        found = ValuesReader(kinds).read(data[: int(len(data) * share)])
    except MalformedData:
        return
    # Only padding was cut off.
    assert found == [pair[1] for pair in pairs]


def test_reader__array_longer_than_the_data__is_refused_at_once() -> None:
    data = encode(["uint256", "uint256"], [32, 2**255])
    with pytest.raises(MalformedData, match="does not fit"):
        ValuesReader([{"type": "uint256[]"}]).read(data)


@pytest.mark.parametrize("name", CONTRACTS)
def test_load_abi__every_contract__has_one(name: str) -> None:
    assert {entry["type"] for entry in load_abi(name)} >= {"function", "event", "error", "constructor"}


def test_errors__declared_alike_by_two_contracts__have_the_names_of_the_first() -> None:
    """`InvalidSignature(address)` names a signer in the market, and a relayer in the schedule log."""
    data = keccak(text="InvalidSignature(address)")[:4] + bytes(31) + b"\x07"
    address = "0x" + "00" * 19 + "07"
    assert ErrorDecoder().decode(data) == f"InvalidSignature(signer={address})"
    assert ErrorDecoder(["ScheduleLog"]).decode(data) == f"InvalidSignature(relayer={address})"
