"""The reference's dual queue: strict priority with a fixed escape for the bulk lane.

Source: `tests/vectors/reference/dual_queue.json`, which calls the lanes high and low.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

from headrace.core.errors import InvalidInput
from headrace.core.types import Lane

Item = TypeVar("Item")

REALTIME_CAPACITY: Final = 200
BULK_CAPACITY: Final = 1_000
REALTIME_STREAK: Final = 20
"""Realtime items taken in a row after which a waiting bulk item goes first."""


class StrictLanes(Generic[Item]):
    """Two bounded first-in-first-out lanes; realtime goes first, except once after each full streak.

    A realtime item that finds its lane full is demoted: it waits in the bulk lane, but still counts as
    realtime when it is taken. The streak is the number of realtime items taken since the last bulk item;
    it grows while nobody waits in the bulk lane, too, and an empty `take` leaves it alone. A take that a
    full streak forces from the bulk lane starts a new one, which a demoted item begins at 1.

    The vectors leave two cases open: a streak that passes its limit before a bulk item arrives (here that
    item goes next), and a demoted item taken because the realtime lane is empty (here it extends the streak).
    """

    __slots__ = ("_bulk", "_bulk_capacity", "_realtime", "_realtime_capacity", "_streak", "_streak_limit")

    def __init__(
        self,
        realtime_capacity: int = REALTIME_CAPACITY,
        bulk_capacity: int = BULK_CAPACITY,
        realtime_streak: int = REALTIME_STREAK,
    ) -> None:
        """Capacities and streak are counts of items. Raises InvalidInput for one below 1."""
        if min(realtime_capacity, bulk_capacity, realtime_streak) < 1:
            raise InvalidInput(
                "capacities and streak must be at least 1, got "
                f"{realtime_capacity}, {bulk_capacity} and {realtime_streak}"
            )
        self._realtime_capacity = realtime_capacity
        self._bulk_capacity = bulk_capacity
        self._streak_limit = realtime_streak
        self._realtime: deque[Item] = deque()
        self._bulk: deque[tuple[Lane, Item]] = deque()  # with the lane that each item asked for
        self._streak = 0

    def __len__(self) -> int:
        """How many items wait in both lanes together."""
        return len(self._realtime) + len(self._bulk)

    def waiting_in(self, lane: Lane) -> int:
        """How many items wait in one lane; demoted ones wait in BULK."""
        return len(self._realtime if lane is Lane.REALTIME else self._bulk)

    def offer(self, item: Item, lane: Lane) -> Lane | None:
        """Let an item wait; the lane it landed in, or None if it is refused because there is no room."""
        if lane is Lane.REALTIME and len(self._realtime) < self._realtime_capacity:
            self._realtime.append(item)
            return Lane.REALTIME
        if len(self._bulk) < self._bulk_capacity:
            self._bulk.append((lane, item))
            return Lane.BULK
        return None

    def take(self) -> Item | None:
        """Remove and return the item whose turn it is; None if nothing waits."""
        if self._bulk and self._streak >= self._streak_limit:
            self._streak = 0
            return self._take_bulk()
        if self._realtime:
            self._streak += 1
            return self._realtime.popleft()
        return self._take_bulk() if self._bulk else None

    def _take_bulk(self) -> Item:
        """Take the head of the bulk lane and count it by the lane that it asked for."""
        lane, item = self._bulk.popleft()
        self._streak = self._streak + 1 if lane is Lane.REALTIME else 0
        return item
