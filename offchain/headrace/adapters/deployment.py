"""Where a chain's contracts are: the file that `ape run deploy` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.adapters.abi_codec import CONTRACTS
from headrace.core.errors import ConfigurationError
from headrace.core.nesting import read_json
from headrace.core.types import Address, Hash32

SCHEMA = 1
_ADDRESS = re.compile("0x[0-9a-fA-F]{40}")


@dataclass(frozen=True, slots=True)
class DeployedContract:
    """A contract on a chain."""

    address: Address
    block: int
    code_hash: Hash32


@dataclass(frozen=True, slots=True)
class Deployment:
    """The contracts of a chain, by name, and the models registered with them, name → id."""

    chain_id: int
    contracts: Mapping[str, DeployedContract]
    models: Mapping[str, Hash32]

    @property
    def first_block(self) -> int:
        """The block before which there is nothing to index."""
        return min(contract.block for contract in self.contracts.values())

    def address_of(self, contract: str) -> Address:
        """Where a contract is."""
        return self.contracts[contract].address


def load_deployment(folder: Path, chain_id: int) -> Deployment:
    """Read `<folder>/<chain_id>.json`.

    Raises:
        ConfigurationError: it is missing, of another chain, or cannot be read; the message says what to do.
    """
    path = folder / f"{chain_id}.json"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(
            f"nothing is deployed on chain {chain_id}: {path} is missing; run `ape run deploy` for that chain, or name "
            "the folder of its file in HEADRACE_CHAIN__DEPLOYMENTS"
        ) from None
    try:
        data = read_json(content)
        if data["schema"] != SCHEMA:
            raise ConfigurationError(f"{path} is of schema {data['schema']}, not {SCHEMA}; run `ape run deploy` again")
        if data["chain_id"] != chain_id:
            raise ConfigurationError(f"{path} is of chain {data['chain_id']}, not {chain_id}")
        return Deployment(
            chain_id=chain_id,
            contracts={name: _contract(data["contracts"][name]) for name in CONTRACTS},
            models={model["name"]: model["model_id"] for model in data["models"]},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConfigurationError(f"{path} is not a deployment file ({exc!r}); run `ape run deploy` again") from exc


def _contract(entry: Mapping[str, Any]) -> DeployedContract:
    address, block, code_hash = entry["address"], entry["block"], entry["code_hash"]
    if not isinstance(block, int) or isinstance(block, bool) or not _ADDRESS.fullmatch(address):
        raise ValueError(f"a contract at {address!r} since block {block!r}")
    return DeployedContract(address.lower(), block, code_hash.lower())
