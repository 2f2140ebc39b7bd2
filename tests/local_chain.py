"""A real chain for tests: anvil with the contracts on it, and hands to post requests, register nodes and mine."""

from __future__ import annotations

import collections
import fcntl
import json
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from eth_account import Account
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from web3 import AsyncHTTPProvider, AsyncWeb3

from headrace.adapters.deployment import DeployedContract, Deployment
from headrace.core import typed_data
from headrace.core.types import Address, Hash32, Request

ROOT = Path(__file__).parents[1]
# Where `make check` compiles, so that it is done once.
BUILD = ROOT / ".build" / "check"
# In the order of their deployment, with their folders under contracts/.
CONTRACTS = {
    "StakeManager": "",
    "ScheduleLog": "",
    "ModelRegistry": "",
    "InferenceMarket": "",
    "Faults": "",
    "AttestedKeyVerifier": "verifiers/",
}
# What tests deploy when they need it.
HELPERS = {
    "SignerWallet": "test/",
    "Receiver": "test/",
    "TestVerifier": "test/",
    "ProbeConsumer": "test/",
    "JudgedBounty": "consumers/",
    "BountyQuestion": "consumers/",
}
MNEMONIC = "test test test test test test test test test test test junk"
GWEI = 10**9
ETHER = 10**18
CHAIN_ID = 31337


@dataclass
class LocalChain:
    """Anvil with the contracts on it. Blocks are mined by the test alone."""

    url: str
    web3: AsyncWeb3[Any]
    keys: list[bytes]
    accounts: list[Address]  # 0 deploys and owns, 1 relays, 2 owns the node, 3 requests
    deployment: Deployment
    _nonces: dict[Address, int] = field(default_factory=dict)

    async def rpc(self, method: str, *params: Any) -> Any:
        response = await self.web3.provider.make_request(method, list(params))
        if "error" in response:
            raise AssertionError(f"{method}: {response['error']}")
        return response["result"]

    async def mine(self, blocks: int = 1) -> None:
        await self.rpc("anvil_mine", hex(blocks))

    def contract(self, name: str) -> Any:
        address = to_checksum_address(self.deployment.address_of(name))
        return self.web3.eth.contract(address, abi=compiled(name)["abi"])

    async def sign(self, account: int, to: Address, data: str, value: int = 0, **fields: Any) -> tuple[bytes, Hash32]:
        """A signed transaction, with the account's next nonce unless one is given."""
        address = self.accounts[account]
        if "nonce" not in fields:
            mined = int(await self.rpc("eth_getTransactionCount", address, "pending"), 16)
            fields["nonce"] = mined
        transaction = {
            "type": 2,
            "chainId": CHAIN_ID,
            "to": to_checksum_address(to),
            "data": data,
            "value": value,
            "gas": 3_000_000,
            "maxFeePerGas": 10 * GWEI,
            "maxPriorityFeePerGas": GWEI,
            **fields,
        }
        signed = Account.sign_transaction(transaction, self.keys[account])
        return bytes(signed.raw_transaction), "0x" + bytes(signed.hash).hex()

    async def call(self, account: int, contract: str, function: str, *values: Any, value: int = 0) -> Hash32:
        """Put a transaction into the pool."""
        data = self.contract(contract).encode_abi(function, list(values))
        raw, hash_ = await self.sign(account, self.deployment.address_of(contract), data, value)
        await self.rpc("eth_sendRawTransaction", "0x" + raw.hex())
        return hash_

    async def deploy(self, name: str, *values: Any) -> Address:
        """Put a contract on the chain, in a block of its own."""
        return (await _create(self, name, *values)).lower()

    async def now_s(self) -> int:
        return int((await self.rpc("eth_getBlockByNumber", "latest", False))["timestamp"], 16)

    async def post(self, request: Request, prompt: bytes = b"", account: int = 3) -> Hash32:
        """Put a request into the pool."""
        return await self.call(
            account, "InferenceMarket", "requestInference", params_of(request), prompt, value=request.escrow_wei
        )

    async def register_relayer(self) -> None:
        await self.call(1, "StakeManager", "registerRelayer", "http://relayer.test", value=ETHER)

    async def register_node(self, key: bytes, model_id: Hash32) -> Address:
        """A node that is staked, in the market, and offers a model."""
        node = Account.from_key(key).address
        owner = to_checksum_address(self.accounts[2])
        domain = typed_data.Domain(CHAIN_ID, self.deployment.address_of("StakeManager"))
        digest = typed_data.digest(domain, typed_data.hash_register_node(node, owner))
        signature = sign_digest(key, digest)
        market = to_checksum_address(self.deployment.address_of("InferenceMarket"))
        await self.call(2, "StakeManager", "registerNode", node, "ipfs://node", signature, value=ETHER)
        await self.call(2, "StakeManager", "joinMarket", node, market)
        await self.call(2, "StakeManager", "setPrices", node, [bytes.fromhex(model_id[2:])], [10**12], [2 * 10**12])
        return str(node).lower()


def sign_digest(key: bytes, digest: bytes) -> bytes:
    """65 bytes r ‖ s ‖ v."""
    return bytes(Account.unsafe_sign_hash(digest, key).signature)


@asynccontextmanager
async def local_chain(*arguments: str) -> AsyncIterator[LocalChain]:
    """Start anvil, deploy, and stop it again."""
    with running_anvil(*arguments) as url:
        web3 = AsyncWeb3(AsyncHTTPProvider(url))
        try:
            keys = [_key(index) for index in range(4)]
            accounts = [str(Account.from_key(key).address).lower() for key in keys]
            chain = LocalChain(url, web3, keys, accounts, Deployment(CHAIN_ID, {}, {}))
            chain.deployment = await _deploy(chain)
            yield chain
        finally:
            await web3.provider.disconnect()


@cache
def compiled(name: str) -> dict[str, Any]:
    """ABI and bytecode of a contract, compiled when a source has changed."""
    _compile()
    artifact = json.loads((BUILD / f"{name}.sol" / f"{name}.json").read_text())
    return {"abi": artifact["abi"], "bytecode": artifact["bytecode"]["object"]}


@cache
def _compile() -> None:
    """Compile all once in a process: forge takes most of a second to find that nothing has changed."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [
            *(ROOT / "scripts/_bin/forge", "build"),
            *(f"contracts/{folder}{each}.sol" for each, folder in {**CONTRACTS, **HELPERS}.items()),
            *("--out", BUILD, "--cache-path", BUILD / "cache"),
        ]
        done = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, "HOME": str(ROOT / ".build" / "home")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"forge build failed:\n{done.stdout}{done.stderr}"


@contextmanager
def running_anvil(*arguments: str) -> Iterator[str]:
    """Start anvil without contracts, and stop it again. Gives its URL."""
    command = [str(ROOT / "node_modules/.bin/anvil"), "--port", "0", "--no-mining", "--mnemonic", MNEMONIC]
    command += [*([] if "--hardfork" in arguments else ["--hardfork", "prague"]), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    log = process.stdout
    # It writes a line for every call, and stops when nobody reads them.
    reading = threading.Thread(target=collections.deque, args=(log, 0), name="anvil's log")
    try:
        for line in log:
            if line.startswith("Listening on "):
                reading.start()
                yield f"http://{line.removeprefix('Listening on ').strip()}"
                return
        raise AssertionError("anvil ended before it listened")
    finally:
        process.terminate()
        process.wait(timeout=10)
        if reading.ident is not None:
            reading.join(timeout=10)
        log.close()


async def _deploy(chain: LocalChain) -> Deployment:
    """Deploy all and register one model, in one block."""
    owner = to_checksum_address(chain.accounts[0])
    faults = to_checksum_address(_created_address(chain.accounts[0], list(CONTRACTS).index("Faults")))
    stakes = await _create(chain, "StakeManager", ETHER, ETHER, 259_200, 3_600, faults)
    log = await _create(chain, "ScheduleLog", stakes)
    await _create(chain, "ModelRegistry", owner)
    terms = (2 * GWEI, 110_000, 15_000, 15_000, 150_000)
    market = await _create(chain, "InferenceMarket", owner, stakes, log, terms, (10**16, 10, 86_400))
    await _create(chain, "Faults", stakes, log, market, (10**16, ETHER // 4, ETHER // 4))
    await _create(chain, "AttestedKeyVerifier", owner)
    contracts = {}
    for nonce, name in enumerate(CONTRACTS):
        address = _created_address(chain.accounts[0], nonce)
        code = bytes.fromhex((await chain.rpc("eth_getCode", address, "latest"))[2:])
        contracts[name] = DeployedContract(address, nonce + 1, "0x" + keccak(code).hex())
    chain.deployment = Deployment(CHAIN_ID, contracts, {})
    model = ("tiny", "1", bytes(32), "q4", 200, 1000, 20, "output_token")
    await chain.call(0, "ModelRegistry", "register", model)
    await chain.mine()
    model_id = await chain.contract("ModelRegistry").functions.modelIdAt(0).call()
    return Deployment(CHAIN_ID, contracts, {"tiny": "0x" + bytes(model_id).hex()})


async def _create(chain: LocalChain, name: str, *values: Any) -> str:
    nonce = int(await chain.rpc("eth_getTransactionCount", chain.accounts[0], "latest"), 16)
    factory: Any = chain.web3.eth.contract(**compiled(name))
    transaction = {
        "type": 2,
        "chainId": CHAIN_ID,
        "data": factory.constructor(*values).data_in_transaction,
        "value": 0,
        "gas": 12_000_000,
        "maxFeePerGas": 10 * GWEI,
        "maxPriorityFeePerGas": GWEI,
        "nonce": nonce,
    }
    signed = Account.sign_transaction(transaction, chain.keys[0])
    await chain.rpc("eth_sendRawTransaction", "0x" + bytes(signed.raw_transaction).hex())
    await chain.mine()
    return to_checksum_address(_created_address(chain.accounts[0], nonce))


def _created_address(creator: Address, nonce: int) -> Address:
    """RLP of (creator, nonce), for nonces below 128."""
    encoded = b"\xd6\x94" + bytes.fromhex(creator[2:]) + (bytes([nonce]) if nonce else b"\x80")
    return "0x" + keccak(encoded)[12:].hex()


def _key(index: int) -> bytes:
    Account.enable_unaudited_hdwallet_features()
    return bytes(Account.from_mnemonic(MNEMONIC, account_path=f"m/44'/60'/0'/0/{index}").key)


def params_of(request: Request) -> tuple[Any, ...]:
    return (
        to_checksum_address(request.relayer),
        bytes.fromhex(request.model_id[2:]),
        bytes.fromhex(request.prompt_hash[2:]),
        request.salt,
        request.deadline_s,
        request.prompt_bytes,
        request.max_output_tokens,
        request.callback_gas,
        int(request.lane),
        request.batchable,
        request.inline_result,
        int(request.mode),
        request.k,
        request.n,
        to_checksum_address(request.verifier),
        request.max_reward_wei,
        request.gas_budget_wei,
        request.priority_fee_wei,
    )
