"""Mutation testing of the contracts: changes them, one place at a time, and looks whether forge's tests notice.

The mutants are those of slither-mutate, of which a sample is drawn. Those that are not noticed are written down, for a
person to judge.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from pathlib import Path
from queue import Queue
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / ".build" / "mutants"
JUDGED = ROOT / "scripts" / "_mutants.toml"
REPORT = ROOT / "tests" / "bench" / "results" / "mutants.json"
TIMEOUT_S = 600
Mutant = dict[str, Any]


def main() -> int:
    """Return 0 if every mutant of the sample was noticed, or is judged."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=200, help="how many mutants that compile (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--file", help="only of contracts whose path contains this")
    options = parser.parse_args()
    mutants = [each for each in _list() if options.file is None or options.file in each["file"]]
    random.Random(options.seed).shuffle(mutants)
    benches = [Bench(number) for number in range(options.workers)]
    print(f"{len(mutants)} mutants; compiling the contracts and their tests, for minutes the first time")
    benches[0].prepare()
    for bench in benches[1:]:
        bench.copy(benches[0])
    judged = _run(benches, mutants, options.count)
    return _report(judged, options.seed)


def _list() -> list[Mutant]:
    """All mutants, from Slither's environment."""
    slither = ROOT / ".build" / "slither"
    environment = {**os.environ, "FOUNDRY_OUT": str(slither / "out"), "FOUNDRY_CACHE_PATH": str(slither / "cache")}
    command = [str(slither / "env/bin/python"), "scripts/_mutants_list.py", environment["FOUNDRY_OUT"]]
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, "FOUNDRY_TEST": "no-tests"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"the mutants could not be listed:\n{done.stderr}")
    mutants: list[Mutant] = json.loads(done.stdout)
    return mutants


class Bench:
    """A copy of the contracts and their tests, in which one mutant at a time is tested."""

    def __init__(self, number: int) -> None:
        self.folder = BUILD / f"bench-{number}"
        self._clean: dict[str, bytes] = {}

    def prepare(self) -> None:
        """Make the copy, and see that the tests pass on what is not changed."""
        for name in ("contracts", "tests/forge"):
            # What is gone from the project must not be tested here.
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(ROOT / name, self.folder / name)
        shutil.copy(ROOT / "foundry.toml", self.folder / "foundry.toml")
        for name in ("node_modules", "scripts"):
            link = self.folder / name
            link.unlink(missing_ok=True)
            link.symlink_to(ROOT / name)
        done = self._test()
        if done.returncode:
            sys.exit(f"the tests fail without a mutant:\n{done.stdout[-3000:]}{done.stderr}")
        self._read_code()

    def copy(self, other: "Bench") -> None:
        """Be as another bench."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(other.folder, self.folder, symlinks=True)
        self._clean = other._clean

    def judge(self, mutant: Mutant) -> str:
        """Test a mutant. Returns `killed`, `survived`, `equivalent` (the same code) or `invalid` (no code)."""
        path = self.folder / mutant["file"]
        source = path.read_bytes()
        path.write_bytes(source[: mutant["start"]] + mutant["new"].encode() + source[mutant["end"] :])
        try:
            built = self._forge("build", "contracts")
            if built.returncode:
                return "invalid"
            if not self._has_changed():
                return "equivalent"
            return "killed" if self._test().returncode else "survived"
        except subprocess.TimeoutExpired:
            return "killed"
        finally:
            path.write_bytes(source)

    def _test(self) -> subprocess.CompletedProcess[str]:
        return self._forge("test", "--fail-fast")

    def _forge(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "FOUNDRY_PROFILE": "mutants"}
        return subprocess.run(
            [str(ROOT / "scripts/_bin/forge"), *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def _artifacts(self) -> dict[str, bytes]:
        found = {}
        for path in sorted((self.folder / "contracts").rglob("*.sol")):
            for artifact in sorted((self.folder / ".build/forge/out" / path.name).glob("*.json")):
                content = json.loads(artifact.read_text("utf-8"))
                code = (content["bytecode"]["object"] + content["deployedBytecode"]["object"]).encode()
                found[artifact.name] = hashlib.sha256(code).digest()
        return found

    def _read_code(self) -> None:
        self._clean = self._artifacts()

    def _has_changed(self) -> bool:
        return self._artifacts() != self._clean


def _run(benches: list[Bench], mutants: list[Mutant], count: int) -> list[Mutant]:
    """Judge mutants, in their order, until so many of them have code of their own."""
    waiting: Queue[Mutant] = Queue()
    for mutant in mutants:
        waiting.put(mutant)
    judged: list[Mutant] = []
    lock = threading.Lock()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("mutants", total=count)

        def work(bench: Bench) -> None:
            while not waiting.empty() and not progress.finished:
                mutant = waiting.get()
                started_s = time.monotonic()
                verdict = bench.judge(mutant)
                with lock:
                    judged.append({**mutant, "verdict": verdict, "time_s": round(time.monotonic() - started_s, 1)})
                    (BUILD / "judged.json").write_text(json.dumps(judged, indent=1), "utf-8")
                    if verdict in ("killed", "survived"):
                        progress.advance(bar)
                        if verdict == "survived":
                            progress.console.print(_describe(mutant), markup=False, highlight=False)

        workers = [threading.Thread(target=work, args=(bench,)) for bench in benches]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return judged


def _describe(mutant: Mutant) -> str:
    source = (ROOT / mutant["file"]).read_bytes()
    old = source[mutant["start"] : mutant["end"]].decode()
    return f"survived: {mutant['file']}:{mutant['line']} {mutant['mutator']}\n  - {old}\n  + {mutant['new']}"


def _key(mutant: Mutant) -> str:
    """How `_mutants.toml` names a mutant: by what is replaced by what, so that other lines may move."""
    source = (ROOT / mutant["file"]).read_bytes()
    old = " ".join(source[mutant["start"] : mutant["end"]].decode().split())
    return f"{Path(mutant['file']).name}: {old} -> {' '.join(mutant['new'].split())}"


def _report(judged: list[Mutant], seed: int) -> int:
    known = tomllib.loads(JUDGED.read_text("utf-8"))["judged"] if JUDGED.is_file() else {}
    table = Table("mutator", "killed", "survived", "judged", "same code", "no code")
    kinds = sorted({each["mutator"] for each in judged})
    for kind in [*kinds, "all"]:
        some = [each for each in judged if kind in ("all", each["mutator"])]
        count = Counter(each["verdict"] for each in some)
        good = sum(each["verdict"] == "survived" and _key(each) in known for each in some)
        row = (count["killed"], count["survived"], good, count["equivalent"], count["invalid"])
        table.add_row(kind, *map(str, row), end_section=kind == (kinds or ["all"])[-1])
    Console().print(table)
    survived = [each for each in judged if each["verdict"] == "survived"]
    killed = sum(each["verdict"] == "killed" for each in judged)
    unjudged = [each for each in survived if _key(each) not in known]
    rate = 100 * killed / max(1, killed + len(survived))
    total = killed + len(survived)
    print(f"{killed} of {total} killed ({rate:.1f} %), seed {seed}; {len(unjudged)} survivors are not judged yet")
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"measure": "mutants killed", "value": round(rate, 1), "unit": "%", "target": None, "ok": True},
        {"measure": "survivors not judged", "value": len(unjudged), "unit": "", "target": 0, "ok": not unjudged},
    ]
    REPORT.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    for each in unjudged:
        print(json.dumps(_key(each)))
    return 1 if unjudged else 0


if __name__ == "__main__":
    sys.exit(main())
