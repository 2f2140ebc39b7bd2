"""The contracts' ABIs, as exported into the Python package and the web page."""

import json
from pathlib import Path
from typing import Any

from scripts._errors import Failure

_ROOT = Path(__file__).parents[1]
FOLDER = _ROOT / "offchain" / "headrace" / "adapters" / "abi"
FRONTEND = _ROOT / "frontend"
TYPESCRIPT = FRONTEND / "src" / "generated" / "abi.ts"

CONTRACTS = ("AttestedKeyVerifier", "Faults", "InferenceMarket", "ModelRegistry", "ScheduleLog", "StakeManager")
# What others implement; exported once they are there.
INTERFACES = ("IInferenceReceiver", "IResultVerifier")

Abi = list[dict[str, Any]]


def load_abi(name: str) -> Abi:
    """Return the exported ABI of a contract."""
    path = FOLDER / f"{name}.json"
    try:
        abi: Abi = json.loads(path.read_text(encoding="utf-8"))["abi"]
    except FileNotFoundError:
        raise Failure(f"{path.name} is missing: run `ape run export_abi` first.") from None
    return abi


def abi_of(contract_type: Any) -> Abi:
    """Return a compiled contract's ABI in an order that does not hang on the compiler."""
    entries: Abi = contract_type.model_dump(mode="json", by_alias=True, exclude_none=True)["abi"]
    return sorted(entries, key=lambda entry: (entry["type"], entry.get("name", ""), json.dumps(entry, sort_keys=True)))


def files_of(abis: dict[str, Abi], *, with_typescript: bool) -> dict[Path, str]:
    """Return what each exported file holds."""
    files = {
        FOLDER / f"{name}.json": json.dumps({"abi": abi, "contractName": name}, indent=2, sort_keys=True) + "\n"
        for name, abi in abis.items()
    }
    if with_typescript:
        files[TYPESCRIPT] = _typescript(abis)
    return files


def _typescript(abis: dict[str, Abi]) -> str:
    parts = ["// Made by `ape run export_abi`; do not edit.\n"]
    for name in sorted(abis):
        variable = f"{name[0].lower()}{name[1:]}Abi"
        parts.append(f"export const {variable} = {json.dumps(abis[name], indent=2, sort_keys=True)} as const;\n")
    return "\n".join(parts)
