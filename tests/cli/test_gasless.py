"""`headrace request new --gasless`: nothing but a signature leaves the requester, and credit pays."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
import structlog

from headrace.cli.screens import with_checksums
from headrace.connect import NotAnswered, connect
from headrace.core.lifecycle import RequestState
from headrace.core.postings import PostingState
from headrace.ports import StoredPosting
from tests.api.world import REQUESTER_SIGNER
from tests.cli.conftest import Desk
from tests.cli.test_requests import ANSWER, live

NEW = ("request", "new", "Why is the sky blue?", "--gasless")
TRANSACTION = "0x" + "7d" * 32


@pytest.fixture(autouse=True)
def credit(desk: Desk) -> None:
    """Credit in the market, and no wei to send a transaction with."""
    desk.relayer.chain.credits[REQUESTER_SIGNER.address] = 10**18
    desk.relayer.chain.balances[REQUESTER_SIGNER.address] = 0
    # The relayer lives in this process, and its log would be the command's output.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def the(desk: Desk) -> StoredPosting:
    (only,) = desk.relayer.store.all_postings.values()
    return only


def posted_after_a_wait(desk: Desk, ending: RequestState = RequestState.FULFILLED) -> None:
    """The relayer sends it while the requester waits; then it goes on as always."""
    live(desk, ANSWER, ending)

    def send() -> None:
        posting = the(desk)
        sent = replace(posting, intent_state="open", transaction_hash=TRANSACTION)
        desk.relayer.store.all_postings[posting.request_id] = sent

    def include() -> None:
        desk.posted_in.append(TRANSACTION)
        desk.on_posted(the(desk).request)

    desk.waits.then = {1: send, 2: include}


def test_new__gasless__without_wait__is_handed_in_and_says_how_to_go_on(desk: Desk) -> None:
    assert desk.run(*NEW) == 0, desk.error
    posting = the(desk)
    assert f"{posting.relayer_fee_wei:,} wei) for the relayer" in desk.out
    assert f"headrace request show {posting.request_id}" in desk.out
    assert desk.relayer.chain.sent == [], "the requester sent nothing"


def test_new__gasless__waited_for__shows_each_stage_from_submitted_on(desk: Desk) -> None:
    posted_after_a_wait(desk)
    assert desk.run(*NEW, "--wait") == 0, desk.out + desk.error
    stages = [line.split()[1] for line in desk.out.splitlines() if line.startswith("✔")]
    assert stages == [
        *("submitted", "sent", "included", "eligible", "queued", "assigned", "computing", "signed", "settled"),
    ]
    assert f"transaction {TRANSACTION}" in desk.out
    assert "Rayleigh" in desk.out
    assert desk.relayer.chain.sent == []


def test_new__gasless__json__is_one_document(desk: Desk) -> None:
    posted_after_a_wait(desk)
    document = desk.json(*NEW, "--wait")
    assert document["transaction_hash"] == TRANSACTION
    assert document["relayer_fee_wei"] == document["request"]["posting"]["relayer_fee_wei"]
    assert document["answer"].startswith("Because of")
    desk.relayer.store.all_postings.clear()
    desk.waits.then = {}
    short = desk.json(*NEW)
    assert set(short) == {"request_id", "relayer_fee_wei", "escrow_wei"}


def test_new__gasless__credit_short__gives_the_command_that_helps(desk: Desk) -> None:
    desk.relayer.chain.credits[REQUESTER_SIGNER.address] = 5
    refusal = desk.refusal(*NEW)
    assert "has 5 wei of credit" in refusal
    assert with_checksums(f"wei --account {REQUESTER_SIGNER.address}`") in refusal
    missing = refusal.split("`headrace credit deposit ")[1].split("wei")[0]
    assert desk.relayer.store.all_postings == {}
    desk.relayer.chain.credits[REQUESTER_SIGNER.address] += int(missing)
    # Another draft costs the same: the gas price has not changed.
    assert desk.run(*NEW) == 0, desk.error


def test_new__gasless__fee_above_what_is_allowed__is_not_signed(desk: Desk) -> None:
    assert "--max-relayer-fee" in desk.refusal(*NEW, "--max-relayer-fee", "1gwei")
    assert desk.relayer.store.all_postings == {}
    assert desk.run(*NEW, "--max-relayer-fee", "0.01ether") == 0


def test_new__gasless__unfair_fee__is_not_signed_unless_allowed(desk: Desk) -> None:
    """The relayer says that gas costs ten times what the requester's own endpoint says."""
    settings = desk.relayer.context.intake.settings  # type: ignore[union-attr]
    desk.relayer.context.intake.settings = replace(settings, fee_margin_bps=100_000)  # type: ignore[union-attr]
    assert "more than the" in desk.refusal(*NEW)
    assert desk.run(*NEW, "--max-relayer-fee", "1ether") == 0


def test_new__max_relayer_fee_without_gasless__is_refused(desk: Desk) -> None:
    assert "is for --gasless" in desk.refusal(*NEW[:3], "--max-relayer-fee", "1gwei")


def test_new__gasless__never_posted__says_why_and_that_nothing_was_escrowed(desk: Desk) -> None:
    def end() -> None:
        posting = the(desk)
        desk.relayer.store.all_postings[posting.request_id] = replace(
            posting, state=PostingState.UNPOSTED, reason="Its credit is spent.", ended_at_ms=1_750_000_001_000
        )

    desk.waits.then = {1: end}
    refusal = desk.refusal(*NEW, "--wait")
    assert refusal == "The request was not posted, and nothing was escrowed. Its credit is spent."
    assert "✘ closed" in desk.out and "unposted" in desk.out
    id_ = the(desk).request_id
    assert desk.run("request", "show", id_) == 0
    assert "Its credit is spent." in desk.out
    assert "refund from" not in desk.out
    assert desk.run("request", "list", "--state", "unposted") == 0
    assert id_ in desk.out


def test_show_and_list__submitted__fit_into_80_columns(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert desk.run(*NEW) == 0
    posting = the(desk)
    for command in (("show", posting.request_id), ("list",)):
        assert desk.run("request", *command) == 0, desk.error
        assert "submitted" in desk.out
        assert max(len(line) for line in desk.out.splitlines() if "0x" not in line) <= 80
    assert "in no block yet" in desk.out


def test_cancel__submitted__is_not_yet(desk: Desk) -> None:
    assert desk.run(*NEW) == 0
    refusal = desk.refusal("request", "cancel", the(desk).request_id)
    assert refusal.startswith("No block has the request yet.")
    assert "try again once a block has it." in refusal


def test_ask__gasless__needs_no_wei(desk: Desk) -> None:
    async def work() -> str:
        async with connect() as headrace:
            return (await headrace.ask("Why is the sky blue?", gasless=True)).text

    posted_after_a_wait(desk)
    assert "Rayleigh" in asyncio.run(work())
    assert desk.relayer.chain.sent == []


def test_ask__never_posted__is_not_answered(desk: Desk) -> None:
    async def work() -> None:
        async with connect() as headrace:
            await headrace.ask("Why is the sky blue?", gasless=True)

    def end() -> None:
        posting = the(desk)
        ended = replace(posting, state=PostingState.UNPOSTED, reason="Its credit is spent.")
        desk.relayer.store.all_postings[posting.request_id] = ended

    desk.waits.then = {1: end}
    with pytest.raises(NotAnswered, match="Its credit is spent"):
        asyncio.run(work())
