"""A relayer whose bonded key only signs, and a node that settles by itself once its relayer is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_utils import keccak

from scripts._stack import NODE_OWNERS, RELAYER, Stack, free_port, private_key
from scripts._stack import test_account as account
from tests.e2e.test_bad_input import assert_one_sentence, run

SUBMITTER = 7
NO_BATCHES = {"HEADRACE_RELAYER__BATCH__NAME": "threshold", "HEADRACE_RELAYER__BATCH__MAX_AGE_MS": "600000"}
BY_SUBMITTER = {"HEADRACE_RELAYER_SUBMITTER_PRIVATE_KEY": private_key(SUBMITTER)}
FULFILLED = "0x" + keccak(text="ResultFulfilled(bytes32,bytes32,uint256,uint256,uint256)").hex()
TTL_S = 120
PATIENCE_S = 30


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One of its own: its clock is put forward."""
    with Stack(tmp_path_factory.mktemp("stack") / "run", report=lambda _: None) as running:
        yield running


def restart_relayer(stack: Stack, changes: dict[str, str]) -> None:
    stack.kill("relayer")
    stack.start_relayer(changes)
    stack.await_ready(nodes=2)


def post(stack: Stack, prompt: str) -> str:
    """Post a request; its id."""
    arguments = ["--max-tokens", "16", "--ttl", str(TTL_S), "--json"]
    done = stack.headrace("request", "new", prompt, *arguments)
    assert done.returncode == 0, done.stderr
    request_id: str = json.loads(done.stdout)["request_id"]
    return request_id


def await_state(stack: Stack, request_id: str, state: str) -> None:
    stack.until(lambda: (stack.get(f"/v1/requests/{request_id}") or {}).get("state") == state)


def settlements(stack: Stack, request_id: str) -> list[Any]:
    logs = stack.rpc("eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest", "topics": [FULFILLED, request_id]})
    return list(logs or [])


def sender_of(stack: Stack, log: Any) -> str:
    return str(stack.rpc("eth_getTransactionByHash", log["transactionHash"])["from"])


def nonce_of(stack: Stack, address: str) -> int:
    return int(stack.rpc("eth_getTransactionCount", address, "latest"), 16)


def credit_of(stack: Stack, *accounts: int) -> int:
    """What test accounts may withdraw from the market, together, in wei."""
    market = json.loads((stack.deployments / "31337.json").read_text())["contracts"]["InferenceMarket"]["address"]
    total = 0
    for index in accounts:
        data = keccak(text="accountOf(address)")[:4] + bytes.fromhex(account(index).address[2:]).rjust(32, b"\0")
        total += int(stack.rpc("eth_call", {"to": market, "data": "0x" + data.hex()}, "latest")[2:66], 16)
    return total


def node_keys(stack: Stack) -> set[str]:
    documents = (json.loads(stack.keystore(number).read_text()) for number in (1, 2))
    return {"0x" + document["address"].removeprefix("0x").lower() for document in documents}


def test_submitter__sends_what_the_relayer_signs(stack: Stack) -> None:
    restart_relayer(stack, BY_SUBMITTER)
    relayer = account(RELAYER).address
    sent_before = nonce_of(stack, relayer)
    request_id = post(stack, "What is 2+2?")
    await_state(stack, request_id, "fulfilled")
    (settled,) = settlements(stack, request_id)
    assert sender_of(stack, settled) == account(SUBMITTER).address.lower()
    # Record and batch.
    assert nonce_of(stack, account(SUBMITTER).address) == 2
    assert nonce_of(stack, relayer) == sent_before
    assert credit_of(stack, RELAYER) > 0
    assert credit_of(stack, SUBMITTER) == 0
    done = stack.headrace("audit", "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_node__relayer_killed_before_it_settled__settles_by_itself_and_is_paid(stack: Stack) -> None:
    for key in node_keys(stack):
        stack.rpc("anvil_setBalance", key, hex(10**18))
    restart_relayer(stack, {**BY_SUBMITTER, **NO_BATCHES})
    request_id = post(stack, "What is 3+3?")
    await_state(stack, request_id, "signed")
    stack.kill("relayer")
    owners, relayer = credit_of(stack, *NODE_OWNERS), credit_of(stack, RELAYER)
    assert settlements(stack, request_id) == []

    stack.rpc("evm_increaseTime", TTL_S + PATIENCE_S)
    stack.until(lambda: len(settlements(stack, request_id)) == 1)

    (settled,) = settlements(stack, request_id)
    assert sender_of(stack, settled) in node_keys(stack)
    node_paid, relayer_paid, _ = (int(settled["data"][2 + 64 * word :][:64], 16) for word in (1, 2, 3))
    assert node_paid > 0 < relayer_paid
    assert credit_of(stack, *NODE_OWNERS) - owners == node_paid + relayer_paid
    assert credit_of(stack, RELAYER) == relayer
    logs = "".join((stack.folder / "logs" / f"node-{number}.log").read_text() for number in (1, 2))
    assert "self_settlement_sent" in logs
    stack.until(lambda: any("self_settled" in log_of(stack, number) for number in (1, 2)))

    # A relayer that comes back finds it settled, and does not settle it again.
    stack.start_relayer()
    stack.await_ready(nodes=2)
    await_state(stack, request_id, "fulfilled")
    assert len(settlements(stack, request_id)) == 1


def log_of(stack: Stack, number: int) -> str:
    path: Path = stack.folder / "logs" / f"node-{number}.log"
    return path.read_text(encoding="utf-8", errors="replace")


def test_node__payer_that_cannot_be_opened__is_named(stack: Stack) -> None:
    settings = {
        **stack.node_environment(1),
        "HEADRACE_NODE__JOURNAL": str(stack.folder / "other.db"),
        "HEADRACE_NODE_PAYER_PRIVATE_KEY": "0x1234",
    }
    assert_one_sentence(run(["node"], settings), "HEADRACE_NODE_PAYER_PRIVATE_KEY", "64 hexadecimal")


def test_relayer__submitter_without_ether__is_named(stack: Stack) -> None:
    stranger = Account.create()
    settings = {
        **stack.relayer_environment(),
        "HEADRACE_RELAYER__API_PORT": str(free_port()),
        "HEADRACE_RELAYER__LINK_PORT": str(free_port()),
        "HEADRACE_RELAYER_SUBMITTER_PRIVATE_KEY": stranger.key.to_0x_hex(),
    }
    assert_one_sentence(run(["relayer"], settings), "the submitter", stranger.address, "send it ether")
