"""Commands of owners against anvil and the real contracts: what they hold is in no fake."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from eth_account import Account

import headrace.cli
from headrace.core.types import Address
from tests.local_chain import LocalChain, local_chain

_T = TypeVar("_T")
NODE_KEY = bytes(31) + b"\x07"
NODE = str(Account.from_key(NODE_KEY).address).lower()
CONTRACTS_OWNER, RELAYER, NODE_OWNER, STRANGER = 0, 1, 2, 3


@dataclass
class Anvil:
    """A chain with a bonded relayer and a node that offers `tiny`, whose blocks are mined at once."""

    chain: LocalChain
    loop: asyncio.AbstractEventLoop

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.loop.run_until_complete(work)

    def rpc(self, method: str, *params: Any) -> Any:
        return self.wait(self.chain.rpc(method, *params))

    @contextlib.contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Take back what a test does to the chain."""
        snapshot = self.rpc("evm_snapshot")
        yield
        assert self.rpc("evm_revert", snapshot)


@contextlib.contextmanager
def anvil() -> Iterator[Anvil]:
    loop = asyncio.new_event_loop()
    opened = local_chain()
    try:
        chain = loop.run_until_complete(opened.__aenter__())
        try:
            running = Anvil(chain, loop)
            running.wait(chain.register_relayer())
            running.wait(chain.register_node(NODE_KEY, chain.deployment.models["tiny"]))
            running.wait(chain.mine())
            running.rpc("evm_setAutomine", True)
            yield running
        finally:
            loop.run_until_complete(opened.__aexit__(None, None, None))
    finally:
        loop.close()


@dataclass
class Ledger:
    """What a test of an owner's command arranges and reads."""

    anvil: Anvil
    environment: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    folder: Path
    out: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        self._write_deployment()
        self.environment.setenv("HEADRACE_CHAIN__RPC_URL", self.chain.url)
        self.environment.setenv("HEADRACE_CHAIN__DEPLOYMENTS", str(self.folder))
        self.environment.setenv("HEADRACE_RELAYER__DATABASE", str(self.folder / "relayer.db"))
        self.sign_with(owner=NODE_OWNER, relayer=RELAYER)

    @property
    def chain(self) -> LocalChain:
        return self.anvil.chain

    @property
    def market(self) -> Address:
        return self.chain.deployment.address_of("InferenceMarket")

    @property
    def now_s(self) -> int:
        return self.anvil.wait(self.chain.now_s())

    def account(self, number: int) -> Address:
        return self.chain.accounts[number]

    def balance_wei(self, account: int) -> int:
        return int(self.anvil.rpc("eth_getBalance", self.account(account), "latest"), 16)

    def sign_with(self, **accounts: int) -> None:
        """Give roles the keys of accounts."""
        for role, number in accounts.items():
            self.environment.setenv(f"HEADRACE_{role.upper()}_PRIVATE_KEY", "0x" + self.chain.keys[number].hex())

    def run(self, *arguments: str) -> int:
        """A command's exit code; `out` and `error` are what it wrote."""
        code = headrace.cli.run(arguments)
        captured = self.capture.readouterr()
        self.out, self.error = captured.out, captured.err
        return code

    def shown(self, *arguments: str) -> str:
        assert self.run(*arguments) == 0, self.error
        return self.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.shown(*arguments, "--json"))

    def refusal(self, *arguments: str) -> str:
        """The one sentence that a command ends with, having sent nothing."""
        before = self.anvil.rpc("eth_blockNumber")
        assert self.run(*arguments) == 1, self.out
        assert self.error.count("\n") == 1, self.error
        assert self.anvil.rpc("eth_blockNumber") == before
        return self.error.strip()

    def read(self, contract: str, function: str, *values: Any) -> Any:
        return self.anvil.wait(self.chain.contract(contract).functions[function](*values).call())

    def call(self, account: int, contract: str, function: str, *values: Any, value: int = 0) -> None:
        """Send a transaction past the command line."""
        self.anvil.wait(self.chain.call(account, contract, function, *values, value=value))

    def jump(self, seconds: int) -> None:
        """Let time pass on the chain."""
        self.anvil.rpc("evm_increaseTime", seconds)
        self.anvil.rpc("evm_mine")

    def _write_deployment(self) -> None:
        deployment = self.chain.deployment
        contracts = {
            name: {"address": each.address, "block": each.block, "code_hash": each.code_hash}
            for name, each in deployment.contracts.items()
        }
        models = [{"name": name, "model_id": model_id} for name, model_id in deployment.models.items()]
        document = {"schema": 1, "chain_id": deployment.chain_id, "contracts": contracts, "models": models}
        (self.folder / f"{deployment.chain_id}.json").write_text(json.dumps(document), "utf-8")
