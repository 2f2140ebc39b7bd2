"""Places for requests: all that can be served together are, and at little more than the exact least cost."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.placement import BIDS_PER_REQUEST, NEVER, RAISE_DIVISOR, Choice, Matching, place

Graph = list[list[int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], Graph]:
    """Capacities of nodes, and the nodes that each request can be at."""
    capacities = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    nodes = st.lists(st.integers(0, len(capacities) - 1), unique=True, max_size=len(capacities))
    return capacities, draw(st.lists(nodes, max_size=7))


def can_all_be_served(capacities: list[int], requests: Graph) -> bool:
    """By trying everything."""

    def fits(left: list[int], rest: Graph) -> bool:
        if not rest:
            return True
        return any(
            left[node] > 0 and fits([free - (each == node) for each, free in enumerate(left)], rest[1:])
            for node in rest[0]
        )

    return fits(capacities, requests)


def taken(matching: Matching, requests: Graph) -> list[int]:
    return [index for index, nodes in enumerate(requests) if take(matching, nodes)]


def take(matching: Matching, nodes: list[int]) -> bool:
    """A request that can be at these nodes, the first preferred, and at no other."""
    capacity = len(matching.left)
    barred = [node for node in range(capacity) if node not in nodes]
    costs = [*range(1, len(nodes) + 1), *([NEVER] * len(barred))]
    return matching.take(np.array([*nodes, *barred], dtype=np.int64), np.array(costs, dtype=np.int64))


@given(graphs())
def test_matching_takes_each_request_that_can_be_served_with_all_taken_before_it(
    graph: tuple[list[int], Graph],
) -> None:
    capacities, requests = graph
    matching, before = Matching(capacities), Graph()
    for nodes in requests:
        could = can_all_be_served(capacities, [*before, nodes])
        assert take(matching, nodes) is could
        before += [nodes] * could


@given(graphs())
def test_matching_puts_each_request_where_it_can_be_and_no_node_beyond_its_capacity(
    graph: tuple[list[int], Graph],
) -> None:
    capacities, requests = graph
    matching = Matching(capacities)
    for index, node in zip(taken(matching, requests), matching.nodes, strict=True):
        assert node in requests[index]
    counts = [list(matching.nodes).count(node) for node in range(len(capacities))]
    assert all(count <= capacity for count, capacity in zip(counts, capacities, strict=True))
    assert matching.left.tolist() == [capacity - count for capacity, count in zip(capacities, counts, strict=True)]


def test_matching__first_come_would_strand_one__moves_it() -> None:
    matching = Matching([1, 1])
    assert taken(matching, [[0, 1], [0]]) == [0, 1]
    assert list(matching.nodes) == [1, 0]


def test_matching__a_place_is_reserved__is_not_given() -> None:
    matching = Matching([1])
    matching.reserve(0)
    assert taken(matching, [[0]]) == []


def choices_of(costs: np.ndarray) -> list[Choice]:
    places = np.arange(costs.shape[1], dtype=np.int64)
    return [Choice(places, row.astype(np.int64)) for row in costs]


def total(choices: list[Choice], places: list[int]) -> int:
    return sum(int(choice.costs[choice.places.tolist().index(at)]) for choice, at in zip(choices, places, strict=True))


def least_total(costs: list[list[int]]) -> int:
    count = len(costs[0])
    return min(
        sum(row[at] for row, at in zip(costs, chosen, strict=True)) for chosen in permutations(range(count), len(costs))
    )


MATRICES = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(st.integers(1, 10_000), min_size=width, max_size=width), min_size=1, max_size=width)
)


@given(MATRICES)
@settings(max_examples=300)
def test_place_costs_at_most_the_raises_more_than_the_exact_optimum(costs: list[list[int]]) -> None:
    choices = choices_of(np.array(costs))
    places = place(choices, list(range(len(costs))))
    assert len(set(places)) == len(places)
    raises = sum(max(1, min(row) // RAISE_DIVISOR) for row in costs)
    assert least_total(costs) <= total(choices, places) <= least_total(costs) + raises


@given(MATRICES, st.integers(0, 3))
def test_place__bids_are_used_up__everybody_has_a_place_still(costs: list[list[int]], bids: int) -> None:
    choices = choices_of(np.array(costs))
    places = place(choices, list(range(len(costs))), bids)
    assert len(set(places)) == len(places) == len(costs)
    start = sum(row[index] for index, row in enumerate(costs))
    assert total(choices, places) <= start


@given(graphs(), st.randoms(use_true_random=False))
def test_place__choices_differ__each_is_placed_among_its_own(graph: tuple[list[int], Graph], rng) -> None:
    capacities, requests = graph
    matching = Matching([min(1, capacity) for capacity in capacities])
    served = taken(matching, requests)
    choices = []
    for index in served:
        places = np.array(sorted(requests[index]), dtype=np.int64)
        choices.append(Choice(places, np.array([rng.randrange(1, 99) for _ in places], dtype=np.int64)))
    for bids in (0, 1, BIDS_PER_REQUEST):
        placed = place(choices, list(matching.nodes), bids)
        assert len(set(placed)) == len(placed)
        assert all(at in requests[index] for index, at in zip(served, placed, strict=True))


@pytest.mark.parametrize("load", [0.5, 0.95])
def test_place__twice__is_the_same(load: float) -> None:
    rng = np.random.default_rng(7)
    costs = rng.integers(10**14, 10**16, (int(60 * load), 60))
    choices = choices_of(costs)
    start = list(range(len(choices)))
    assert place(choices, start) == place(choices, start)


def test_place__nothing_to_place__is_nothing() -> None:
    assert place([], []) == []
