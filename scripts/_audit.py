"""Asks the advisory services of PyPI and npm for known faults of what the locks name (`make audit`, `make check`).

Faults that are found fail. With --if-reachable, a service that does not answer in time is a warning, since not every
network lets it be asked; nothing is installed here either way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PIP_AUDIT = ROOT / ".build/audit/bin/pip-audit"
LOCKS = ("requirements.lock", "requirements-slither.lock", "requirements-halmos.lock")
# For both together.
PATIENCE_S = 20.0
# One that is asked by hand may take its time.
LONG_PATIENCE_S = 300.0


class NoAnswer(Exception):
    """A service did not say whether there are faults; the message says why."""


@dataclass(frozen=True)
class Service:
    """How faults are asked for, and read from the answer."""

    name: str
    command: Sequence[str]
    faults: Callable[[str], list[str]]


def services() -> list[Service]:
    """Both, as they are asked."""
    locks = [part for lock in LOCKS for part in ("--requirement", lock)]
    pip = [str(PIP_AUDIT), *locks, "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    npm = ["npm", "audit", "--json", "--fetch-retries=0", "--loglevel=silent"]
    return [Service("pip-audit", pip, faults_of_pip), Service("npm audit", npm, faults_of_npm)]


def faults_of_pip(text: str) -> list[str]:
    """The faults in pip-audit's JSON.

    Raises:
        NoAnswer: it is something else.
    """
    found = _json(text).get("dependencies")
    if not isinstance(found, list):
        raise NoAnswer("it gave no list of dependencies")
    return [
        f"{each['name']} {each.get('version')}: {fault['id']}, mended in {', '.join(fault['fix_versions']) or 'none'}"
        for each in found
        for fault in each.get("vulns", ())
    ]


def faults_of_npm(text: str) -> list[str]:
    """The faults in npm's JSON.

    Raises:
        NoAnswer: it is something else.
    """
    document = _json(text)
    found = document.get("vulnerabilities")
    if not isinstance(found, dict):
        raise NoAnswer(str(document.get("message") or "it gave no list of faults"))
    return [f"{name} {each.get('range')}: {each.get('severity')}" for name, each in sorted(found.items())]


def ask(asked: Sequence[Service], patience_s: float) -> dict[str, list[str] | NoAnswer]:
    """The faults that each service knows of, or why it does not say."""
    until_s = time.monotonic() + patience_s
    running = {service.name: _start(service.command) for service in asked}
    return {service.name: _outcome(service, running[service.name], until_s) for service in asked}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if there are no faults, 1 if there are, 2 if that is not known and has to be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--if-reachable", action="store_true", help="warn when a service does not answer in 20 s")
    is_lenient = parser.parse_args(arguments).if_reachable
    outcomes = ask(services(), PATIENCE_S if is_lenient else LONG_PATIENCE_S)
    for name, outcome in outcomes.items():
        if isinstance(outcome, NoAnswer):
            print(f"{'WARNING: ' if is_lenient else ''}{name}: known faults were not looked up: {outcome}")
        else:
            print(f"{name}: {len(outcome)} known faults", *outcome, sep="\n  ")
    if any(outcome for outcome in outcomes.values() if isinstance(outcome, list)):
        return 1
    return 2 if not is_lenient and any(isinstance(outcome, NoAnswer) for outcome in outcomes.values()) else 0


def _start(command: Sequence[str]) -> subprocess.Popen[str] | NoAnswer:
    try:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that what it starts ends with it
        )
    except FileNotFoundError:
        return NoAnswer(f"{Path(command[0]).name} is not installed; `make audit` does that")
    except OSError as exc:
        return NoAnswer(f"{Path(command[0]).name} does not start: {exc.strerror}")


def _outcome(service: Service, process: subprocess.Popen[str] | NoAnswer, until_s: float) -> list[str] | NoAnswer:
    if isinstance(process, NoAnswer):
        return process
    try:
        said, complaint = process.communicate(timeout=max(0.1, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return NoAnswer("the service did not answer in time")
    try:
        return service.faults(said)
    except NoAnswer as exc:
        last = next((line.strip() for line in reversed(complaint.splitlines()) if line.strip()), "")
        return NoAnswer(f"{exc} ({last})"[:300] if last else str(exc))


def _json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        raise NoAnswer("it gave no JSON") from None
    if not isinstance(document, dict):
        raise NoAnswer("it gave something else than an object")
    return document


if __name__ == "__main__":
    sys.exit(main())
