"""`headrace audit`: its exit code tells programs, its table tells people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headrace.cli
from headrace.core.errors import ConfigurationError
from tests.cli.conftest import Desk
from tests.client.test_audits import fill, two_rounds
from tests.core.audit_world import World
from tests.fakes import RELAYER, make_request

AUDIT = ("audit", "--relayer", RELAYER)


def put(desk: Desk, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API serves a world's rounds, and the chain is its chain."""
    fill(desk.relayer.store, world)
    for name in ("events", "head", "block", "models"):
        monkeypatch.setattr(desk.relayer.chain, name, getattr(world.chain, name))


def test_audit__clean__exits_0(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    put(desk, two_rounds(), monkeypatch)
    # The API's network says one confirmation; the world waited for two, so it is never early.
    assert desk.run(*AUDIT, "--rounds", "1..2") == 0, desk.out + desk.error
    assert "rounds 1..2" in desk.out
    assert desk.json(*AUDIT)["findings"] == []


def test_audit__differs__exits_1_with_a_table(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(make_request())
    world.record(world.inputs(), skipped=7)
    put(desk, world, monkeypatch)
    assert desk.run(*AUDIT) == 1
    assert "skipped" in desk.out
    assert "difference" in desk.out
    assert desk.run(*AUDIT, "--json") == 1
    (finding,) = json.loads(desk.out)["findings"]
    assert (finding["severity"], finding["expected"], finding["got"]) == ("difference", "0", "7")


def test_audit__withheld__exits_2(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    put(desk, two_rounds(), monkeypatch)
    desk.relayer.store.snapshots.clear()
    assert desk.run(*AUDIT) == 2
    assert "withheld" in desk.out


def test_audit__round_not_recorded__is_one_sentence(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    put(desk, two_rounds(), monkeypatch)
    assert "rounds 1..2" in desk.refusal(*AUDIT, "--rounds", "5..9", code=64)


def test_audit__nothing_recorded_yet__is_no_verdict_and_says_when_there_will_be(desk: Desk) -> None:
    refusal = desk.refusal("audit", code=3)
    assert "has recorded no round on this chain yet" in refusal
    assert "once a request was assigned" in refusal


def test_audit__relayer_does_not_answer__is_no_verdict(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REQUESTER__API_URL", "http://127.0.0.1:1")
    assert "check HEADRACE_REQUESTER__API_URL" in desk.refusal("audit", code=3)


async def test_store__file_that_is_no_database__says_so(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("Remember the milk. " * 100, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"notes\.txt cannot be opened: file is not a database"):
        async with headrace.cli.open_store(file):
            pass
    assert file.read_text(encoding="utf-8").startswith("Remember")


def test_audit__database__needs_a_relayer_and_a_file(desk: Desk) -> None:
    assert "--relayer" in desk.refusal("audit", "--store", "no.db", code=64)
    assert "no.db" in desk.refusal(*AUDIT, "--store", "no.db", code=64)
