"""Callbacks and verifiers on the command line: asking for them, seeing what became of them, calling again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from eth_utils.abi import function_abi_to_4byte_selector
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from headrace.adapters.json_rpc import JsonRpc, connect_http
from headrace.adapters.web3_chain import Web3Chain
from headrace.cli.screens import with_checksums
from headrace.core import typed_data
from headrace.core.calls import request_inference_data
from headrace.core.requests import request_id
from headrace.core.types import ZERO_HASH, Address, Hash32, Mode, Request, Result, RoundRecord, Status
from headrace.ports import Call, ResultSetCall
from tests.api.world import REQUESTER_SIGNER
from tests.cli.conftest import Desk
from tests.cli.ledger import NODE, NODE_KEY, RELAYER, STRANGER, Ledger
from tests.fakes import VERIFIER, make_request
from tests.local_chain import CHAIN_ID, compiled, sign_digest

REVERTS, NOTES = 1, 0  # of Receiver.Behaviour
ANSWER = b"Rayleigh scattering."


# Asking and seeing


def test_new__callback_gas__is_in_the_request(desk: Desk) -> None:
    desk.relayer.chain.with_code.add(REQUESTER_SIGNER.address)
    desk.json("request", "new", "Why is the sky blue?", "--callback-gas", "150000", "--public")
    (request,) = desk.posted
    assert (request.callback_gas, request.inline_result) == (150_000, True)


@pytest.mark.parametrize("way", [(), ("--gasless",)])
def test_new__callback_gas_of_a_plain_account__is_refused_after_what_it_costs(desk: Desk, way: tuple[str, ...]) -> None:
    refusal = desk.refusal("request", "new", "Why is the sky blue?", "--callback-gas", "150000", *way)
    assert with_checksums(f"The account {REQUESTER_SIGNER.address} has no code") in refusal
    assert "leave out --callback-gas" in refusal
    assert "for the relayer's gas" in desk.out
    assert desk.posted == []


def test_new__verifier_without_a_node_for_it__is_refused(desk: Desk) -> None:
    said = desk.refusal("request", "new", "Why?", "--model", "smollm2-135m-instruct", "--verifier", VERIFIER)
    assert with_checksums(f"can prove its answers to the verifier {VERIFIER}") in said
    assert desk.posted == []


def test_new__verifier_that_a_node_can_satisfy__is_in_the_request(desk: Desk) -> None:
    link = desk.relayer.link
    link.nodes = [_with_verifier(node) for node in link.nodes]
    desk.json("request", "new", "Why?", "--verifier", VERIFIER)
    (request,) = desk.posted
    assert (request.mode, request.verifier) == (Mode.VERIFIER, VERIFIER)


def _with_verifier(node: Any) -> Any:
    return replace(node, heartbeat=replace(node.heartbeat, verifiers=(VERIFIER,)))


@pytest.mark.parametrize(("made", "words"), [(True, "made, block 2"), (False, "failed; the answer")])
def test_show__settled_with_a_callback__says_what_became_of_it(desk: Desk, made: bool, words: str) -> None:
    stored = desk.relayer.add_request()
    settled = desk.relayer.settle(stored, "0x" + "77" * 32)
    assert settled.closed is not None
    reason = None if made else "0x08c379a0"
    where = {"transaction_hash": "0x" + "7b" * 32, "block_number": 2}
    settled.closed["callback"] = {"made": made, "reason": reason, **where}  # type: ignore[index]
    assert desk.run("request", "show", stored.request_id) == 0
    assert f"callback     {words}" in desk.out
    assert (f"headrace request retry-callback {stored.request_id}" in desk.out) is not made
    assert ("reverted with a text" in desk.out) is not made


# Calling again, on anvil


def _selector(function: str) -> bytes:
    entry = next(each for each in compiled("Receiver")["abi"] if each.get("name") == function)
    return function_abi_to_4byte_selector(entry)


class Consumer:
    """A contract that asked, and was not able to take the answer."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.chain = ledger.anvil.wait(self._open())
        market = to_checksum_address(ledger.market)
        self.address: Address = ledger.anvil.wait(ledger.chain.deploy("Receiver", market))

    async def _open(self) -> Web3Chain:
        rpc: JsonRpc = await connect_http(self.ledger.chain.url)
        return Web3Chain(rpc, self.ledger.chain.deployment)

    def close(self) -> None:
        self.ledger.anvil.wait(self.chain.close())

    def send(self, account: int, call: Call, gas: int = 3_000_000) -> None:
        anvil = self.ledger.anvil
        data = "0x" + call.data.hex()
        raw, _ = anvil.wait(self.ledger.chain.sign(account, call.to, data, call.value_wei, gas=gas))
        receipt = anvil.rpc("eth_sendRawTransactionSync", "0x" + raw.hex())
        assert int(receipt["status"], 16) == 1

    def behave(self, behaviour: int) -> None:
        contract = self.ledger.chain.web3.eth.contract(abi=compiled("Receiver")["abi"])
        data = bytes.fromhex(contract.encode_abi("set", [behaviour, b""])[2:])
        self.send(STRANGER, Call(self.address, data))

    def read(self, function: str) -> Any:
        address = to_checksum_address(self.address)
        contract: Any = self.ledger.chain.web3.eth.contract(address, abi=compiled("Receiver")["abi"])
        return self.ledger.anvil.wait(contract.functions[function]().call())

    def settled(self, **changes: object) -> Hash32:
        """A request of the contract, settled with an answer."""
        relayer = self.ledger.account(RELAYER)
        fields: dict[str, Any] = {
            "requester": self.address,
            "relayer": relayer,
            "model_id": self.ledger.chain.deployment.models["tiny"],
            "deadline_s": self.ledger.now_s + 3_600,
            "callback_gas": 400_000,
            "inline_result": True,
            "gas_budget_wei": 10**16,
        }
        request: Request = make_request(**{**fields, **changes})
        data = _selector("ask") + request_inference_data(request, b"")[4:]
        self.send(STRANGER, Call(self.address, data, request.escrow_wei))
        record = RoundRecord(1, "0x" + "11" * 32, ZERO_HASH, ZERO_HASH, 1, ZERO_HASH, 1, 0, 0)
        self.send(RELAYER, self.chain.record_round_call(relayer, record))
        id_ = request_id(request, CHAIN_ID, self.ledger.market)
        result = Result(id_, "0x" + keccak(ANSWER).hex(), 10**12, relayer, 1)
        domain = typed_data.Domain(CHAIN_ID, self.ledger.market)
        signature = sign_digest(NODE_KEY, typed_data.digest(domain, typed_data.hash_result(result)))
        inline = (ANSWER,) if request.inline_result else ()
        whole = ResultSetCall(1, (NODE,), (signature,), ((request, result),), inline)
        self.send(RELAYER, self.chain.submit_results_call(relayer, [whole]))
        return id_

    def status(self, id_: Hash32) -> Status:
        return self.ledger.anvil.wait(self.chain.statuses([id_]))[0]


@pytest.fixture
def consumer(ledger: Ledger) -> Any:
    ledger.sign_with(requester=STRANGER)
    consumer = Consumer(ledger)
    yield consumer
    consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("inline_result", [True, False])
def test_retry_callback__contract_is_able_again__is_told_the_answer(consumer: Consumer, inline_result: bool) -> None:
    consumer.behave(REVERTS)
    id_ = consumer.settled(inline_result=inline_result)
    assert consumer.status(id_) is Status.FULFILLED_CALLBACK_FAILED
    assert "failed again, since it reverted with" in consumer.ledger.refusal("request", "retry-callback", id_)
    consumer.behave(NOTES)
    done = consumer.ledger.json("request", "retry-callback", id_)
    assert consumer.status(id_) is Status.FULFILLED
    assert consumer.read("lastResult") == (ANSWER if inline_result else b"")
    assert done["request_id"] == id_
    assert consumer.read("calls") == 1
    assert "no callback that failed" in consumer.ledger.refusal("request", "retry-callback", id_)


@pytest.mark.slow
def test_retry_callback__said_to_a_person__shows_the_transaction(consumer: Consumer) -> None:
    consumer.behave(REVERTS)
    id_ = consumer.settled()
    consumer.behave(NOTES)
    shown = consumer.ledger.shown("request", "retry-callback", id_)
    assert shown.startswith("The contract was called, and took the answer.")
    assert "called in    0x" in shown


@pytest.mark.slow
def test_retry_callback__unknown_request__is_one_sentence(consumer: Consumer) -> None:
    assert "was posted on chain" in consumer.ledger.refusal("request", "retry-callback", "0x" + "ab" * 32)
