"""Where: places for requests that can all be served, near the least total cost, and never one left without a place.

Two steps. `Matching` says who can be served together: requests come in the order of their claim, and each is taken if
places can be found for it and all before it, moving those before it where that helps. The sets that can be served
together are a transversal matroid, so taking greedily serves the most requests, and of all largest sets the one whose
requests come first.

`place` then chooses among all placements of the served set by an auction with a minimum raise (Bertsekas, "The auction
algorithm", 1988): each request bids for its cheapest place what that place is better than its next one, and a little.
The outcome costs more than the exact optimum by at most the sum of these raises, a share of each request's cheapest
place. Where many requests want the same few places, prices creep; past a bound on bids the auction ends, those left
over are placed with least harm, and pairs of requests swap places for as long as that saves.

Integers only, and every tie goes to the first: a replay gives the same places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

RAISE_DIVISOR = 16
"""A request's least raise is this part of the cost of its cheapest place. At most that is lost by it; a thirtieth of it
is, as measured, at a third of the bids that a quarter of it takes."""
BIDS_PER_REQUEST = 32
FEW_REQUESTS, BIDS_PER_FEW = 256, 8
"""Of so few, swaps of pairs cost less than a long auction, and leave less to be gained."""
MOST_BIDS = 30_000
"""Of one placement, so that a cycle has a bound: a bid takes some microseconds."""
NEVER = np.int64(2**62)
"""The cost of what cannot be."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The places that a request can have, by ascending number, and what each costs. Costs are below 2^61."""

    places: Ints
    costs: Ints


class Matching:
    """Who can be served together: requests, each on one node, no node beyond its capacity."""

    def __init__(self, capacities: Sequence[int] | Ints) -> None:
        self._left = np.array(capacities, dtype=np.int64)
        self._options: list[tuple[Ints, Ints]] = []
        self._node_of: list[int] = []
        self._requests_at: dict[int, list[int]] = {}
        self._is_closed = np.zeros(len(capacities), dtype=bool)

    @property
    def nodes(self) -> Sequence[int]:
        """The node of each request that was taken, in the order of their taking."""
        return self._node_of

    @property
    def left(self) -> Ints:
        """Free places of each node."""
        return self._left

    def take(self, nodes: Ints, costs: Ints, cheapest: int = -1) -> bool:
        """Take a request that can be at these nodes, if it can be served too.

        What was taken before stays taken, though maybe elsewhere.

        Args:
            nodes: each once.
            costs: at each; `NEVER` where it cannot be.
            cheapest: the index of the least cost, if it is known.
        """
        if cheapest >= 0 and self._left[nodes[cheapest]] > 0:
            self._add(nodes, costs, int(nodes[cheapest]))
            return True
        node = self._cheapest_free(nodes, costs)
        if node >= 0:
            self._add(nodes, costs, node)
            return True
        return self._augment(nodes, costs)

    def _cheapest_free(self, nodes: Ints, costs: Ints) -> int:
        """A node with a free place, -1 when there is none."""
        if not len(nodes):
            return -1
        free = np.where(self._left[nodes] > 0, costs, NEVER)
        best = int(free.argmin())
        return int(nodes[best]) if free[best] < NEVER else -1

    def reserve(self, node: int) -> None:
        """Take a place of a node for good."""
        self._left[node] -= 1

    def _augment(self, nodes: Ints, costs: Ints) -> bool:
        """Look, nearest first, for a chain of moves that ends at a free place.

        A search that fails has seen a set of full nodes that none of its requests can leave. It stays so, and no later
        search enters it.
        """
        came_from: dict[int, int] = {}  # node -> the request that would move there; -1 is the new one
        waiting: deque[int] = deque()
        for node in self._open_among(nodes, costs):
            came_from[node] = -1
            waiting.append(node)
        while waiting:
            node = waiting.popleft()
            for request in self._requests_at.get(node, ()):
                others, their_costs = self._options[request]
                free = self._cheapest_free(others, their_costs)
                if free >= 0:
                    self._shift(nodes, costs, request, free, came_from)
                    return True
                for other in self._open_among(others, their_costs):
                    if other not in came_from:
                        came_from[other] = request
                        waiting.append(other)
        self._is_closed[list(came_from)] = True
        return False

    def _open_among(self, nodes: Ints, costs: Ints) -> list[int]:
        found: list[int] = nodes[(costs < NEVER) & ~self._is_closed[nodes]].tolist()
        return found

    def _shift(self, nodes: Ints, costs: Ints, request: int, node: int, came_from: dict[int, int]) -> None:
        while request >= 0:
            left = self._node_of[request]
            self._move(request, node)
            request, node = came_from[left], left
        self._add(nodes, costs, node)

    def _add(self, nodes: Ints, costs: Ints, node: int) -> None:
        self._options.append((nodes, costs))
        self._node_of.append(-1)
        self._move(len(self._node_of) - 1, node)

    def _move(self, request: int, node: int) -> None:
        before = self._node_of[request]
        if before >= 0:
            self._left[before] += 1
            self._requests_at[before].remove(request)
        self._left[node] -= 1
        self._node_of[request] = node
        self._requests_at.setdefault(node, []).append(request)


def place(choices: Sequence[Choice], start: Sequence[int], bids_per_request: int | None = None) -> list[int]:
    """A place for each request, no place twice, at little more than the least total cost.

    Args:
        choices: of each request.
        start: a place of each request among its choices, no place twice: that one placement exists.
        bids_per_request: after so many, on average, or `MOST_BIDS`, the auction ends as it stands. As many as are good
            for so many requests unless given.
    """
    if not choices:
        return []
    if bids_per_request is None:
        bids_per_request = BIDS_PER_FEW if len(choices) <= FEW_REQUESTS else BIDS_PER_REQUEST
    count = 1 + max(int(choice.places[-1]) for choice in choices)
    auction = _Auction(choices, count)
    left_over = auction.run(min(MOST_BIDS, bids_per_request * len(choices)))
    rest = _Rest(choices, auction.place_of, count)
    if not left_over:
        rest.spread()
        return rest.place_of
    for request in left_over:
        rest.fit_in(request)
    fallback = _Rest(choices, list(start), count)
    for placement in (rest, fallback):
        placement.improve()
    return min((rest, fallback), key=lambda placement: placement.total()).place_of


class _Auction:
    def __init__(self, choices: Sequence[Choice], count: int) -> None:
        self._choices = choices
        self._prices = np.zeros(count, dtype=np.int64)
        self._holder: list[int] = [-1] * count
        self._raises = [max(1, int(choice.costs.min()) // RAISE_DIVISOR) for choice in choices]
        self._span = max(int(choice.costs.max()) for choice in choices)
        self.place_of: list[int] = [-1] * len(choices)

    def run(self, most_bids: int) -> list[int]:
        """Those that have no place when the bids are used up."""
        waiting = list(range(len(self._choices) - 1, -1, -1))
        for _ in range(most_bids):
            if not waiting:
                break
            request = waiting.pop()
            place = self._bid(request)
            before = self._holder[place]
            if before >= 0:
                self.place_of[before] = -1
                waiting.append(before)
            self._holder[place] = request
            self.place_of[request] = place
        return sorted(waiting)

    def _bid(self, request: int) -> int:
        choice = self._choices[request]
        values = choice.costs + self._prices[choice.places]
        best = values.argmin()
        least, values[best] = int(values[best]), NEVER
        # Any raise up to what leaves the place as good as the second is a fair bid; with no second, so is a large one.
        second = int(values[values.argmin()]) if len(values) > 1 else least + self._span
        place = int(choice.places[best])
        self._prices[place] += second - least + self._raises[request]
        return place


class _Rest:
    """A placement that is mended and improved move by move."""

    def __init__(self, choices: Sequence[Choice], place_of: list[int], count: int) -> None:
        self._choices = choices
        self.place_of = place_of
        self._holder: list[int] = [-1] * count
        for request, place in enumerate(place_of):
            if place >= 0:
                self._holder[place] = request

    def total(self) -> int:
        """What the placement costs."""
        return sum(self._cost(request, place) for request, place in enumerate(self.place_of))

    def fit_in(self, request: int) -> None:
        """Give a request a place, by the shortest chain of moves: one exists, since all can be served."""
        came_from: dict[int, int] = {}
        waiting: deque[int] = deque([request])
        while waiting:
            mover = waiting.popleft()
            choice = self._choices[mover]
            for index in np.argsort(choice.costs, kind="stable").tolist():
                place = int(choice.places[index])
                if place in came_from:
                    continue
                came_from[place] = mover
                if self._holder[place] < 0:
                    self._shift(request, place, came_from)
                    return
                waiting.append(self._holder[place])
        raise AssertionError("the requests cannot all be served")  # pragma: no cover - `start` shows that they can

    def _shift(self, request: int, place: int, came_from: dict[int, int]) -> None:
        while True:
            mover = came_from[place]
            left = self.place_of[mover]
            self.place_of[mover], self._holder[place] = place, mover
            if mover == request:
                return
            place = left

    def spread(self, most_rounds: int = 8) -> None:
        """Move requests to free places for as long as that saves: what is less than a raise, but evens out load."""
        for _ in range(most_rounds):
            if not self._move_to_free():
                return

    def improve(self, most_rounds: int = 32) -> None:
        """Move requests to free places and swap pairs of them, the best saving first, while anything saves."""
        costs = None
        for _ in range(most_rounds):
            has_moved = self._move_to_free()
            if costs is None or has_moved:
                costs = self._costs_of_held_places()
            if not self._swap(costs) and not has_moved:
                return

    def _move_to_free(self) -> bool:
        holders = np.array(self._holder)
        offers = []
        for request, choice in enumerate(self._choices):
            costs = np.where(holders[choice.places] < 0, choice.costs, NEVER)
            best = int(costs.argmin())
            saving = self._cost(request, self.place_of[request]) - int(costs[best])
            if saving > 0:
                offers.append((-saving, request, int(choice.places[best])))
        moved = False
        for _, request, place in sorted(offers):
            if self._holder[place] < 0:
                self._holder[self.place_of[request]] = -1
                self._holder[place], self.place_of[request] = request, place
                moved = True
        return moved

    def _swap(self, costs: Ints) -> bool:
        """Swap pairs, and the columns of `costs` with them."""
        own = costs.diagonal()
        savings = own[:, None] + own[None, :] - costs - costs.T
        best = savings.argmax(axis=1)
        gains = savings[np.arange(len(best)), best]
        touched: set[int] = set()
        for request in np.argsort(-gains, kind="stable").tolist():
            other = int(best[request])
            if gains[request] <= 0:
                break
            if request in touched or other in touched:
                continue
            touched |= {request, other}
            costs[:, [request, other]] = costs[:, [other, request]]
            place, others_place = self.place_of[request], self.place_of[other]
            self.place_of[request], self.place_of[other] = others_place, place
            self._holder[place], self._holder[others_place] = other, request
        return bool(touched)

    def _costs_of_held_places(self) -> Ints:
        """What each request would pay at the place of each; very much where it cannot be."""
        held = np.array(self.place_of)
        costs = np.full((len(held), len(held)), NEVER // 4, dtype=np.int64)
        for request, choice in enumerate(self._choices):
            at = np.searchsorted(choice.places, held)
            at[at == len(choice.places)] = 0
            is_there = choice.places[at] == held
            costs[request, is_there] = choice.costs[at[is_there]]
        return costs

    def _cost(self, request: int, place: int) -> int:
        choice = self._choices[request]
        return int(choice.costs[int(np.searchsorted(choice.places, place))])
