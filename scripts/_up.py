"""`make up` and `make demo`: the whole of Headrace on this machine, answering real requests.

`make up` posts one request, shows how it fares, then serves until Ctrl-C. `make demo` posts three of different kinds,
adds up who was paid what, and exits with 0 only if all were answered, settled and paid once, to the wei.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eth_abi import decode, encode
from eth_utils import keccak
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from scripts._stack import (
    NODE_OWNERS,
    RELAYER,
    REQUESTER,
    ROOT,
    Stack,
    StackError,
    clean_environment,
    test_account,
    tool_folders,
)

PREFERRED_API_PORT = 8480
FIRST_PROMPT = "In one short sentence: why is the sky blue?"
CHAT = {
    "messages": [
        {"role": "system", "content": "You are a terse assistant."},
        {"role": "user", "content": "Name three primary colours."},
    ],
    "temperature": 0,
    "seed": 7,
}
console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Kind:
    """A request of the demo. `arguments` are those of `headrace request new`."""

    name: str
    arguments: tuple[str, ...]


def kinds(folder: Path) -> list[Kind]:
    """Three requests that differ in all that this version knows: lane, privacy, form of the prompt."""
    chat = folder / "chat.json"
    chat.write_text(json.dumps(CHAT), encoding="utf-8")
    return [
        Kind("private, realtime", (FIRST_PROMPT, "--lane", "realtime", "--max-tokens", "48")),
        Kind("public, bulk", ("What is 2+2?", "--public", "--max-tokens", "32")),
        Kind("chat, bulk", ("--chat", str(chat), "--max-tokens", "48")),
    ]


def main() -> int:
    """Run as the arguments say; the exit code tells whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", action="store_true", help="post three requests, check the books, stop")
    arguments = parser.parse_args()
    # A shell starts background jobs with SIGINT ignored; here it always means to stop.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    started = time.monotonic()

    def report(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.1f} s[/]  {text}")

    folder = ROOT / ".headrace" / ("demo" if arguments.demo else "up")
    try:
        with Stack(folder, report, preferred_api_port=0 if arguments.demo else PREFERRED_API_PORT) as stack:
            report(f"ready: chain {stack.rpc_url}, API {stack.api_url}, logs in {folder.relative_to(ROOT)}/logs")
            return demo(stack) if arguments.demo else up(stack)
    except StackError as exc:
        console.print(f"[red]{exc}[/]")
        return 1
    except KeyboardInterrupt:
        report("stopped")
        return 0


def up(stack: Stack) -> int:
    """One request, then serve until Ctrl-C."""
    settings = write_shell_settings(stack)
    console.print(f'\n[bold]headrace request new "{FIRST_PROMPT}" --wait[/]\n')
    first = stack.headrace("request", "new", FIRST_PROMPT, "--max-tokens", "48", "--wait", capture=False)
    if first.returncode != 0:
        return first.returncode
    console.print(
        f"\nServing until Ctrl-C. The API describes itself at {stack.api_url}/openapi.json\n"
        "Ask again from another terminal:\n\n"
        f"  . {settings.relative_to(ROOT)}\n"
        '  headrace request new "…" --wait\n'
    )
    while True:
        for part in stack.parts.values():
            part.require_alive()
        time.sleep(0.5)


def write_shell_settings(stack: Stack) -> Path:
    """Write what a shell needs to use this stack as its requester, or to add a node; return the file."""
    settings = {
        **stack.requester_environment(),
        "HEADRACE_NODE__RELAYER_LINK_URL": stack.link_url,
        "SOLCX_BINARY_PATH": clean_environment()["SOLCX_BINARY_PATH"],
    }
    tools = ":".join(shlex.quote(str(path)) for path in tool_folders())
    lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    path = stack.folder / "env.sh"
    path.touch(mode=0o600)
    path.write_text("\n".join([*lines, f'export PATH={tools}:"$PATH"', ""]), encoding="utf-8")
    return path


def demo(stack: Stack) -> int:
    """Three requests and the books."""
    books = Books(stack)
    before = books.read()
    answered: list[tuple[Kind, dict[str, Any]]] = []
    for kind in kinds(stack.folder):
        console.print(f"[bold]{kind.name}[/]: headrace request new {' '.join(kind.arguments[:1])} …")
        done = stack.headrace("request", "new", *kind.arguments, "--wait", "--json")
        if done.returncode != 0:
            console.print(f"[red]{done.stderr or done.stdout}[/]")
            return 1
        answered.append((kind, json.loads(done.stdout)))
        console.print(f"  {answered[-1][1]['answer']}\n", markup=False)
    show_requests(answered)
    return books.check(before, [document for _, document in answered])


def show_requests(answered: list[tuple[Kind, dict[str, Any]]]) -> None:
    """What became of each request."""
    table = Table("request", "state", "settled in", "node", "relayer", "refund", "escrow (gwei)")
    for kind, document in answered:
        settled = document["request"]["settlement"]
        table.add_row(
            kind.name,
            document["request"]["state"],
            settled["transaction_hash"][:8] + "…",
            *(gwei(settled[f"{part}_wei"]) for part in ("node", "relayer", "refund")),
            gwei(document["request"]["escrow_wei"]),
        )
    console.print(table)


def gwei(wei: str) -> str:
    """An amount that fits a column; the books have it to the wei."""
    return f"{int(wei) / 10**9:,.0f}"


class Books:
    """The market's credits and balances, read from the chain and compared with what the requests say."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        deployment = json.loads(next(stack.deployments.glob("*.json")).read_text(encoding="utf-8"))
        self._market = deployment["contracts"]["InferenceMarket"]["address"].lower()
        self._accounts = {
            "requester": test_account(REQUESTER).address.lower(),
            "relayer": test_account(RELAYER).address.lower(),
            **{f"owner of node {n}": test_account(owner).address.lower() for n, owner in enumerate(NODE_OWNERS, 1)},
        }

    def read(self) -> dict[str, int]:
        """Credits in the market by account, wei of the requester, and the market's own balance."""
        by_account = {name: self._credit(address) for name, address in self._accounts.items()}
        wallet = int(self._stack.rpc("eth_getBalance", self._accounts["requester"], "latest"), 16)
        market = int(self._stack.rpc("eth_getBalance", self._market, "latest"), 16)
        return {**by_account, "market": market, "wallet": wallet}

    def check(self, before: dict[str, int], documents: list[dict[str, Any]]) -> int:
        """Print the books, and 0 if they balance to the wei."""
        after = self.read()
        settlements = [document["request"]["settlement"] for document in documents]
        escrow = sum(int(document["request"]["escrow_wei"]) for document in documents)
        parts = {name: sum(int(each[f"{name}_wei"]) for each in settlements) for name in ("node", "relayer", "refund")}
        owners = [name for name in self._accounts if name.startswith("owner")]
        gas = sum(self._fee(document["transaction_hash"]) for document in documents)
        changes = {name: after[name] - before[name] for name in after}
        rows = [
            ("escrowed by the requester", escrow, -changes["wallet"] - gas),
            ("earned by the nodes", parts["node"], sum(changes[name] for name in owners)),
            ("earned by the relayer", parts["relayer"], changes["relayer"]),
            ("refunded to the requester", parts["refund"], changes["requester"]),
            ("all three = escrow", sum(parts.values()), escrow),
            ("market = all credits", changes["market"], sum(changes[name] for name in self._accounts)),
        ]
        table = Table("books, in wei", "by the requests", "on the chain", "")
        for name, expected, found in rows:
            table.add_row(name, f"{expected:,}", f"{found:,}", "✔" if expected == found else "✘")
        console.print(table)
        once = all(self._times_paid(document["request_id"]) == 1 for document in documents)
        settled = all(document["request"]["state"] == "fulfilled" and document["answer"] for document in documents)
        balanced = all(expected == found for _, expected, found in rows)
        good = once and settled and balanced
        console.print(
            f"answered and settled: {settled}   paid exactly once: {once}   balanced to the wei: {balanced}",
            style="green" if good else "red",
        )
        return 0 if good else 1

    def _credit(self, account: str) -> int:
        data = keccak(text="accountOf(address)")[:4] + encode(["address"], [account])
        answer = self._stack.rpc("eth_call", {"to": self._market, "data": "0x" + data.hex()}, "latest")
        return int(decode(["uint128", "uint64"], bytes.fromhex(answer[2:]))[0])

    def _fee(self, transaction_hash: str) -> int:
        receipt = self._stack.rpc("eth_getTransactionReceipt", transaction_hash)
        return int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)

    def _times_paid(self, request_id: str) -> int:
        topic = "0x" + keccak(text="ResultFulfilled(bytes32,bytes32,uint256,uint256,uint256)").hex()
        wanted = {"address": self._market, "fromBlock": "0x0", "toBlock": "latest", "topics": [topic, request_id]}
        return len(self._stack.rpc("eth_getLogs", wanted))


if __name__ == "__main__":
    sys.exit(main())
