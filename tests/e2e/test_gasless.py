"""An account with credit in the market and no ether of its own asks, over real processes and real contracts."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_account.signers.local import LocalAccount
from eth_utils import keccak

from headrace.cli.screens import with_checksums
from headrace.core.calls import request_inference_for_data
from headrace.core.types import Lane, Mode, Request
from scripts._stack import DEPLOYER, MODEL, RELAYER, ROOT, Stack, clean_environment
from scripts._stack import test_account as account_of
from tests.local_chain import compiled

REQUESTED = (
    "InferenceRequested(bytes32,address,address,(address,address,bytes32,bytes32,uint256,uint256,address),bytes)"
)
CREDIT = "0.05ether"


@dataclass(frozen=True)
class Asker:
    """A requester that can sign, and cannot send."""

    stack: Stack
    key: LocalAccount

    @property
    def address(self) -> str:
        return str(self.key.address).lower()

    def headrace(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        settings = {**self.stack.requester_environment(), "HEADRACE_REQUESTER_PRIVATE_KEY": self.key.key.to_0x_hex()}
        return subprocess.run(
            ["headrace", *arguments],
            env={**clean_environment(), **settings},
            cwd=ROOT,
            text=True,
            capture_output=True,
            check=False,
            timeout=180,
        )

    def draft(self, prompt: str, **changes: Any) -> dict[str, Any]:
        wanted = {"requester": self.address, "model": MODEL, "prompt": prompt, "max_output_tokens": 16}
        status, body = post(self.stack, "/v1/requests/draft", {**wanted, **changes})
        assert status == 200, body
        return body

    def signed(self, drafted: dict[str, Any], **changes: Any) -> dict[str, Any]:
        """The draft's document, signed as a wallet signs it."""
        signing = drafted["gasless"]
        signature = self.key.sign_message(encode_typed_data(full_message=signing["typed_data"])).signature
        body = {
            "params": drafted["params"],
            "requester": signing["typed_data"]["message"]["requester"],
            "relayer_fee_wei": signing["relayer_fee_wei"],
            "valid_until_s": signing["valid_until_s"],
            "signature": "0x" + bytes(signature).hex(),
        }
        return {**body, **changes}


@pytest.fixture
def asker(stack: Stack) -> Asker:
    """Its credit is somebody else's deposit."""
    made = Asker(stack, Account.create())
    deposit(stack, made.address)
    return made


def deposit(stack: Stack, account: str) -> None:
    done = stack.headrace("credit", "deposit", CREDIT, "--account", account)
    assert done.returncode == 0, done.stderr


def post(stack: Stack, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(stack.api_url + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


def logs(stack: Stack, event: str, id_: str) -> list[Any]:
    topics = ["0x" + keccak(text=event).hex(), id_]
    found: list[Any] = stack.rpc("eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest", "topics": topics})
    return found


def await_state(stack: Stack, id_: str, state: str) -> dict[str, Any]:
    stack.until(lambda: (stack.get(f"/v1/requests/{id_}") or {}).get("state") == state)
    view: dict[str, Any] = stack.get(f"/v1/requests/{id_}")
    return view


def test_gasless__no_ether_at_all__is_answered_and_paid_from_credit(stack: Stack, asker: Asker) -> None:
    assert int(stack.rpc("eth_getBalance", asker.address, "latest"), 16) == 0
    done = asker.headrace("request", "new", "What is 2+2?", "--gasless", "--max-tokens", "16", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "4" in document["answer"]
    request = document["request"]
    reached = [stage["stage"] for stage in request["stages"] if stage["reached"]]
    assert reached[:4] == ["submitted", "sent", "included", "eligible"]
    assert reached[8] == "settled"
    receipt = stack.rpc("eth_getTransactionReceipt", document["transaction_hash"])
    assert receipt["from"] == str(account_of(RELAYER).address).lower()
    assert len(logs(stack, REQUESTED, document["request_id"])) == 1
    (paid,) = logs(stack, "RelayerFeePaid(bytes32,address,uint256)", document["request_id"])
    assert int(paid["data"], 16) == int(document["relayer_fee_wei"])
    gas_wei = int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)
    assert int(document["relayer_fee_wei"]) > gas_wei, "the relayer is not out of pocket"
    credit = json.loads(asker.headrace("credit", "show", "--json").stdout)
    spent_wei = int(document["relayer_fee_wei"]) + sum(
        int(request["settlement"][f"{who}_wei"]) for who in ("node", "relayer")
    )
    assert int(credit["credit_wei"]) == 5 * 10**16 - spent_wei
    assert int(stack.rpc("eth_getBalance", asker.address, "latest"), 16) == 0


def test_gasless__handed_in_again__is_one_request_and_the_chain_refuses_a_replay(stack: Stack, asker: Asker) -> None:
    drafted = asker.draft("Say hello.")
    body = asker.signed(drafted)
    status, first = post(stack, "/v1/requests", body)
    assert (status, first["request_id"]) == (202, drafted["request_id"])
    assert post(stack, "/v1/requests", body)[1]["request_id"] == drafted["request_id"]
    await_state(stack, drafted["request_id"], "fulfilled")
    status, after = post(stack, "/v1/requests", body)
    assert (status, after["request_id"], after["state"]) == (202, drafted["request_id"], "posted")
    assert len(logs(stack, REQUESTED, drafted["request_id"])) == 1
    data = request_inference_for_data(
        request_of(drafted, asker.address),
        b"",
        int(body["relayer_fee_wei"]),
        body["valid_until_s"],
        bytes.fromhex(body["signature"][2:]),
    )
    call = {"from": account_of(DEPLOYER).address, "to": drafted["transaction"]["to"], "data": "0x" + data.hex()}
    (replayed,) = stack.rpc("eth_simulateV1", {"blockStateCalls": [{"calls": [call]}]}, "latest")[0]["calls"]
    assert replayed["status"] == "0x0"
    assert replayed["returnData"][:10] == "0x" + keccak(text="RequestExists(bytes32)").hex()[:8]


def test_gasless__contract_account__asks_with_its_owners_signature(stack: Stack, asker: Asker) -> None:
    """ERC-1271: the wallet has the credit, and its owner's key signs."""
    arguments = "00" * 12 + asker.address[2:]
    deployed = stack.rpc(
        "eth_sendTransaction",
        {"from": account_of(DEPLOYER).address, "data": compiled("SignerWallet")["bytecode"] + arguments},
    )
    stack.until(lambda: stack.rpc("eth_getTransactionReceipt", deployed) is not None)
    wallet = str(stack.rpc("eth_getTransactionReceipt", deployed)["contractAddress"]).lower()
    deposit(stack, wallet)
    drafted = asker.draft("What is 3+3?", requester=wallet, public=True)
    body = asker.signed(drafted, publish_prompt=True)
    status, refused = post(stack, "/v1/requests", {**body, "signature": "0x" + "11" * 65})
    assert (status, refused["error"]["code"]) == (400, "SIGNATURE_MISMATCH")
    status, taken = post(stack, "/v1/requests", body)
    assert status == 202, taken
    view = await_state(stack, drafted["request_id"], "fulfilled")
    assert view["requester"] == wallet
    receipt = stack.rpc("eth_getTransactionReceipt", view["settlement"]["transaction_hash"])
    assert any(
        log["topics"][0] == "0x" + keccak(text="ResultDelivered(bytes32,bytes)").hex() for log in receipt["logs"]
    )


def test_gasless__relayer_killed_after_it_took_it__posts_it_once_after_a_restart(stack: Stack, asker: Asker) -> None:
    drafted = asker.draft("What is 5+5?")
    status, taken = post(stack, "/v1/requests", asker.signed(drafted))
    assert status == 202, taken
    stack.kill("relayer")
    stack.start_relayer()
    stack.await_ready(nodes=2)
    view = await_state(stack, drafted["request_id"], "fulfilled")
    assert view["posting"]["reason"] == ""
    assert len(logs(stack, REQUESTED, drafted["request_id"])) == 1


def test_gasless__credit_short__says_what_to_deposit(stack: Stack) -> None:
    poor = Asker(stack, Account.create())
    done = poor.headrace("request", "new", "Hi", "--gasless")
    assert done.returncode == 1
    message = " ".join(done.stderr.split())
    assert "has 0 wei of credit" in message
    assert with_checksums(f"--account {poor.address}`") in message
    drafted = poor.draft("Hi")
    status, refused = post(stack, "/v1/requests", poor.signed(drafted))
    assert (status, refused["error"]["code"]) == (402, "CREDIT_SHORT")
    assert stack.get(f"/v1/requests/{drafted['request_id']}") is None


def test_gasless__signed_by_a_stranger__is_refused(stack: Stack, asker: Asker) -> None:
    body = Asker(stack, Account.create()).signed(asker.draft("Hi"))
    status, refused = post(stack, "/v1/requests", body)
    assert (status, refused["error"]["code"]) == (400, "SIGNATURE_MISMATCH")


def request_of(drafted: dict[str, Any], requester: str) -> Request:
    params = drafted["params"]
    numbers = {name: int(params[name]) for name in ("salt", "max_reward_wei", "gas_budget_wei", "priority_fee_wei")}
    enums = {"lane": Lane[params["lane"].upper()], "mode": Mode[params["mode"].upper()]}
    return Request(requester=requester, **{**params, **numbers, **enums})
