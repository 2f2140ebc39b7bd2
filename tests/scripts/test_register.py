import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from tests.scripts.conftest import Chain, anvil

pytestmark = pytest.mark.slow

OWNER, STRANGER, RELAYER = 3, 4, 1
MODEL = "smollm2-135m-instruct"
PRICES = ["--price-per-prompt-kib", "1000", "--price-per-thousand-tokens", "2000"]
NODE = Account.from_key("0x" + "11" * 32)
PASSWORD = {"HEADRACE_KEYSTORE_PASSWORD": "correct"}
ETHER = 10**18


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """A chain that mines at once; test_deploy waits for blocks."""
    with anvil(tmp_path_factory.mktemp("chain"), chain_id=31337) as running:
        yield running


@pytest.fixture(scope="module")
def keystore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("node") / "key.json"
    path.write_text(json.dumps(Account.encrypt(NODE.key, "correct", kdf="pbkdf2", iterations=1000)), "utf-8")
    return path


def node(chain: Chain, keystore: Path, *arguments: str) -> dict[str, Any]:
    common = ["--keystore", str(keystore), "--test-account", str(OWNER), "--json", *arguments]
    return json.loads(chain.ape_run("register_node", *common, **PASSWORD).ok().out)


def relayer(chain: Chain, *arguments: str) -> dict[str, Any]:
    common = ["--test-account", str(RELAYER), "--json", *arguments]
    return json.loads(chain.ape_run("register_relayer", *common).ok().out)


def test_a_wrong_password_registers_nothing(deployed: Chain, keystore: Path) -> None:
    arguments = ["--keystore", str(keystore), "--test-account", str(OWNER)]
    refusal = deployed.ape_run("register_node", *arguments, HEADRACE_KEYSTORE_PASSWORD="wrong").refusal()
    assert refusal == "HEADRACE_KEYSTORE_PASSWORD does not open key.json."
    assert deployed.sent(OWNER) == 0


def test_a_node_is_registered_joined_and_priced_once(deployed: Chain, keystore: Path) -> None:
    first = node(deployed, keystore, "--model", MODEL, *PRICES)
    assert first["done"] == ["registered", "joined", f"priced {MODEL}"]
    assert (first["node"], first["stake_wei"], first["active"]) == (NODE.address, str(ETHER), True)
    stakes = deployed.contract("StakeManager")
    market = deployed.deployment()["contracts"]["InferenceMarket"]["address"]
    assert stakes.functions.nodeOf(NODE.address).call()[0] == deployed.web3.eth.accounts[OWNER]
    assert stakes.functions.membershipOf(NODE.address, market).call()[0] == deployed.web3.eth.accounts[OWNER]
    assert stakes.functions.priceOf(NODE.address, first["prices"][0]["model_id"]).call() == [True, 1000, 2000]
    sent = deployed.sent(OWNER)

    again = node(deployed, keystore, "--model", MODEL, *PRICES)
    assert again == {**first, "done": []}
    assert deployed.sent(OWNER) == sent


def test_what_is_missing_is_added_and_a_raise_announced_only_once(deployed: Chain, keystore: Path) -> None:
    more = ["--model", MODEL, "--model", "gpt-2", "--stake", "1.5"]
    more += ["--price-per-prompt-kib", "1001", "--price-per-prompt-kib", "7", "--price-per-thousand-tokens", "2000"]
    first = node(deployed, keystore, *more)
    assert first["done"] == ["stake added", f"priced {MODEL}", "priced gpt-2"]
    assert first["stake_wei"] == str(ETHER * 3 // 2)
    assert [price["raise_announced"] for price in first["prices"]] == [True, False]
    assert [price["per_prompt_kib_wei"] for price in first["prices"]] == ["1000", "7"]
    assert node(deployed, keystore, *more)["done"] == []


def test_another_owner_is_refused(deployed: Chain, keystore: Path) -> None:
    arguments = ["--keystore", str(keystore), "--test-account", str(STRANGER)]
    owner, stranger = (deployed.web3.eth.accounts[each] for each in (OWNER, STRANGER))
    refusal = deployed.ape_run("register_node", *arguments, **PASSWORD).refusal()
    assert refusal == f"Key {NODE.address} is registered by {owner}, not by {stranger}."


def test_a_key_kept_elsewhere_registers_by_its_signature(deployed: Chain) -> None:
    key = Account.from_key("0x" + "12" * 32)
    owner = deployed.web3.eth.accounts[STRANGER]
    arguments = ["--key", key.address, "--test-account", str(STRANGER), "--json"]
    assert "--key-signature" in deployed.ape_run("register_node", *arguments).refusal()
    domain = {
        "name": "Headrace",
        "version": "1",
        "chainId": 31337,
        "verifyingContract": deployed.deployment()["contracts"]["StakeManager"]["address"],
    }
    types = {"RegisterNode": [{"name": "key", "type": "address"}, {"name": "owner", "type": "address"}]}
    signed = key.sign_message(encode_typed_data(domain, types, {"key": key.address, "owner": owner}))
    finished = deployed.ape_run("register_node", *arguments, "--key-signature", "0x" + signed.signature.hex()).ok()
    assert json.loads(finished.out)["done"] == ["registered", "joined"]
    assert deployed.contract("StakeManager").functions.isActive(key.address).call()


def test_an_unknown_model_is_refused_before_anything_is_sent(deployed: Chain, keystore: Path) -> None:
    arguments = ["--keystore", str(keystore), "--test-account", str(OWNER), "--model", "gpt-9", *PRICES]
    assert deployed.ape_run("register_node", *arguments, **PASSWORD).refusal().startswith("No model is called 'gpt-9'")


def test_a_relayer_is_bonded_once(deployed: Chain) -> None:
    small = ["--test-account", str(RELAYER), "--bond", "0.5", "--endpoint", "http://relayer"]
    assert "BondTooSmall(bond=500000000000000000" in deployed.ape_run("register_relayer", *small).refusal()

    first = relayer(deployed, "--endpoint", "http://relayer")
    assert (first["done"], first["bond_wei"], first["bonded"]) == (["registered"], str(ETHER), True)
    assert deployed.contract("StakeManager").functions.isBonded(deployed.web3.eth.accounts[RELAYER]).call()
    again = relayer(deployed, "--endpoint", "http://relayer", "--bond", "2")
    assert again == {**first, "bond_wei": str(2 * ETHER), "done": ["bond added"]}
    assert relayer(deployed, "--endpoint", "http://relayer")["done"] == []

    moved = ["--test-account", str(RELAYER), "--endpoint", "http://elsewhere"]
    assert "is registered at http://relayer" in deployed.ape_run("register_relayer", *moved).refusal()
