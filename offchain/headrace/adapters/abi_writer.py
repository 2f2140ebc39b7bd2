"""Writes ABI-encoded values: what `abi_reader` reads, the other way round.

A batch of results has twenty words an item, and a general encoder spent more on looking up and checking each than the
chain on simulating it. What a value may be is checked here, too; a test holds the two to the same bytes. Source: the
Solidity ABI specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.core.errors import InvalidInput
from headrace.core.words import encode_words

_WORD = 32


class _Writer(NamedTuple):
    """Writes a value. It takes `head_bytes` where it stands; a dynamic one leaves an offset there."""

    head_bytes: int
    is_dynamic: bool
    write: Callable[[Any], bytes]


class ValuesWriter:
    """Writes a list of values: the arguments of a function."""

    def __init__(self, kinds: Sequence[Mapping[str, Any]]) -> None:
        """
        Args:
            kinds: the ABI's inputs or components.
        """
        self._write = _sequence([_writer(kind, kind["type"]) for kind in kinds])

    def write(self, values: Sequence[Any]) -> bytes:
        """The encoded values. Structs are sequences, bytes are bytes, addresses are hex text.

        Raises:
            InvalidInput: a value is not of its type.
        """
        return self._write(values)


def _writer(given: Mapping[str, Any], kind: str) -> _Writer:
    if kind.endswith("]"):
        return _array(given, kind)
    if kind == "tuple":
        return _struct(given["components"])
    if kind in ("bytes", "string"):
        return _Writer(_WORD, True, _write_string if kind == "string" else _write_bytes)
    return _Writer(_WORD, False, _word_writer(kind))


def _array(given: Mapping[str, Any], kind: str) -> _Writer:
    opening = kind.rindex("[")
    item = _writer(given, kind[:opening])
    if length := kind[opening + 1 : -1]:
        head_bytes = _WORD if item.is_dynamic else item.head_bytes * int(length)
        return _Writer(head_bytes, item.is_dynamic, _sequence([item] * int(length)))

    def write(values: Any) -> bytes:
        _require_list(values)
        return _uint(len(values)) + _written([item] * len(values), values)

    return _Writer(_WORD, True, write)


def _struct(components: Sequence[Mapping[str, Any]]) -> _Writer:
    parts = [_writer(part, part["type"]) for part in components]
    is_dynamic = any(part.is_dynamic for part in parts)
    head_bytes = _WORD if is_dynamic else sum(part.head_bytes for part in parts)
    return _Writer(head_bytes, is_dynamic, _sequence(parts))


def _sequence(parts: Sequence[_Writer]) -> Callable[[Any], bytes]:
    def write(values: Any) -> bytes:
        _require_list(values)
        if len(values) != len(parts):
            raise InvalidInput(f"there are {len(values)} values where {len(parts)} are needed")
        return _written(parts, values)

    return write


def _written(parts: Sequence[_Writer], values: Sequence[Any]) -> bytes:
    """Heads, then what they point to."""
    at = sum(part.head_bytes for part in parts)
    heads, tails = [], []
    for part, value in zip(parts, values, strict=True):
        written = part.write(value)
        if part.is_dynamic:
            heads.append(_uint(at))
            tails.append(written)
            at += len(written)
        else:
            heads.append(written)
    return b"".join(heads + tails)


def _word_writer(kind: str) -> Callable[[Any], bytes]:
    if kind.startswith("bytes") and kind != "bytes32":
        length = int(kind.removeprefix("bytes"))
        return lambda value: _fixed(kind, length, value)
    if kind.startswith("int"):
        bits = int(kind.removeprefix("int"))
        return lambda value: _signed(kind, bits, value)
    kinds = (kind,)
    return lambda value: encode_words(kinds, (value,))


def _fixed(kind: str, length: int, value: Any) -> bytes:
    if not isinstance(value, bytes) or len(value) != length:
        raise InvalidInput(f"{value!r} is no {kind}")
    return value.ljust(_WORD, b"\0")


def _signed(kind: str, bits: int, value: Any) -> bytes:
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise InvalidInput(f"{value!r} is no {kind}")
    return value.to_bytes(_WORD, "big", signed=True)


def _write_string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidInput(f"{value!r} is no text")
    return _write_bytes(value.encode())


def _write_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidInput(f"{value!r} is not bytes")
    return _uint(len(value)) + value.ljust(-(-len(value) // _WORD) * _WORD, b"\0")


def _require_list(value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"{value!r} is no list of values")


def _uint(value: int) -> bytes:
    return value.to_bytes(_WORD, "big")
