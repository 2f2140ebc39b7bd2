"""Watching over real processes: an honest history, and a node that took a request and was silent."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from eth_utils import keccak

from scripts._stack import MODEL, RELAYER, ROOT, Stack, clean_environment, private_key
from scripts._stack import test_account as account
from tests.e2e.test_requests import ask

WATCHER = 8
TTL_S, GRACE_S = 20, 300
MISSED_WEI = 10**16
PROVEN = "0x" + keccak(text="FaultProven(uint8,address,bytes32,address,address,uint256,uint256,address,uint256)").hex()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One of its own: its clock is put forward."""
    with Stack(tmp_path_factory.mktemp("stack") / "run", report=lambda _: None) as running:
        yield running


def watcher_environment(stack: Stack) -> dict[str, str]:
    """Of somebody who has no part in it."""
    return {
        **stack.requester_environment(),
        "HEADRACE_WATCHER_PRIVATE_KEY": private_key(WATCHER),
        "HEADRACE_WATCHER__FOLDER": str(stack.folder / "watch"),
    }


def watch(stack: Stack, *arguments: str, code: int) -> dict[str, Any]:
    """The report of `headrace watch --once`."""
    done = subprocess.run(
        ["headrace", "watch", "--once", "--json", *arguments],
        env={**clean_environment(), **watcher_environment(stack)},
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == code, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@contextmanager
def silent_model_server() -> Iterator[str]:
    """A model server that has the model and never answers."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"data": [{"id": MODEL}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            ended.wait()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="silent model server")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def key_of(stack: Stack, number: int) -> str:
    document = json.loads(stack.keystore(number).read_text("utf-8"))
    return "0x" + document["address"].lower().removeprefix("0x")


def stake_of(stack: Stack, key: str) -> tuple[int, int]:
    """A node's stake in wei, and its misses."""
    facts = (stack.get(f"/v1/nodes/{key}") or {})["facts"]
    return int(facts["stake_wei"]), facts["misses"]


def proofs(stack: Stack) -> list[Any]:
    return list(stack.rpc("eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest", "topics": [PROVEN]}) or [])


def test_watch__honest_history__finds_nothing(stack: Stack) -> None:
    for prompt in ("What is 2+2?", "What is 3+3?"):
        ask(stack, prompt)
    journals = [("--journal", str(stack.folder / f"node-{number}.db")) for number in (1, 2)]
    for arguments in ((), *journals):
        report = watch(stack, *arguments, code=0)
        assert (report["faults"], report["withheld"]) == ([], [])
    assert report["relayer"] == account(RELAYER).address.lower()
    assert proofs(stack) == []


def test_watch__without_an_end__watches_until_it_is_told_to_stop(stack: Stack) -> None:
    stack._spawn("watch", ["headrace", "watch", "--always"], watcher_environment(stack))
    part = stack.parts.pop("watch")
    database = stack.folder / "watch" / f"31337-{account(RELAYER).address.lower()}.db"
    stack.until(lambda: watched_up_to(database) >= int(stack.rpc("eth_blockNumber"), 16) - 1)
    part.require_alive()
    part.stop()
    assert part.process.returncode == 0, part.log.read_text("utf-8")
    assert "fault_found" not in part.log.read_text("utf-8")


def watched_up_to(database: Path) -> int:
    """The last block that a watch has looked at."""
    with closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True)) as connection:
        found = connection.execute("SELECT block_number FROM cursors").fetchone()
    return -1 if found is None else int(found[0])


def test_watch__node_that_accepted_and_was_silent__is_slashed_by_the_relayers_watch(stack: Stack) -> None:
    for number in (1, 2):
        stack.parts.pop(f"node-{number}").stop()
    key = key_of(stack, 1)
    staked = stake_of(stack, key)
    with silent_model_server() as url:
        settings = {"HEADRACE_NODE__BACKEND": "openai", "HEADRACE_NODE__OPENAI_URL": url}
        stack._spawn("node-1", ["headrace", "node"], {**stack.node_environment(1), **settings})
        stack.await_ready(nodes=1)
        posted = stack.headrace("request", "new", "What is 4+4?", "--max-tokens", "16", "--ttl", str(TTL_S), "--json")
        assert posted.returncode == 0, posted.stderr
        request_id = json.loads(posted.stdout)["request_id"]
        stack.until(lambda: (stack.get(f"/v1/requests/{request_id}") or {}).get("state") == "computing")
        (attempt,) = stack.get(f"/v1/requests/{request_id}")["assignments"]
        stack.until(lambda: (stack.get(f"/v1/rounds/{attempt['round']}") or {}).get("state") == "recorded")
        stack.parts.pop("node-1").kill()
    (accept,) = stack.get(f"/v1/rounds/{attempt['round']}/accepts")["accepts"]
    assert (accept["request_id"], accept["node"]) == (request_id, key)

    stack.rpc("evm_increaseTime", TTL_S + GRACE_S + 10)
    stack.until(lambda: len(proofs(stack)) == 1)

    (proof,) = proofs(stack)
    assert [int(proof["topics"][1], 16), "0x" + proof["topics"][2][-40:], proof["topics"][3]] == [0, key, request_id]
    node, reporter, slashed, bounty = (int(proof["data"][2 + 64 * word :][:64], 16) for word in range(4))
    assert (node, f"0x{reporter:040x}") == (0, account(RELAYER).address.lower())
    assert (slashed, bounty > MISSED_WEI // 10) == (MISSED_WEI, True)
    stack.until(lambda: stake_of(stack, key) == (staked[0] - MISSED_WEI, staked[1] + 1))
    stack.until(lambda: 'headrace_faults_proven_total{fault="MISSED"} 1.0' in metrics_of(stack))

    # Anyone can see it; nobody proves it again.
    (seen,) = watch(stack, "--dry-run", code=1)["faults"]
    assert (seen["fault"], seen["culprit"], seen["request_id"]) == ("missed", key, request_id)
    (seen,) = watch(stack, code=1)["faults"]
    assert (seen["state"], seen["transaction_hash"]) == ("proven", None)
    assert len(proofs(stack)) == 1


def metrics_of(stack: Stack) -> str:
    with urllib.request.urlopen(f"{stack.api_url}/metrics", timeout=5) as response:
        return str(response.read().decode())
