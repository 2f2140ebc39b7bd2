"""The lead: when it may be taken over, and whose token counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import NotLeader
from headrace.core.lease import Lease, Sighting, given_back, renewed, require_holder, require_token, taken

LEASE_MS, RENEW_MS = 6_000, 2_000
HELD = Lease(3, "a", "here", 7, LEASE_MS)


def test_free__nobody_ever_led__at_once() -> None:
    assert Sighting(None, 50).is_free(50)
    assert taken(None, "a", "here", LEASE_MS) == Lease(1, "a", "here", 0, LEASE_MS)


@pytest.mark.parametrize(("waited_ms", "is_free"), [(0, False), (LEASE_MS - 1, False), (LEASE_MS, True)])
def test_free__lease_does_not_change__once_it_was_watched_for_its_time(waited_ms: int, is_free: bool) -> None:
    assert Sighting(HELD, 1_000).again(HELD, 1_500).is_free(1_000 + waited_ms) is is_free


def test_free__lease_is_renewed__is_watched_anew() -> None:
    seen = Sighting(HELD, 0).again(renewed(HELD, 3, "here"), LEASE_MS - 1)
    assert not seen.is_free(2 * LEASE_MS - 2)
    assert seen.is_free(2 * LEASE_MS - 1)


@pytest.mark.parametrize(("locked_on", "is_free"), [("here", True), ("there", False), ("", False)])
def test_free__holders_own_lock_is_had__holder_is_dead(locked_on: str, is_free: bool) -> None:
    assert Sighting(HELD, 0).is_free(0, locked_on) is is_free


def test_free__holder_never_had_the_lock__a_lock_says_nothing() -> None:
    assert not Sighting(Lease(3, "a", "", 7, LEASE_MS), 0).is_free(0, "")


def test_free__given_back__at_once_and_with_the_next_token() -> None:
    lease = given_back(HELD, 3)
    assert Sighting(lease, 0).is_free(0)
    assert taken(lease, "b", "", LEASE_MS).token == 4


@pytest.mark.parametrize("change", [renewed, lambda lease, token, _: given_back(lease, token)])
@pytest.mark.parametrize("lease", [None, HELD])
def test_change__by_another_than_the_holder__is_refused(change, lease) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NotLeader):
        change(lease, 2, "here")


def test_token__says_what_happened() -> None:
    require_token(3, 3)
    assert require_holder(HELD, 3) is HELD
    with pytest.raises(NotLeader, match="stands by"):
        require_token(3, 0)
    with pytest.raises(NotLeader, match=r"another process \(a\) leads this relayer now, by token 3 after 2"):
        require_holder(HELD, 2)
    with pytest.raises(NotLeader, match="nobody leads"):
        require_holder(None, 2)
    # Neither does a store without a lease take anything, from anyone.
    for token in (0, 1):
        with pytest.raises(NotLeader):
            require_token(None, token)


@dataclass
class Process:
    """One that wants to lead, with a steady clock of its own, which began at some time."""

    name: str
    began_ms: int
    token: int = 0
    seen: Sighting | None = None
    writes: list[int] = field(default_factory=list)

    def look(self, lease: Lease | None, now_ms: int) -> Lease | None:
        """The lease after its look."""
        own_ms = now_ms - self.began_ms
        self.seen = self.seen.again(lease, own_ms) if self.seen else Sighting(lease, own_ms)
        if self.seen.is_free(own_ms):
            lease = taken(lease, self.name, "", LEASE_MS)
            self.token = lease.token
        return lease


MOVES = st.tuples(st.integers(0, 2), st.sampled_from(["look", "renew", "write", "give_back"]), st.integers(0, 8_000))


@given(st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3), st.lists(MOVES, max_size=60))
def test_any_order__one_token_counts_at_a_time_and_none_comes_back(began_ms: list[int], moves: list) -> None:  # type: ignore[type-arg]
    """Whoever sleeps for however long: what is stored was written under tokens that only rise."""
    processes = [Process(str(number), began) for number, began in enumerate(began_ms)]
    lease: Lease | None = None
    written: list[int] = []
    now_ms = 0
    for number, move, passed_ms in moves:
        now_ms += passed_ms
        process, before = processes[number], lease
        try:
            if move == "look":
                lease = process.look(lease, now_ms)
            elif move == "renew":
                lease = renewed(lease, process.token, "")
            elif move == "give_back":
                lease = given_back(lease, process.token)
            else:
                require_token(lease.token if lease else None, process.token)
                written.append(process.token)
        except NotLeader:
            assert before is None or before.token != process.token
            assert lease == before
        holders = [each for each in processes if lease is not None and each.token == lease.token]
        assert len(holders) == (lease is not None)
    assert written == sorted(written)


@given(st.integers(-(10**12), 10**12), st.integers(0, RENEW_MS), st.lists(st.integers(1, 500), min_size=1, max_size=99))
def test_leader_that_renews__is_not_overtaken_whatever_the_others_clock_says(
    began_ms: int, late_ms: int, pauses_ms: list[int]
) -> None:
    lease, follower = taken(None, "leader", "", LEASE_MS), Process("follower", began_ms)
    now_ms, renewed_ms = 0, 0
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        if now_ms - renewed_ms >= RENEW_MS + late_ms:
            lease, renewed_ms = renewed(lease, 1, ""), now_ms
        assert follower.look(lease, now_ms) == lease


@given(st.integers(-(10**12), 10**12), st.integers(1, 500))
def test_leader_that_is_gone__is_followed_after_a_lease_and_a_look(began_ms: int, look_ms: int) -> None:
    lease, follower = taken(None, "leader", "", LEASE_MS), Process("follower", began_ms)
    now_ms = 0
    while follower.look(lease, now_ms) == lease:
        now_ms += look_ms
    assert LEASE_MS <= now_ms < LEASE_MS + look_ms
