"""A whole Headrace on this machine, each part a process of its own: anvil, the contracts, a relayer and its nodes.

`make up`, `make demo` and the end-to-end tests start it. All it writes is under one folder: logs, stores, keystores and
the deployment file. Accounts are anvil's own test accounts, whose keys are public: for local chains only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from eth_account import Account
from eth_account.signers.local import LocalAccount

from headrace.adapters.file_lock import Held, alone_with
from scripts._leftovers import end_leftovers

ROOT = Path(__file__).resolve().parent.parent
MNEMONIC = "test test test test test test test test test test test junk"
MODEL = "smollm2-135m-instruct"
DEPLOYER, RELAYER, NODE_OWNERS, REQUESTER = 0, 1, (2, 3, 7), 4
PRICE_PER_PROMPT_KIB_WEI = 20_000 * 10**9
PRICE_PER_THOUSAND_TOKENS_WEI = 200_000 * 10**9
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 15.0


class StackError(Exception):
    """A part did not start, or died; the message says which, and ends with the tail of its log."""


def test_account(index: int) -> LocalAccount:
    """One of anvil's test accounts."""
    Account.enable_unaudited_hdwallet_features()
    return Account.from_mnemonic(MNEMONIC, account_path=f"m/44'/60'/0'/0/{index}")


def free_port(preferred: int = 0) -> int:
    """A port of the loopback interface that nobody listens on: `preferred` if it is free."""
    for port in (preferred, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise StackError("there is no free port on 127.0.0.1")


@dataclass
class Part:
    """A process of the stack, with its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def require_alive(self) -> None:
        """Raises StackError if it has ended."""
        if self.process.poll() is not None:
            raise StackError(f"{self.name} ended with exit code {self.process.returncode}:\n{tail(self.log)}")

    def stop(self) -> None:
        """Ask it to stop, and end it if it does not."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, with what it started: npm's anvil is a script around the program."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Stack:
    """The running parts and where they are. `start` and `stop` it, or use it as a context manager."""

    folder: Path
    report: Callable[[str], None] = print
    preferred_api_port: int = 0
    nodes: int = 2  # each of another owner
    is_pair: bool = False  # whether nodes know of a standby, which `start_standby` starts
    rpc_port: int = 0
    api_port: int = 0
    link_port: int = 0
    standby_api_port: int = 0
    standby_link_port: int = 0
    parts: dict[str, Part] = field(default_factory=dict)
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Stack:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def rpc_url(self) -> str:
        """Where anvil listens."""
        return f"http://127.0.0.1:{self.rpc_port}"

    @property
    def api_url(self) -> str:
        """Where the relayer's control API is."""
        return f"http://127.0.0.1:{self.api_port}"

    @property
    def link_url(self) -> str:
        """Where the relayer takes nodes' links; of a pair, both places."""
        ports = (self.link_port, self.standby_link_port) if self.is_pair else (self.link_port,)
        return ",".join(f"ws://127.0.0.1:{port}/link" for port in ports)

    @property
    def deployments(self) -> Path:
        """Folder of the deployment file."""
        return self.folder / "deployments"

    def start(self) -> None:
        """Start everything anew, in order, and wait until all nodes are linked.

        Raises:
            StackError: a part does not start, or another stack runs in the folder.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._held.enter_context(alone_with(self.folder))
        except Held as exc:
            raise StackError(f"it runs already (process {exc.pid}, {self.folder}): stop that first") from None
        if left := end_leftovers(self.folder):
            self.report(f"ended what was left of a run before: {', '.join(left)}")
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "logs").mkdir(parents=True)
        self.rpc_port, self.link_port = free_port(), free_port()
        self.api_port = free_port(self.preferred_api_port)
        self.standby_api_port, self.standby_link_port = free_port(), free_port()
        self.report("starting a local chain (anvil, a block every second)")
        self.start_chain()
        self.report("deploying the contracts (ape run deploy)")
        self._ape("deploy")
        count = {2: "two", 3: "three"}[self.nodes]
        self.report(f"registering a relayer and {count} nodes with their stake")
        self._register()
        self.report("starting the relayer")
        self.start_relayer()
        self.report(f"starting {count} nodes, each with its own language model")
        for number in range(1, self.nodes + 1):
            self.start_node(number)
        self.await_ready(self.nodes)

    def stop(self) -> None:
        """Stop everything, in the order in which work flows, so that what is in flight can drain."""
        for name in sorted(self.parts, key=lambda part: ("relayer" in part, "anvil" in part)):
            self.parts[name].stop()
        self._held.close()

    # Parts

    def start_chain(self) -> None:
        """Start anvil and wait until it answers."""
        command = ["anvil", "--port", str(self.rpc_port), "--block-time", "1", "--hardfork", "prague"]
        self._spawn("anvil", [*command, "--mnemonic", MNEMONIC, "--accounts", "20"], {})
        self._await("anvil", lambda: bool(self.rpc("eth_chainId")))

    def start_relayer(self, changes: Mapping[str, str] | None = None) -> None:
        """Start the relayer, with some settings changed, and wait until it is ready."""
        self._spawn("relayer", ["headrace", "relayer"], {**self.relayer_environment(), **(changes or {})})
        self._await("relayer", lambda: self.get("/readyz") is not None)

    def start_standby(self) -> None:
        """Start a second process of the relayer, and wait until it stands by."""
        ports = {"API_PORT": self.standby_api_port, "LINK_PORT": self.standby_link_port}
        changes = {f"HEADRACE_RELAYER__{name}": str(port) for name, port in ports.items()}
        command = ["headrace", "relayer", "--standby"]
        self._spawn("relayer-standby", command, {**self.relayer_environment(), **changes})
        url = f"http://127.0.0.1:{self.standby_api_port}/healthz"
        self._await("relayer-standby", lambda: _fetch(urllib.request.Request(url)) is not None)

    def follow(self) -> None:
        """Turn to the standby: its ports are the relayer's now, and the other's are for the next standby."""
        self.api_port, self.standby_api_port = self.standby_api_port, self.api_port
        self.link_port, self.standby_link_port = self.standby_link_port, self.link_port
        self.parts["relayer"] = self.parts.pop("relayer-standby")

    def start_node(self, number: int) -> None:
        """Start a node; it links itself."""
        self._spawn(f"node-{number}", ["headrace", "node"], self.node_environment(number))

    def await_ready(self, nodes: int) -> None:
        """Wait until that many nodes are linked."""

        def are_linked() -> bool:
            listed = self.get("/v1/nodes")
            return listed is not None and sum(1 for node in listed["nodes"] if node["linked"]) >= nodes

        self._await("relayer", are_linked)

    def until(self, is_so: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until something is so. Raises StackError if a part ends, or the time passes, before."""
        self._await("relayer", is_so, timeout_s)

    def kill(self, name: str) -> None:
        """End a part at once, as a crash would."""
        self.parts.pop(name).kill()

    # Environments

    def relayer_environment(self) -> dict[str, str]:
        """Settings of the relayer."""
        return {
            **self._common(),
            "HEADRACE_RELAYER_PRIVATE_KEY": private_key(RELAYER),
            "HEADRACE_RELAYER__API_PORT": str(self.api_port),
            "HEADRACE_RELAYER__LINK_PORT": str(self.link_port),
            "HEADRACE_RELAYER__DATABASE": str(self.folder / "relayer.db"),
            # Gas is free here, and somebody waits for the answer.
            "HEADRACE_RELAYER__BATCH__LONGEST_WAIT_MS": "1500",
            "HEADRACE_RELAYER__BATCH__LONGEST_REALTIME_WAIT_MS": "1500",
        }

    def node_environment(self, number: int) -> dict[str, str]:
        """Settings of a node."""
        return {
            **self._common(),
            "HEADRACE_NODE__KEY__KEYSTORE": str(self.keystore(number)),
            "HEADRACE_KEYSTORE_PASSWORD": self._password(),
            "HEADRACE_NODE__RELAYER_LINK_URL": self.link_url,
            "HEADRACE_NODE__JOURNAL": str(self.folder / f"node-{number}.db"),
            "HEADRACE_NODE__MODELS": json.dumps([MODEL]),
        }

    def requester_environment(self) -> dict[str, str]:
        """Settings of `headrace request`."""
        return {
            **self._common(),
            "HEADRACE_REQUESTER_PRIVATE_KEY": private_key(REQUESTER),
            "HEADRACE_REQUESTER__API_URL": self.api_url,
        }

    def keystore(self, number: int) -> Path:
        """A node's encrypted signing key."""
        return self.folder / f"node-{number}.json"

    # Asking

    def rpc(self, method: str, *params: object) -> Any:
        """A JSON-RPC call to the chain; None when it does not answer."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        answer = _fetch(urllib.request.Request(self.rpc_url, body, {"Content-Type": "application/json"}))
        if answer is not None and "error" in answer:
            raise StackError(f"{method}: {answer['error']['message']}")
        return answer and answer["result"]

    def get(self, path: str) -> Any:
        """A GET of the control API; None when it does not answer with 200."""
        return _fetch(urllib.request.Request(self.api_url + path))

    def headrace(self, *arguments: str, capture: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the requester's."""
        return subprocess.run(
            ["headrace", *arguments],
            env={**clean_environment(), **self.requester_environment()},
            cwd=ROOT,
            text=True,
            capture_output=capture,
            check=False,
            timeout=420,
        )

    # Inside

    def _common(self) -> dict[str, str]:
        return {
            "HEADRACE_CHAIN__RPC_URL": self.rpc_url,
            "HEADRACE_CHAIN__DEPLOYMENTS": str(self.deployments),
            "HEADRACE_CHAIN__CONFIRMATIONS": "0",
        }

    def _register(self) -> None:
        for number in range(1, self.nodes + 1):
            account = Account.create()
            document = account.encrypt(self._password(), kdf="scrypt", iterations=2**14)
            self.keystore(number).touch(mode=0o600)
            self.keystore(number).write_text(json.dumps(document), encoding="utf-8")
        commands = [["register_relayer", "--test-account", str(RELAYER), "--endpoint", self.api_url]]
        for number, owner in enumerate(NODE_OWNERS[: self.nodes], start=1):
            command = ["register_node", "--keystore", str(self.keystore(number)), "--test-account", str(owner)]
            prices = [str(PRICE_PER_PROMPT_KIB_WEI), str(PRICE_PER_THOUSAND_TOKENS_WEI)]
            command += ["--model", MODEL, "--price-per-prompt-kib", prices[0]]
            commands.append([*command, "--price-per-thousand-tokens", prices[1]])
        running = [self._start_ape(*command) for command in commands]
        for part in running:
            self._finish(part)

    def _password(self) -> str:
        path = self.folder / "password"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(16), encoding="utf-8")
        return path.read_text(encoding="utf-8")

    def _ape(self, *arguments: str) -> None:
        self._finish(self._start_ape(*arguments))

    def _start_ape(self, script: str, *arguments: str) -> Part:
        network = ["--network", f"ethereum:local:{self.rpc_url}"]
        environment = {
            "HEADRACE_CHAIN__DEPLOYMENTS": str(self.deployments),
            "HEADRACE_KEYSTORE_PASSWORD": self._password(),
        }
        name = f"ape-{script}-{secrets.token_hex(2)}"
        log = self.folder / "logs" / f"{name}.log"
        return Part(f"ape run {script}", _popen(["ape", "run", script, *network, *arguments], environment, log), log)

    def _finish(self, part: Part) -> None:
        try:
            code = part.process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            part.stop()
            raise StackError(f"{part.name} took longer than {START_TIMEOUT_S:.0f} s:\n{tail(part.log)}") from None
        if code != 0:
            raise StackError(f"{part.name} failed:\n{tail(part.log)}")

    def _spawn(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        log = self.folder / "logs" / f"{name}.log"
        self.parts[name] = Part(name, _popen(command, environment, log), log)
        (self.folder / f"{name}.pid").write_text(str(self.parts[name].process.pid), encoding="utf-8")

    def _await(self, name: str, is_ready: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            for part in self.parts.values():
                part.require_alive()
            if time.monotonic() > deadline:
                log = self.folder / "logs" / f"{name}.log"
                raise StackError(f"{name} was not ready after {timeout_s:.0f} s:\n{tail(log)}")
            time.sleep(0.1)


def private_key(index: int) -> str:
    """The published key of a test account, as the environment wants it."""
    return "0x" + bytes(test_account(index).key).hex()


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:])


def _popen(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with _opened(log) as output:
        return subprocess.Popen(
            list(command),
            env={**clean_environment(), **environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the parent, which stops the parts in order.
            start_new_session=True,
        )


@contextlib.contextmanager
def _opened(log: Path) -> Iterator[IO[bytes]]:
    with log.open("ab") as output:
        yield output


def clean_environment() -> dict[str, str]:
    """This process's environment with the project's tools first, and without settings meant for another Headrace."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return {
        **kept,
        "PATH": os.pathsep.join([*map(str, tool_folders()), kept.get("PATH", "")]),
        "SOLCX_BINARY_PATH": str(ROOT / "scripts" / "_solc"),
    }


def tool_folders() -> tuple[Path, ...]:
    """Where the project's own programs are: headrace and ape, anvil and solc."""
    return Path(sys.executable).parent, ROOT / "node_modules" / ".bin"


def _fetch(request: urllib.request.Request) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return json.load(response)
    except (urllib.error.URLError, ConnectionError, TimeoutError, ValueError):
        return None
