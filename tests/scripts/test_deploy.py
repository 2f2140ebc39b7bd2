import json

import pytest
from eth_utils import keccak

from scripts._models import seed_models
from tests.scripts.conftest import ROOT, Chain, free_port, run_script

pytestmark = pytest.mark.slow

CONTRACTS = ["StakeManager", "ScheduleLog", "ModelRegistry", "AttestedKeyVerifier", "InferenceMarket", "Faults"]
DEPLOYER = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
# The key of anvil's first account is public knowledge.
DEPLOYER_KEY = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"
UNFUNDED_KEY = "0x" + "22" * 32


def test_the_file_says_what_is_on_the_chain(deployed: Chain) -> None:
    deployment = deployed.deployment()
    assert (deployment["schema"], deployment["chain_id"], deployment["deployer"]) == (1, 31337, DEPLOYER)
    assert list(deployment["contracts"]) == CONTRACTS
    for entry in deployment["contracts"].values():
        assert entry["code_hash"] == "0x" + keccak(deployed.web3.eth.get_code(entry["address"])).hex()
        receipt = deployed.web3.eth.get_transaction_receipt(entry["transaction"])
        assert (receipt["contractAddress"], receipt["blockNumber"]) == (entry["address"], entry["block"])


def test_contracts_are_constructed_with_the_recorded_arguments(deployed: Chain) -> None:
    contracts = deployed.deployment()["contracts"]
    market, stakes = deployed.contract("InferenceMarket"), deployed.contract("StakeManager")
    arguments = contracts["InferenceMarket"]["constructor_arguments"]
    assert market.functions.owner().call() == arguments["owner"] == DEPLOYER
    assert market.functions.STAKES().call() == arguments["stakes"] == contracts["StakeManager"]["address"]
    assert market.functions.SCHEDULE_LOG().call() == contracts["ScheduleLog"]["address"]
    terms = json.loads((ROOT / "scripts/_gas_terms.json").read_text("utf-8"))
    assert market.functions.FIXED_GAS().call() == int(arguments["gasTerms"]["fixedGas"]) == terms["fixed_gas"]
    assert market.functions.ITEM_GAS().call() == int(arguments["gasTerms"]["itemGas"]) == terms["item_gas"]
    assert market.functions.PROBATION_MAX_REWARD().call() == 10**16
    assert stakes.functions.MIN_STAKE().call() == 10**18
    assert stakes.functions.UNBOND_DELAY().call() == 3 * 86_400
    assert stakes.functions.UNBOND_DELAY().call() > market.functions.MAX_TTL().call() + market.functions.GRACE().call()


def test_models_can_be_read_from_registry_and_file(deployed: Chain) -> None:
    registry = deployed.contract("ModelRegistry")
    models = seed_models()
    assert registry.functions.count().call() == len(models)
    assert deployed.deployment()["models"] == [model.as_json() for model in models]
    for index, model in enumerate(models):
        assert registry.functions.modelIdAt(index).call() == model.model_id
        assert tuple(registry.functions.modelOf(model.model_id).call()) == tuple(vars(model).values())


def test_a_second_run_sends_nothing(deployed: Chain) -> None:
    before = (deployed.file.read_bytes(), deployed.sent(0))
    deployed.ape_run("deploy").ok()
    assert (deployed.file.read_bytes(), deployed.sent(0)) == before


def test_changed_code_is_replaced_on_a_local_chain_with_all_that_name_each_other(deployed: Chain) -> None:
    before = deployed.deployment()
    changed = deployed.deployment()
    changed["contracts"]["ScheduleLog"]["creation_code_hash"] = "0x" + "00" * 32
    deployed.file.write_text(json.dumps(changed), "utf-8")
    deployed.ape_run("deploy").ok()
    after = deployed.deployment()["contracts"]
    moved = [name for name in CONTRACTS if after[name]["address"] != before["contracts"][name]["address"]]
    assert moved == ["StakeManager", "ScheduleLog", "InferenceMarket", "Faults"]
    assert deployed.contract("StakeManager").functions.FAULTS().call() == after["Faults"]["address"]
    assert deployed.contract("InferenceMarket").functions.SCHEDULE_LOG().call() == after["ScheduleLog"]["address"]


def test_a_reset_chain_is_deployed_to_anew(deployed: Chain) -> None:
    deployed.web3.provider.make_request("anvil_reset", [])
    assert deployed.sent(0) == 0
    deployed.ape_run("deploy").ok()
    for entry in deployed.deployment()["contracts"].values():
        assert entry["code_hash"] == "0x" + keccak(deployed.web3.eth.get_code(entry["address"])).hex()
    assert deployed.contract("ModelRegistry").functions.count().call() == len(seed_models())


def test_an_unfunded_deployer_is_told_what_it_needs(deployed: Chain, tmp_path) -> None:
    refusal = deployed.ape_run(
        "deploy", "--deployments", str(tmp_path), HEADRACE_DEPLOYER_PRIVATE_KEY=UNFUNDED_KEY
    ).refusal()
    assert refusal.startswith("Account 0x1563915e194D8CfBA1943570603F7606A3115508 holds 0 ETH and needs up to 0.")
    assert not list(tmp_path.iterdir())


def test_a_bad_key_is_not_repeated(chain: Chain) -> None:
    finished = chain.ape_run("deploy", HEADRACE_DEPLOYER_PRIVATE_KEY="0xsecret")
    assert finished.refusal() == "HEADRACE_DEPLOYER_PRIVATE_KEY holds no private key."
    assert "secret" not in finished.out + finished.err


def test_a_node_of_another_network_is_refused(chain: Chain) -> None:
    assert "'31337'" in chain.ape_run("deploy", network=f"ethereum:sepolia:{chain.url}").refusal()


def test_a_dead_node_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert run_script("deploy", "--network", f"ethereum:local:{url}").refusal() == f"No node answers at {url}."


def test_elsewhere_an_account_must_be_named_and_changes_asked_for(public_chain: Chain) -> None:
    assert "HEADRACE_DEPLOYER_PRIVATE_KEY" in public_chain.ape_run("deploy").refusal()
    public_chain.ape_run("deploy", HEADRACE_DEPLOYER_PRIVATE_KEY=DEPLOYER_KEY).ok()
    changed = public_chain.deployment()
    changed["contracts"]["ModelRegistry"]["creation_code_hash"] = "0x" + "00" * 32
    public_chain.file.write_text(json.dumps(changed), "utf-8")
    refusal = public_chain.ape_run("deploy", HEADRACE_DEPLOYER_PRIVATE_KEY=DEPLOYER_KEY).refusal()
    assert refusal == "ModelRegistry has changed on chain 4242: --redeploy replaces it."
    public_chain.ape_run("deploy", "--redeploy", HEADRACE_DEPLOYER_PRIVATE_KEY=DEPLOYER_KEY).ok()
    assert (
        public_chain.deployment()["contracts"]["ModelRegistry"]["address"]
        != (changed["contracts"]["ModelRegistry"]["address"])
    )


def test_a_local_network_must_be_one(public_chain: Chain) -> None:
    refusal = public_chain.ape_run("deploy", network=f"ethereum:local:{public_chain.url}").refusal()
    assert refusal == "The network is called 'local', but the node is on chain 4242."
