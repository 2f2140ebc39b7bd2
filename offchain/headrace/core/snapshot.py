"""The snapshot of a cycle as canonical JSON: what was decided on, for anyone to replay. Schema version 3, frozen.

Field names are those of `CycleInputs`; wei and the scheduling numbers that may pass 2^53 are decimal text. An unknown
field or version is refused: a replay must not guess.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable
from enum import IntEnum
from functools import partial
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
_DECODERS: dict[type[Any], Callable[[Any], Any]] = {}


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
    if kind not in _DECODERS:
        _DECODERS[kind] = _make_decoder(kind)
    return cast(_T, _DECODERS[kind](value))


def _make_decoder(kind: type[Any]) -> Callable[[Any], Any]:
    """What makes JSON into objects of a dataclass, by its hints, as `_make_encoder` the other way."""
    hints = get_type_hints(kind)
    fields = [(field.name, *_reader(field.name, hints[field.name])) for field in dataclasses.fields(kind)]
    names = hints.keys()

    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise InvalidInput(f"{kind.__name__} is not an object")
        if value.keys() != names:
            odd = ", ".join(sorted(value.keys() ^ names))
            raise InvalidInput(f"{kind.__name__} has missing or unknown fields: {odd}")
        arguments = []
        for name, expected, read in fields:
            found = value[name]
            # Not isinstance: in JSON nothing is of a subclass, and to Python a truth value is a number.
            if expected is not None and type(found) is not expected:
                raise InvalidInput(f"{name} is {found!r}, not {expected.__name__}")
            arguments.append(found if read is None else read(found))
        return kind(*arguments)

    return decode


def _reader(name: str, hint: Any) -> tuple[type[Any] | None, Callable[[Any], Any] | None]:
    """The type that a field's JSON must have (None = it is looked at later), and what turns it into the value."""
    if dataclasses.is_dataclass(hint):
        return None, partial(from_json, cast(type[Any], hint))
    if get_origin(hint) is tuple:
        expected, read = _reader(name, get_args(hint)[0])
        return list, partial(_read_items, name, expected, read)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return int, partial(_member, name, hint)
    if hint is int and name.endswith("_wei"):
        return str, partial(_wei, name)
    if hint in (int, str, bool):
        return hint, None
    raise InvalidInput(f"{name} has a type that snapshots do not have: {hint}")  # pragma: no cover


def _read_items(
    name: str, expected: type[Any] | None, read: Callable[[Any], Any] | None, values: list[Any]
) -> tuple[Any, ...]:
    if expected is not None:
        for value in values:
            if type(value) is not expected:
                raise InvalidInput(f"{name} is {value!r}, not {expected.__name__}")
    return tuple(values) if read is None else tuple(map(read, values))


def _wei(name: str, text: str) -> int:
    if not _DECIMAL.fullmatch(text):
        raise InvalidInput(f"{name} is {text!r}, not a decimal number of at most 78 digits")
    return int(text)


def _member(name: str, kind: type[IntEnum], value: int) -> IntEnum:
    try:
        return kind(value)
    except ValueError as exc:
        raise InvalidInput(f"{name} is {value}, which no {kind.__name__} is") from exc


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
