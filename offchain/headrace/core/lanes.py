"""Whose turn it is: two lanes that share the network by expected work, and in each the order of DESIGN section 6.

Between the lanes: while both wait, realtime gets 7 parts of the work that is assigned and bulk 3. The lane that is
behind by its share goes next; a lane in which nobody waits loses what it was behind, so that neither saves up.

Within a lane: first what has waited longer than the lane's maximum, oldest first; then the requester that was served
least (`core.fairness`); then the higher score; then the id.

**The starvation bound** comes from this order and not from any score. Let a lane's part of the service rate be at
least s·μ (s = 0.3 for bulk) and let it hold at most B of work when a request comes, and let the lane's later arrivals
not be older. The request is overdue after the maximum wait W, and from then on only what is older goes before it: what
was there when it came. So it is assigned within W + B / (s·μ), whatever anybody pays, if a node may take it at all.
Overdue requests go first in their own lane, not before the other: at an overload of bulk every one of its requests is
overdue, and realtime would be served last for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.fairness import Accounts
from headrace.core.types import Address, Lane

REALTIME_SHARE, BULK_SHARE = 7, 3
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Waiting:
    """The requests of a cycle as the order sees them, by row, in ascending order of their ids."""

    requesters: Sequence[Address]
    included_at_s: Ints
    scores_e9: Ints
    works: Ints
    is_overdue: NDArray[np.bool_]


class LaneOrder:
    """The rows of one lane, next one first. A look costs the requester as much as being served, within this cycle: what
    cannot be placed keeps nobody else from being looked at.

    So the order does not depend on what becomes of anybody.
    """

    def __init__(self, rows: Ints, waiting: Waiting, accounts: Accounts) -> None:
        """
        Args:
            rows: of the lane, ascending.
            waiting: what `rows` are of.
            accounts: what each requester was served before.
        """
        is_overdue = waiting.is_overdue[rows]
        overdue = rows[is_overdue]
        oldest_first = np.lexsort((overdue, waiting.included_at_s[overdue]))
        self._overdue: list[int] = overdue[oldest_first][::-1].tolist()
        self._works, self._scores = waiting.works, waiting.scores_e9
        self._rest: dict[Address, list[int]] = {}
        rest = rows[~is_overdue]
        # The best comes last, where it is popped from.
        for row in rest[np.lexsort((-rest, waiting.scores_e9[rest]))].tolist():
            self._rest.setdefault(waiting.requesters[row], []).append(row)
        self._turns: list[tuple[int, int, int, Address]] = []
        for requester, own in self._rest.items():
            self._turns.append((accounts.of(requester), -int(self._scores[own[-1]]), own[-1], requester))
        heapq.heapify(self._turns)

    def __bool__(self) -> bool:
        return bool(self._overdue or self._turns)

    def pop(self) -> int:
        """The next row. There must be one."""
        if self._overdue:
            return self._overdue.pop()
        tag, _, row, requester = self._turns[0]
        own = self._rest[requester]
        own.pop()
        if own:
            turn = (tag + int(self._works[row]), -int(self._scores[own[-1]]), own[-1], requester)
            heapq.heapreplace(self._turns, turn)
        else:
            heapq.heappop(self._turns)
        return row

    def close(self) -> list[int]:
        """Take all that are left, ascending."""
        left = [*self._overdue, *(row for own in self._rest.values() for row in own)]
        self._overdue, self._rest, self._turns = [], {}, []
        return sorted(left)


class Working:
    """What of a lane is looked at: its next rows, drawn ahead so that many can be looked at together.

    The order is that of `LaneOrder`, whatever is drawn ahead.
    """

    def __init__(self, order: LaneOrder) -> None:
        self._order = order
        self._drawn: list[int] = []
        self._next = 0

    def __bool__(self) -> bool:
        return self._next < len(self._drawn) or bool(self._order)

    def draw(self, count: int) -> list[int]:
        """The rows that come next, at most so many; they stay."""
        while len(self._drawn) < self._next + count and self._order:
            self._drawn.append(self._order.pop())
        return self._drawn[self._next : self._next + count]

    def pop(self) -> int:
        """The next row. There must be one."""
        if self._next == len(self._drawn):
            self._drawn.append(self._order.pop())
        self._next += 1
        return self._drawn[self._next - 1]

    def close(self) -> list[int]:
        """Take all that are left, ascending."""
        left = sorted([*self._drawn[self._next :], *self._order.close()])
        self._next = len(self._drawn)
        return left


class SharedLanes:
    """Which of the two lanes goes next.

    `lag` is how far realtime is ahead of its share, in work × 21: below or at 0 it is realtime's turn. It passes from
    cycle to cycle.
    """

    def __init__(self, realtime: LaneOrder, bulk: LaneOrder, lag: int) -> None:
        self._lanes = {Lane.REALTIME: Working(realtime), Lane.BULK: Working(bulk)}
        self.lag = lag

    def __bool__(self) -> bool:
        return bool(self._lanes[Lane.REALTIME] or self._lanes[Lane.BULK])

    def next_lane(self) -> Lane:
        """Whose turn it is. Somebody must wait."""
        realtime, bulk = self._lanes[Lane.REALTIME], self._lanes[Lane.BULK]
        if not bulk:
            self.lag = min(self.lag, 0)
            return Lane.REALTIME
        if not realtime:
            self.lag = max(self.lag, 0)
            return Lane.BULK
        return Lane.REALTIME if self.lag <= 0 else Lane.BULK

    def draw(self, lane: Lane, count: int) -> list[int]:
        """The rows of a lane that come next, at most so many; they stay."""
        return self._lanes[lane].draw(count)

    def pop(self, lane: Lane) -> int:
        """The next row of a lane."""
        return self._lanes[lane].pop()

    def close(self, lane: Lane) -> list[int]:
        """Take all that are left in a lane, ascending: its working set is full."""
        return self._lanes[lane].close()

    def count(self, lane: Lane, work: int) -> None:
        """A request of a lane was assigned."""
        self.lag += work * BULK_SHARE if lane is Lane.REALTIME else -work * REALTIME_SHARE
