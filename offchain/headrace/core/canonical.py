"""Canonical JSON: one text for one value, so that its hash can be recorded and anyone can compare.

The subset of RFC 8785 that needs no number formatting: keys sorted (ASCII only, so that every language sorts them
alike), no white space, UTF-8, integers only and within ±(2^53 − 1) so that every JSON reader agrees on them. Larger
integers (wei) are written as decimal text by the caller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from headrace.core.errors import InvalidInput
from headrace.core.keccak import keccak
from headrace.core.types import Hash32

Json: TypeAlias = "str | int | bool | list[Json] | tuple[Json, ...] | Mapping[str, Json] | None"

MAX_SAFE_INTEGER = 2**53 - 1


def canonical_json(value: Json) -> bytes:
    """Encode a value canonically.

    Raises:
        InvalidInput: it holds a float, an integer beyond ±(2^53 − 1), a key that is not ASCII, or something that JSON
            does not have.
    """
    _check(value, "$")
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=dict)
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput("the value holds text with a lone surrogate, which UTF-8 does not have") from exc


def content_hash(value: Json) -> Hash32:
    """keccak256 of a value's canonical JSON."""
    return "0x" + keccak(canonical_json(value)).hex()


def _check(value: object, path: str) -> None:
    if value is None or isinstance(value, bool | str):
        return
    if isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            raise InvalidInput(f"{path} is {value}: integers beyond 2^53 - 1 must be written as text")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str) or not key.isascii():
                raise InvalidInput(f"{path} has the key {key!r}, which is not ASCII text")
            _check(item, f"{path}.{key}")
    else:
        raise InvalidInput(f"{path} is a {type(value).__name__}, which canonical JSON does not have")
