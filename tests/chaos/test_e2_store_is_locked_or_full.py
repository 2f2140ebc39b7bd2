"""E2: the database is locked by another process, or its disk is full. What cannot be stored is not sent; the loops wait
where they are, and go on by themselves when it can be stored again."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from headrace.adapters.sql import database
from headrace.adapters.sql.holding import Hold, patiently, problem_of
from headrace.core.errors import StoreUnavailable
from tests.chaos.bench import Bench, a_bench


async def test_store__locked__nothing_is_sent_until_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_MS", 1)
    async with a_bench(tmp_path / "relayer.db") as bench:
        (id_,) = await bench.serve()
        other = sqlite3.connect(bench.database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await bench.mine()
        for step in (bench.services.settler.step, bench.services.indexer.step):
            with pytest.raises(StoreUnavailable, match="locked"):
                await step()
        assert bench.sent == []
        other.close()
        assert await bench.state(id_) == "signed"
        await bench.settle()
        await bench.oracle()


async def limit_pages(bench: Bench, spare: int) -> None:
    async with bench.store._database.write() as connection:
        pages = (await connection.execute(text("PRAGMA page_count"))).scalar_one()
        await connection.execute(text(f"PRAGMA max_page_count = {pages + spare}"))


async def fill(bench: Bench) -> None:
    """Serve until the database takes no more of what is to be sent."""
    for _ in range(20):
        await bench.serve()
        await limit_pages(bench, 0)
        await bench.services.settler.step()
        await limit_pages(bench, 10_000)
        await bench.settle()


async def test_store__full__what_is_not_stored_is_not_sent(bench: Bench) -> None:
    with pytest.raises(StoreUnavailable, match="full"):
        await fill(bench)
    sent = len(bench.sent)
    for _ in range(3):
        bench.clock.advance(1_000)
        with pytest.raises(StoreUnavailable, match="full"):
            await bench.services.settler.step()
    assert len(bench.sent) == sent
    assert bench.unwitnessed == []
    await limit_pages(bench, 10_000)
    await bench.settle()
    await bench.oracle()


@dataclass
class Pauses:
    """Stands in for a hold's sleep: each pause lasts until it is ended."""

    lasted_s: list[float] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, pause_s: float) -> None:
        self.lasted_s.append(pause_s)
        self.begun.set()
        await self.ended.wait()
        self.ended.clear()

    async def begins(self) -> None:
        async with asyncio.timeout(30):
            await self.begun.wait()
        self.begun.clear()


def watched(hold: Hold) -> tuple[Pauses, list[str]]:
    pauses, told = Pauses(), list[str]()
    hold.sleep, hold.on_change = pauses, told.append
    return pauses, told


async def test_store__full__loop_waits_with_growing_pauses_and_goes_on_by_itself(bench: Bench) -> None:
    pauses, told = watched(bench.store.hold)
    with pytest.raises(StoreUnavailable, match="full"):
        await fill(bench)  # whoever is not patient is told at once
    sent, ids = len(bench.sent), list(bench.requests)
    settling = asyncio.create_task(patiently(bench.services.settler.step()))
    for pause in range(8):
        await pauses.begins()
        assert not settling.done()
        assert bench.store.hold.problem == "the disk of the relayer's database is full"
        assert told[-1] == bench.store.hold.problem, "though small writes may be kept"
        await bench.store.note(ids[0], bench.clock.now_ms(), "small", {})
        assert bench.store.hold.problem
        if pause == 7:
            await limit_pages(bench, 10_000)
        pauses.ended.set()
    async with asyncio.timeout(30):
        await settling
    assert pauses.lasted_s == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert told[-2:] == ["the disk of the relayer's database is full", ""]
    assert bench.store.hold.problem == ""
    assert len(bench.sent) > sent
    assert bench.unwitnessed == []
    await bench.settle()
    await bench.oracle()


async def test_store__full__stop_does_not_wait_for_room(bench: Bench) -> None:
    pauses, _ = watched(bench.store.hold)
    with pytest.raises(StoreUnavailable, match="full"):
        await fill(bench)
    settling = asyncio.create_task(patiently(bench.services.settler.step()))
    await pauses.begins()
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    await limit_pages(bench, 10_000)
    await bench.restart()
    await bench.settle()
    await bench.oracle()


async def test_store__locked__loop_waits_until_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_MS", 1)
    async with a_bench(tmp_path / "relayer.db") as bench:
        pauses, told = watched(bench.store.hold)
        await bench.serve()
        other = sqlite3.connect(bench.database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        settling = asyncio.create_task(patiently(bench.services.settler.step()))
        await pauses.begins()
        assert bench.sent == []
        assert told == ["another process keeps the relayer's database locked"]
        other.close()
        pauses.ended.set()
        assert await settling
        assert told[1:] == [""]
        await bench.settle()
        await bench.oracle()


def test_store__error_of_the_disk__is_not_tried_again() -> None:
    """It may come after something was kept: only a new process, which reads what is there, goes on."""
    failed = sqlite3.OperationalError("disk I/O error")
    failed.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    assert problem_of(DBAPIError("COMMIT", {}, failed)) is None
    failed.sqlite_errorcode = sqlite3.SQLITE_FULL
    assert problem_of(DBAPIError("COMMIT", {}, failed)) is not None
