"""Many frozen dataclasses as one JSON object of columns, a field each, and back.

Ten thousand rows have each name once and not ten thousand times: the text is half as long, and is written and read a
column at a time.

- A column of numbers, text or truth values is the list of its values, or the one value that all rows have when there
  are two rows or more.
- A field that is a dataclass itself is a table within. One that is a tuple is an object of `count`, a column, and
  `items`, the column of all rows' items one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints

from headrace.core.canonical import Json
from headrace.core.errors import InvalidInput
from headrace.core.fields import member, wei

MOST_ITEMS = 2**22
"""Of a column: a text that says otherwise in few words is refused."""
_T = TypeVar("_T")


class Column(Protocol):
    """Writes and reads the values of a field."""

    def write(self, values: Sequence[Any]) -> Json:
        """The column of these values."""
        ...

    def read(self, document: Any, count: int) -> list[Any]:
        """So many values.

        Raises:
            InvalidInput: there are more or fewer, or some of another type.
        """
        ...


@dataclasses.dataclass(frozen=True)
class _Plain:
    """Values as JSON has them, maybe after a conversion."""

    name: str
    kind: type[Any]
    to_json: Callable[[Any], Any] | None = None
    from_json: Callable[[Any], Any] | None = None

    def write(self, values: Sequence[Any]) -> Json:
        """See Column."""
        found = list(values) if self.to_json is None else list(map(self.to_json, values))
        if len(found) >= 2 and found[0] == found[-1] and found.count(found[0]) == len(found):
            return cast(Json, found[0])
        return found

    def read(self, document: Any, count: int) -> list[Any]:
        """See Column."""
        if type(document) is not list:
            return self._values([document]) * count
        if len(document) != count:
            raise InvalidInput(f"{self.name} has {len(document)} values for {count} rows")
        return self._values(document)

    def _values(self, found: list[Any]) -> list[Any]:
        # Not isinstance: in JSON nothing is of a subclass, and to Python a truth value is a number.
        if not set(map(type, found)) <= {self.kind}:
            odd = next(value for value in found if type(value) is not self.kind)
            raise InvalidInput(f"{self.name} is {odd!r}, not {self.kind.__name__}")
        return found if self.from_json is None else list(map(self.from_json, found))


@dataclasses.dataclass(frozen=True)
class _Tuples:
    count: _Plain
    items: Column

    def write(self, values: Sequence[Any]) -> Json:
        """See Column."""
        items = self.items.write(list(chain.from_iterable(values)))
        return {"count": self.count.write(list(map(len, values))), "items": items}

    def read(self, document: Any, count: int) -> list[Any]:
        """See Column."""
        if not isinstance(document, dict) or document.keys() != {"count", "items"}:
            raise InvalidInput(f"{self.count.name} is not an object of count and items")
        counts = self.count.read(document["count"], count)
        if any(each < 0 for each in counts) or sum(counts) > MOST_ITEMS:
            raise InvalidInput(f"{self.count.name} is not a count of at most {MOST_ITEMS}")
        items = self.items.read(document["items"], sum(counts))
        return [tuple(items[start:end]) for start, end in pairwise(accumulate(counts, initial=0))]


class Table:
    """Writes and reads the rows of a frozen dataclass as columns."""

    def __init__(self, kind: type[Any]) -> None:
        hints = get_type_hints(kind)
        self._kind = kind
        self.columns = {field.name: _column(field.name, hints[field.name]) for field in dataclasses.fields(kind)}
        self._names = sorted(self.columns)
        self._read = attrgetter(*self._names)

    def write(self, values: Sequence[Any]) -> dict[str, Json]:
        """The rows as an object of columns, its names in their order."""
        # Row by row: an object's fields are near one another, and those of the next one far away.
        found = zip(*map(self._read, values), strict=True) if values else [()] * len(self._names)
        return {name: self.columns[name].write(each) for name, each in zip(self._names, found, strict=True)}

    def read(self, document: Any, count: int) -> list[Any]:
        """So many rows.

        Raises:
            InvalidInput: a column is missing, unknown, too long or short, or has values of another type.
        """
        if not isinstance(document, dict) or document.keys() != self.columns.keys():
            odd = ", ".join(sorted(document.keys() ^ self.columns.keys())) if isinstance(document, dict) else "all"
            raise InvalidInput(f"a table of {self._kind.__name__} has missing or unknown columns: {odd}")
        columns = [column.read(document[name], count) for name, column in self.columns.items()]
        return list(map(self._kind, *columns))


_TABLES: dict[type[Any], Table] = {}


def table_of(kind: type[Any]) -> Table:
    """The table of a dataclass."""
    if kind not in _TABLES:
        _TABLES[kind] = Table(kind)
    return _TABLES[kind]


def _column(name: str, hint: Any) -> Column:
    if dataclasses.is_dataclass(hint):
        return table_of(cast(type[Any], hint))
    if get_origin(hint) is tuple:
        return _Tuples(_Plain(f"{name} count", int), _column(name, get_args(hint)[0]))
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        members = {int(each): each for each in hint}
        return _Plain(name, int, int, lambda value: members[value] if value in members else member(name, hint, value))
    if hint is int and name.endswith("_wei"):
        return _Plain(name, str, str, lambda text: wei(name, text))
    if hint in (int, str, bool):
        return _Plain(name, hint)
    raise InvalidInput(f"{name} has a type that tables do not have: {hint}")  # pragma: no cover
