"""E2: the database is locked by another process, or its disk is full. What cannot be stored is not sent; when it can be
again, the relayer goes on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from headrace.adapters.sql import database
from tests.chaos.bench import Bench, a_bench


async def test_store__locked__nothing_is_sent_until_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_MS", 1)
    async with a_bench(tmp_path / "relayer.db") as bench:
        (id_,) = await bench.serve()
        other = sqlite3.connect(bench.database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await bench.mine()
        for step in (bench.services.settler.step, bench.services.indexer.step):
            with pytest.raises(OperationalError, match="locked"):
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
    with pytest.raises(OperationalError, match="full"):
        await fill(bench)
    sent = len(bench.sent)
    for _ in range(3):
        bench.clock.advance(1_000)
        with pytest.raises(OperationalError, match="full"):
            await bench.services.settler.step()
    assert len(bench.sent) == sent
    assert bench.unwitnessed == []
    await limit_pages(bench, 10_000)
    await bench.settle()
    await bench.oracle()
