"""Rows of the same kind as arrays, a field each, kept from cycle to cycle: only what changed is read again.

A row that is the same object, or equal, has not changed. So a cycle over ten thousand rows of which a hundred changed
costs what a hundred cost, and comparing pointers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, is_not
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
MOST = 2**62
"""What columns hold of what is larger: no amount above it decides anything."""

_Row = TypeVar("_Row")


def column(values: Sequence[int]) -> Ints:
    """Integers of any size as an array: what is beyond ±2^62 is that."""
    try:
        return np.clip(np.array(values, dtype=np.int64), -MOST, MOST)
    except OverflowError:
        return np.array([max(-MOST, min(value, MOST)) for value in values], dtype=np.int64)


def capped(value: int) -> int:
    """A number as it can be compared with a column."""
    return max(-MOST, min(value, MOST))


@dataclass(frozen=True, slots=True)
class Changes(Generic[_Row]):
    """How rows differ from those before.

    `changed` are rows that are new or not as they were; `before` what stood there, None for a new one. `moved` has for
    each row of now its number before, -1 for a new one; None when all stayed where they were.
    """

    changed: Sequence[int]
    before: Sequence[_Row | None]
    moved: Ints | None


class Columns(Generic[_Row]):
    """Rows in ascending order of their keys.

    Args:
        key: the field that is the key of a row.
        fields: those that there are arrays of, by their names; two or more.
        derived: what further arrays hold of a row.
    """

    def __init__(self, key: str, fields: Sequence[str], derived: Mapping[str, Callable[[_Row], int]]) -> None:
        self._key = attrgetter(key)
        self._fields = fields
        self._read = attrgetter(*fields)
        self._derived = derived
        self.rows: Sequence[_Row] = ()
        self.row_of: dict[str, int] = {}
        self.arrays: dict[str, Ints] = {name: np.zeros(0, dtype=np.int64) for name in (*fields, *derived)}

    def update(self, rows: Sequence[_Row]) -> Changes[_Row]:
        """Take over the rows of now."""
        changes = self._compared(rows)
        if changes.moved is not None:
            there = changes.moved >= 0
            for name, array in self.arrays.items():
                moved = np.zeros(len(rows), dtype=np.int64)
                moved[there] = array[changes.moved[there]]
                self.arrays[name] = moved
            self.row_of = dict(zip(map(self._key, rows), range(len(rows)), strict=True))
        if changes.changed:
            changed = [rows[number] for number in changes.changed]
            numbers = np.array(changes.changed, dtype=np.int64)
            # Row by row: an object's fields are near one another, and those of the next one far away.
            for name, values in zip(self._fields, zip(*map(self._read, changed), strict=True), strict=True):
                self.arrays[name][numbers] = column(values)
            for name, derive in self._derived.items():
                self.arrays[name][numbers] = column(list(map(derive, changed)))
        self.rows = rows
        return changes

    def _compared(self, rows: Sequence[_Row]) -> Changes[_Row]:
        old, key = self.rows, self._key
        if len(old) == len(rows):
            others = [number for number, differs in enumerate(map(is_not, old, rows)) if differs]
            if all(key(old[number]) == key(rows[number]) for number in others):
                changed = [number for number in others if old[number] != rows[number]]
                return Changes(changed, [old[number] for number in changed], None)
        if not old:
            return Changes(range(len(rows)), [None] * len(rows), np.full(len(rows), -1, dtype=np.int64))
        moved = list(map(self.row_of.get, map(key, rows), repeat(-1)))
        pairs = enumerate(zip(moved, rows, strict=True))
        changed = [n for n, (was, row) in pairs if was < 0 or (old[was] is not row and old[was] != row)]
        before = [old[moved[number]] if moved[number] >= 0 else None for number in changed]
        return Changes(changed, before, np.array(moved, dtype=np.int64))
