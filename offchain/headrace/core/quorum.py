"""Where a quorum stands: which nodes agree, whether another one is needed, and who would be listed with it.

A *listing* is the k nodes that one round assigns a quorum to; there is one a round at most. A node *votes* with the
hash that it signs: it never signs another one for the request, whatever round asks for it. A node *misses* when it
refuses, gives up or lets its lease lapse. After a miss, or when two nodes of a listing disagree (*dissent*), all of the
quorum is listed again in a later round, since the market pays k results of one round only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.core.types import Address, Hash32

RUNNING = frozenset({"open", "accepted"})
MISSED = frozenset({"refused", "failed", "lease_expired"})
"""States of an assignment after which its node is not asked again. One that is `superseded` was listed anew since."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a listing, with the state of its assignment."""

    node: Address
    round: int
    state: str


@dataclass(frozen=True, slots=True)
class Vote:
    """What a node signed in a round."""

    node: Address
    round: int
    result_hash: Hash32


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a quorum stands.

    Args:
        round: of its last listing; 0 when it was never listed.
        listings: how often it was listed.
        agreed: the k nodes of the last listing, ascending, when all of them signed one hash in its round; else empty.
        is_broken: a node of the last listing missed, or two of them disagree.
        kept: whom the next listing takes over: the largest group of one hash, then those that are still at work.
        tried: all nodes that were ever listed, ascending.
    """

    round: int
    listings: int
    agreed: tuple[Address, ...]
    is_broken: bool
    kept: tuple[Address, ...]
    tried: tuple[Address, ...]

    @property
    def dropped(self) -> tuple[Address, ...]:
        """The nodes that were listed and are not taken over, ascending."""
        return tuple(node for node in self.tried if node not in self.kept)


def standing_of(k: int, members: Iterable[Member], votes: Iterable[Vote]) -> Standing:
    """Where a quorum stands.

    Args:
        k: how many must agree.
        members: of all its listings.
        votes: all that were verified, of any round.
    """
    by_round: defaultdict[int, dict[Address, str]] = defaultdict(dict)
    for member in members:
        by_round[member.round][member.node] = member.state
    if not by_round:
        return Standing(0, 0, (), False, (), ())
    votes = list(votes)
    last = max(by_round)
    listed = by_round[last]
    said = {vote.node: vote.result_hash for vote in votes}
    signed = {vote.node: vote.result_hash for vote in votes if vote.round == last}
    disagree = len({said[node] for node in listed if node in said}) > 1
    missed = any(state in MISSED for state in listed.values())
    has_all = len(listed) == k and set(listed) <= set(signed)
    return Standing(
        round=last,
        listings=len(by_round),
        agreed=tuple(sorted(listed)) if has_all and not disagree else (),
        is_broken=missed or disagree,
        kept=_kept(k, by_round, last, said),
        tried=tuple(sorted({node for nodes in by_round.values() for node in nodes})),
    )


def _kept(
    k: int, by_round: dict[int, dict[Address, str]], last: int, said: dict[Address, Hash32]
) -> tuple[Address, ...]:
    newest = {node: state for round_ in sorted(by_round) for node, state in by_round[round_].items()}
    groups: defaultdict[Hash32, list[Address]] = defaultdict(list)
    for node, hash_ in said.items():
        if newest.get(node) not in MISSED and node in newest:
            groups[hash_].append(node)
    # Of groups as large as each other any may be the true one; the hash decides, so that all who look choose alike.
    largest = min(groups.items(), key=lambda group: (-len(group[1]), group[0]), default=("", []))[1]
    working = [node for node, state in by_round[last].items() if state in RUNNING and node not in said]
    return tuple(sorted([*sorted(largest), *sorted(working)][:k]))
