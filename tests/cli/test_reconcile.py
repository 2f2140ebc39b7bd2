"""`headrace reconcile`: what it compares, what it shows, how it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace.cli
from headrace.adapters.sql.store import SqlStore
from headrace.core.types import Hash32, Status
from headrace.settings import Settings
from tests.cli.conftest import Desk
from tests.fakes import FakeChain, FakeClock, make_request

RELAYER = "0x" + "b7" * 20


@pytest.fixture
def index(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], str]:
    """Bring a relayer's database up to the chain; its path."""
    real = headrace.cli.make_session

    def with_a_database(settings: Settings) -> headrace.cli.Session:
        return dataclasses.replace(real(settings), open_store=headrace.cli.open_store)

    monkeypatch.setattr(headrace.cli, "make_session", with_a_database)
    path = tmp_path / "relayer.db"

    async def work(chain: FakeChain) -> None:
        store = await SqlStore.open(f"sqlite:///{path}", FakeClock())
        last = await store.last_block()
        blocks = [each for each in chain.all_blocks() if last is None or each.number > last.number]
        numbers = {each.number for each in blocks}
        await store.add_blocks(blocks, [each for each in chain.all_events() if each.block_number in numbers], RELAYER)
        await store.close()

    def bring_up() -> str:
        with asyncio.Runner() as runner:
            runner.run(work(desk.relayer.chain))
        return str(path)

    return bring_up


def post(desk: Desk, salt: int) -> Hash32:
    chain = desk.relayer.chain
    request = make_request(relayer=RELAYER, salt=salt)
    chain.mine(chain.requested(request))
    return chain.id_of(request)


def test_reconcile__all_is_well__exits_0(desk: Desk, index: Callable[[], str]) -> None:
    desk.relayer.chain.mine(desk.relayer.chain.closed(post(desk, 1), Status.CANCELLED))
    post(desk, 2)
    path = index()
    assert desk.run("reconcile", "--store", path, "--relayer", RELAYER) == 0, desk.error
    assert "2 requests to relayer 0xb7b7" in desk.out.lower()
    assert "0 fulfilled, 0 expired, 1 cancelled, 1 open" in desk.out
    assert "agree" in desk.out
    document = desk.json("reconcile", "--store", path, "--relayer", RELAYER)
    assert (document["requests"], document["lost"], document["underpaid_wei"], document["findings"]) == (2, 0, "0", [])


def test_reconcile__paid_twice__exits_1_and_names_it(desk: Desk, index: Callable[[], str]) -> None:
    chain = desk.relayer.chain
    id_ = post(desk, 1)
    chain.mine(chain.fulfilled(id_, node_paid=40), chain.fulfilled(id_, node_paid=41))
    path = index()
    assert desk.run("reconcile", "--store", path, "--relayer", RELAYER, "--json") == 1
    assert '"duplicated": 1' in desk.out
    assert id_ in desk.out
    assert desk.run("reconcile", "--store", path, "--relayer", RELAYER) == 1
    assert "it ended 2 times" in desk.out
    assert "duplicated=1" in desk.out


def test_reconcile__range__is_kept(desk: Desk, index: Callable[[], str]) -> None:
    post(desk, 1)
    post(desk, 2)
    path = index()
    last = desk.relayer.chain.all_blocks()[-1].number
    document = desk.json("reconcile", "--store", path, "--relayer", RELAYER, "--from-block", str(last))
    assert (document["first_block"], document["requests"]) == (last, 1)
    document = desk.json("reconcile", "--store", path, "--relayer", RELAYER, "--to-block", str(last - 1))
    assert (document["last_block"], document["requests"]) == (last - 1, 1)


def test_reconcile__nothing_to_compare__is_no_verdict(desk: Desk, index: Callable[[], str]) -> None:
    assert desk.run("reconcile", "--store", "none.db", "--relayer", RELAYER) == 3
    assert "no database none.db" in desk.error
    path = index()
    arguments = ("reconcile", "--store", path, "--relayer", RELAYER, "--from-block", "9", "--to-block", "8")
    assert desk.run(*arguments) == 64
    assert "exchange them" in desk.error
    assert desk.run("reconcile", "--from-block", "x") == 64
