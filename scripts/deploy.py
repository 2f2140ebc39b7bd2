"""Deploy the contracts and register the models: what is missing, and nothing else."""

import time
from pathlib import Path
from typing import Any

import click
from ape.api import ProviderAPI
from ape.cli import network_option
from eth_utils import is_address, to_checksum_address

from scripts._chain import ROOT, ChainCommand, ChainHandle, chain_of, deployments_option, show
from scripts._compiled import compiled_contracts
from scripts._deployments import (
    CONTRACTS,
    INDEPENDENT,
    Deployed,
    Deployment,
    as_recorded,
    code_hash_at,
    creation_code_hash,
    head_commit,
    load,
    save,
)
from scripts._errors import Failure
from scripts._models import Model, seed_models
from scripts._parameters import Parameters, constructor_arguments, parameters_of
from scripts._signers import signer_of
from scripts._transactions import Call, Sender

# A node behind a load balancer may lag behind the one that gave the receipt.
_VISIBLE_WITHIN_S = 30


def _address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_address(value):
        raise click.BadParameter(f"{value} is not an address.", ctx, param)
    return None if value is None else to_checksum_address(value)


@click.command(cls=ChainCommand)
@network_option()
@click.option("--account", help="Ape account that deploys [env: HEADRACE_DEPLOYER_PRIVATE_KEY holds a key instead].")
@click.option("--owner", callback=_address, help="Owner of the contracts [default: as recorded, else the deployer].")
@click.option("--redeploy", is_flag=True, help="Replace contracts that are gone or have changed [always so locally].")
@deployments_option
def cli(provider: ProviderAPI, account: str | None, owner: str | None, redeploy: bool, deployments: Path) -> None:
    """Deploy the contracts and register the models."""
    chain = chain_of(provider)
    signer = signer_of(
        "deployer",
        provider=provider,
        is_local=chain.is_local,
        alias=account,
        variable="HEADRACE_DEPLOYER_PRIVATE_KEY",
        test_account=None,
        local_default=0,
    )
    run = _Run(chain, chain.sender(signer), deployments)
    run.deploy_contracts(owner, may_replace=redeploy or chain.is_local)
    run.register_models(seed_models())
    show({}, run.rows(), as_json=False)


class _Run:
    """One deployment to one chain. The file is written as soon as there is something to keep."""

    def __init__(self, chain: ChainHandle, sender: Sender, folder: Path) -> None:
        self._chain = chain
        self._sender = sender
        self._folder = folder
        self._compiled = compiled_contracts()
        self._deployment = load(folder, chain.chain_id) or Deployment(chain.chain_id, None, sender.address)
        self._fates: dict[str, str] = {}

    def deploy_contracts(self, owner: str | None, *, may_replace: bool) -> None:
        """Deploy what is not there as it should be. The new addresses are known beforehand."""
        parameters = parameters_of(self._chain.chain_id)
        owner = owner or self._recorded_owner() or self._sender.address
        complaints = self._complaints(parameters, owner)
        if complaints and not may_replace:
            for name, complaint in complaints.items():
                if name in self._deployment.contracts:
                    raise Failure(f"{name} {complaint} on chain {self._chain.chain_id}: --redeploy replaces it.")
        addresses = {name: recorded.address for name, recorded in self._deployment.contracts.items()}
        addresses |= dict(zip(complaints, self._sender.addresses_of_next(len(complaints)), strict=True))
        new = {name: constructor_arguments(name, parameters, owner, addresses) for name in complaints}
        for name in CONTRACTS:
            is_first = name not in self._deployment.contracts
            complaint = complaints.get(name)
            self._fates[name] = (
                "kept" if complaint is None else "deployed" if is_first else f"deployed anew: {complaint}"
            )
        self._deploy(new, addresses)

    def _complaints(self, parameters: Parameters, owner: str) -> dict[str, str]:
        """Return what is wrong with each contract that must be deployed, in the order of deployment.

        The stake manager names Faults and Faults names all others, so these stand or fall together.
        """
        recorded = {name: each.address for name, each in self._deployment.contracts.items()}
        complaints = {}
        for name in CONTRACTS:
            known = all(each in recorded for each in CONTRACTS) or name in INDEPENDENT
            arguments = constructor_arguments(name, parameters, owner, recorded) if known else {}
            if complaint := self._complaint(name, arguments):
                complaints[name] = complaint
        if bad := next((name for name in complaints if name not in INDEPENDENT), None):
            why = f"names {bad}, which {complaints[bad]}"
            complaints = {
                name: complaints.get(name, why) for name in CONTRACTS if name in complaints or name not in INDEPENDENT
            }
        return complaints

    def register_models(self, models: list[Model]) -> None:
        """Register the models that the registry lacks, and list all that it has."""
        address = self._deployment.contracts["ModelRegistry"].address
        abi = self._compiled["ModelRegistry"].abi
        registry = self._chain.web3.eth.contract(to_checksum_address(address), abi=abi)
        present = _model_ids(registry)
        missing = [model for model in models if model.model_id not in present]
        if missing and (owner := registry.functions.owner().call()) != self._sender.address:
            raise Failure(f"{len(missing)} models are missing, and only the registry's owner {owner} may add them.")
        calls = [
            Call(f"register {model.name}", address, registry.encode_abi("register", [_as_tuple(model)]), abi=abi)
            for model in missing
        ]
        self._sender.send_all(calls)
        listed = [Model(*registry.functions.modelOf(each).call()).as_json() for each in _model_ids(registry)]
        self._fates["models"] = f"{len(missing)} registered" if missing else "kept"
        if listed != self._deployment.models:
            self._deployment.models = listed
            save(self._folder, self._deployment)

    def rows(self) -> list[tuple[str, str]]:
        """Return what there is now and what became of it."""
        contracts = self._deployment.contracts
        rows = [(name, f"{contracts[name].address}  {self._fates[name]}") for name in CONTRACTS]
        return [*rows, ("models", f"{len(self._deployment.models)}, {self._fates['models']}")]

    def _recorded_owner(self) -> str | None:
        recorded = self._deployment.contracts.get("InferenceMarket")
        return None if recorded is None else str(recorded.constructor_arguments["owner"])

    def _complaint(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Return what is wrong with the recorded contract, if anything."""
        recorded = self._deployment.contracts.get(name)
        if recorded is None:
            return "is missing"
        if not recorded.is_on(self._chain.web3):
            return "is not there any more"
        if recorded.creation_code_hash != creation_code_hash(self._compiled[name].creation_code):
            return "has changed"
        if recorded.constructor_arguments != as_recorded(arguments):
            return "has other constructor arguments"
        return None

    def _deploy(self, new: dict[str, dict[str, Any]], addresses: dict[str, str]) -> None:
        """Deploy in two steps: the market's constructor calls the stake manager, so that must be there."""
        late = ("InferenceMarket", "Faults")
        first = {name: arguments for name, arguments in new.items() if name not in late}
        last = {name: arguments for name, arguments in new.items() if name in late}
        for step in (first, last):
            if step:
                self._deploy_together(step, addresses)

    def _deploy_together(self, new: dict[str, dict[str, Any]], addresses: dict[str, str]) -> None:
        calls = [self._creation(name, arguments) for name, arguments in new.items()]
        receipts = self._sender.send_all(calls)
        for (name, arguments), receipt in zip(new.items(), receipts, strict=True):
            if receipt["contractAddress"] != addresses[name]:
                raise Failure(f"{name} is at {receipt['contractAddress']}, not {addresses[name]}: something else sent.")
            self._deployment.contracts[name] = Deployed(
                address=addresses[name],
                block=receipt["blockNumber"],
                transaction="0x" + receipt["transactionHash"].hex(),
                constructor_arguments=as_recorded(arguments),
                creation_code_hash=creation_code_hash(self._compiled[name].creation_code),
                code_hash=self._code_hash_of_new(addresses[name]),
            )
        self._deployment.commit = head_commit(ROOT)
        self._deployment.deployer = self._sender.address
        if "ModelRegistry" in new:
            self._deployment.models = []
        save(self._folder, self._deployment)

    def _creation(self, name: str, arguments: dict[str, Any]) -> Call:
        compiled = self._compiled[name]
        factory = self._chain.web3.eth.contract(abi=compiled.abi, bytecode=compiled.creation_code)
        inputs = next(entry["inputs"] for entry in compiled.abi if entry["type"] == "constructor")
        data = factory.constructor(*_in_order(inputs, arguments)).data_in_transaction
        return Call(f"deploy {name}", None, data, abi=compiled.abi)

    def _code_hash_of_new(self, address: str) -> str:
        deadline = time.monotonic() + _VISIBLE_WITHIN_S
        while (code_hash := code_hash_at(self._chain.web3, address)) is None:
            if time.monotonic() > deadline:
                raise Failure(f"The node gave a receipt for {address}, but shows no code there.")
            time.sleep(0.5)
        return code_hash


def _in_order(inputs: list[dict[str, Any]], values: dict[str, Any]) -> tuple[Any, ...]:
    """Return named arguments in the order of the ABI, structs as tuples."""
    if {each["name"] for each in inputs} != set(values):
        raise Failure(f"The constructor takes {[each['name'] for each in inputs]}; the script has {list(values)}.")
    return tuple(
        _in_order(each["components"], values[each["name"]]) if "components" in each else values[each["name"]]
        for each in inputs
    )


def _model_ids(registry: Any) -> list[bytes]:
    return [registry.functions.modelIdAt(index).call() for index in range(registry.functions.count().call())]


def _as_tuple(model: Model) -> tuple[Any, ...]:
    return tuple(vars(model).values())
