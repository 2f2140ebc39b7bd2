"""The snapshot of a cycle as canonical JSON: what was decided on, for anyone to replay. Schema version 4, frozen.

A *full* snapshot has everything: `frame`, the fields of `CycleInputs` but its tables; and `tables`, the requests, nodes
and accounts as columns (`core.tables`). A *delta* names the hash of the snapshot that it is based on, and has of each
table the keys of rows that are `gone`, the rows that are `new`, and of those that `changed` the fields that did, each
with the numbers of the rows, as they stand now, and their values. There are at most `MOST_DELTAS` in a row.

Field names are those of the dataclasses; amounts are decimal text. An unknown field or version is refused: a replay
must not guess. There is one text for one content, on one base.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from operator import attrgetter
from typing import Any, get_type_hints

import orjson

from headrace.core.canonical import Json, content_hash
from headrace.core.cycle import CycleInputs, NodeView, Policy, WaitingRequest
from headrace.core.errors import InvalidInput
from headrace.core.fairness import Account
from headrace.core.fields import from_json, to_json
from headrace.core.keccak import keccak
from headrace.core.tables import Table, table_of
from headrace.core.types import Hash32

SCHEMA_VERSION = 4
MOST_DELTAS = 255
_CANONICAL = orjson.OPT_STRICT_INTEGER | orjson.OPT_SORT_KEYS  # no number beyond 2^53
_BASED = re.compile(rb'\{"base":"(0x[0-9a-f]{64})",')


@dataclass(frozen=True)
class _Rows:
    """A table of the inputs: its rows are in ascending order of their keys."""

    name: str
    key_name: str
    table: Table

    @property
    def key(self) -> Callable[[Any], str]:
        return attrgetter(self.key_name)


_TABLES = (
    _Rows("accounts", "requester", table_of(Account)),
    _Rows("nodes", "node", table_of(NodeView)),
    _Rows("requests", "request_id", table_of(WaitingRequest)),
)
_TABLE_NAMES = frozenset(rows.name for rows in _TABLES)
_FRAME = {name: hint for name, hint in get_type_hints(CycleInputs).items() if name not in _TABLE_NAMES}
Frame = make_dataclass("Frame", list(_FRAME.items()), frozen=True)
"""What a snapshot has but its tables."""


def encode_snapshot(inputs: CycleInputs) -> bytes:
    """The full snapshot of a cycle.

    Raises:
        InvalidInput: an integer that is not an amount is beyond ±(2^53 - 1), or a text has a lone surrogate.
    """
    tables = {rows.name: rows.table.write(getattr(inputs, rows.name)) for rows in _TABLES}
    return _text({"frame": _frame_json(inputs), "kind": "full", "schema": SCHEMA_VERSION, "tables": tables})


def encode_delta(base: CycleInputs, base_hash: Hash32, inputs: CycleInputs) -> bytes:
    """The snapshot of a cycle on top of another's.

    Raises:
        InvalidInput: as for a full one.
    """
    tables: Json = {rows.name: _diff(rows, getattr(base, rows.name), getattr(inputs, rows.name)) for rows in _TABLES}
    document: dict[str, Json] = {"base": base_hash, "frame": _frame_json(inputs), "kind": "delta"}
    return _text(document | {"schema": SCHEMA_VERSION, "tables": tables})


def base_of(data: bytes) -> Hash32 | None:
    """The hash of the snapshot that one is based on; None for a full one."""
    found = _BASED.match(data)
    return found[1].decode() if found else None


def decode_snapshot(data: bytes, base: CycleInputs | None = None) -> CycleInputs:
    """Read a snapshot back.

    Args:
        data: its text.
        base: the content of the snapshot that it is based on, for a delta.

    Raises:
        InvalidInput: it is not a snapshot of this version, not canonical, a field is missing, unknown or of another
            type, or it is a delta and `base` is not there.
    """
    try:
        document = orjson.loads(data)
    except ValueError as exc:
        raise InvalidInput(f"the snapshot is not JSON: {exc}") from exc
    if not isinstance(document, dict) or document.get("schema") != SCHEMA_VERSION:
        raise InvalidInput(f"the snapshot is not of schema {SCHEMA_VERSION}")
    frame, tables = _frame_of(document.get("frame")), _object(document.get("tables"), _TABLE_NAMES, "tables")
    if base_hash := base_of(data):
        if base is None:
            raise InvalidInput(f"the snapshot is based on {base_hash}, which is not there")
        found = {rows.name: _patched(rows, getattr(base, rows.name), tables[rows.name]) for rows in _TABLES}
        inputs = CycleInputs(**(frame | found))
        again = encode_delta(base, base_hash, inputs)
    else:
        found = {rows.name: tuple(_read(rows, tables[rows.name])) for rows in _TABLES}
        inputs = CycleInputs(**(frame | found))
        again = encode_snapshot(inputs)
    if again != data:
        raise InvalidInput("the snapshot is not canonical JSON, or has fields that its schema does not have")
    return inputs


class SnapshotWriter:
    """Writes the snapshots of cycles in a row: deltas, and a full one now and then."""

    def __init__(self) -> None:
        self._last: tuple[Hash32, CycleInputs] | None = None
        self._deltas = 0

    def write(self, inputs: CycleInputs) -> tuple[Hash32, bytes]:
        """The snapshot of the next cycle, under its hash."""
        if self._last is None or self._deltas >= MOST_DELTAS:
            data = encode_snapshot(inputs)
        else:
            base_hash, base = self._last
            data = encode_delta(base, base_hash, inputs)
        return "0x" + keccak(data).hex(), data

    def keep(self, snapshot_hash: Hash32, data: bytes, inputs: CycleInputs) -> None:
        """The snapshot is stored: the next may be based on it."""
        self._deltas = self._deltas + 1 if base_of(data) else 0
        self._last = snapshot_hash, inputs


class SnapshotReader:
    """Reads snapshots, those in a row fast: the last one that was read is kept."""

    def __init__(self) -> None:
        self._last: tuple[Hash32, CycleInputs] | None = None

    def read(self, snapshot_hash: Hash32, texts: Mapping[Hash32, bytes]) -> CycleInputs:
        """The content of a snapshot.

        Args:
            snapshot_hash: its hash, which is checked.
            texts: it and those that it is based on, by hash.

        Raises:
            Withheld: one of them is not there, or is another.
            InvalidInput: one of them cannot be read.
        """
        ahead: list[tuple[Hash32, bytes]] = []
        base: CycleInputs | None = None
        wanted: Hash32 | None = snapshot_hash
        while wanted is not None:
            if self._last is not None and wanted == self._last[0]:
                base = self._last[1]
                break
            if len(ahead) > MOST_DELTAS:
                raise InvalidInput(f"more than {MOST_DELTAS} snapshots in a row are based on one another")
            data = texts.get(wanted)
            got = "0x" + keccak(data).hex() if data is not None else "withheld"
            if data is None or got != wanted:
                raise Withheld(wanted, got)
            ahead.append((wanted, data))
            wanted = base_of(data)
        for hash_, data in reversed(ahead):
            base = decode_snapshot(data, base)
            self._last = hash_, base
        assert base is not None  # there is at least one
        return base


class Withheld(InvalidInput):
    """A snapshot that must be there is not, or is another than its hash says."""

    def __init__(self, snapshot_hash: Hash32, got: str) -> None:
        super().__init__(f"the snapshot {snapshot_hash} is {got}")
        self.snapshot_hash = snapshot_hash
        self.got = got


def policy_hash(policy: Policy) -> Hash32:
    """keccak256 of the policy's canonical JSON."""
    return content_hash(to_json(policy))


def _text(document: Mapping[str, Json]) -> bytes:
    try:
        return orjson.dumps(document, option=_CANONICAL)
    except TypeError as exc:
        raise InvalidInput(f"the inputs of a cycle have no canonical JSON: {exc}") from exc


# Frames


def _frame_json(inputs: CycleInputs) -> dict[str, Json]:
    return to_json(Frame(*(getattr(inputs, name) for name in _FRAME)))


def _frame_of(document: Any) -> dict[str, Any]:
    frame: Any = from_json(Frame, document)
    return {name: getattr(frame, name) for name in _FRAME}


def _object(document: Any, names: frozenset[str], what: str) -> Any:
    if not isinstance(document, dict) or document.keys() != names:
        odd = sorted(document.keys() ^ names) if isinstance(document, dict) else "it is no object"
        raise InvalidInput(f"the snapshot's {what} has missing or unknown fields: {odd}")
    return document


# Tables


def _read(rows: _Rows, document: Any) -> list[Any]:
    keys = document.get(rows.key_name) if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise InvalidInput(f"the keys of {rows.name} are no list")
    return rows.table.read(document, len(keys))


def _diff(rows: _Rows, old: Sequence[Any], new: Sequence[Any]) -> dict[str, Json]:
    # What is the same object has not changed: of ten thousand rows mostly all but a few are not looked at.
    ids_before, ids_now = set(map(id, old)), set(map(id, new))
    before = {rows.key(row): row for row in old if id(row) not in ids_now}
    added, changed = [], []
    for number, row in enumerate(new):
        if id(row) in ids_before:
            continue
        was = before.pop(rows.key(row), None)
        if was is None:
            added.append(row)
        elif was != row:
            changed.append((number, was, row))
    gone: list[Json] = [*before]
    return {"changed": _changed(rows, changed), "gone": gone, "new": rows.table.write(added)}


def _changed(rows: _Rows, changed: Sequence[tuple[int, Any, Any]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, column in rows.table.columns.items():
        get = attrgetter(name)
        own = [(number, get(row)) for number, was, row in changed if get(was) != get(row)]
        if own:
            values = column.write([value for _, value in own])
            found[name] = {"rows": [number for number, _ in own], "values": values}
    return found


def _patched(rows: _Rows, old: Sequence[Any], document: Any) -> tuple[Any, ...]:
    _object(document, frozenset({"changed", "gone", "new"}), f"{rows.name} of a delta")
    gone, changed = document["gone"], document["changed"]
    if not isinstance(gone, list) or not all(isinstance(key, str) for key in gone) or not isinstance(changed, dict):
        raise InvalidInput(f"the {rows.name} of a delta do not say what changed")
    leaving = set(gone)
    kept = [row for row in old if rows.key(row) not in leaving] if leaving else list(old)
    added = _read(rows, document["new"])
    now = sorted([*kept, *added], key=rows.key) if added else kept
    patches: dict[int, dict[str, Any]] = {}
    for name, found in changed.items():
        for number, value in _values(rows, name, found, len(now)):
            patches.setdefault(number, {})[name] = value
    for number, patch in patches.items():
        now[number] = replace(now[number], **patch)
    return tuple(now)


def _values(rows: _Rows, name: str, found: Any, count: int) -> list[tuple[int, Any]]:
    """The rows in which a field changed, and its values."""
    column = rows.table.columns.get(name)
    _object(found, frozenset({"rows", "values"}), f"change of {name}")
    numbers = found["rows"]
    if column is None or not isinstance(numbers, list):
        raise InvalidInput(f"{rows.name} have no field {name}, or it does not say in which rows it changed")
    if not all(type(number) is int and 0 <= number < count for number in numbers):
        raise InvalidInput(f"{name} changed in a row that {rows.name} do not have")
    return list(zip(numbers, column.read(found["values"], len(numbers)), strict=True))
