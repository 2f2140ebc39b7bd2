"""The snapshot of a cycle as canonical JSON: what was decided on, for anyone to replay. Schema version 3, frozen.

Field names are those of `CycleInputs`; wei and the scheduling numbers that may pass 2^53 are decimal text. An unknown
field or version is refused: a replay must not guess.
"""

from __future__ import annotations

import dataclasses
import operator
import re
import types
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import orjson

from headrace.core.canonical import Json, content_hash
from headrace.core.cycle import CycleInputs, Policy
from headrace.core.errors import InvalidInput
from headrace.core.nesting import read_json
from headrace.core.types import Hash32

SCHEMA_VERSION = 3
_STRICT = orjson.OPT_STRICT_INTEGER  # none beyond 2^53
_DECIMAL = re.compile("0|[1-9][0-9]{0,77}")  # 78 digits hold a uint256
_T = TypeVar("_T")
_Encoder: TypeAlias = Callable[[Any], dict[str, Json]]
_ENCODERS: dict[type[Any], _Encoder] = {}


def encode_snapshot(inputs: CycleInputs) -> bytes:
    """The canonical JSON of a cycle's inputs.

    Raises:
        InvalidInput: an integer that is not an amount is beyond ±(2^53 - 1), or a text has a lone surrogate.
    """
    try:
        return orjson.dumps({"inputs": to_json(inputs), "kind": "full", "schema": SCHEMA_VERSION}, option=_STRICT)
    except TypeError as exc:
        raise InvalidInput(f"the inputs of a cycle have no canonical JSON: {exc}") from exc


def decode_snapshot(data: bytes) -> CycleInputs:
    """Read a snapshot back.

    Raises:
        InvalidInput: it is not a snapshot of this version, not canonical, or a field is missing, unknown or of another
            type.
    """
    try:
        document = read_json(data)
    except ValueError as exc:
        raise InvalidInput(f"the snapshot is not JSON: {exc}") from exc
    if not isinstance(document, dict) or document.get("schema") != SCHEMA_VERSION or document.get("kind") != "full":
        raise InvalidInput(f"the snapshot is not of schema {SCHEMA_VERSION}, kind full")
    inputs = from_json(CycleInputs, document.get("inputs"))
    if encode_snapshot(inputs) != data:
        raise InvalidInput("the snapshot is not canonical JSON, or has fields that its schema does not have")
    return inputs


def policy_hash(policy: Policy) -> Hash32:
    """keccak256 of the policy's canonical JSON."""
    return content_hash(to_json(policy))


def to_json(value: Any) -> dict[str, Json]:
    """A frozen dataclass of integers, text, enums and tuples as JSON. Amounts in wei become decimal text."""
    return _encoder_of(type(value))(value)


def from_json(kind: type[_T], value: Any) -> _T:
    """The inverse of `to_json`.

    Raises:
        InvalidInput: a field is missing, unknown or of another type.
    """
    if not isinstance(value, dict):
        raise InvalidInput(f"{kind.__name__} is not an object")
    hints = get_type_hints(kind)
    if set(value) != set(hints):
        odd = ", ".join(sorted(set(value) ^ set(hints)))
        raise InvalidInput(f"{kind.__name__} has missing or unknown fields: {odd}")
    return kind(**{name: _decode(name, hint, value[name]) for name, hint in hints.items()})


def _encoder_of(kind: type[Any]) -> _Encoder:
    if kind not in _ENCODERS:
        _ENCODERS[kind] = _make_encoder(kind)
    return _ENCODERS[kind]


def _make_encoder(kind: type[Any]) -> _Encoder:
    """What makes objects of a dataclass into JSON, by its hints and not by looking at each value: a snapshot has
    hundreds of thousands. Keys come out sorted."""
    hints = get_type_hints(kind)
    names = sorted(hints)
    converters = [(index, found) for index, name in enumerate(names) if (found := _converter(name, hints[name]))]
    read = operator.attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)

    def encode(value: Any) -> dict[str, Json]:
        values = list(read(value))
        for index, convert in converters:
            values[index] = convert(values[index])
        return dict(zip(names, values, strict=True))

    return encode


def _converter(name: str, hint: Any) -> Callable[[Any], Json] | None:
    """What turns a field's value into JSON; None when it is so already."""
    if dataclasses.is_dataclass(hint):
        return _encoder_of(cast(type[Any], hint))
    if get_origin(hint) is tuple:
        item = _converter(name, get_args(hint)[0])
        return list if item is None else lambda values: [item(value) for value in values]
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return int
    return str if hint is int and name.endswith("_wei") else None


def _decode(name: str, hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_json(cast(type[Any], hint), value)
    if get_origin(hint) is tuple:
        return _decode_tuple(name, hint, value)
    if hint is bool or hint is str:
        return _typed(name, hint, value)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return _member(name, hint, _typed(name, int, value))
    if hint is int and name.endswith("_wei"):
        text = _typed(name, str, value)
        if not _DECIMAL.fullmatch(text):
            raise InvalidInput(f"{name} is {value!r}, not a decimal number of at most 78 digits")
        return int(text)
    if hint is int:
        return _typed(name, int, value)
    raise InvalidInput(f"{name} has a type that snapshots do not have: {hint}")  # pragma: no cover


def _decode_tuple(name: str, hint: types.GenericAlias, value: Any) -> tuple[Any, ...]:
    item = get_args(hint)[0]
    return tuple(_decode(name, item, entry) for entry in _typed(name, list, value))


def _member(name: str, kind: type[IntEnum], value: int) -> IntEnum:
    try:
        return kind(value)
    except ValueError as exc:
        raise InvalidInput(f"{name} is {value}, which no {kind.__name__} is") from exc


def _typed(name: str, kind: type[_T], value: Any) -> _T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidInput(f"{name} is {value!r}, not {kind.__name__}")
    return value
