"""Where a quorum stands, by the states of its assignments and by what its nodes signed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.quorum import MISSED, Member, Standing, Vote, standing_of
from tests.core.strategies import address_number, hash_number

A, B, C, D, E = (address_number(number) for number in range(1, 6))
X, Y, Z = (hash_number(number) for number in range(1, 4))
STATES = ("open", "accepted", "delivered", "superseded", *sorted(MISSED))


def stand(k: int, listings: dict[int, dict[str, str]], votes: Iterable[tuple[str, int, str]] = ()) -> Standing:
    """Of listings (round → node → state) and votes (node, round, hash)."""
    members = [Member(node, round_, state) for round_, nodes in listings.items() for node, state in nodes.items()]
    return standing_of(k, members, [Vote(*vote) for vote in votes])


def test_standing__never_listed__has_nothing() -> None:
    assert stand(2, {}) == Standing(0, 0, (), False, (), ())


def test_standing__all_at_work__waits() -> None:
    standing = stand(2, {3: {A: "accepted", B: "open"}})
    assert (standing.round, standing.listings, standing.agreed) == (3, 1, ())
    assert not standing.is_broken
    assert standing.kept == standing.tried == (A, B)


def test_standing__all_signed_one_hash__agree() -> None:
    standing = stand(2, {3: {B: "delivered", A: "delivered"}}, [(B, 3, X), (A, 3, X)])
    assert standing.agreed == (A, B)
    assert not standing.is_broken


@pytest.mark.parametrize("state", sorted(MISSED))
def test_standing__one_missed__keeps_the_others(state: str) -> None:
    standing = stand(2, {3: {A: "delivered", B: state}}, [(A, 3, X)])
    assert standing.is_broken
    assert (standing.kept, standing.dropped) == ((A,), (B,))


def test_standing__missed_but_delivered_late__agrees_all_the_same() -> None:
    assert stand(2, {3: {A: "delivered", B: "delivered"}}, [(A, 3, X), (B, 3, X)]).agreed == (A, B)


def test_standing__two_hashes__is_dissent_at_once() -> None:
    listing = {3: {A: "delivered", B: "delivered", C: "accepted"}}
    standing = stand(3, listing, [(A, 3, Y), (B, 3, X)])
    assert standing.is_broken
    # Of two groups of one, the hash decides; whoever is at work may still agree with either.
    assert standing.kept == (B, C)


def test_standing__spare_agrees_with_the_one_that_was_dropped__takes_that_one_back() -> None:
    listings = {3: {A: "delivered", B: "delivered"}, 4: {A: "superseded", C: "delivered"}}
    standing = stand(2, listings, [(A, 3, X), (B, 3, Y), (C, 4, Y)])
    assert standing.is_broken, "what the kept node said in an earlier round counts"
    assert (standing.kept, standing.dropped) == ((B, C), (A,))


def test_standing__kept_node_has_not_signed_for_the_new_round__is_waited_for() -> None:
    listings = {3: {A: "superseded", B: "failed"}, 4: {A: "accepted", C: "delivered"}}
    standing = stand(2, listings, [(A, 3, X), (C, 4, X)])
    assert (standing.agreed, standing.is_broken) == ((), False)
    signed = stand(2, listings, [(A, 3, X), (C, 4, X), (A, 4, X)])
    assert signed.agreed == (A, C)


def test_standing__kept_node_misses_later__is_not_kept_again() -> None:
    listings = {3: {A: "superseded", B: "failed"}, 4: {A: "lease_expired", C: "delivered"}}
    standing = stand(2, listings, [(A, 3, X), (C, 4, X)])
    assert standing.is_broken
    assert (standing.kept, standing.tried) == ((C,), (A, B, C))


def test_standing__old_round_is_complete_late__counts_for_nothing_but_the_votes() -> None:
    listings = {3: {A: "superseded", B: "delivered"}, 4: {A: "accepted", C: "accepted"}}
    standing = stand(2, listings, [(A, 3, X), (B, 3, X)])
    assert (standing.agreed, standing.is_broken) == ((), False)
    assert stand(2, {**listings, 4: {A: "accepted", C: "refused"}}, [(A, 3, X), (B, 3, X)]).kept == (A, B)


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[Member], list[Vote]]:
    k = draw(st.integers(2, 4))
    hash_of = {node: draw(st.sampled_from((X, Y, Z))) for node in (A, B, C, D, E)}
    members, votes = [], []
    for round_ in range(1, draw(st.integers(1, 4)) + 1):
        for node in draw(st.permutations((A, B, C, D, E)))[:k]:
            members.append(Member(node, round_, draw(st.sampled_from(STATES))))
            if draw(st.booleans()):
                votes.append(Vote(node, round_, hash_of[node]))
    return k, members, votes


@given(histories(), st.randoms(use_true_random=False))
def test_standing__laws(history: tuple[int, list[Member], list[Vote]], rng: object) -> None:
    k, members, votes = history
    standing = standing_of(k, members, votes)
    last = {member.node: member.state for member in members if member.round == standing.round}
    assert standing.listings == len({member.round for member in members})
    assert set(standing.tried) == {member.node for member in members}
    assert list(standing.kept) == sorted(set(standing.kept))
    assert len(standing.kept) <= k
    assert set(standing.kept) | set(standing.dropped) == set(standing.tried)
    said = {vote.node: vote.result_hash for vote in votes}
    # Whom it goes on with never contradict each other.
    assert len({said[node] for node in standing.kept if node in said}) <= 1
    if standing.agreed:
        assert set(standing.agreed) == set(last)
        assert {vote.node for vote in votes if vote.round == standing.round} >= set(standing.agreed)
        assert len({said[node] for node in standing.agreed}) == 1
    assert standing.is_broken is (
        bool(MISSED & set(last.values())) or len({said[node] for node in last if node in said}) > 1
    )
    rng.shuffle(members)  # type: ignore[attr-defined]
    rng.shuffle(votes)  # type: ignore[attr-defined]
    assert standing_of(k, members, votes) == standing
