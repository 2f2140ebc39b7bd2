"""Deployment files: where a chain's contracts are, what they were made from, and whether they are still there."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eth_utils import keccak, to_checksum_address
from web3 import Web3

from scripts._errors import Failure

SCHEMA = 1
CONTRACTS = ("StakeManager", "ScheduleLog", "ModelRegistry", "AttestedKeyVerifier", "InferenceMarket", "Faults")
# Those that name no other contract, so that each can be replaced alone.
INDEPENDENT = ("ModelRegistry", "AttestedKeyVerifier")


@dataclass(frozen=True)
class Deployed:
    """One contract on a chain."""

    address: str
    block: int
    transaction: str
    constructor_arguments: dict[str, Any]
    creation_code_hash: str  # without the metadata, so a changed comment is no change
    code_hash: str

    def is_on(self, web3: Web3) -> bool:
        """Whether this very code is at the address."""
        return code_hash_at(web3, self.address) == self.code_hash


@dataclass
class Deployment:
    """A chain's deployment file."""

    chain_id: int
    commit: str | None
    deployer: str
    contracts: dict[str, Deployed] = field(default_factory=dict)
    models: list[dict[str, Any]] = field(default_factory=list)

    def model_id(self, name: str) -> str:
        """Return the id of a registered model by its name."""
        for model in self.models:
            if model["name"] == name:
                return str(model["model_id"])
        known = ", ".join(model["name"] for model in self.models)
        raise Failure(f"No model is called '{name}' here: there are {known}.")


def load(folder: Path, chain_id: int) -> Deployment | None:
    """Return a chain's deployment, if it has a file."""
    path = path_of(folder, chain_id)
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA or data["chain_id"] != chain_id:
            raise Failure(f"{path.name} is of schema {data['schema']} for chain {data['chain_id']}.")
        contracts = {name: Deployed(**entry) for name, entry in data["contracts"].items()}
        return Deployment(chain_id, data["commit"], data["deployer"], contracts, data["models"])
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path.name} is not a deployment file: {error!r}.") from error


def load_live(folder: Path, chain_id: int, web3: Web3) -> Deployment:
    """Return a chain's deployment, all of whose contracts are there."""
    deployment = load(folder, chain_id)
    if deployment is None or set(deployment.contracts) != set(CONTRACTS):
        raise Failure(
            f"{path_of(folder, chain_id)} names no whole deployment on chain {chain_id}: run `ape run deploy`, or name "
            "the folder of its file with --deployments or HEADRACE_CHAIN__DEPLOYMENTS."
        )
    for name, contract in deployment.contracts.items():
        if not contract.is_on(web3):
            raise Failure(
                f"{name} is not on chain {chain_id} as {path_of(folder, chain_id)} has it: run `ape run deploy`, or "
                "name another folder with --deployments or HEADRACE_CHAIN__DEPLOYMENTS."
            )
    return deployment


def save(folder: Path, deployment: Deployment) -> Path:
    """Write a chain's deployment file, all of it or nothing."""
    path = path_of(folder, deployment.chain_id)
    data = {
        "schema": SCHEMA,
        "chain_id": deployment.chain_id,
        "commit": deployment.commit,
        "deployer": deployment.deployer,
        "contracts": {name: vars(deployment.contracts[name]) for name in CONTRACTS if name in deployment.contracts},
        "models": deployment.models,
    }
    folder.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)
    return path


def path_of(folder: Path, chain_id: int) -> Path:
    """Return where a chain's deployment file is."""
    return folder / f"{chain_id}.json"


def code_hash_at(web3: Web3, address: str) -> str | None:
    """Return keccak256 of the code at an address, or None where there is none."""
    code = web3.eth.get_code(to_checksum_address(address))
    return "0x" + keccak(code).hex() if code else None


def creation_code_hash(creation_code: bytes) -> str:
    """Return keccak256 of creation code (without arguments), less the metadata that ends it.

    The metadata holds a hash of the sources, comments and all; its last two bytes are its length without them.
    """
    end = len(creation_code) - int.from_bytes(creation_code[-2:], "big") - 2
    is_metadata = end > 0 and b"solc" in creation_code[end:]
    return "0x" + keccak(creation_code[:end] if is_metadata else creation_code).hex()


def as_recorded(value: Any) -> Any:
    """Return constructor arguments as a file holds them: numbers in decimal strings, since JSON readers round."""
    if isinstance(value, dict):
        return {key: as_recorded(each) for key, each in value.items()}
    return str(value) if isinstance(value, int) else value


def head_commit(root: Path) -> str | None:
    """Return git's HEAD, or None where there is no git or no repository."""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
