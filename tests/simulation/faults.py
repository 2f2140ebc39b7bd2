"""What goes wrong in a simulated world, how often, and when: all of it drawn from one source of numbers."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from dataclasses import dataclass

from sqlalchemy.exc import OperationalError

from headrace.core.errors import ChainUnavailable


@dataclass(frozen=True, slots=True)
class Rates:
    """How often things go wrong, as parts of one.

    The first five are the published ones of Ponder's simulation of an indexer; the others are ours.
    """

    rpc_error: float = 0.05  # of calls
    reorg: float = 0.05  # of blocks
    deep_reorg: float = 0.02  # of blocks
    kill: float = 0.002  # of steps; half of them in the midst of the step
    yields: float = 0.4  # of calls: others run before it is made

    send_unanswered: float = 0.05  # of sends: taken, and the answer is lost
    send_swallowed: float = 0.02  # of sends: answered, and in no pool
    store_fault: float = 0.008  # of the store's writes, each of which may be of several calls
    clock_jump: float = 0.004  # of ticks: the relayer's clock goes to one hour off, or back
    fee_spike: float = 0.01  # of ticks
    dropped_pool: float = 0.01  # of ticks
    lagging_node: float = 0.01  # of ticks: the chain's node is behind for some
    full_block: float = 0.1  # of blocks: none of the relayer's transactions is in it
    unlinked: float = 0.02  # of ticks: a node is gone for some

    refused: float = 0.06  # of tasks
    failed: float = 0.05  # of tasks: accepted, then given up
    silent: float = 0.05  # of tasks: accepted, and nothing comes
    unanswered: float = 0.05  # of tasks: the node's word is lost, and it works all the same
    late: float = 0.05  # of tasks: the answer comes when the lease is over
    twice: float = 0.05  # of deliveries
    dissent: float = 0.1  # of a quorum's tasks: another answer than the others'

    withdrawn: float = 0.1  # of a requester's transactions that a reorg takes out: never posted again
    quorum: float = 0.1  # of requests
    short: float = 0.15  # of requests: little time
    raised: float = 0.1  # of requests
    cancelled: float = 0.06  # of requests
    released: float = 0.05  # of requests: cancelled with the relayer's word


class Killed(BaseException):
    """The process has ended at this point. No handler of errors may hold it up."""


class Weather:
    """Draws what goes wrong, and counts it.

    `is_on` ends all faults; `is_dead` is between a kill and the next start: what is left of the process does nothing.
    """

    def __init__(self, rng: random.Random, rates: Rates) -> None:
        self.rng = rng
        self.rates = rates
        self.counts: Counter[str] = Counter()
        self.is_on = True
        self.is_dead = False
        self._calls_to_live: int | None = None

    def strikes(self, rate: float) -> bool:
        """Whether something happens that happens at a rate. What is off draws nothing."""
        return self.is_on and self.rng.random() < rate

    def pauses(self) -> int:
        """How often others go first before a call is made."""
        return self.rng.randrange(1, 4) if self.strikes(self.rates.yields) else 0

    # Kills

    def begin_step(self) -> bool:
        """Decide whether a step of the relayer is its last. Returns whether it does not even begin."""
        self._calls_to_live = None
        if not self.strikes(self.rates.kill):
            return False
        if self.rng.random() < 0.5:
            self.counts["kills"] += 1
            return True
        self._calls_to_live = self.rng.randrange(16)
        return False

    def end_step(self) -> bool:
        """Returns whether the process ends now, since the step had fewer calls than it was to live."""
        is_due = self._calls_to_live is not None and not self.is_dead
        self._calls_to_live = None
        self.counts["kills"] += is_due
        return is_due

    def hazard(self) -> None:
        """A point at which a process may end.

        Raises:
            Killed: it does, or has.
        """
        if self.is_dead:
            raise Killed
        if self._calls_to_live is None:
            return
        self._calls_to_live -= 1
        if self._calls_to_live < 0:
            self.counts["kills"] += 1
            self.counts["kills_inside"] += 1
            self.is_dead = True
            raise Killed

    def reborn(self) -> None:
        """A new process starts."""
        self.is_dead = False
        self._calls_to_live = None

    # Errors

    def rpc(self, method: str) -> None:
        """Raises ChainUnavailable now and then."""
        if self.strikes(self.rates.rpc_error):
            self.counts["rpc_errors"] += 1
            raise ChainUnavailable(f"{method}: the node does not answer")

    def store_fault(self) -> OperationalError | None:
        """What the store fails with, if it does."""
        if self.is_dead or not self.strikes(self.rates.store_fault):
            return None
        self.counts["store_faults"] += 1
        why = self.rng.choice(["database is locked", "database or disk is full"])
        return OperationalError("a statement", {}, sqlite3.OperationalError(why))
