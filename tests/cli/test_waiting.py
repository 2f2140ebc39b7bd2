"""`headrace request new --wait` while nothing happens, and what it says when it is interrupted."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from headrace.cli import screens
from headrace.cli.waiting import Progress, shown
from headrace.core.errors import Unavailable
from headrace.core.lifecycle import RequestState
from headrace.core.reasons import MEANINGS
from headrace.core.types import ZERO_ADDRESS, Decision, DecisionKind, Reason, Request
from tests.api.world import REQUESTER_SIGNER
from tests.cli.conftest import Desk
from tests.cli.test_requests import live
from tests.fakes import FakeClock

NEW = ("request", "new", "Why is the sky blue?", "--wait")


@pytest.fixture(autouse=True)
def sigint_as_at_a_terminal() -> Iterator[None]:
    """A worker of pytest-xdist ignores it, as a shell's background job does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def then_in(desk: Desk, waits: int, work: Callable[[], object]) -> None:
    """After so many more waits than there were."""
    desk.waits.then[len(desk.waits.slept_s) + waits] = work


def stuck(
    desk: Desk,
    reason: Reason | None,
    then: Callable[[], object],
    waits: int = 100,
    kind: DecisionKind = DecisionKind.SKIPPED,
) -> None:
    """It is posted, and no node is given it."""

    def post(request: Request) -> None:
        stored = desk.relayer.add_request(request, transaction_hash=desk.posted_in[-1])
        if reason is not None:
            skipped = Decision(stored.request_id, ZERO_ADDRESS, kind, reason, 0, 0)
            desk.relayer.store.decisions[stored.request_id] = skipped
        then_in(desk, waits, then)

    desk.on_posted = post


def posted_id(desk: Desk) -> str:
    return desk.relayer.chain.id_of(desk.posted[0])


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_new__no_node_is_given_it__says_why_on_stderr(desk: Desk, options: tuple[str, ...]) -> None:
    stuck(desk, Reason.NO_NODE_FOR_MODEL, interrupt, waits=250)
    assert desk.run(*NEW, *options) == 130
    lines = [line for line in desk.error.splitlines() if line.startswith("…")]
    assert "eligible, waiting until it is assigned to a node (0 s). NO_NODE_FOR_MODEL: " in lines[0]
    assert MEANINGS[Reason.NO_NODE_FOR_MODEL] in lines[0]
    # Some 75 seconds of waiting: it is said again, but not all the time.
    assert [int(re.findall(r"\((\d+) s\)", line)[0]) // 30 for line in lines] == [0, 1, 2]
    assert "waiting" not in desk.out
    assert (desk.out == "") is bool(options)


def test_new__no_cycle_looks_at_it__is_said_after_a_while(desk: Desk) -> None:
    stuck(desk, None, interrupt)
    assert desk.run(*NEW) == 130
    assert re.match(r"… eligible, waiting until it is looked at by the scheduler \(1\d s\)\n", desk.error)


def test_new__too_late_for_any_node__waits_for_the_refund(desk: Desk) -> None:
    stuck(desk, Reason.DEADLINE_PASSED, interrupt, waits=3, kind=DecisionKind.TOO_LATE)
    assert desk.run(*NEW) == 130
    assert re.match(r"… eligible, waiting until it is refunded, from 20\S+ \S+ UTC on \(0 s\)\. DEADLINE_", desk.error)


def test_new__relayer_does_not_answer__says_so_and_goes_on(desk: Desk) -> None:
    def fall_silent() -> None:
        desk.relayer.store.failure = Unavailable("locked")
        then_in(desk, 5, wake)

    def wake() -> None:
        desk.relayer.store.failure = None
        live_on()

    def live_on() -> None:
        (request,) = desk.posted
        closed = {"refund": request.escrow_wei, "transaction_hash": "0x" + "7c" * 32, "block_number": 2}
        changes = {"transaction_hash": desk.posted_in[-1], "closed": closed}
        desk.relayer.add_request(request, state=RequestState.EXPIRED, **changes)

    stuck(desk, Reason.NODES_BUSY, fall_silent, waits=3)
    assert desk.run(*NEW) == 1
    assert "eligible, waiting until it is known how it fares" in desk.error
    assert "does not answer itself" in desk.error
    assert desk.error.splitlines()[-1].startswith("The request ended expired")


def test_new__goes_well__nothing_is_on_stderr(desk: Desk) -> None:
    live(desk)
    assert desk.run(*NEW) == 0
    assert desk.error == ""


def test_new__interrupted__says_what_is_posted_and_what_can_be_done(desk: Desk) -> None:
    stuck(desk, Reason.NODES_BUSY, interrupt, waits=2)
    assert desk.run(*NEW) == 130
    id_ = posted_id(desk)
    assert f"Interrupted. The request {id_} is posted and goes on without you; its deadline is 20" in desk.error
    assert f"It is eligible. NODES_BUSY: {MEANINGS[Reason.NODES_BUSY]}" in desk.error
    assert f"headrace request show {id_}\n" in desk.error
    assert f"headrace request cancel {id_}\n" in desk.error


def test_new__interrupted_before_it_is_sent__says_that_nothing_was(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REQUESTER__API_URL", "http://127.0.0.1:1")  # it waits, and asks again
    then_in(desk, 1, interrupt)
    assert desk.run(*NEW) == 130
    assert desk.error == "Interrupted. Nothing was sent.\n"
    assert desk.posted == []


def test_new__refused_by_the_market__shows_no_id(desk: Desk) -> None:
    """An id that is shown looks like a request that was posted."""
    desk.relayer.chain.balances[REQUESTER_SIGNER.address] = 5
    assert desk.run(*NEW) == 1
    assert "escrow  " in desk.out
    assert "0x" not in desk.out


def test_new__gasless__interrupted__says_that_it_is_handed_in(desk: Desk) -> None:
    desk.relayer.chain.credits[REQUESTER_SIGNER.address] = 10**18
    then_in(desk, 2, interrupt)
    assert desk.run(*NEW, "--gasless") == 130
    (id_,) = desk.relayer.store.all_postings
    assert f"The request {id_} is handed in, its relayer posts it, and goes on without you" in desk.error


# On a terminal


def test_shown__terminal__one_line_is_redrawn_with_state_and_reason() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200)
    clock = FakeClock()
    progress = Progress(clock, step="sent")
    with shown(progress, console, as_json=False):
        progress.sent("included in a block")
        clock.advance(7_000)
        progress.silence(Unavailable("the relayer does not answer"))
    text = screens.printable(out.getvalue())
    assert "sent, waiting until it is known how it fares (0 s). The relayer does not answer." in text


def test_shown__json_on_a_terminal__leaves_stdout_to_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200)
    progress = Progress(FakeClock(), step="sent")
    with shown(progress, console, as_json=True):
        progress.silence(Unavailable("the relayer does not answer"))
    screens.show_json(console, {})
    assert json.loads(out.getvalue()) == {}
    assert "The relayer does not answer." in capsys.readouterr().err
