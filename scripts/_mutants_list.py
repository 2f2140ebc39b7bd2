"""Lists the mutants that slither-mutate knows for the contracts, as JSON. Runs in Slither's own environment."""

import inspect
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from slither import Slither
from slither.tools.mutator.mutators import all_mutators
from slither.tools.mutator.mutators.abstract_mutator import AbstractMutator

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("contracts/test/", "contracts/interfaces/")


def main() -> None:
    """Write one list of mutants to standard output."""
    slither = Slither(str(ROOT), foundry_out_directory=sys.argv[1])
    kinds = [each for _, each in inspect.getmembers(all_mutators, inspect.isclass) if each is not AbstractMutator]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for unit in slither.compilation_units:
        for contract in unit.contracts:
            file = Path(contract.source_mapping.filename.absolute)
            if not file.is_relative_to(ROOT / "contracts"):
                continue
            name = str(file.relative_to(ROOT))
            if name.startswith(LEFT_OUT):
                continue
            for kind in kinds:
                for patch in _patches(kind, unit, contract):
                    mutant = {"file": name, "contract": contract.name, "mutator": kind.NAME, **patch}
                    # What was there and what is put there say all: a contract is met once for each that inherits it.
                    found.setdefault((name, patch["start"], patch["end"], patch["new"]), mutant)
    ordered = sorted(found.values(), key=lambda each: (each["file"], each["start"], each["mutator"], each["new"]))
    json.dump(ordered, sys.stdout, indent=1)


def _patches(kind: type[AbstractMutator], unit: Any, contract: Any) -> list[dict[str, Any]]:
    mutator = kind(unit, 0, "", "", contract, None, False, Path(), [])
    try:
        return _mutate(mutator)
    except Exception:  # noqa: BLE001 - some line is beyond it, which must not cost the others of the contract
        found = []
        may_mutate = mutator.should_mutate_node
        for function in contract.functions_and_modifiers_declared:
            for node in function.nodes:
                mutator.should_mutate_node = lambda each, only=node: each is only and may_mutate(each)
                with suppress(Exception):
                    found += _mutate(mutator)
        return found


def _mutate(mutator: AbstractMutator) -> list[dict[str, Any]]:
    return [
        {"line": each["line_number"], "start": each["start"], "end": each["end"], "new": each["new_string"]}
        for some in mutator._mutate().get("patches", {}).values()
        for each in some
    ]


if __name__ == "__main__":
    main()
