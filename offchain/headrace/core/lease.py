"""The lead of a relayer: which of the processes that have its store and its key may work.

Who leads has a lease in the store, and says from time to time that it is still there. Everybody else watches, and may
take the lead over once the lease has not changed for as long as it counts. Only differences of one process's own steady
clock are compared, never a time that another wrote: a host whose clock is wrong neither keeps the lead for ever nor
loses it early.

The lease only brings it about that somebody works. That nobody else does is by its token, which rises with each
take-over and is held against the store's in the transaction of each write: whoever was overtaken cannot store anything,
whatever its clock says and however long it slept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.core.errors import NotLeader


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads.

    Args:
        token: rises by one with each take-over, from 1.
        holder: who has it, for people.
        locked_on: the machine on which the holder has the lock beside the store; empty = it does not have the lock.
        renewals: how often the holder said that it is still there.
        lease_ms: how long it counts unless it is renewed; 0 = it was given back.
    """

    token: int
    holder: str
    locked_on: str
    renewals: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a process has seen of the lease.

    Args:
        lease: as it was last; None = nobody ever led.
        since_ms: since when it is so, by a steady clock of the process's own.
    """

    lease: Lease | None
    since_ms: int

    def again(self, lease: Lease | None, now_ms: int) -> Sighting:
        """After another look."""
        return self if lease == self.lease else Sighting(lease, now_ms)

    @property
    def lapses_at_ms(self) -> int:
        """When the lease has lapsed for this process, unless it changes before."""
        return self.since_ms + (0 if self.lease is None else self.lease.lease_ms)

    def is_free(self, now_ms: int, locked_on: str = "") -> bool:
        """Whether the lead may be taken over.

        Args:
            now_ms: of the same clock as `since_ms`.
            locked_on: the machine on which the asking process has the lock beside the store. A holder that had the same
                lock is dead: the lock ends with its process only.
        """
        if self.lease is not None and locked_on and self.lease.locked_on == locked_on:
            return True
        return now_ms >= self.lapses_at_ms


def taken(before: Lease | None, holder: str, locked_on: str, lease_ms: int) -> Lease:
    """The lease of who takes over."""
    return Lease((before.token if before else 0) + 1, holder, locked_on, 0, lease_ms)


def renewed(lease: Lease | None, token: int, locked_on: str) -> Lease:
    """The lease of who is still there.

    Raises:
        NotLeader: another process has taken over.
    """
    held = require_holder(lease, token)
    return replace(held, renewals=held.renewals + 1, locked_on=locked_on)


def given_back(lease: Lease | None, token: int) -> Lease:
    """The lease of who stops: the next one need not wait.

    Raises:
        NotLeader: another process has taken over.
    """
    return replace(require_holder(lease, token), lease_ms=0, locked_on="")


def require_holder(lease: Lease | None, token: int) -> Lease:
    """Raises NotLeader unless the lease is that of the token. A process that stands by has the token 0."""
    if lease is None:
        raise NotLeader(f"nobody leads the store any more, which had the token {token}: was another put in its place?")
    require_token(lease.token, token, lease.holder)
    return lease


def require_token(current: int | None, token: int, holder: str = "") -> None:
    """Hold a token against the store's.

    Raises:
        NotLeader: it is not the store's.
    """
    if token and current == token:
        return
    if not token:
        raise NotLeader("this relayer stands by and changes nothing: ask the one that leads")
    named = f" ({holder})" if holder else ""
    raise NotLeader(
        f"another process{named} leads this relayer now, by token {current} after {token}, and this one has stored and "
        "sent nothing since: it may be started again to stand by (`headrace relayer --standby`)"
    )
