"""The compiled contracts, compiled anew when any source has changed.

Ape compiles a contract again when its own file changes, but not when only a library that it imports does.
"""

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ape import project

from scripts._abi import Abi, abi_of
from scripts._errors import Failure

_ROOT = Path(__file__).parents[1]
_CACHE = _ROOT / ".build" / "headrace-contracts.json"


@dataclass(frozen=True)
class Compiled:
    """What the compiler makes of a contract; an interface has no code."""

    abi: Abi
    creation_code: bytes


def compiled_contracts() -> dict[str, Compiled]:
    """Return the contracts and interfaces by name."""
    sources_hash = _sources_hash()
    _CACHE.parent.mkdir(exist_ok=True)
    # Of several that begin at once, one compiles.
    with _CACHE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cached = _read_cache()
        if cached.get("sources") != sources_hash:
            cached = {"sources": sources_hash, "contracts": _compile()}
            draft = _CACHE.with_suffix(f".{os.getpid()}.tmp")
            draft.write_text(json.dumps(cached), encoding="utf-8")
            draft.replace(_CACHE)
    return {
        name: Compiled(entry["abi"], bytes.fromhex(entry["creation_code"]))
        for name, entry in cached["contracts"].items()
    }


def _compile() -> dict[str, Any]:
    paths = [path.relative_to(_ROOT) for path in _sources()]
    contracts = project.load_contracts(*paths, use_cache=False)
    if not contracts:
        raise Failure("There are no contracts to compile: run this in the project's folder.")
    return {
        name: {
            "abi": abi_of(contract.contract_type),
            "creation_code": str(contract.contract_type.deployment_bytecode.bytecode or "").removeprefix("0x"),
        }
        for name, contract in contracts.items()
    }


def _sources() -> list[Path]:
    folder = _ROOT / "contracts"
    return sorted(path for path in folder.rglob("*.sol") if path.relative_to(folder).parts[0] != "test")


def _sources_hash() -> str:
    digest = hashlib.sha256()
    # The lock names the version of OpenZeppelin, and of the compiler.
    for path in [*_sources(), _ROOT / "ape-config.yaml", _ROOT / "package-lock.json"]:
        digest.update(f"{path.relative_to(_ROOT)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _read_cache() -> dict[str, Any]:
    try:
        cache: dict[str, Any] = json.loads(_CACHE.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return cache
