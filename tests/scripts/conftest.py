"""Scripts run as their users run them, against an anvil of the test's own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from requests.exceptions import RequestException
from web3 import Web3

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
READY_WITHIN_S = 20
RUN_WITHIN_S = 300


@dataclass
class Chain:
    """A running anvil, and the scripts run against it."""

    url: str
    folder: Path
    network: str
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.web3 = Web3(Web3.HTTPProvider(self.url))

    def ape_run(self, script: str, *arguments: str, network: str | None = None, **environment: str) -> "Finished":
        return run_script(
            script,
            "--network",
            network or self.network,
            "--deployments",
            str(self.folder),
            *arguments,
            **self.environment,
            **environment,
        )

    @property
    def file(self) -> Path:
        return self.folder / f"{self.web3.eth.chain_id}.json"

    def deployment(self) -> dict[str, Any]:
        return json.loads(self.file.read_text("utf-8"))

    def contract(self, name: str) -> Any:
        abi = json.loads((ROOT / f"offchain/headrace/adapters/abi/{name}.json").read_text("utf-8"))["abi"]
        return self.web3.eth.contract(self.deployment()["contracts"][name]["address"], abi=abi)

    def sent(self, account: int) -> int:
        """How many transactions a test account has sent."""
        return self.web3.eth.get_transaction_count(self.web3.eth.accounts[account])


@dataclass(frozen=True)
class Finished:
    """What a script left behind."""

    code: int
    out: str
    err: str

    def ok(self) -> "Finished":
        assert self.code == 0, self.out + self.err
        return self

    def refusal(self) -> str:
        """The one line that a script fails with."""
        assert self.code == 1, self.out + self.err
        assert "Traceback" not in self.err
        errors = [line for line in self.err.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, self.err
        return errors[0].removeprefix("Error: ")


def run_script(script: str, *arguments: str, **environment: str) -> Finished:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "APE_"))}
    search = os.pathsep.join([str(BIN), str(ROOT / "node_modules" / ".bin"), inherited.get("PATH", "")])
    done = subprocess.run(
        ["ape", "run", script, *arguments],
        cwd=ROOT,
        env={**inherited, "PATH": search, "SOLCX_BINARY_PATH": str(ROOT / "scripts" / "_solc"), **environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=RUN_WITHIN_S,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def anvil(folder: Path, *options: str, chain_id: int) -> Iterator[Chain]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(ROOT / "node_modules/.bin/anvil"), "--hardfork", "prague", "--silent", *options]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--chain-id", str(chain_id)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # npm's anvil is a script that starts the real one
    )
    try:
        _wait_until_ready(url, process)
        network = f"ethereum:local:{url}" if chain_id == 31337 else url
        yield Chain(url, folder / "deployments", network, {"APE_DATA_FOLDER": str(folder / "ape")})
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    web3 = Web3(Web3.HTTPProvider(url, exception_retry_configuration=None))
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "anvil ended at once"
        try:
            web3.eth.get_block_number()
        except RequestException:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"anvil did not answer within {READY_WITHIN_S} s")


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    with anvil(tmp_path_factory.mktemp("chain"), "--block-time", "1", chain_id=31337) as running:
        yield running


@pytest.fixture(scope="module")
def deployed(chain: Chain) -> Chain:
    chain.ape_run("deploy").ok()
    return chain


@pytest.fixture(scope="module")
def public_chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """A chain that the scripts do not take for a development chain."""
    with anvil(tmp_path_factory.mktemp("public"), chain_id=4242) as running:
        yield running
