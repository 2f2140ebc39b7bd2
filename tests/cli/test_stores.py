"""`headrace store`: a copy is made, looked through and put back, and nothing is overwritten or taken from a relayer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from headrace.adapters.file_lock import alone_with
from headrace.adapters.sql.store import SqlStore
from tests.cli.conftest import Desk
from tests.fakes import FakeClock


def make(path: Path) -> Path:
    async def fill() -> None:
        store = await SqlStore.open(f"sqlite+aiosqlite:///{path}", FakeClock())
        await store.close()

    with asyncio.Runner() as runner:
        runner.run(fill())
    return path


def test_backup_check_and_restore__say_what_they_did(desk: Desk, tmp_path: Path) -> None:
    database, copy = make(tmp_path / "relayer.db"), tmp_path / "copy.db"
    with alone_with(database):
        assert desk.run("store", "backup", str(copy), "--store", str(database)) == 0, desk.error
        assert "0 requests, up to block -1" in desk.out
        assert desk.run("store", "restore", str(copy), "--store", str(database)) == 1
        assert "works with" in desk.error, "a relayer does"
    assert desk.run("store", "backup", str(copy), "--store", str(database)) == 1
    assert "not overwritten" in desk.error
    assert desk.run("store", "check", str(copy), "--json") == 0, desk.error
    assert json.loads(desk.out)["is_copy"] is True
    assert desk.run("store", "check", str(database)) == 0, desk.error
    assert "is copy" in desk.out
    assert desk.run("store", "restore", str(copy), "--store", str(database)) == 0, desk.error
    assert "relayer.db.before-restore-1" in desk.out
    assert desk.run("store", "restore", str(tmp_path / "relayer.db.before-restore-1"), "--store", str(database)) == 1
    assert "was not made by `headrace store backup`" in desk.error
