"""What is wrong is said in one sentence that names what to do, with an exit code that is not 0, and nothing is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import pytest
from eth_account import Account

from scripts._stack import ROOT, Stack, clean_environment, free_port


def run(arguments: list[str], settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A command that must end by itself."""
    return subprocess.run(
        ["headrace", *arguments],
        env={**clean_environment(), **settings},
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )


def assert_one_sentence(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    message = " ".join(done.stderr.split())
    assert "Traceback" not in done.stdout + done.stderr
    for word in words:
        assert word.lower() in message.lower(), message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"HEADRACE_CHAIN__RPC_URL": "http://127.0.0.1:1"}, ("127.0.0.1:1",)),
        ({"HEADRACE_CHAIN__DEPLOYMENTS": "/nonexistent"}, ("ape run deploy",)),
        ({"HEADRACE_RELAYER_PRIVATE_KEY": "0x1234"}, ("HEADRACE_RELAYER_PRIVATE_KEY", "64 hexadecimal")),
        ({"HEADRACE_RELAYER_PRIVATE_KEY": Account.create().key.to_0x_hex()}, ("register_relayer",)),
        ({"HEADRACE_RELAYER__MIN_BALANCE_WEI": str(2**90)}, ("send it ether",)),
        ({"HEADRACE_RELAYER__API_PRT": "1"}, ("api_prt",)),
    ],
    ids=["dead RPC", "no deployment", "malformed key", "not bonded", "unfunded", "unknown setting"],
)
def test_relayer__cannot_start__says_why(stack: Stack, changes: dict[str, str], words: tuple[str, ...]) -> None:
    ports = {f"HEADRACE_RELAYER__{door}_PORT": str(free_port()) for door in ("API", "LINK")}
    settings = {**stack.relayer_environment(), **ports, **changes}
    assert_one_sentence(run(["relayer"], settings), *words)


@pytest.mark.parametrize(("free", "taken"), [("LINK", "API"), ("API", "LINK")])
def test_relayer__port_in_use__names_the_setting(stack: Stack, free: str, taken: str) -> None:
    settings = {**stack.relayer_environment(), f"HEADRACE_RELAYER__{free}_PORT": str(free_port())}
    assert_one_sentence(run(["relayer"], settings), "in use", f"HEADRACE_RELAYER__{taken}_PORT")


def test_relayer__second_with_the_same_store__is_refused(stack: Stack) -> None:
    ports = {f"HEADRACE_RELAYER__{door}_PORT": str(free_port()) for door in ("API", "LINK")}
    done = run(["relayer"], {**stack.relayer_environment(), **ports})
    assert_one_sentence(done, "another relayer", "HEADRACE_RELAYER__DATABASE")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"HEADRACE_KEYSTORE_PASSWORD": "wrong"}, ("password",)),
        ({"HEADRACE_NODE__MODELS": '["gpt-9"]'}, ("gpt-9", "registry")),
        ({"HEADRACE_NODE__MODELS": '["gpt-2"]'}, ("no price for gpt-2", "register_node")),
        (
            {"HEADRACE_NODE__BACKEND": "openai", "HEADRACE_NODE__OPENAI_URL": "http://127.0.0.1:1/v1"},
            ("127.0.0.1:1",),
        ),
    ],
    ids=["wrong password", "unknown model", "no price", "backend down"],
)
def test_node__cannot_start__says_why(stack: Stack, changes: dict[str, str], words: tuple[str, ...]) -> None:
    settings = {**stack.node_environment(1), "HEADRACE_NODE__JOURNAL": str(stack.folder / "other.db"), **changes}
    assert_one_sentence(run(["node"], settings), *words)


def test_node__key_is_not_registered__is_told_so(stack: Stack) -> None:
    settings = {
        name: value
        for name, value in stack.node_environment(1).items()
        if name not in ("HEADRACE_NODE__KEY__KEYSTORE", "HEADRACE_KEYSTORE_PASSWORD")
    }
    settings |= {
        "HEADRACE_NODE_PRIVATE_KEY": Account.create().key.to_0x_hex(),
        "HEADRACE_NODE__JOURNAL": str(stack.folder / "stranger.db"),
    }
    assert_one_sentence(run(["node"], settings), "not a registered node", "register_node")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["request", "new", "Hi", "--model", "gpt-9"], ("gpt-9",)),
        (["request", "new", "Hi", "--ttl", "999999"], ("deadline",)),
        (["request", "new", "Hi", "--ttl", "1"], ("deadline",)),
        (["request", "new", "x" * 9000, "--public"], ("8192",)),
        (["request", "new", ""], ("empty",)),
        (["request", "show", "0x12"], ("request id",)),
        (["request", "show", "0x" + "ab" * 32], ("0x" + "ab" * 32,)),
        (["request", "new", "Hi", "--max-reward", "500000ether"], ("--max-reward", "send it some")),
    ],
    ids=["unknown model", "deadline far", "deadline near", "long", "empty", "bad id", "unknown id", "escrow short"],
)
def test_request__bad_input__says_why(stack: Stack, arguments: list[str], words: tuple[str, ...]) -> None:
    assert_one_sentence(stack.headrace(*arguments), *words)
