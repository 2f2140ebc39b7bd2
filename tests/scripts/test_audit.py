"""Known faults fail; a service that does not answer is a warning where that is asked for."""

from __future__ import annotations

import json
import sys
import time

import pytest

from scripts import _audit
from scripts._audit import NoAnswer, Service, ask, faults_of_npm, faults_of_pip, main

CLEAN = json.dumps({"dependencies": [{"name": "a", "version": "1", "vulns": []}], "fixes": []})
FAULTY = json.dumps(
    {"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2", "3"]}]}]}
)
NPM_CLEAN = json.dumps({"vulnerabilities": {}, "metadata": {}})
NPM_FAULTY = json.dumps({"vulnerabilities": {"b": {"range": "<2", "severity": "high"}}})
NPM_OFFLINE = json.dumps({"message": "request to the registry failed", "error": {"code": "ENOTFOUND"}})


def saying(text: str, complaint: str = "") -> Service:
    program = f"import sys; sys.stdout.write({text!r}); sys.stderr.write({complaint!r}); sys.exit(1)"
    reads = faults_of_pip if "dependencies" in text else faults_of_npm
    return Service(f"service {len(text)}", [sys.executable, "-c", program], reads)


def hanging() -> Service:
    return Service("hanging", [sys.executable, "-c", "import time; time.sleep(60)"], faults_of_npm)


def test_faults__of_both__are_one_line_each() -> None:
    assert faults_of_pip(FAULTY) == ["a 1: CVE-1, mended in 2, 3"]
    assert faults_of_npm(NPM_FAULTY) == ["b <2: high"]
    assert faults_of_pip(CLEAN) == faults_of_npm(NPM_CLEAN) == []


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", NPM_OFFLINE, '{"dependencies": 1, "vulnerabilities": 1}'])
def test_faults__something_else__is_no_answer(text: str) -> None:
    for read in (faults_of_pip, faults_of_npm):
        with pytest.raises(NoAnswer):
            read(text)


def test_ask__service_hangs__is_ended_in_time() -> None:
    began = time.monotonic()
    outcome = ask([hanging(), saying(NPM_CLEAN)], 1.0)
    assert time.monotonic() - began < 10
    assert isinstance(outcome["hanging"], NoAnswer)


@pytest.mark.parametrize(
    ("services", "arguments", "code", "says"),
    [
        ([saying(CLEAN), saying(NPM_CLEAN)], ["--if-reachable"], 0, "0 known faults"),
        ([saying(FAULTY), saying(NPM_CLEAN)], ["--if-reachable"], 1, "CVE-1"),
        ([saying(CLEAN), saying(NPM_FAULTY)], [], 1, "b <2: high"),
        ([saying(CLEAN), saying(NPM_OFFLINE, "npm error no network\n")], ["--if-reachable"], 0, "npm error no network"),
        ([saying(CLEAN), saying(NPM_OFFLINE)], [], 2, "not looked up"),
        ([saying(FAULTY), saying(NPM_OFFLINE)], ["--if-reachable"], 1, "WARNING"),
        ([Service("pip-audit", ["/nowhere/pip-audit"], faults_of_pip)], ["--if-reachable"], 0, "`make audit` does"),
    ],
)
def test_main__what_is_known__is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    services: list[Service],
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.setattr(_audit, "services", lambda: services)
    assert main(arguments) == code
    assert says in capsys.readouterr().out
