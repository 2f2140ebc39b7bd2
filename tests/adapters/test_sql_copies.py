"""Copies of a relayer's database: whole, as of one moment, known as copies, and never in place of something else."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headrace.adapters.sql import copies
from headrace.adapters.sql.copies import back_up, look_through, put_back
from headrace.adapters.sql.store import SqlStore
from headrace.core.errors import InvalidInput, NotFound, Refused
from headrace.core.lost import LOST_ROUNDS, MAX_UNRECORDED, lost_record
from headrace.core.types import ZERO_HASH
from tests.fakes import FakeClock

PROMPT = b"x" * 4_000
RELAYER = "0x" + "11" * 20
HOLDER = "0x" + "22" * 20


def ignore(done: int, total: int) -> None:
    pass


def names(folder: Path, beginning: str) -> list[str]:
    return [each.name for each in folder.iterdir() if each.name.startswith(beginning)]


async def open_at(path: Path) -> SqlStore:
    return await SqlStore.open(f"sqlite+aiosqlite:///{path}", FakeClock())


async def make(path: Path, prompts: int = 1) -> None:
    store = await open_at(path)
    for number in range(prompts):
        await store.put_prompt(PROMPT + str(number).encode(), HOLDER, 1)
    await store.close()


async def test_backup__relayer_writes_meanwhile__copy_is_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_PAGES_AT_ONCE", 50)
    database, copy = tmp_path / "relayer.db", tmp_path / "copy.db"
    await make(database, prompts=150)
    store = await open_at(database)
    steps: list[tuple[int, int]] = []

    def write_on(done: int, total: int) -> None:
        steps.append((done, total))
        with closing(sqlite3.connect(database, timeout=10)) as writer, writer:
            writer.execute("UPDATE payloads SET stored_at_ms = stored_at_ms + 1")

    facts = await asyncio.to_thread(back_up, database, copy, write_on)
    await store.close()
    assert len(steps) > 1
    assert steps[-1][0] == steps[-1][1], "told of all its pages"
    with closing(sqlite3.connect(copy)) as copied:
        assert copied.execute("SELECT DISTINCT stored_at_ms FROM payloads").fetchall() == [(1,)]
    assert facts.is_copy
    assert facts == look_through(copy)
    assert names(tmp_path, "copy.db") == ["copy.db"]


async def test_backup__name_is_taken__nothing_is_overwritten(tmp_path: Path) -> None:
    await make(tmp_path / "relayer.db")
    (tmp_path / "copy.db").write_bytes(b"precious")
    with pytest.raises(Refused, match="not overwritten"):
        back_up(tmp_path / "relayer.db", tmp_path / "copy.db", ignore)
    assert (tmp_path / "copy.db").read_bytes() == b"precious"
    with pytest.raises(NotFound, match="no database"):
        back_up(tmp_path / "none.db", tmp_path / "other.db", ignore)
    with pytest.raises(NotFound, match="no folder"):
        back_up(tmp_path / "relayer.db", tmp_path / "none" / "copy.db", ignore)


async def test_check__damaged_or_something_else__says_so(tmp_path: Path) -> None:
    await make(tmp_path / "relayer.db", prompts=100)
    back_up(tmp_path / "relayer.db", tmp_path / "copy.db", ignore)
    damaged = bytearray((tmp_path / "copy.db").read_bytes())
    damaged[8192:12288] = bytes(4096)
    (tmp_path / "damaged.db").write_bytes(damaged)
    (tmp_path / "text.db").write_text("no database at all")
    for name, match in (("damaged.db", "damaged|not a relayer's"), ("text.db", "not a relayer's database")):
        with pytest.raises(InvalidInput, match=match):
            look_through(tmp_path / name)
        with pytest.raises(InvalidInput):
            put_back(tmp_path / name, tmp_path / "relayer.db")
    assert not look_through(tmp_path / "relayer.db").is_copy, "which is as it was"


async def test_restore__former_database_is_kept_and_store_is_known_to_be_behind_until_it_is_sealed(
    tmp_path: Path,
) -> None:
    database = tmp_path / "relayer.db"
    await make(database)
    back_up(database, tmp_path / "copy.db", ignore)
    await make(database, prompts=3)
    former = put_back(tmp_path / "copy.db", database)
    assert former == tmp_path / "relayer.db.before-restore-1"
    assert put_back(tmp_path / "copy.db", database) == tmp_path / "relayer.db.before-restore-2"
    store = await open_at(database)
    assert await store.is_behind()
    assert await store.last_lost_round() is None
    opened = await store.open_round(1, 1)
    records = [lost_record(RELAYER, number, 7, ZERO_HASH) for number in (1, 2)]
    await store.seal_lost_rounds(records, 5_000)
    assert not await store.is_behind()
    last = await store.last_lost_round()
    assert last is not None
    assert (last.round, last.opened_at_ms, last.record) == (2, 5_000, records[1])
    sealed = await store.round(opened.round)
    assert sealed is not None
    assert (sealed.state, sealed.record) == ("closed", records[0])
    assert (await store.open_round(1, 1)).round == 3
    await store.close()
    assert not look_through(database).is_copy


async def test_restore__file_was_copied_by_something_else__refused(tmp_path: Path) -> None:
    await make(tmp_path / "relayer.db")
    await make(tmp_path / "other.db")
    with pytest.raises(Refused, match="cannot tell what it lacks"):
        put_back(tmp_path / "other.db", tmp_path / "relayer.db")


def test_lost_rounds__more_than_may_wait_for_their_records() -> None:
    assert LOST_ROUNDS > MAX_UNRECORDED
