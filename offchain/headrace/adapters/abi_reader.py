"""Reads ABI-encoded values straight into the conventions of `ChainEvent.args`.

Half of an indexer's time went into a general decoder that checks what a contract's own logs need not be checked for; a
test holds the two to the same values. Source: the Solidity ABI specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.core.errors import InvalidInput

_WORD = 32


class MalformedData(InvalidInput):
    """The data ends before its values do."""


class _Reader(NamedTuple):
    """Reads a value at a position. It takes `head_bytes` where it stands; a dynamic one leaves an offset there."""

    head_bytes: int
    is_dynamic: bool
    read: Callable[[bytes, int], Any]


class ValuesReader:
    """Reads a list of values: the data of an event or an error, or what a function returns."""

    def __init__(self, kinds: Sequence[Mapping[str, Any]]) -> None:
        """
        Args:
            kinds: the ABI's inputs, outputs or components.
        """
        self._read = _sequence([_reader(kind, kind["type"]) for kind in kinds])

    def read(self, data: bytes) -> list[Any]:
        """The values.

        Raises:
            MalformedData: the data is too short.
        """
        return self._read(data, 0)


def _reader(given: Mapping[str, Any], kind: str) -> _Reader:
    if kind.endswith("]"):
        return _array(given, kind)
    if kind == "tuple":
        return _struct(given["components"])
    if kind in ("bytes", "string"):
        return _Reader(_WORD, True, _string if kind == "string" else _bytes)
    return _Reader(_WORD, False, _word_reader(kind))


def _array(given: Mapping[str, Any], kind: str) -> _Reader:
    opening = kind.rindex("[")
    item = _reader(given, kind[:opening])
    if length := kind[opening + 1 : -1]:
        read = _sequence([item] * int(length))
        is_dynamic = item.is_dynamic
        return _Reader(_WORD if is_dynamic else item.head_bytes * int(length), is_dynamic, read)

    def read_counted(data: bytes, at: int) -> list[Any]:
        count = _uint(data, at)
        if count * item.head_bytes > len(data):
            raise MalformedData(f"an array of {count} items does not fit into {len(data)} bytes")
        return _sequence([item] * count)(data, at + _WORD)

    return _Reader(_WORD, True, read_counted)


def _struct(components: Sequence[Mapping[str, Any]]) -> _Reader:
    names = [part["name"] for part in components]
    parts = [_reader(part, part["type"]) for part in components]
    read = _sequence(parts)
    is_dynamic = any(part.is_dynamic for part in parts)
    head_bytes = _WORD if is_dynamic else sum(part.head_bytes for part in parts)
    return _Reader(head_bytes, is_dynamic, lambda data, at: dict(zip(names, read(data, at), strict=True)))


def _sequence(parts: Sequence[_Reader]) -> Callable[[bytes, int], list[Any]]:
    def read(data: bytes, at: int) -> list[Any]:
        values = []
        head = at
        for part in parts:
            values.append(part.read(data, at + _uint(data, head) if part.is_dynamic else head))
            head += part.head_bytes
        return values

    return read


def _word_reader(kind: str) -> Callable[[bytes, int], Any]:
    if kind == "address":
        return lambda data, at: "0x" + _word(data, at)[12:].hex()
    if kind == "bool":
        return lambda data, at: _uint(data, at) != 0
    if kind.startswith("uint"):
        return _uint
    if kind.startswith("int"):
        return lambda data, at: int.from_bytes(_word(data, at), "big", signed=True)
    length = int(kind.removeprefix("bytes"))
    return lambda data, at: "0x" + _word(data, at)[:length].hex()


def _word(data: bytes, at: int) -> bytes:
    word = data[at : at + _WORD]
    if len(word) != _WORD:
        raise MalformedData(f"the data ends after {len(data)} bytes, within a value at {at}")
    return word


def _uint(data: bytes, at: int) -> int:
    return int.from_bytes(_word(data, at), "big")


def _content(data: bytes, at: int) -> bytes:
    length = _uint(data, at)
    content = data[at + _WORD : at + _WORD + length]
    if len(content) != length:
        raise MalformedData(f"the data ends after {len(data)} bytes, within {length} bytes at {at}")
    return content


def _bytes(data: bytes, at: int) -> str:
    return "0x" + _content(data, at).hex()


def _string(data: bytes, at: int) -> str:
    return _content(data, at).decode(errors="replace")
