"""`headrace dead-letters`: what was given up is shown with its call, and tried again when somebody says so."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

import headrace.cli
from headrace.adapters.sql.store import SqlStore
from headrace.ports import Call, StoredDeadLetter
from headrace.settings import Settings
from tests.cli.conftest import Desk
from tests.fakes import MARKET, RELAYER, FakeChain, FakeClock, make_request

ERROR = "InsufficientGas(required=2, available=1)"


@pytest.fixture
def database(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, str]:
    """A relayer's database with one dead letter; its path and the request's id."""
    real = headrace.cli.make_session

    def with_a_database(settings: Settings) -> headrace.cli.Session:
        return dataclasses.replace(real(settings), open_store=headrace.cli.open_store)

    monkeypatch.setattr(headrace.cli, "make_session", with_a_database)
    path, chain, request = tmp_path / "relayer.db", FakeChain(), make_request(relayer=RELAYER)

    async def fill() -> None:
        store = await SqlStore.open(f"sqlite:///{path}", FakeClock())
        chain.mine(chain.requested(request))
        await store.add_blocks(chain.all_blocks(), chain.all_events(), RELAYER)
        call = Call(MARKET, b"\x01\x02")
        letter = StoredDeadLetter(chain.id_of(request), "it reverts alone", ERROR, call, 7, 1_750_000_000_000)
        await store.add_dead_letter(letter)
        await store.add_dead_letter(dataclasses.replace(letter, block_number=8))
        await store.close()

    with asyncio.Runner() as runner:
        runner.run(fill())
    return path, chain.id_of(request)


def test_list_and_show__say_why_and_with_which_call(desk: Desk, database: tuple[Path, str]) -> None:
    path, id_ = database
    assert desk.run("dead-letters", "list", "--store", str(path)) == 0, desk.error
    assert "it reverts alone" in desk.out
    assert "2025-06-15 15:06:40 UTC" in desk.out
    assert desk.run("dead-letters", "show", id_, "--store", str(path)) == 0, desk.error
    assert ERROR in desk.out
    assert "0x0102" in desk.out
    (document,) = desk.json("dead-letters", "list", "--store", str(path))
    assert document == desk.json("dead-letters", "show", id_, "--store", str(path))
    assert (document["request_id"], document["block_number"], document["call"]["data"]) == (id_, 8, "0x0102")


def test_replay__is_gone_from_the_list(desk: Desk, database: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, id_ = database
    monkeypatch.setenv("HEADRACE_RELAYER__DATABASE", str(path))
    assert desk.run("dead-letters", "replay", id_) == 0, desk.error
    assert desk.run("dead-letters", "list") == 0
    assert "Nothing was given up" in desk.out
    assert desk.json("dead-letters", "list") == []
    assert "was not given up" in desk.refusal("dead-letters", "replay", id_)
    assert "was not given up" in desk.refusal("dead-letters", "show", id_)


def test_database__missing__is_named(desk: Desk) -> None:
    assert "no database none.db" in desk.refusal("dead-letters", "list", "--store", "none.db")
