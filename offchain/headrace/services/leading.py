"""Takes the lead of a relayer, says that it is still there, and gives it back; until then it stands by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import structlog

from headrace.core.errors import NotLeader
from headrace.core.lease import Sighting
from headrace.ports import LeaseStore, Metrics, ProcessLock

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeadSettings:
    """Times of the lead. A leader that is gone is followed after `lease_ms` and a look, one that hangs likewise."""

    lease_ms: int = 6_000
    renew_ms: int = 2_000
    look_ms: int = 500


def _steady_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class Leading:
    """The lead of a relayer's store, as this process sees it.

    Args:
        store: the relayer's, fenced.
        lock: beside the store. Who leads has it if it can be had: it tells a leader that died from one that is slow.
        holder: this process's name, for people.
        metrics: tells who leads.
        settings: times.
        steady_ms: a clock that nobody sets.
    """

    def __init__(
        self,
        store: LeaseStore,
        lock: ProcessLock,
        holder: str,
        metrics: Metrics,
        settings: LeadSettings | None = None,
        steady_ms: Callable[[], int] = _steady_ms,
    ) -> None:
        self.token = 0
        self._store = store
        self._lock = lock
        self._holder = holder
        self._metrics = metrics
        self._settings = settings or LeadSettings()
        self._steady_ms = steady_ms
        self._seen: Sighting | None = None

    async def take(self) -> bool:
        """Take the lead if it is free, after one look. Returns whether this process leads."""
        lease, now_ms = await self._store.lease(), self._steady_ms()
        self._seen = self._seen.again(lease, now_ms) if self._seen else Sighting(lease, now_ms)
        self._lock.take()
        taken = None
        if self._seen.is_free(now_ms, self._lock.machine):
            taken = await self._store.take_lease(lease, self._holder, self._lock.machine, self._settings.lease_ms)
        if taken is None:
            self._lock.free()  # it is the leader's, who may want it
            return False
        self.token = taken.token
        self._metrics.gauge("headrace_leads", 1)
        log.info("lead_taken", token=taken.token, before=lease.holder if lease else "nobody")
        return True

    async def wait(self) -> None:
        """Stand by until this process leads."""
        self._metrics.gauge("headrace_leads", 0)
        # The store is what tells, and it has no bell.
        while not await self.take():  # noqa: ASYNC110
            await asyncio.sleep(self._settings.look_ms / 1000)

    async def take_unless_led(self) -> None:
        """Take the lead once nobody has it, which takes a lease's time to see when the last leader's end is not known.

        Raises:
            NotLeader: another process leads.
        """
        first: Sighting | None = None
        while not await self.take():
            first = first or self._seen
            if self._seen is not first and self._seen is not None and self._seen.lease is not None:
                raise NotLeader(
                    f"another process ({self._seen.lease.holder}) leads this relayer: stop it, or start this one with "
                    "--standby"
                )
            await asyncio.sleep(self._settings.look_ms / 1000)

    async def run(self) -> NoReturn:
        """Say that the leader is still there, until cancelled.

        Raises:
            NotLeader: another process has taken over, and this one must end.
        """
        while True:
            await asyncio.sleep(self._settings.renew_ms / 1000)
            self._lock.take()
            try:
                await self._store.renew_lease(self.token, self._lock.machine)
            except NotLeader:
                log.error("lead_lost", token=self.token)
                self._metrics.gauge("headrace_leads", 0)
                self.token = 0
                raise

    async def give_back(self) -> None:
        """Let another process follow at once. Nothing is written after it."""
        token, self.token = self.token, 0
        if not token:
            return
        try:
            await self._store.give_lease_back(token)
        except Exception as exc:  # noqa: BLE001 - it is over anyway, and the lease lapses by itself
            log.warning("lead_not_given_back", token=token, error=str(exc))
            return
        log.info("lead_given_back", token=token)
