"""A request from the command line to the chain and back, over real processes."""

from __future__ import annotations

import json
import stat
from typing import Any

from eth_utils import keccak

from scripts._stack import Stack

FULFILLED = "0x" + keccak(text="ResultFulfilled(bytes32,bytes32,uint256,uint256,uint256)").hex()


def ask(stack: Stack, *arguments: str) -> dict[str, Any]:
    """Post a request, wait for its answer, and read what became of it."""
    done = stack.headrace("request", "new", *arguments, "--max-tokens", "16", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def times_paid(stack: Stack, request_id: str) -> int:
    """How many settlements of a request the canonical chain holds."""
    return len(stack.rpc("eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest", "topics": [FULFILLED, request_id]}))


def test_request__private_prompt__is_answered_settled_and_paid_once(stack: Stack) -> None:
    document = ask(stack, "What is 2+2?")
    assert "4" in document["answer"]
    request = document["request"]
    assert request["state"] == "fulfilled"
    reached = [stage["stage"] for stage in request["stages"] if stage["reached"]]
    assert reached[:8] == ["sent", "included", "eligible", "queued", "assigned", "computing", "signed", "settled"]
    settled = request["settlement"]
    paid = sum(int(settled[f"{part}_wei"]) for part in ("node", "relayer", "refund"))
    assert paid == int(request["escrow_wei"])
    assert times_paid(stack, document["request_id"]) == 1


def test_request__same_prompt_twice__gives_the_same_answer(stack: Stack) -> None:
    first, second = (ask(stack, "Say hello.") for _ in range(2))
    assert first["answer"] == second["answer"]
    assert first["request_id"] != second["request_id"]


def test_request__public__publishes_the_answer_on_the_chain(stack: Stack) -> None:
    document = ask(stack, "What is 3+3?", "--public")
    receipt = stack.rpc("eth_getTransactionReceipt", document["request"]["settlement"]["transaction_hash"])
    assert any(document["answer"].encode().hex() in log["data"] for log in receipt["logs"])


def test_payload__without_the_requesters_signature__is_not_given(stack: Stack) -> None:
    document = ask(stack, "My secret is a tulip.")
    assert stack.get(f"/v1/payloads/{document['request']['result']['result_hash']}") is None


def test_audit__all_recorded_rounds__hold(stack: Stack) -> None:
    ask(stack, "What is 4+4?")
    done = stack.headrace("audit", "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_cancel__waiting_request__is_refunded_at_once(stack: Stack) -> None:
    posted = stack.headrace("request", "new", "Tell me a long story.", "--max-reward", "1wei", "--force", "--json")
    assert posted.returncode == 0, posted.stderr
    request_id = json.loads(posted.stdout)["request_id"]
    stack.until(lambda: (stack.get(f"/v1/requests/{request_id}") or {}).get("state") == "eligible")
    cancelled = stack.headrace("request", "cancel", request_id, "--json")
    assert cancelled.returncode == 0, cancelled.stderr
    assert json.loads(cancelled.stdout)["refunded"] is True
    stack.until(lambda: stack.get(f"/v1/requests/{request_id}")["state"] == "cancelled")
    assert times_paid(stack, request_id) == 0


def test_relayer__killed_while_a_request_waits__answers_it_once_after_a_restart(stack: Stack) -> None:
    posted = stack.headrace("request", "new", "What is 5+5?", "--max-tokens", "16", "--json")
    assert posted.returncode == 0, posted.stderr
    request_id = json.loads(posted.stdout)["request_id"]
    stack.kill("relayer")
    stack.start_relayer()
    stack.await_ready(nodes=2)
    stack.until(lambda: (stack.get(f"/v1/requests/{request_id}") or {}).get("state") == "fulfilled")
    assert times_paid(stack, request_id) == 1


def test_node__killed_and_started_again__links_and_serves(stack: Stack) -> None:
    stack.kill("node-1")
    ask(stack, "What is 6+6?")
    stack.start_node(1)
    stack.await_ready(nodes=2)


def test_stores__hold_prompts__are_their_operators_only(stack: Stack) -> None:
    stores = [*stack.folder.glob("*.db*")]
    assert stack.folder / "relayer.db" in stores
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in stores} == {0}
