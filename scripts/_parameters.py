"""What the contracts are constructed with: data in _parameters.toml and _gas_terms.json."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts._errors import Failure

_GAS_TERMS = ("tip_cap_wei", "fixed_gas", "item_gas", "node_gas", "assigned_gas")
_FOLDER = Path(__file__).parent
# The market's own constants: how long a request may stay open, and be settled after that.
MAX_TTL_S = 86_400
GRACE_S = 300


@dataclass(frozen=True)
class Parameters:
    """The parameters of one class of networks."""

    min_stake_wei: int
    min_bond_wei: int
    unbond_delay_s: int
    longest_dispute_s: int
    price_notice_s: int
    probation: dict[str, int]
    faults: dict[str, int]
    gas_terms: dict[str, int]

    def __post_init__(self) -> None:
        needed = MAX_TTL_S + GRACE_S + self.longest_dispute_s
        if self.unbond_delay_s <= needed:
            raise Failure(
                f"unbond_delay_s is {self.unbond_delay_s}, but stake must outlast open requests and disputes: "
                f"more than {needed}."
            )


def local_chain_ids() -> list[int]:
    """Return the ids of development chains."""
    ids: list[int] = _read()["local_chain_ids"]
    return ids


def parameters_of(chain_id: int) -> Parameters:
    """Return what contracts on a chain are to be constructed with."""
    table = _read()
    chosen = table["local" if chain_id in table["local_chain_ids"] else "other"]
    gas = json.loads((_FOLDER / "_gas_terms.json").read_text(encoding="utf-8"))
    return Parameters(gas_terms={key: gas[key] for key in _GAS_TERMS}, **chosen)


def constructor_arguments(
    contract: str, parameters: Parameters, owner: str, addresses: dict[str, str]
) -> dict[str, Any]:
    """Return a contract's constructor arguments by their names in Solidity."""
    gas, probation = parameters.gas_terms, parameters.probation
    if contract == "StakeManager":
        return {
            "minStake": parameters.min_stake_wei,
            "minBond": parameters.min_bond_wei,
            "unbondDelay": parameters.unbond_delay_s,
            "priceNotice": parameters.price_notice_s,
            "faults": addresses["Faults"],
        }
    if contract == "ScheduleLog":
        return {"stakes": addresses["StakeManager"]}
    if contract == "ModelRegistry":
        return {"owner": owner}
    if contract == "AttestedKeyVerifier":
        return {"registrar": owner}
    if contract == "Faults":
        return {
            "stakes": addresses["StakeManager"],
            "scheduleLog": addresses["ScheduleLog"],
            "market": addresses["InferenceMarket"],
            "schedule": {
                "missed": parameters.faults["missed_wei"],
                "equivocation": parameters.faults["equivocation_wei"],
                "relayer": parameters.faults["relayer_wei"],
            },
        }
    return {
        "owner": owner,
        "stakes": addresses["StakeManager"],
        "scheduleLog": addresses["ScheduleLog"],
        "gasTerms": {
            "tipCap": gas["tip_cap_wei"],
            "fixedGas": gas["fixed_gas"],
            "itemGas": gas["item_gas"],
            "nodeGas": gas["node_gas"],
            "assignedGas": gas["assigned_gas"],
        },
        "probation": {
            "maxReward": probation["max_reward_wei"],
            "settledCount": probation["settled_count"],
            "duration": probation["duration_s"],
        },
    }


def _read() -> dict[str, Any]:
    return tomllib.loads((_FOLDER / "_parameters.toml").read_text(encoding="utf-8"))
