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
from typing import NamedTuple

from headrace.core.fairness import Accounts
from headrace.core.types import Address, Hash32, Lane

REALTIME_SHARE, BULK_SHARE = 7, 3


class Entry(NamedTuple):
    """A request as the order sees it."""

    request_id: Hash32
    requester: Address
    included_at_s: int
    score_e9: int
    work: int
    is_overdue: bool
    row: int  # of the caller's table


class LaneOrder:
    """The requests of one lane, next one first. A look costs the requester as much as being served, within this cycle:
    what cannot be placed keeps nobody else from being looked at."""

    def __init__(self, entries: Sequence[Entry], accounts: Accounts) -> None:
        overdue = [entry for entry in entries if entry.is_overdue]
        self._overdue = sorted(overdue, key=lambda entry: (entry.included_at_s, entry.request_id), reverse=True)
        by_requester: dict[Address, list[Entry]] = {}
        for entry in entries:
            if not entry.is_overdue:
                by_requester.setdefault(entry.requester, []).append(entry)
        self._rest = by_requester
        self._turns: list[tuple[int, int, Hash32, Address]] = []
        for requester, own in by_requester.items():
            own.sort(key=lambda entry: (-entry.score_e9, entry.request_id), reverse=True)
            self._queue(requester, accounts.of(requester))
        heapq.heapify(self._turns)

    def __bool__(self) -> bool:
        return bool(self._overdue or self._turns)

    def pop(self) -> Entry:
        """The next request. There must be one."""
        if self._overdue:
            return self._overdue.pop()
        tag, _, _, requester = heapq.heappop(self._turns)
        entry = self._rest[requester].pop()
        if self._rest[requester]:
            self._queue(requester, tag + entry.work)
        return entry

    def close(self) -> list[Entry]:
        """Take all that are left, by ascending id."""
        left = [*self._overdue, *(entry for own in self._rest.values() for entry in own)]
        self._overdue, self._rest, self._turns = [], {}, []
        return sorted(left, key=lambda entry: entry.request_id)

    def _queue(self, requester: Address, tag: int) -> None:
        best = self._rest[requester][-1]
        heapq.heappush(self._turns, (tag, -best.score_e9, best.request_id, requester))


class SharedLanes:
    """Which of the two lanes goes next.

    `lag` is how far realtime is ahead of its share, in work × 21: below or at 0 it is realtime's turn. It passes from
    cycle to cycle.
    """

    def __init__(self, realtime: LaneOrder, bulk: LaneOrder, lag: int) -> None:
        self._lanes = {Lane.REALTIME: realtime, Lane.BULK: bulk}
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

    def pop(self, lane: Lane) -> Entry:
        """The next request of a lane."""
        return self._lanes[lane].pop()

    def close(self, lane: Lane) -> list[Entry]:
        """Take all that are left in a lane, by ascending id: its working set is full."""
        return self._lanes[lane].close()

    def count(self, lane: Lane, work: int) -> None:
        """A request of a lane was assigned."""
        self.lag += work * BULK_SHARE if lane is Lane.REALTIME else -work * REALTIME_SHARE
