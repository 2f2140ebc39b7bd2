"""Taking the lead, keeping it and losing it, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headrace.core.errors import NotLeader
from headrace.core.lease import Lease, given_back, renewed, taken
from headrace.services.leading import Leading
from tests.fakes import FakeMetrics

pytestmark = pytest.mark.looptime

LEADS = ("headrace_leads",)


class Row:
    """The lease that all share."""

    def __init__(self) -> None:
        self.now: Lease | None = None
        self.is_down = False

    async def lease(self) -> Lease | None:
        return self.now

    async def take_lease(self, seen: Lease | None, holder: str, locked_on: str, lease_ms: int) -> Lease | None:
        if seen != self.now:
            return None
        self.now = taken(seen, holder, locked_on, lease_ms)
        return self.now

    async def renew_lease(self, token: int, locked_on: str) -> Lease:
        if self.is_down:
            raise OSError("disk full")
        self.now = renewed(self.now, token, locked_on)
        return self.now

    async def give_lease_back(self, token: int) -> None:
        if self.is_down:
            raise OSError("disk full")
        self.now = given_back(self.now, token)


class Lock:
    """A lock of one machine, or none at all."""

    def __init__(self, holders: set[object] | None = None, machine: str = "here") -> None:
        self._holders = {object()} if holders is None else holders
        self._machine = machine

    @property
    def machine(self) -> str:
        return self._machine if self in self._holders else ""

    def take(self) -> bool:
        if not self._holders:
            self._holders.add(self)
        return self in self._holders

    def free(self) -> None:
        self._holders.discard(self)


def leading(row: Row, name: str, lock: Lock | None = None) -> Leading:
    return Leading(row, lock or Lock(), name, FakeMetrics())


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_wait__leader_renews__stands_by_and_follows_when_it_is_gone() -> None:
    row = Row()
    first, second = leading(row, "a"), leading(row, "b")
    assert await first.take()
    keeping = asyncio.create_task(first.run())
    waiting = asyncio.create_task(second.wait())
    await asyncio.sleep(60)
    assert not waiting.done()
    assert row.now is not None
    assert row.now.token == 1
    assert row.now.renewals >= 29
    keeping.cancel()
    gone_s = now_s()
    await waiting
    assert 4 <= now_s() - gone_s <= 6.5
    assert (row.now.token, row.now.holder, second.token) == (2, "b", 2)


async def test_wait__leader_stops__follows_at_the_next_look() -> None:
    row = Row()
    first, second = leading(row, "a"), leading(row, "b")
    await first.wait()
    waiting = asyncio.create_task(second.wait())
    await asyncio.sleep(10)
    assert waiting.done(), "nobody renewed it"
    await second.give_back()
    stopped_s = now_s()
    await leading(row, "c").wait()
    assert now_s() - stopped_s <= 0.5
    assert row.now is not None
    assert row.now.token == 3


async def test_wait__leader_died_on_this_machine__its_lock_tells_at_once() -> None:
    row, holders = Row(), set[object]()
    dead, live = Lock(holders), Lock(holders)
    first, second = leading(row, "a", dead), leading(row, "b", live)
    assert await first.take()
    waiting = asyncio.create_task(second.wait())
    await asyncio.sleep(1)
    assert holders == {dead}
    holders.clear()
    died_s = now_s()
    await waiting
    assert now_s() - died_s <= 0.5
    assert holders == {live}


async def test_leader_without_the_lock__gets_it_once_the_one_before_is_dead() -> None:
    row, holders = Row(), set[object]()
    hung, live, third = Lock(holders), Lock(holders), Lock(holders)
    assert await leading(row, "hung", hung).take()
    follower = leading(row, "live", live)
    await follower.wait()  # by the lease: the hung one has the lock
    assert row.now is not None
    assert (row.now.token, row.now.locked_on) == (2, "")
    holders.clear()
    assert not await leading(row, "third", third).take(), "a lock that the leader never had says nothing of it"
    assert holders == set(), "the leader may have it"
    keeping = asyncio.create_task(follower.run())
    await asyncio.sleep(2.1)
    assert (row.now.locked_on, holders) == ("here", {live})
    keeping.cancel()


async def test_run__is_overtaken__ends_with_a_clear_error_and_gives_nothing_back() -> None:
    row = Row()
    first, second = leading(row, "a"), leading(row, "b")
    assert await first.take()
    await second.wait()
    with pytest.raises(NotLeader, match=r"another process \(b\)"):
        await first.run()
    assert first.token == 0
    await first.give_back()
    assert row.now == Lease(2, "b", "", 0, 6_000)


async def test_take_unless_led__leader_is_there__is_refused_as_soon_as_it_is_seen() -> None:
    row = Row()
    first = leading(row, "a")
    assert await first.take()
    keeping = asyncio.create_task(first.run())
    with pytest.raises(NotLeader, match=r"\(a\) leads this relayer: stop it, or start this one with --standby"):
        await leading(row, "b").take_unless_led()
    assert now_s() <= 2.5
    keeping.cancel()
    await leading(row, "c").take_unless_led()
    assert row.now is not None
    assert (row.now.holder, row.now.token) == ("c", 2)


async def test_give_back__store_is_down__is_over_all_the_same() -> None:
    row = Row()
    first = leading(row, "a")
    assert await first.take()
    row.is_down = True
    await first.give_back()
    assert first.token == 0
