"""Frozen dataclasses as JSON and back, by their type hints: integers, text, truth values, enums, tuples of these.

Amounts, the fields that end in `_wei`, are decimal text: they pass 2^53. What is read is checked to the last field.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

from headrace.core.canonical import Json
from headrace.core.errors import InvalidInput

_DECIMAL = re.compile("0|[1-9][0-9]{0,77}")  # 78 digits hold a uint256
_T = TypeVar("_T")
_Encoder: TypeAlias = Callable[[Any], dict[str, Json]]
_ENCODERS: dict[type[Any], _Encoder] = {}
_DECODERS: dict[type[Any], Callable[[Any], Any]] = {}


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
        return int, partial(member, name, hint)
    if hint is int and name.endswith("_wei"):
        return str, partial(wei, name)
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


def wei(name: str, text: str) -> int:
    """An amount from its text.

    Raises:
        InvalidInput: it is not a decimal number as amounts are written.
    """
    if not _DECIMAL.fullmatch(text):
        raise InvalidInput(f"{name} is {text!r}, not a decimal number of at most 78 digits")
    return int(text)


def member(name: str, kind: type[IntEnum], value: int) -> IntEnum:
    """A member of an enum from its number.

    Raises:
        InvalidInput: none has it.
    """
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
