"""Contracts that ask, and verifiers that judge, over real processes: a model's answer reaches a contract's own code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from eth_account import Account
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from web3 import Web3

from headrace.core.requests import params_of
from headrace.core.types import ZERO_ADDRESS, Lane, Mode, Request
from scripts._stack import DEPLOYER, MODEL, REQUESTER, ROOT, Stack, clean_environment, private_key
from scripts._stack import test_account as account
from tests.e2e.test_requests import ask, times_paid
from tests.e2e.test_self_settlement import (
    NO_BATCHES,
    PATIENCE_S,
    TTL_S,
    await_state,
    restart_relayer,
    sender_of,
    settlements,
)
from tests.local_chain import compiled

ATTESTATION_KEY = "0x" + "5a" * 32
ATTESTED = str(Account.from_key(ATTESTATION_KEY).address).lower()
GWEI, ETHER = 10**9, 10**18
GRACE_S = 300
PROMPT = b"What is 2+2?"
REVERTS, NOTES = 1, 0  # of ProbeConsumer.Behaviour
YES = b'{"choices":[{"finish_reason":"stop","index":0,"message":{"content":"YES","role":"assistant"}}],'


class AttestedStack(Stack):
    """Its first node has an attestation key, its second has none."""

    def node_environment(self, number: int) -> dict[str, str]:
        """Settings of a node."""
        attestation = {"HEADRACE_ATTESTATION_PRIVATE_KEY": ATTESTATION_KEY} if number == 1 else {}
        return {**super().node_environment(number), **attestation}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttestedStack]:
    """One of its own: its registrar revokes, and its clock is put forward."""
    with AttestedStack(tmp_path_factory.mktemp("stack") / "run", report=lambda _: None) as running:
        registrar(running, "attest", ATTESTED, "--model", MODEL)
        yield running


def registrar(stack: Stack, *arguments: str) -> dict[str, Any]:
    """A command of the verifier's owner."""
    environment = {**stack.requester_environment(), "HEADRACE_OWNER_PRIVATE_KEY": private_key(DEPLOYER)}
    done = subprocess.run(
        ["headrace", "verifier", *arguments, "--json"],
        env={**clean_environment(), **environment},
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@dataclass
class Deployed:
    """A contract of the requester's, and the hands to use it."""

    stack: Stack
    name: str
    address: str

    @classmethod
    def new(cls, stack: Stack, name: str, *values: Any, value: int = 0) -> Deployed:
        factory: Any = Web3().eth.contract(**compiled(name))
        receipt = send(stack, None, factory.constructor(*values).data_in_transaction, value)
        return cls(stack, name, receipt["contractAddress"])

    def encode(self, function: str, *values: Any) -> str:
        return str(Web3().eth.contract(abi=compiled(self.name)["abi"]).encode_abi(function, list(values)))

    def send(self, function: str, *values: Any, value: int = 0) -> Any:
        return send(self.stack, self.address, self.encode(function, *values), value)

    def read(self, function: str, *values: Any) -> Any:
        call = {"to": self.address, "data": self.encode(function, *values)}
        answer = bytes.fromhex(self.stack.rpc("eth_call", call, "latest")[2:])
        entry = next(each for each in compiled(self.name)["abi"] if each.get("name") == function)
        found = Web3().codec.decode([each["type"] for each in entry["outputs"]], answer)
        return found[0] if len(found) == 1 else found


def send(stack: Stack, to: str | None, data: str, value: int = 0) -> Any:
    """A transaction of the requester's, once it is in a block."""
    requester = account(REQUESTER)
    transaction = {
        "type": 2,
        "chainId": 31337,
        "nonce": int(stack.rpc("eth_getTransactionCount", requester.address, "latest"), 16),
        "data": data,
        "value": value,
        "gas": 5_000_000,
        "maxFeePerGas": 100 * GWEI,
        "maxPriorityFeePerGas": GWEI,
        **({"to": to_checksum_address(to)} if to else {}),
    }
    raw = requester.sign_transaction(transaction).raw_transaction
    hash_ = stack.rpc("eth_sendRawTransaction", "0x" + bytes(raw).hex())
    stack.until(lambda: stack.rpc("eth_getTransactionReceipt", hash_) is not None)
    receipt = stack.rpc("eth_getTransactionReceipt", hash_)
    assert int(receipt["status"], 16) == 1
    return receipt


def question(stack: Stack, salt: int, **changes: Any) -> Request:
    """A request as a contract asks it, with the prompt in public."""
    network = stack.get("/v1/network")
    head = stack.rpc("eth_getBlockByNumber", "latest", False)
    fields: dict[str, Any] = {
        "requester": ZERO_ADDRESS,
        "relayer": network["relayer"],
        "model_id": next(model["model_id"] for model in network["models"] if model["name"] == MODEL),
        "prompt_hash": "0x" + keccak(PROMPT).hex(),
        "salt": salt,
        "deadline_s": int(head["timestamp"], 16) + 120,
        "prompt_bytes": len(PROMPT),
        "max_output_tokens": 16,
        "callback_gas": 300_000,
        "lane": Lane.REALTIME,
        "batchable": False,
        "inline_result": True,
        "mode": Mode.SIGNATURE,
        "k": 0,
        "n": 0,
        "verifier": ZERO_ADDRESS,
        "max_reward_wei": ETHER // 1000,
        "gas_budget_wei": ETHER // 100,
        "priority_fee_wei": 0,
    }
    return Request(**{**fields, **changes})


def asked(stack: Stack, consumer: Deployed, request: Request) -> str:
    """The id of a request that a contract has posted."""
    params = list(params_of(request))
    for index in (0, 14):  # as web3 wants addresses
        params[index] = to_checksum_address(params[index])
    receipt = consumer.send("ask", tuple(params), PROMPT, value=request.escrow_wei)
    topic = "0x" + keccak(text=REQUESTED).hex()
    (log,) = [log for log in receipt["logs"] if log["topics"][0] == topic]
    return str(log["topics"][1])


REQUESTED = (
    "InferenceRequested(bytes32,address,address,(address,address,bytes32,bytes32,uint256,uint256,address),bytes)"
)


def view(stack: Stack, request_id: str) -> dict[str, Any]:
    return stack.get(f"/v1/requests/{request_id}") or {}


def until_fulfilled(stack: Stack, request_id: str) -> dict[str, Any]:
    stack.until(lambda: view(stack, request_id).get("state") == "fulfilled")
    return view(stack, request_id)


def verifier_of(stack: Stack) -> str:
    return str(registrar(stack, "show", ATTESTED)["verifier"])


def node_of(stack: Stack, number: int) -> str:
    return "0x" + json.loads(stack.keystore(number).read_text())["address"].removeprefix("0x").lower()


# Consumers


def test_consumer__asks__is_called_with_the_answer(stack: Stack) -> None:
    consumer = Deployed.new(stack, "ProbeConsumer", market_of(stack))
    request_id = asked(stack, consumer, question(stack, 1))
    request = until_fulfilled(stack, request_id)
    assert consumer.read("answers") == 1
    assert "0x" + consumer.read("lastId").hex() == request_id
    said = bytes(consumer.read("lastResult"))
    assert "0x" + keccak(said).hex() == request["result"]["result_hash"]
    assert b"4" in said
    assert request["settlement"]["callback"]["made"] is True
    assert not consumer.read("isOpen", bytes.fromhex(request_id[2:]))
    assert times_paid(stack, request_id) == 1


def test_consumer__reverts__is_paid_for_and_called_again_on_a_command(stack: Stack) -> None:
    consumer = Deployed.new(stack, "ProbeConsumer", market_of(stack))
    consumer.send("set", REVERTS)
    request_id = asked(stack, consumer, question(stack, 2))
    request = until_fulfilled(stack, request_id)
    assert request["settlement"]["callback"]["made"] is False
    assert request["settlement"]["callback"]["reason"] == "0x" + keccak(text="NotNow()")[:4].hex()
    assert consumer.read("answers") == 0
    shown = stack.headrace("request", "show", request_id)
    assert f"headrace request retry-callback {request_id}" in shown.stdout
    assert stack.headrace("request", "retry-callback", request_id).returncode == 1
    consumer.send("set", NOTES)
    again = stack.headrace("request", "retry-callback", request_id, "--json")
    assert again.returncode == 0, again.stderr
    assert consumer.read("answers") == 1
    assert "0x" + keccak(consumer.read("lastResult")).hex() == request["result"]["result_hash"]
    stack.until(lambda: view(stack, request_id)["settlement"]["callback"]["made"])
    assert times_paid(stack, request_id) == 1


def test_bounty__quorum_of_two__is_judged_by_what_both_models_said(stack: Stack) -> None:
    bounty = new_bounty(stack, Mode.QUORUM, 2, 2)
    request_id, request = entered(stack, bounty, b"Water runs down, and the wheel turns round.")
    assert len({attempt["node"] for attempt in request["assignments"]}) == 2
    assert_judged(stack, bounty, request_id, request)


def test_bounty__attested_key__is_judged_by_the_one_model_that_proves_it(stack: Stack) -> None:
    bounty = new_bounty(stack, Mode.VERIFIER, verifier=verifier_of(stack))
    request_id, request = entered(stack, bounty, b"The wheel is still, the pond is deep.")
    assert request["result"]["node"] == node_of(stack, 1)
    assert_judged(stack, bounty, request_id, request)


def market_of(stack: Stack) -> str:
    return str(to_checksum_address(stack.get("/v1/network")["contracts"]["inference_market"]))


def new_bounty(stack: Stack, mode: Mode, k: int = 0, n: int = 0, verifier: str = ZERO_ADDRESS) -> Deployed:
    """A bounty of one ether."""
    model_id = question(stack, 0).model_id
    relayer = to_checksum_address(stack.get("/v1/network")["relayer"])
    terms = (
        *(relayer, bytes.fromhex(model_id[2:]), int(mode), k, n, to_checksum_address(verifier)),
        *(200_000, 8, 120, ETHER // 1000, ETHER // 100, 0),
    )
    closes_at = int(stack.rpc("eth_getBlockByNumber", "latest", False)["timestamp"], 16) + 86_400
    task = b"Two short clauses about a mill."
    return Deployed.new(stack, "JudgedBounty", market_of(stack), terms, task, closes_at, value=ETHER)


def entered(stack: Stack, bounty: Deployed, text: bytes) -> tuple[str, dict[str, Any]]:
    """An entry that the model has judged."""
    receipt = bounty.send("handIn", text, value=bounty.read("escrowOfEntry"))
    topic = "0x" + keccak(text="EntryHandedIn(bytes32,address,address)").hex()
    (log,) = [log for log in receipt["logs"] if log["topics"][0] == topic]
    request_id = str(log["topics"][1])
    return request_id, until_fulfilled(stack, request_id)


def assert_judged(stack: Stack, bounty: Deployed, request_id: str, request: dict[str, Any]) -> None:
    """That the contract made of the answer what it says, and that what is left comes back to the author."""
    assert request["settlement"]["callback"]["made"] is True
    receipt = stack.rpc("eth_getTransactionReceipt", request["settlement"]["transaction_hash"])
    delivered = "0x" + keccak(text="ResultDelivered(bytes32,bytes)").hex()
    (log,) = [log for log in receipt["logs"] if log["topics"][:2] == [delivered, request_id]]
    (said,) = Web3().codec.decode(["bytes"], bytes.fromhex(log["data"][2:]))
    assert json.loads(said)["choices"][0]["message"]["role"] == "assistant"
    question_, payable_at, _ = bounty.read("entries", bytes.fromhex(request_id[2:]))
    assert (payable_at > 0) is said.startswith(YES)
    refund_wei = int(request["settlement"]["refund_wei"])
    before = int(stack.rpc("eth_getBalance", account(REQUESTER).address, "latest"), 16)
    collected = bounty.send("collect", bytes.fromhex(request_id[2:]))
    fee_wei = int(collected["gasUsed"], 16) * int(collected["effectiveGasPrice"], 16)
    after = int(stack.rpc("eth_getBalance", account(REQUESTER).address, "latest"), 16)
    assert after - before == refund_wei - fee_wei
    assert question_ != ZERO_ADDRESS


# Verifiers


def test_verified_request__is_answered_by_the_node_that_can_prove_it(stack: Stack) -> None:
    document = ask(stack, "What is 3+3?", "--verifier", verifier_of(stack))
    assert document["answer"]
    assert document["request"]["result"]["node"] == node_of(stack, 1)
    assert document["request"]["params"]["mode"] == "verifier"


def test_audit__with_quorums_verifiers_and_callbacks__holds(stack: Stack) -> None:
    done = stack.headrace("audit", "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_verified_request__relayer_killed_before_it_settled__its_node_settles_with_the_proof(stack: Stack) -> None:
    stack.rpc("anvil_setBalance", node_of(stack, 1), hex(ETHER))
    restart_relayer(stack, NO_BATCHES)
    arguments = ("--verifier", verifier_of(stack), "--ttl", str(TTL_S), "--max-tokens", "8", "--json")
    posted = stack.headrace("request", "new", "What is 4+4?", *arguments)
    assert posted.returncode == 0, posted.stderr
    request_id = json.loads(posted.stdout)["request_id"]
    await_state(stack, request_id, "signed")
    stack.kill("relayer")
    stack.rpc("evm_increaseTime", TTL_S + PATIENCE_S)
    stack.until(lambda: len(settlements(stack, request_id)) == 1)
    (settled,) = settlements(stack, request_id)
    assert sender_of(stack, settled) == node_of(stack, 1)
    stack.start_relayer()
    stack.await_ready(nodes=2)  # The tests that follow need the nodes.
    await_state(stack, request_id, "fulfilled")
    assert times_paid(stack, request_id) == 1


def test_verified_request__after_the_key_was_revoked__is_paid_to_nobody_and_expires(stack: Stack) -> None:
    verifier = verifier_of(stack)
    assert registrar(stack, "revoke", ATTESTED)["is_valid"] is False
    # The chain's clock is ahead by now.
    arguments = ("--verifier", verifier, "--ttl", "300", "--max-tokens", "8", "--json")
    posted = stack.headrace("request", "new", "What is 5+5?", *arguments)
    assert posted.returncode == 0, posted.stderr
    request_id = json.loads(posted.stdout)["request_id"]
    stack.until(lambda: any(each["state"] == "failed" for each in view(stack, request_id).get("assignments", ())))
    request = view(stack, request_id)
    assert "does not take the proof" in request["assignments"][0]["detail"]
    assert request["result"] is None
    stack.rpc("evm_increaseTime", 300 + GRACE_S + 5)
    stack.until(lambda: view(stack, request_id).get("state") == "expired")
    settlement = view(stack, request_id)["settlement"]
    assert (settlement["node_wei"], settlement["relayer_wei"]) == ("0", "0")
    assert settlement["refund_wei"] == request["escrow_wei"]
    assert times_paid(stack, request_id) == 0
