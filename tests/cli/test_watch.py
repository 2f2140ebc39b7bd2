"""`headrace watch`: its exit code tells programs, its table tells people, and each fault is proven once."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headrace.cli
import tests.api.world as api_world
from headrace import wiring
from headrace.adapters.file_lock import alone_with
from headrace.cli.screens import with_checksums
from headrace.core import typed_data
from headrace.core.faults import Fault
from headrace.core.merkle import leaf_of, root_of
from headrace.core.types import (
    ZERO_HASH,
    Assignment,
    Decision,
    DecisionKind,
    Hash32,
    Reason,
    RoundRecord,
    Status,
)
from headrace.ports import StoredAssignment, StoredRound
from tests.api.world import NODE_SIGNER, RELAYER_SIGNER, REQUESTER_SIGNER
from tests.cli.conftest import Desk
from tests.fakes import make_request
from tests.services.faulty import FAULTS, FaultyChain

NODE, RELAYER = NODE_SIGNER.address, RELAYER_SIGNER.address


@dataclass
class History:
    """What a relayer's rounds came to, on the chain and at its API."""

    desk: Desk

    @property
    def chain(self) -> FaultyChain:
        chain = self.desk.relayer.chain
        assert isinstance(chain, FaultyChain)
        return chain

    def round(self, number: int, ending: Status | None, *, accepts: bool = True) -> Hash32:
        """A round that assigned one request to the node, and how the request ended."""
        now_s = self.chain.all_blocks()[-1].timestamp_s
        request = make_request(relayer=RELAYER, salt=number, deadline_s=now_s + 600)
        self.chain.mine(self.chain.requested(request))
        request_id = self.chain.id_of(request)
        leaf = Decision(request_id, NODE, DecisionKind.ASSIGNED, Reason.LOWEST_COST, 7, 0)
        record = RoundRecord(number, root_of([leaf_of(leaf)]), ZERO_HASH, ZERO_HASH, 1, ZERO_HASH, 1, 0, 0)
        self.chain.mine(self.chain.recorded(RELAYER, record))
        store = self.desk.relayer.store
        store.all_leaves[number] = [leaf]
        store.all_rounds[number] = StoredRound(number, "recorded", 0, 1, record, ZERO_HASH, 3, ZERO_HASH)
        word = Assignment(request_id, RELAYER, NODE, number, 7, request.deadline_s)
        struct_hash = typed_data.hash_accept(request_id, RELAYER, number, request.deadline_s)
        signature = NODE_SIGNER.sign_digest(typed_data.digest(self.domain, struct_hash)) if accepts else b""
        store.all_assignments[request_id] = [
            StoredAssignment(request_id, 1, word, "lease_expired", 0, 0, b"", signature, "")
        ]
        if ending is not None:
            self.chain.mine(self.chain.closed(request_id, ending))
        self.chain.mine_many(2)
        return request_id

    @property
    def domain(self) -> typed_data.Domain:
        return typed_data.Domain(self.chain.chain_id, self.chain.market)

    def report(self, *arguments: str, code: int) -> dict[str, Any]:
        assert self.desk.run("watch", "--once", "--json", *arguments) == code, self.desk.out + self.desk.error
        document: dict[str, Any] = json.loads(self.desk.out)
        return document


@pytest.fixture(autouse=True)
def with_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain of these tests has a faults contract. This goes before the desk."""
    monkeypatch.setattr(api_world, "FakeChain", FaultyChain)


@pytest.fixture(autouse=True)
def umask_as_it_was() -> Iterator[None]:
    """A watch sets its process's."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def history(with_faults: None, desk: Desk) -> History:
    return History(desk)


def test_once__honest__exits_0(history: History) -> None:
    history.round(1, None)
    history.round(2, Status.EXPIRED, accepts=False)
    assert history.desk.run("watch", "--once") == 0, history.desk.out + history.desk.error
    assert with_checksums(f"all rounds of relayer {RELAYER}: nothing was done wrong") in history.desk.out
    assert history.report(code=0) == {"relayer": RELAYER, "first": None, "last": None, "faults": [], "withheld": []}
    assert history.chain.sent == []


def test_once__dry_run__reports_and_proves_nothing(history: History) -> None:
    request_id = history.round(1, Status.EXPIRED)
    report = history.report("--dry-run", code=1)
    assert report["faults"] == [
        {
            "fault": "missed",
            "culprit": NODE,
            "request_id": request_id,
            "node": None,
            "round": 1,
            "state": "found",
            "detail": "",
            "transaction_hash": None,
        }
    ]
    assert history.chain.sent == []
    assert history.desk.run("watch", "--once", "--dry-run") == 1
    assert "missed" in history.desk.out
    assert with_checksums(NODE) in history.desk.out.replace("\n", "")


def test_once__fault__is_proven_once_and_then_said_to_be(history: History) -> None:
    request_id = history.round(1, Status.EXPIRED)
    (fault,) = history.report(code=1)["faults"]
    assert fault["transaction_hash"] is not None
    assert history.chain.proofs() == [(Fault.MISSED, NODE, request_id)]
    history.chain.mine_many(2)
    (fault,) = history.report(code=1)["faults"]
    assert fault["state"] == "proven"
    assert len(history.chain.sent) == 1


def test_once__from_and_to_round__looks_at_these_only(history: History) -> None:
    for number in (1, 2, 3):
        history.round(number, Status.EXPIRED)
    report = history.report("--dry-run", "--from-round", "2", "--to-round", "2", code=1)
    assert (report["first"], report["last"]) == (2, 2)
    assert [each["round"] for each in report["faults"]] == [2]
    report = history.report("--dry-run", "--from-round", "3", code=1)
    assert (report["first"], report["last"]) == (3, None)
    assert [each["round"] for each in report["faults"]] == [3]
    assert [each["round"] for each in history.report("--dry-run", code=1)["faults"]] == [1, 2, 3]


def test_once__withheld__exits_2_and_names_the_round(history: History) -> None:
    history.round(1, Status.EXPIRED)
    history.round(2, None)
    del history.desk.relayer.store.all_rounds[2]
    report = history.report("--dry-run", code=2)
    assert report["withheld"] == [2]
    assert [each["round"] for each in report["faults"]] == [1]
    assert history.desk.run("watch", "--once", "--dry-run") == 2
    assert "nothing is known of round 2" in history.desk.out


def test_once__does_not_pay__is_kept_unless_always(history: History) -> None:
    history.round(1, Status.EXPIRED)
    history.chain.held[NODE] = 0
    (fault,) = history.report(code=1)["faults"]
    assert fault["state"] == "found"
    assert "does not pay" in fault["detail"]
    assert history.chain.sent == []
    history.report("--always", code=1)
    assert len(history.chain.proofs()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--json",), "--once"),
        (("--from-round", "2"), "--once"),
        (("--to-round", "2"), "--once"),
        (("--once", "--from-round", "3", "--to-round", "2"), "comes after"),
        (("--relayer", "foo"), "--relayer is 'foo': write the URL of a relayer's API, such as https://"),
    ],
)
def test_arguments__that_make_no_sense__are_one_sentence(
    history: History, arguments: tuple[str, ...], words: str
) -> None:
    assert words in history.desk.refusal("watch", *arguments, code=64)


def test_watch__relayer_does_not_answer__names_the_option(history: History) -> None:
    said = history.desk.refusal("watch", "--once", "--dry-run", "--relayer", "http://127.0.0.1:1", code=3)
    assert "check --relayer and that the relayer runs" in said


def test_once__second_watch_of_the_same_relayer__is_refused(history: History) -> None:
    folder = Path(".headrace/watch")
    folder.mkdir(parents=True)
    with alone_with(folder / f"31337-{RELAYER}.db"):
        assert "Another watch" in history.desk.refusal("watch", "--once", code=3)
    assert history.desk.run("watch", "--once") == 0


def test_once__no_key__says_which_setting(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    real = headrace.cli.make_session

    def without_a_key(settings: Any) -> Any:
        return dataclasses.replace(real(settings), open_signer=wiring.open_signer)

    monkeypatch.setattr(headrace.cli, "make_session", without_a_key)
    assert "HEADRACE_WATCHER__KEY__KEYSTORE" in history.desk.refusal("watch", "--once", code=3)
    assert history.desk.run("watch", "--once", "--dry-run") == 0


def test_store__is_its_owners_only(history: History) -> None:
    assert history.desk.run("watch", "--once", "--dry-run") == 0
    (file,) = Path(".headrace/watch").glob("*.db")
    assert file.name == f"31337-{RELAYER}.db"
    assert file.stat().st_mode & 0o077 == 0


def test_bounty__goes_to_the_watchers_account(history: History) -> None:
    history.round(1, Status.EXPIRED)
    history.report(code=1)
    (event,) = [each for each in history.chain.all_events() if each.contract == FAULTS]
    assert event.args["reporter"] == REQUESTER_SIGNER.address
