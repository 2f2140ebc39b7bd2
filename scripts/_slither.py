"""Runs Slither and compares what it finds with what is explained in `_slither.toml`."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / ".build" / "slither"
LEFT_OUT = "node_modules|contracts/test|tests/"


def main() -> int:
    """Return 0 if every finding is explained and every explanation is needed."""
    explained = tomllib.loads((ROOT / "scripts/_slither.toml").read_text("utf-8"))
    known = {(check, where) for check, places in explained["findings"].items() for where in places}
    found = {(each["check"], _place(each)): each for each in _run(list(explained["detectors"]))}
    for key in sorted(found.keys() - known):
        print(f"{key[0]} in {key[1]}: {found[key]['impact']}, {found[key]['confidence']} confidence")
        print("    " + found[key]["description"].strip().replace("\n", "\n    "))
    for check, where in sorted(known - found.keys()):
        print(f"{check} in {where}: explained in scripts/_slither.toml, but not found any more")
    if found.keys() != known:
        return 1
    print(f"{len(found)} findings, all explained in scripts/_slither.toml")
    return 0


def _run(excluded: list[str]) -> list[dict[str, Any]]:
    report = BUILD / "report.json"
    report.unlink(missing_ok=True)
    folders = {"FOUNDRY_OUT": BUILD / "out", "FOUNDRY_CACHE_PATH": BUILD / "cache"}
    # Tests take minutes to compile, and are left out of the report.
    environment = {**os.environ, **{name: str(path) for name, path in folders.items()}, "FOUNDRY_TEST": "no-tests"}
    command = [str(BUILD / "env/bin/slither"), ".", "--foundry-out-directory", environment["FOUNDRY_OUT"]]
    command += ["--filter-paths", LEFT_OUT, "--exclude", ",".join(excluded), "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if not report.is_file() or not (parsed := json.loads(report.read_text("utf-8")))["success"]:
        sys.exit(f"slither did not run:\n{done.stdout}{done.stderr}")
    return list(parsed["results"].get("detectors", []))


def _place(finding: dict[str, Any]) -> str:
    """Return `Contract.function` of a finding, or the contract where it is not about a function."""
    for element in finding["elements"]:
        if element["type"] == "function":
            return f"{element['type_specific_fields']['parent']['name']}.{element['name']}"
        if element["type"] == "variable":
            parent = element["type_specific_fields"]["parent"]
            owner = parent.get("type_specific_fields", {}).get("parent", {}).get("name")
            return f"{owner}.{parent['name']}" if owner else str(parent["name"])
    return str(finding["elements"][0]["name"])


if __name__ == "__main__":
    sys.exit(main())
