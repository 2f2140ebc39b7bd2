"""How much of the network's work each requester was served, so that the one with the least goes next.

Work is what requests are expected to take (`core.work`), not their number: ten small requests weigh what one of ten
times their size does, so neither splitting nor merging gains anything. It is charged when a request is assigned.

As in start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) there is a floor, the least account of those who wait:
who comes, or comes back, starts there. Nobody saves up turns by staying away, and nobody who stayed away is owed any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.core.types import Address


@dataclass(frozen=True, slots=True)
class Account:
    """What a requester was served, in units of work above the start of time."""

    requester: Address
    served_work: int


class Accounts:
    """The accounts over one cycle. What is at the floor or below is not kept: it is the floor's."""

    def __init__(self, accounts: Iterable[Account], floor: int) -> None:
        self._served = {account.requester: account.served_work for account in accounts}
        self._floor = floor

    def of(self, requester: Address) -> int:
        """What a requester was served."""
        return max(self._floor, self._served.get(requester, 0))

    def charge(self, requester: Address, work: int) -> None:
        """A request of the requester was assigned."""
        self._served[requester] = self.of(requester) + work

    def closed(self, backlogged: Iterable[Address]) -> tuple[tuple[Account, ...], int]:
        """The accounts and the floor that the next cycle starts with.

        Args:
            backlogged: who has requests that wait for nothing but their turn. When there are none, nobody competes, and
                all start anew from the same floor.
        """
        served = [self.of(requester) for requester in backlogged]
        floor = max(self._floor, min(served) if served else max(self._served.values(), default=0))
        kept = sorted((requester, work) for requester, work in self._served.items() if work > floor)
        return tuple(Account(*entry) for entry in kept), floor


def shares_of(served: Mapping[Address, int]) -> float:
    """Jain's index of fairness over what requesters were served: 1 when all had the same, 1/n when one had all.

    Source: Jain, Chiu, Hawe, DEC-TR-301, 1984.
    """
    values = list(served.values())
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
