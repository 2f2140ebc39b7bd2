"""Two processes on one database: the lease, and the fence that holds each write against its token."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from headrace.adapters.file_lock import FileLock, Held, alone_with
from headrace.adapters.sql.database import Database, downgrade
from headrace.adapters.sql.holding import patiently
from headrace.adapters.sql.store import SqlStore
from headrace.core.errors import ConfigurationError, NotLeader
from headrace.core.lease import Lease
from headrace.ports import Call, StoredAttempt
from tests.adapters.steps import NOW_MS, post
from tests.fakes import MARKET, RELAYER, REQUESTER, FakeChain, FakeClock

LEASE_MS = 6_000


async def opened(folder: Path, clock: FakeClock) -> SqlStore:
    return await SqlStore.open(f"sqlite:///{folder / 'relayer.db'}", clock, is_fenced=True)


@pytest.fixture
async def first(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqlStore]:
    store = await opened(tmp_path, clock)
    yield store
    await store.close()


@pytest.fixture
async def second(tmp_path: Path, clock: FakeClock, first: SqlStore) -> AsyncIterator[SqlStore]:
    store = await opened(tmp_path, clock)
    yield store
    await store.close()


async def lead(store: SqlStore, holder: str = "a") -> Lease:
    lease = await store.take_lease(await store.lease(), holder, "here", LEASE_MS)
    assert lease is not None
    return lease


async def test_fenced_store__before_it_leads__takes_nothing_and_is_read(
    first: SqlStore, second: SqlStore, chain: FakeChain
) -> None:
    with pytest.raises(NotLeader, match="stands by"):
        await post(first, chain)
    assert await first.lease() is None
    assert await lead(first) == Lease(1, "a", "here", 0, LEASE_MS)
    id_ = await post(first, chain)
    assert await second.request(id_) == await first.request(id_)
    with pytest.raises(NotLeader, match="stands by"):
        await second.put_prompt(b"a", REQUESTER, NOW_MS)


async def test_lease__is_taken_over__no_write_of_the_one_before_is_kept(
    first: SqlStore, second: SqlStore, chain: FakeChain
) -> None:
    await lead(first)
    await post(first, chain)
    intent = await first.add_intent("expire", "a", {}, Call(MARKET, b""), 10**6, 5, NOW_MS, RELAYER)
    assert (await lead(second, "b")).token == 2
    attempt = StoredAttempt("0x" + "11" * 32, b"raw", 1, 1, NOW_MS)
    for write in (
        lambda: first.add_attempt(intent.intent_id, attempt),
        lambda: first.add_intent("expire", "b", {}, Call(MARKET, b""), 10**6, 5, NOW_MS, RELAYER),
        lambda: first.end_intent(intent.intent_id, "dropped", 0, {}),
        lambda: first.open_round(NOW_MS, 1),
        lambda: first.put_prompt(b"a", REQUESTER, NOW_MS),
        lambda: first.rewind_to(0),
        lambda: first.renew_lease(1, "here"),
        lambda: first.give_lease_back(1),
    ):
        with pytest.raises(NotLeader, match=r"another process \(b\) leads this relayer now, by token 2 after 1"):
            await write()
    assert await second.open_intents() == [intent]
    await second.add_attempt(intent.intent_id, attempt)


async def test_lease__two_take_it_at_once__one_has_it(first: SqlStore, second: SqlStore) -> None:
    seen = await first.lease()
    taken = await asyncio.gather(*(store.take_lease(seen, "x", "", LEASE_MS) for store in (first, second)))
    assert sorted(lease.token for lease in taken if lease) == [1]
    winner, loser = (first, second) if taken[0] else (second, first)
    await winner.put_prompt(b"a", REQUESTER, NOW_MS)
    with pytest.raises(NotLeader):
        await loser.put_prompt(b"b", REQUESTER, NOW_MS)


async def test_lease__is_renewed_and_given_back__by_its_holder(first: SqlStore, second: SqlStore) -> None:
    await lead(first)
    assert await first.renew_lease(1, "") == Lease(1, "a", "", 1, LEASE_MS)
    await first.give_lease_back(1)
    assert await second.lease() == Lease(1, "a", "", 1, 0)
    with pytest.raises(NotLeader, match="stands by"):
        await first.put_prompt(b"a", REQUESTER, NOW_MS)


async def test_writers_that_share_a_commit__are_all_held_against_the_token(first: SqlStore, second: SqlStore) -> None:
    await lead(first)
    before = [first.put_prompt(bytes([n]), REQUESTER, NOW_MS) for n in range(20)]
    await asyncio.gather(*before)
    await lead(second, "b")
    done = await asyncio.gather(
        *(first.put_prompt(bytes([n]), REQUESTER, NOW_MS) for n in range(20, 40)), return_exceptions=True
    )
    assert {type(each) for each in done} == {NotLeader}


async def test_store_of_others__has_no_fence(tmp_path: Path, clock: FakeClock, first: SqlStore) -> None:
    """Commands of an operator, and a watcher's store."""
    await lead(first)
    other = await SqlStore.open(f"sqlite:///{tmp_path / 'relayer.db'}", clock)
    await other.put_prompt(b"a", REQUESTER, NOW_MS)
    await other.close()


async def test_open__tables_are_older_and_not_to_be_changed__says_who_does(tmp_path: Path, clock: FakeClock) -> None:
    url = f"sqlite:///{tmp_path / 'relayer.db'}"
    with pytest.raises(ConfigurationError, match="of version none, and this"):
        await SqlStore.open(url, clock, migrate=False)
    database = await Database.open(url)
    async with database.write() as connection:
        await connection.run_sync(downgrade, "0010")
        names = (await connection.execute(text("SELECT name FROM sqlite_master WHERE name = 'leases'"))).all()
    await database.close()
    assert not names
    with pytest.raises(ConfigurationError, match="start a leader of this version first"):
        await SqlStore.open(url, clock, migrate=False)
    await (await SqlStore.open(url, clock)).close()
    await (await SqlStore.open(url, clock, migrate=False)).close()


def test_file_lock__is_had_once_and_tells_where(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "relayer.db"), FileLock(tmp_path / "relayer.db")
    assert (first.machine, first.take(), first.take()) == ("", True, True)
    assert first.machine
    assert not second.take()
    assert (second.machine, second.other.isdecimal()) == ("", True)
    with pytest.raises(Held), alone_with(tmp_path / "relayer.db"):
        pass
    first.free()
    assert second.take()
    second.free()
    second.free()


async def test_lease__leader_hangs_within_a_write__standby_waits_for_the_database_and_then_leads(
    first: SqlStore, second: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await lead(first)
    async with second._database.read() as connection:
        await connection.execute(text("PRAGMA busy_timeout = 1"))
    resumed = asyncio.Event()

    async def wait(_: float) -> None:
        resumed.set()
        await asyncio.sleep(0)

    monkeypatch.setattr(second.hold, "sleep", wait)
    with closing(sqlite3.connect(first._database._engine.url.database or "", isolation_level=None)) as hung:
        hung.execute("BEGIN IMMEDIATE")
        taking = asyncio.create_task(patiently(second.take_lease(lease, "b", "", LEASE_MS)))
        await resumed.wait()
        assert not taking.done()
        hung.execute("ROLLBACK")
    taken = await taking
    assert taken is not None
    assert taken.token == 2
