"""Writers that are committed together: all or nothing each, and nothing is said to be kept before it is."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.database import Database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(f"sqlite:///{tmp_path / 'relayer.db'}")
    yield opened
    await opened.close()


class Outside:
    """Another connection, which sees what is committed."""

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(folder / "relayer.db")

    def keys(self) -> list[str]:
        return [key for (key,) in self.connection.execute("SELECT payload_hash FROM payloads ORDER BY payload_hash")]


@pytest.fixture
def outside(database: Database, tmp_path: Path) -> Iterator[Outside]:
    seen = Outside(tmp_path)
    yield seen
    seen.connection.close()


async def put(connection: AsyncConnection, key: str) -> None:
    await connection.execute(text("INSERT INTO payloads VALUES (:key, x'00', 1)"), {"key": key})


async def write(database: Database, key: str, error: Exception | None = None) -> None:
    async with database.write() as connection:
        await put(connection, key)
        if error is not None:
            raise error


def count_commits(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    commits: list[None] = []
    commit = AsyncConnection.commit

    async def counting(connection: AsyncConnection) -> None:
        commits.append(None)
        await commit(connection)

    monkeypatch.setattr(AsyncConnection, "commit", counting)
    return commits


async def test_group__many_at_once__share_commits_and_are_all_kept(
    database: Database, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = count_commits(database, monkeypatch)
    keys = [f"{number:03}" for number in range(100)]
    await asyncio.gather(*(write(database, key) for key in keys))
    assert outside.keys() == keys
    assert len(commits) <= 3


async def test_group__each_that_returns__is_committed(database: Database, outside: Outside) -> None:
    async def check(key: str) -> None:
        await write(database, key)
        assert outside.keys().count(key) == 1

    await asyncio.gather(*(check(f"{number:03}") for number in range(50)))


async def test_group__some_fail__take_back_only_their_own(database: Database, outside: Outside) -> None:
    faults = {number: ValueError(str(number)) for number in (0, 3, 4, 9)}
    outcomes = await asyncio.gather(
        *(write(database, f"{number:03}", faults.get(number)) for number in range(10)), return_exceptions=True
    )
    assert outcomes == [faults.get(number) for number in range(10)]
    assert outside.keys() == [f"{number:03}" for number in range(10) if number not in faults]


async def test_group__a_statement_is_refused__only_its_writer_fails(database: Database, outside: Outside) -> None:
    outcomes = await asyncio.gather(
        write(database, "a"), write(database, "a"), write(database, "b"), return_exceptions=True
    )
    assert [type(each) for each in outcomes] == [type(None), IntegrityError, type(None)]
    assert outside.keys() == ["a", "b"]


async def test_group__the_commit_fails__all_of_it_fail(
    database: Database, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(_: AsyncConnection) -> None:
        raise OperationalError("COMMIT", {}, sqlite3.OperationalError("disk I/O error"))

    with monkeypatch.context() as patch:
        patch.setattr(AsyncConnection, "commit", failing)
        outcomes = await asyncio.gather(*(write(database, key) for key in "abc"), return_exceptions=True)
    assert [type(each) for each in outcomes] == [OperationalError] * 3
    assert outside.keys() == []
    await write(database, "d")
    assert outside.keys() == ["d"]


async def test_group__sqlite_ends_the_transaction_by_itself__those_before_fail_too(
    database: Database, outside: Outside
) -> None:
    """As it does when the disk is full."""

    async def ruin() -> None:
        async with database.write() as connection:
            raw = await connection.get_raw_connection()
            sqlite3.Connection.rollback(raw.driver_connection)  # type: ignore[arg-type]
            raise OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))

    outcomes = await asyncio.gather(write(database, "a"), ruin(), write(database, "b"), return_exceptions=True)
    assert [isinstance(each, OperationalError) for each in outcomes] == [True, True, False]
    assert outside.keys() == ["b"]


async def test_group__a_writer_is_cancelled_while_it_waits__the_others_are_kept(
    database: Database, outside: Outside
) -> None:
    first_is_in, go_on = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with database.write() as connection:
            await put(connection, "a")
            first_is_in.set()
            await go_on.wait()

    one = asyncio.create_task(first())
    await first_is_in.wait()
    other = asyncio.create_task(write(database, "b"))
    await asyncio.sleep(0)
    go_on.set()
    other.cancel()
    await one
    assert outside.keys() == ["a"]
    (outcome,) = await asyncio.gather(other, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    await write(database, "c")
    assert outside.keys() == ["a", "c"]


async def test_group__cancelled_at_any_step__is_all_or_nothing(database: Database, outside: Outside) -> None:
    async def pair(number: int) -> None:
        async with database.write() as connection:
            await put(connection, f"{number:03}a")
            await put(connection, f"{number:03}b")

    for steps in range(40):
        tasks = [asyncio.create_task(pair(3 * steps + each)) for each in range(3)]
        for _ in range(steps):
            await asyncio.sleep(0)
        tasks[steps % 3].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        others = [3 * steps + each for each in range(3) if each != steps % 3]
        assert {f"{number:03}{half}" for number in others for half in "ab"} <= set(outside.keys())
    found = outside.keys()
    assert {key[:3] for key in found if key.endswith("a")} == {key[:3] for key in found if key.endswith("b")}


async def test_write__cancelled_while_another_process_writes__waits_for_its_thread(
    database: Database, outside: Outside, tmp_path: Path
) -> None:
    """A connection that is closed under a statement in a thread takes the whole process with it."""
    for number in range(20):
        outside.connection.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(write(database, f"{number:03}"))
        for _ in range(number):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        outside.connection.rollback()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await write(database, "x")
    assert outside.keys() == ["x"]
