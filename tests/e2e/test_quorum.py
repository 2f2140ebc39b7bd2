"""A quorum over real processes: nodes of three owners, each with its own model, and one that is killed at work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from eth_utils import keccak

from headrace.cli.screens import with_checksums
from scripts._stack import Stack
from tests.e2e.test_requests import ask, times_paid
from tests.e2e.test_watch import watch

BATCH_SETTLED = "0x" + keccak(text="BatchSettled(address,uint64,address[],bytes)").hex()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One of its own: the others have two nodes."""
    with Stack(tmp_path_factory.mktemp("stack") / "run", report=lambda _: None, nodes=3) as running:
        yield running


def key_of(stack: Stack, number: int) -> str:
    document = json.loads(stack.keystore(number).read_text("utf-8"))
    return "0x" + document["address"].lower().removeprefix("0x")


def settled_nodes(stack: Stack, request: dict[str, Any]) -> list[str]:
    """The nodes of the batch's one set, as the market logged them."""
    receipt = stack.rpc("eth_getTransactionReceipt", request["settlement"]["transaction_hash"])
    (data,) = [bytes.fromhex(log["data"][2:]) for log in receipt["logs"] if log["topics"][0] == BATCH_SETTLED]
    words = [data[start : start + 32] for start in range(0, len(data), 32)]
    at = int.from_bytes(words[0], "big") // 32
    return ["0x" + word[12:].hex() for word in words[at + 1 : at + 1 + int.from_bytes(words[at], "big")]]


def require_books(request: dict[str, Any]) -> None:
    settlement = request["settlement"]
    assert sum(int(settlement[f"{part}_wei"]) for part in ("node", "relayer", "refund")) == int(request["escrow_wei"])


def test_quorum__two_of_three__give_one_answer_and_are_both_paid(stack: Stack) -> None:
    document = ask(stack, "What is 2+2?", "--mode", "quorum", "--quorum", "2/3")
    assert "4" in document["answer"]
    request = document["request"]
    assert (request["params"]["mode"], request["params"]["k"], request["params"]["n"]) == ("quorum", 2, 3)
    votes = {vote["node"]: vote["result_hash"] for vote in request["results"]}
    assert len(votes) == 2
    assert len(set(votes.values())) == 1
    assert settled_nodes(stack, request) == sorted(votes)
    require_books(request)
    assert times_paid(stack, document["request_id"]) == 1


def test_quorum__a_node_is_killed_at_work__a_spare_takes_its_place(stack: Stack) -> None:
    prompt = "Tell me a long story about a river and the sea."
    posted = stack.headrace("request", "new", prompt, "--quorum", "2/3", "--max-tokens", "160", "--json")
    assert posted.returncode == 0, posted.stderr
    request_id = json.loads(posted.stdout)["request_id"]

    def view() -> dict[str, Any]:
        return stack.get(f"/v1/requests/{request_id}") or {}

    stack.until(lambda: [each["state"] for each in view().get("assignments", ())] == ["accepted"] * 2)
    killed = view()["assignments"][1]["node"]
    (number,) = [each for each in (1, 2, 3) if key_of(stack, each) == killed]
    stack.kill(f"node-{number}")
    stack.until(lambda: view()["state"] == "fulfilled", timeout_s=150)
    request = view()
    rounds = sorted({each["round"] for each in request["assignments"]})
    assert len(rounds) == 2
    listed = {round_: [each for each in request["assignments"] if each["round"] == round_] for round_ in rounds}
    assert {each["node"]: each["state"] for each in listed[rounds[0]]}[killed] == "lease_expired"
    assert [each["state"] for each in listed[rounds[1]]] == ["delivered", "delivered"]
    kept, spare = {each["node"] for each in listed[rounds[0]]}, {each["node"] for each in listed[rounds[1]]}
    assert len(kept & spare) == 1
    assert killed not in spare
    assert settled_nodes(stack, request) == sorted(spare)
    # The one that stayed answered for both rounds, with the same words.
    assert len({vote["result_hash"] for vote in request["results"]}) == 1
    require_books(request)
    assert times_paid(stack, request_id) == 1
    shown = stack.headrace("request", "show", request_id)
    assert all(with_checksums(node) in shown.stdout for node in (*spare, killed)), shown.stdout + shown.stderr


def test_quorum__its_rounds__stand_up_to_an_audit_and_a_watcher(stack: Stack) -> None:
    done = stack.headrace("audit", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    # Two rounds with one request, and nodes of one round that differ: none of it is a fault.
    report = watch(stack, code=0)
    assert (report["faults"], report["withheld"]) == ([], [])
