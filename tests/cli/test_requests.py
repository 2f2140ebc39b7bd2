"""`headrace request`: each stage a line, the answer, the money; and one sentence for what cannot be."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.screens import with_checksums
from headrace.core.calls import cancel_data, cancel_with_release_data
from headrace.core.envelope import content_of, hash_payload, seal
from headrace.core.errors import Unavailable
from headrace.core.lifecycle import RequestState
from headrace.core.reasons import MEANINGS
from headrace.core.types import ZERO_ADDRESS, Decision, DecisionKind, Lane, Reason, Request
from headrace.ports import StoredRequest, TimelineEntry
from tests.api.world import NODE_SIGNER, RELAYER_SIGNER, REQUESTER_SIGNER
from tests.cli.conftest import Desk
from tests.fakes import START_S, make_request

ANSWER = seal(b"Because of [red]Rayleigh[/red] scattering.\x1b[2J", bytes(16))
NEW = ("request", "new", "Why is the sky blue?")


def live(desk: Desk, payload: bytes = ANSWER, ending: RequestState = RequestState.FULFILLED) -> None:
    """From when it is posted, each wait takes the request a stage further."""
    relayer = desk.relayer

    def add(request: Request, **changes: Any) -> StoredRequest:
        return relayer.add_request(request, transaction_hash=desk.posted_in[-1], **changes)

    def post(request: Request) -> None:
        stored = add(request, state=RequestState.INCLUDED)
        id_ = stored.request_id
        start_ms = relayer.clock.now_ms()

        def enter(stage: str, at: int) -> None:
            relayer.store.entries[id_].append(TimelineEntry(start_ms + at, stage, {}))

        def confirm() -> None:
            enter("confirmed", 100)
            add(request)

        def assign() -> None:
            enter("assigned", 200)
            relayer.assign(stored)
            add(request, state=RequestState.ASSIGNED)

        def compute() -> None:
            enter("accepted", 250)
            add(request, state=RequestState.COMPUTING)

        def deliver() -> None:
            enter("delivered", 900)
            relayer.store.all_assignments[id_].clear()
            relayer.answer_at_once(stored, payload)
            add(request, state=RequestState.SIGNED)

        def end() -> None:
            if ending is RequestState.FULFILLED:
                result_hash = relayer.store.all_results[id_][-1].result.result_hash
                relayer.chain.mine(relayer.chain.fulfilled(id_, result_hash))
                relayer.settle(relayer.store.all_requests[id_], result_hash)
            else:
                closed = {"refund": request.escrow_wei, "transaction_hash": "0x" + "7c" * 32, "block_number": 2}
                add(request, state=ending, closed=closed)

        count = len(desk.waits.slept_s)
        steps = [confirm, assign, compute, deliver, end]
        if ending is not RequestState.FULFILLED:
            steps = [confirm, end]
        desk.waits.then = {count + index: step for index, step in enumerate(steps, start=1)}

    desk.on_posted = post


def test_new__waited_for__shows_a_line_per_stage_and_the_answer(desk: Desk) -> None:
    live(desk)
    assert desk.run(*NEW, "--wait") == 0, desk.out + desk.error
    stages = [line.split()[1] for line in desk.out.splitlines() if line.startswith("✔")]
    assert stages == ["sent", "included", "eligible", "queued", "assigned", "computing", "signed", "settled"]
    assert "Because of [red]Rayleigh[/red] scattering." in desk.out
    assert "confirmed by the market" in desk.out
    assert with_checksums(NODE_SIGNER.address) in desk.out
    assert "90,000,000,000,000 wei" in desk.out


def test_new__model_writes_control_characters__none_reaches_the_terminal(desk: Desk) -> None:
    live(desk)
    assert desk.run(*NEW, "--wait") == 0
    assert "\x1b" not in desk.out


def test_new__json__is_one_document_that_adds_up(desk: Desk) -> None:
    live(desk)
    document = desk.json(*NEW, "--wait")
    settlement = document["request"]["settlement"]
    paid = sum(int(settlement[f"{who}_wei"]) for who in ("node", "relayer", "refund"))
    assert paid == int(document["request"]["escrow_wei"])
    assert document["answer"].startswith("Because of")
    assert document["gas_used"][document["transaction_hash"]] > 0


def test_new__without_wait__posts_and_says_how_to_go_on(desk: Desk) -> None:
    live(desk)
    assert desk.run(*NEW) == 0
    assert f"headrace request show {desk.relayer.chain.id_of(desk.posted[0])}" in desk.out


def test_new__options__are_in_the_request(desk: Desk) -> None:
    options = ["--lane", "realtime", "--ttl", "60", "--max-tokens", "9", "--max-reward", "0.001ether"]
    desk.json(*NEW, *options, "--gas-budget", "20gwei", "--priority-fee", "7", "--public", "--force")
    (request,) = desk.posted
    assert request.lane is Lane.REALTIME
    assert request.deadline_s == START_S + 60
    assert (request.max_output_tokens, request.inline_result) == (9, True)
    assert (request.max_reward_wei, request.gas_budget_wei, request.priority_fee_wei) == (10**15, 20 * 10**9, 7)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--max-reward", "the cheapest node asks for 0.000011 ether (11,000,000,000,000 wei)."),
        ("--gas-budget", "settlement would charge"),
    ],
)
def test_new__amount_too_low__is_refused_unless_forced(desk: Desk, option: str, words: str) -> None:
    refusal = desk.refusal(*NEW, option, "1")
    assert words in refusal
    assert "--force" in refusal
    assert desk.posted == []
    assert desk.run(*NEW, option, "1", "--force") == 0
    assert words in desk.out
    assert len(desk.posted) == 1


def test_new__warnings__are_shown(desk: Desk) -> None:
    assert desk.run(*NEW, "--lane", "realtime", "--priority-fee", "1") == 0
    assert "the request waits in the bulk lane" in desk.out


def test_new__from_stdin__posts_what_was_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("From a pipe."))
    desk.json("request", "new", "-")
    payload = desk.relayer.store.payloads[desk.posted[0].prompt_hash]
    assert content_of(payload) == b"From a pipe."


@pytest.mark.parametrize(
    "body", [[{"role": "user", "content": "Hi"}], {"messages": [{"role": "user", "content": "Hi"}]}]
)
def test_new__chat_file__becomes_a_chat_body(desk: Desk, tmp_path: Path, body: Any) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(body), encoding="utf-8")
    desk.json("request", "new", "--chat", str(file), "--seed", "3")
    content = json.loads(content_of(desk.relayer.store.payloads[desk.posted[0].prompt_hash]))
    assert content == {"messages": [{"role": "user", "content": "Hi"}], "seed": 3}


@pytest.mark.parametrize("ending", [RequestState.EXPIRED, RequestState.CANCELLED])
def test_new__ends_without_an_answer__exits_1(desk: Desk, ending: RequestState) -> None:
    live(desk, ending=ending)
    assert f"ended {ending}" in desk.refusal(*NEW, "--wait")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*NEW, "--model", "gpt-9"), "no registered model is called 'gpt-9'"),
        ((*NEW, "--ttl", "5"), "deadline must be"),
        (("request", "new", "x" * 9000, "--public"), "at most 8192"),
        (("request", "new", "  "), "prompt is empty"),
        (("request", "new"), "either a prompt or --chat"),
        ((*NEW, "--max-reward", "much"), "--max-reward is 'much'"),
        ((*NEW, "--max-reward", "0.5wei"), "not a whole number of wei"),
        ((*NEW, "--max-escrow", "1"), "more than the 1 wei that it may"),
        ((*NEW, "--temperature", "9"), "--temperature is not taken: it should be less than or equal to 2."),
        ((*NEW, "--max-tokens", "0"), "--max-tokens is not taken: it should be greater than or equal to 1."),
        ((*NEW, "--max-tokens", "99999999"), "--max-tokens may be at most"),
        ((*NEW, "--callback-gas", "2000001"), "--callback-gas may be at most 2000000."),
        ((*NEW, "--quorum", "2/3", "--seed", "-1"), "--seed is not taken"),
        (("request", "list", "--state", "lost"), "--state is 'lost': write one of included, eligible,"),
        (("request", "new", "--chat", "absent.json"), "absent.json cannot be read"),
        (("request", "show", "0x12"), "not a request id"),
        (("request", "show", "0x" + "ab" * 32), "no request 0xabab"),
        (("request", "cancel", "12"), "not a request id"),
        (("request", "list", "--requester", "me"), "not an address"),
    ],
)
def test_bad_input__is_one_sentence(desk: Desk, arguments: tuple[str, ...], words: str) -> None:
    refusal = desk.refusal(*arguments).lower()
    assert words.lower() in refusal
    assert "/v1" not in refusal and "openapi" not in refusal
    assert desk.posted == []


def test_new__escrow_short__says_how_much_is_needed(desk: Desk) -> None:
    desk.relayer.chain.balances[REQUESTER_SIGNER.address] = 5
    refusal = desk.refusal(*NEW)
    assert re.search(r"has 5 wei and needs up to 0\.\d+ ether \([\d,]+ wei\) for what it sends and for gas", refusal)
    assert "lower --max-reward or --gas-budget" in refusal


def test_new__nobody_linked__says_so(desk: Desk) -> None:
    desk.relayer.link.nodes.clear()
    assert "offers a model now" in desk.refusal(*NEW)


def test_chat_file__of_another_form__is_one_sentence(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    for text, words in (
        ("{", "not JSON"),
        ("{}", "no list of messages"),
        ('{"messages": [], "tools": []}', "tools"),
        ('{"messages": [1]}', "message that is not"),
        ('{"messages": [{"role": "user", "content": "x"}], "stop": {"a": 1}}', "neither a text nor a list"),
        ('{"messages": [{"role": "user", "content": "x"}], "seed": true}', "seed that is not a number"),
    ):
        file.write_text(text, encoding="utf-8")
        assert words in desk.refusal("request", "new", "--chat", str(file))


# show, list, cancel


def test_show__settled__has_stages_money_and_answer(desk: Desk) -> None:
    stored = desk.relayer.add_request()
    result = desk.relayer.answer_at_once(stored, ANSWER)
    desk.relayer.settle(stored, result.result.result_hash)
    assert desk.run("request", "show", stored.request_id, "--answer") == 0, desk.error
    for words in ("fulfilled", "attempt 1", "Because of", "settled in", "refund"):
        assert words in desk.out
    document = desk.json("request", "show", stored.request_id)
    assert document["state"] == "fulfilled"
    assert "answer" not in document


def test_show__expired__claims_no_settlement_and_says_why_nobody_had_it(desk: Desk) -> None:
    request = make_request(requester=REQUESTER_SIGNER.address, relayer=RELAYER_SIGNER.address)
    closed = {"refund": request.escrow_wei, "transaction_hash": "0x" + "7c" * 32, "block_number": 2}
    stored = desk.relayer.add_request(request, state=RequestState.EXPIRED, closed=closed)
    desk.relayer.store.decisions[stored.request_id] = Decision(
        stored.request_id, ZERO_ADDRESS, DecisionKind.TOO_LATE, Reason.DEADLINE_PASSED, 0, 0
    )
    assert desk.run("request", "show", stored.request_id) == 0, desk.error
    assert "settled" not in desk.out
    assert "✔ closed" not in desk.out
    assert "✘ closed" in desk.out
    assert "node got" not in desk.out
    assert f"refunded in  0x{'7c' * 32}" in desk.out
    assert f"DEADLINE_PASSED: {MEANINGS[Reason.DEADLINE_PASSED]}" in desk.out


@pytest.mark.parametrize("state", [RequestState.CANCELLED, RequestState.SIGNED])
def test_show__skipped_before__says_no_reason_once_it_does_not_wait(desk: Desk, state: RequestState) -> None:
    closed = {"refund": 1, "transaction_hash": "0x" + "7c" * 32, "block_number": 2}
    stored = desk.relayer.add_request(state=state, closed=closed if state is RequestState.CANCELLED else None)
    id_ = stored.request_id
    desk.relayer.store.entries[id_].append(TimelineEntry(START_S * 1000, "confirmed", {}))
    skipped = Decision(id_, ZERO_ADDRESS, DecisionKind.SKIPPED, Reason.NODES_BUSY, 0, 0)
    desk.relayer.store.decisions[id_] = skipped
    assert desk.run("request", "show", id_) == 0, desk.error
    assert "queued" in desk.out
    assert "NODES_BUSY" not in desk.out


@pytest.mark.parametrize("state", ["waiting", "assigned", "settled", "cancelled"])
def test_show_and_list__terminal_of_80_columns__no_line_is_longer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    relayer = desk.relayer
    stored = relayer.add_request()
    id_ = stored.request_id
    if state == "waiting":
        reason = Reason.PRICE_ABOVE_MAX
        relayer.store.decisions[id_] = Decision(id_, ZERO_ADDRESS, DecisionKind.SKIPPED, reason, 0, 0)
    elif state == "assigned":
        relayer.add_request(stored.request, state=RequestState.ASSIGNED, effective_deadline_s=START_S + 5)
        relayer.assign(stored)
    elif state == "settled":
        result = relayer.answer_at_once(stored, ANSWER)
        relayer.settle(stored, result.result.result_hash)
    else:
        closed = {"refund": stored.request.escrow_wei, "transaction_hash": "0x" + "7c" * 32, "block_number": 2}
        relayer.add_request(stored.request, state=RequestState.CANCELLED, closed=closed)
    for arguments in (("show", id_), ("list",)):
        assert desk.run("request", *arguments) == 0, desk.error
        assert id_ in desk.out
        assert max(len(line) for line in desk.out.splitlines()) <= 80, desk.out


def test_list__own__newest_first(desk: Desk) -> None:
    assert desk.run("request", "list") == 0
    assert "No requests." in desk.out
    stored = desk.relayer.add_request()
    assert desk.run("request", "list") == 0
    assert stored.request_id in desk.out
    assert [each["request_id"] for each in desk.json("request", "list", "--state", "eligible")] == [stored.request_id]
    assert desk.json("request", "list", "--requester", NODE_SIGNER.address) == []


def ask(desk: Desk, text: str) -> StoredRequest:
    """A request whose prompt the relayer has."""
    payload = seal(text.encode(), bytes(16))
    prompt_hash = hash_payload(payload)
    desk.relayer.store.payloads[prompt_hash] = payload
    desk.relayer.store.holders.add((prompt_hash, REQUESTER_SIGNER.address))
    terms: Any = {"requester": REQUESTER_SIGNER.address, "relayer": RELAYER_SIGNER.address}
    return desk.relayer.add_request(make_request(**terms, prompt_hash=prompt_hash))


def test_list__own__has_model_and_prompt_on_a_line_that_fits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ask(desk, "Why is\nthe sky\x1b[31m blue? " + "x" * 100)
    assert desk.run("request", "list") == 0, desk.error
    (line,) = [each for each in desk.out.splitlines() if "smollm2" in each]
    assert line.startswith("  smollm2-135m-instruct  Why is the sky[31m blue? xxx")
    assert len(line) == 80 and line.endswith("…")
    # Whose they are not, reads no prompts; and the list is there without them.
    assert desk.run("request", "list", "--requester", REQUESTER_SIGNER.address) == 0
    assert "smollm2-135m-instruct\n" in desk.out
    desk.relayer.store.payloads.clear()
    assert desk.run("request", "list") == 0
    assert "smollm2-135m-instruct\n" in desk.out


def test_cancel__unassigned__refunds_at_once(desk: Desk) -> None:
    stored = desk.relayer.add_request()
    assert desk.json("request", "cancel", stored.request_id)["refunded"] is True
    assert cancel_with_release_data(stored.request, 0, b"")[:4] in desk.relayer.chain.sent[-1]


def test_cancel__assigned__says_when_the_escrow_comes(desk: Desk) -> None:
    request = make_request(requester=REQUESTER_SIGNER.address, relayer=RELAYER_SIGNER.address)
    stored = desk.relayer.add_request(request, state=RequestState.COMPUTING)
    desk.relayer.assign(stored)
    assert desk.run("request", "cancel", stored.request_id) == 0
    assert "The cancel is announced. It took effect at" in desk.out
    assert "comes back after 300 seconds" in desk.out
    assert cancel_data(request)[:4] in desk.relayer.chain.sent[-1]


def test_cancel__relayer_gives_no_answer__sends_nothing_and_names_the_option(desk: Desk) -> None:
    stored = desk.relayer.add_request()
    desk.relayer.store.failure = Unavailable("locked")
    assert "--without-release" in desk.refusal("request", "cancel", stored.request_id)
    assert desk.relayer.chain.sent == []


def test_cancel__without_release__needs_the_chain_only(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REQUESTER__API_URL", "http://127.0.0.1:1")
    chain = desk.relayer.chain
    request = make_request(requester=REQUESTER_SIGNER.address, relayer=RELAYER_SIGNER.address)
    chain.mine(chain.requested(request))
    document = desk.json("request", "cancel", chain.id_of(request), "--without-release")
    assert (document["refunded"], document["cancel_announced_at_s"]) == (False, START_S)
    assert cancel_data(request) in desk.relayer.chain.sent[-1]


def test_cancel__without_release_of_anothers_request__is_refused(desk: Desk) -> None:
    chain = desk.relayer.chain
    chain.mine(chain.requested(make_request()))
    assert "only its requester" in desk.refusal("request", "cancel", chain.id_of(make_request()), "--without-release")
    assert chain.sent == []


def test_show__cancel_announced__says_when_it_takes_effect(desk: Desk) -> None:
    stored = desk.relayer.add_request(effective_deadline_s=START_S + 5, released_until_s=START_S + 60)
    document = desk.json("request", "show", stored.request_id)
    assert (document["cancel_announced_at_s"], document["released_until_s"]) == (START_S + 5, START_S + 60)
    assert desk.run("request", "show", stored.request_id) == 0
    assert "announced, in effect since" in desk.out
    assert "for a cancel until" in desk.out
