"""The store's file: migrations, durability settings, one writer, readers that are not in its way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from headrace.adapters.sql.database import Database, downgrade, upgrade
from headrace.adapters.sql.store import SqlStore
from headrace.adapters.sql.tables import metadata
from headrace.core.errors import ConfigurationError, InvalidInput
from headrace.ports import Call
from tests.adapters.steps import NOW_MS, assign, follow, post
from tests.fakes import MARKET, RELAYER, REQUESTER, FakeChain, FakeClock


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'relayer.db'}"


async def test_migrations__give_the_tables_and_take_them_back() -> None:
    database = await Database.open("sqlite://")
    try:
        async with database.write() as connection:
            assert await connection.run_sync(_differences) == []
            await connection.run_sync(downgrade)
            assert await connection.run_sync(_table_names) == {"alembic_version"}
            await connection.run_sync(upgrade)
            assert await connection.run_sync(_differences) == []
    finally:
        await database.close()


async def test_migrations__intents_of_before__were_sent_by_the_relayer_itself(
    store: SqlStore, chain: FakeChain
) -> None:
    await assign(store, await post(store, chain))
    await store.add_intent("expire", "a", {}, Call(MARKET, b""), 10**6, 5, NOW_MS)
    async with store._database.write() as connection:
        await connection.run_sync(downgrade, "0005")
        await connection.run_sync(upgrade)
    (intent,) = await store.open_intents()
    assert (intent.sender, intent.nonce) == (RELAYER, 5)
    assert (await store.add_intent("expire", "b", {}, Call(MARKET, b""), 10**6, 5, NOW_MS, RELAYER)).nonce == 6


async def test_open__again__finds_what_was_stored(tmp_path: Path, clock: FakeClock, chain: FakeChain) -> None:
    first = await SqlStore.open(url_of(tmp_path), clock)
    id_ = await post(first, chain)
    before = await first.request(id_)
    await first.close()
    second = await SqlStore.open(url_of(tmp_path), clock)
    try:
        assert await second.request(id_) == before
        assert await second.last_block() == chain.all_blocks()[-1]
    finally:
        await second.close()


async def test_open__file_of_a_newer_version__says_so(tmp_path: Path, clock: FakeClock) -> None:
    database = await Database.open(url_of(tmp_path))
    async with database.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await database.close()
    with pytest.raises(ConfigurationError, match="another version of Headrace"):
        await SqlStore.open(url_of(tmp_path), clock)


async def test_open__folder_that_is_not_there__says_so(tmp_path: Path, clock: FakeClock) -> None:
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        await SqlStore.open(url_of(tmp_path / "missing"), clock)


async def test_open__file_that_is_no_database__says_so(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "relayer.db").write_text("a letter to a friend, and longer than a header of a database has to be")
    with pytest.raises(ConfigurationError, match="cannot be opened: file is not a database"):
        await SqlStore.open(url_of(tmp_path), clock)


async def test_file__is_durable_and_checked(tmp_path: Path) -> None:
    database = await Database.open(url_of(tmp_path))
    try:
        async with database.read() as connection:
            pragmas = [
                (await connection.execute(text(f"PRAGMA {name}"))).scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys")
            ]
        assert pragmas == ["wal", 2, 1]
    finally:
        await database.close()


async def test_write__fails__leaves_nothing_behind(store: SqlStore, chain: FakeChain) -> None:
    await follow(store, chain)
    good = chain.mine()
    chain.mine()
    bad = chain.mine()
    with pytest.raises(InvalidInput):
        await store.add_blocks([good, bad], [], RELAYER)
    last = await store.last_block()
    assert last is not None and last.number == 0


async def test_readers__during_a_write__see_the_state_before(tmp_path: Path) -> None:
    database = await Database.open(url_of(tmp_path))
    count = text("SELECT count(*) FROM payloads")
    try:
        async with database.write() as writer:
            await writer.execute(text("INSERT INTO payloads VALUES ('0x01', x'00', 1)"))
            async with database.read() as reader:
                assert (await reader.execute(count)).scalar() == 0
        async with database.read() as reader:
            assert (await reader.execute(count)).scalar() == 1
    finally:
        await database.close()


async def test_writers__at_once__take_turns(tmp_path: Path, clock: FakeClock) -> None:
    store = await SqlStore.open(url_of(tmp_path), clock)
    try:
        hashes = await asyncio.gather(*(store.put_prompt(bytes([n]), REQUESTER, NOW_MS) for n in range(30)))
        held = {(payload_hash, REQUESTER) for payload_hash in hashes}
        assert await store.held_prompts(held) == held
    finally:
        await store.close()


async def test_write__cancelled_at_any_point__is_all_or_nothing(
    tmp_path: Path, clock: FakeClock, chain: FakeChain
) -> None:
    store = await SqlStore.open(url_of(tmp_path), clock)
    try:
        chain.mine_many(40)
        blocks = chain.all_blocks()
        for start in range(0, 40, 2):
            task = asyncio.create_task(store.add_blocks(blocks[start : start + 2], [], RELAYER))
            for _ in range(start):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            last = await store.last_block()
            kept = -1 if last is None else last.number
            assert kept in (start - 1, start + 1)
            if kept < start:
                await store.add_blocks(blocks[start : start + 2], [], RELAYER)
    finally:
        await store.close()


def _differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection), metadata))


def _table_names(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())
