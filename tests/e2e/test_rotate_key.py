"""A node's key is rotated while everything runs: the new key is assigned, answers, and is paid for."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from eth_account import Account

from scripts._stack import MODEL, NODE_OWNERS, ROOT, Stack, clean_environment, private_key
from tests.e2e.test_requests import ask, times_paid

# Below what the other node asks, so that nobody else takes it.
MAX_REWARD = ("--max-reward", "2gwei")


def as_owner(stack: Stack, *arguments: str) -> dict[str, Any]:
    """A command of the first node's owner."""
    environment = {**clean_environment(), **stack.node_environment(1)}
    done = subprocess.run(
        ["headrace", *arguments, "--json"],
        env={**environment, "HEADRACE_OWNER_PRIVATE_KEY": private_key(NODE_OWNERS[0])},
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def node_view(stack: Stack, key: str) -> dict[str, Any]:
    listed = stack.get("/v1/nodes") or {"nodes": []}
    return next((node for node in listed["nodes"] if node["key"] == key and node["linked"]), {})


def test_rotate_key__while_everything_runs__new_key_serves_and_the_old_one_gets_nothing(stack: Stack) -> None:
    keystore, owner = stack.keystore(1), Account.from_key(private_key(NODE_OWNERS[0])).address.lower()
    old = "0x" + json.loads(keystore.read_text("utf-8"))["address"].lower().removeprefix("0x")
    cheap = ("--price-per-prompt-kib", "1gwei", "--price-per-thousand-tokens", "1gwei")
    (price,) = as_owner(stack, "stake", "prices", old, "--model", MODEL, *cheap)["prices"]
    assert (price["per_prompt_kib_wei"], price["raise"]) == (str(10**9), None)

    rotated = as_owner(stack, "stake", "rotate-key", old, "--keystore", str(stack.folder / "node-1-new.json"))
    new = rotated["key"]
    assert (rotated["old_key"], len(rotated["markets"])) == (old, 1)
    stack.parts.pop("node-1").stop()
    keystore.rename(stack.folder / "node-1-old.json")
    (stack.folder / "node-1-new.json").rename(keystore)
    (stack.folder / "node-1.db").rename(stack.folder / "node-1-old.db")
    stack.start_node(1)
    stack.until(lambda: bool(node_view(stack, new)))
    assert node_view(stack, new)["facts"]["is_active"] is True

    first = ask(stack, "What is 2+2?", *MAX_REWARD)
    assert first["request"]["result"]["node"] == new
    assert times_paid(stack, first["request_id"]) == 1
    credit = as_owner(stack, "credit", "show", "--account", owner)
    assert int(credit["credit_wei"]) >= int(first["request"]["settlement"]["node_wei"]) > 0

    # A node that is started with the old key may deliver what it had, and is assigned nothing.
    settings = {
        **stack.node_environment(1),
        "HEADRACE_NODE__KEY__KEYSTORE": str(stack.folder / "node-1-old.json"),
        "HEADRACE_NODE__JOURNAL": str(stack.folder / "node-1-old.db"),
    }
    stack._spawn("node-old", ["headrace", "node"], settings)
    try:
        stack.until(lambda: bool(node_view(stack, old)))
        assert node_view(stack, old)["facts"]["is_active"] is False
        assert "key_rotated_away" in stack.parts["node-old"].log.read_text("utf-8")
        assert ask(stack, "What is 3+3?", *MAX_REWARD)["request"]["result"]["node"] == new
    finally:
        stack.parts.pop("node-old").stop()

    done = stack.headrace("audit", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
