"""A JSON-RPC proxy that misbehaves as nodes and providers do, and remembers every transaction that passed it.

What it does wrong is in `faults`, which a test changes as it goes. Everything else goes through untouched.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from eth_account import Account
from eth_account.typed_transactions import TypedTransaction
from hexbytes import HexBytes

from headrace.core.keccak import keccak

SEND = "eth_sendRawTransaction"
RECEIPT = "eth_getTransactionReceipt"
LOGS = "eth_getLogs"


@dataclass
class Faults:
    """What is wrong now. Sets and mappings are by method."""

    hang: set[str] = field(default_factory=set)  # no answer comes, and the connection stays open
    drop: set[str] = field(default_factory=set)  # the connection closes before the node hears the question
    lose_answer: set[str] = field(default_factory=set)  # … and after it did what it was asked
    http_status: dict[str, int] = field(default_factory=dict)  # 429, 500, …
    errors: dict[str, tuple[int, str]] = field(default_factory=dict)  # JSON-RPC errors
    swallow: bool = False  # transactions are accepted, and no pool has them
    null_receipts: bool = False
    empty_logs: bool = False  # for ranges; by a block's hash they are all there
    empty_block_logs: bool = False  # and by a block's hash
    clipped_logs: bool = False  # those of the second half of a range are left out
    lag_blocks: int = 0  # the head that it tells is so far behind
    count_ahead: int = 0  # transactions that it counts and no block has
    geth_rule: bool = False  # a replacement needs a tenth more of both fees; anvil takes one wei more
    chain_id: int | None = None


@dataclass(frozen=True)
class Wire:
    """A transaction that came by."""

    hash: str
    sender: str
    nonce: int
    max_fee_wei: int
    tip_wei: int
    raw: bytes


class FaultProxy:
    """Forwards to a node. `on_transaction` is awaited before a transaction goes on."""

    def __init__(self, upstream: str, session: aiohttp.ClientSession) -> None:
        self.faults = Faults()
        self.url = ""
        self.wire: list[Wire] = []
        self.on_transaction: Callable[[Wire], Awaitable[None]] | None = None
        self.upstream = upstream
        self._session = session
        self._bids: dict[tuple[str, int], Wire] = {}
        self._hung = asyncio.Event()

    def close(self) -> None:
        """Let go of questions that hang."""
        self._hung.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One HTTP request: a question, or several as a list."""
        body = json.loads(await request.read())
        answers = []
        for question in body if isinstance(body, list) else [body]:
            status = self.faults.http_status.get(question["method"])
            if status is not None:
                return web.json_response({"error": "no"}, status=status)
            answer = await self._answer(question)
            if answer is None:
                assert request.transport is not None
                request.transport.close()
                return web.Response(status=500)
            answers.append(answer)
        return web.json_response(answers if isinstance(body, list) else answers[0])

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """None: none comes."""
        method, params, faults = question["method"], question.get("params") or [], self.faults
        if method == SEND:
            wire = _wire(bytes.fromhex(params[0][2:]))
            self.wire.append(wire)
            if self.on_transaction is not None:
                await self.on_transaction(wire)
        if method in faults.hang:
            await self._hung.wait()
        if method in faults.drop:
            return None
        if method in faults.errors:
            code, message = faults.errors[method]
            return _failed(question, code, message)
        if method == SEND and faults.swallow:
            return _done(question, wire.hash)
        if method == SEND and faults.geth_rule and await self._is_underpriced(wire):
            return _failed(question, -32_000, "replacement transaction underpriced")
        if method == "eth_chainId" and faults.chain_id is not None:
            return _done(question, hex(faults.chain_id))
        if method == RECEIPT and faults.null_receipts:
            return _done(question, None)
        if method == LOGS and "blockHash" in params[0] and faults.empty_block_logs:
            return _done(question, [])
        if method == LOGS and "blockHash" not in params[0]:
            if faults.empty_logs:
                return _done(question, [])
            if faults.clipped_logs:
                question = _clipped(question)
        if faults.lag_blocks:
            question = await self._lagging(question)
        answer = await self._forward(question)
        if method == "eth_getTransactionCount" and faults.count_ahead:
            answer["result"] = hex(int(answer["result"], 16) + faults.count_ahead)
        return None if method in faults.lose_answer else answer

    async def _is_underpriced(self, wire: Wire) -> bool:
        key = (wire.sender, wire.nonce)
        mined = int(await self._ask("eth_getTransactionCount", wire.sender, "latest"), 16)
        there = self._bids.get(key)
        if mined > wire.nonce or there is None or there.hash == wire.hash:
            self._bids[key] = wire
            return False
        is_under = wire.max_fee_wei * 10 < there.max_fee_wei * 11 or wire.tip_wei * 10 < there.tip_wei * 11
        if not is_under:
            self._bids[key] = wire
        return is_under

    async def _lagging(self, question: dict[str, Any]) -> dict[str, Any]:
        """`latest` as a node understands it that is behind."""
        seen = int(await self._ask("eth_blockNumber"), 16) - self.faults.lag_blocks
        if question["method"] == "eth_blockNumber":
            return {**question, "method": "eth_getBlockByNumber", "params": [hex(max(0, seen)), False]}
        params = [hex(max(0, seen)) if each == "latest" else each for each in question.get("params") or []]
        return {**question, "params": params}

    async def _ask(self, method: str, *params: Any) -> Any:
        return (await self._forward({"jsonrpc": "2.0", "id": 0, "method": method, "params": list(params)}))["result"]

    async def _forward(self, question: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(self.upstream, json=question) as response:
            answer: dict[str, Any] = await response.json()
            return answer


@asynccontextmanager
async def fault_proxy(upstream: str) -> AsyncIterator[FaultProxy]:
    """Start one on a free port in front of a node."""
    async with aiohttp.ClientSession() as session:
        proxy = FaultProxy(upstream, session)
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/", proxy.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        proxy.url = f"http://{host}:{port}/"
        try:
            yield proxy
        finally:
            proxy.close()
            await runner.cleanup()


def _clipped(question: dict[str, Any]) -> dict[str, Any]:
    (wanted,) = question["params"]
    first, last = int(wanted["fromBlock"], 16), int(wanted["toBlock"], 16)
    return {**question, "params": [{**wanted, "toBlock": hex((first + last) // 2)}]}


def _wire(raw: bytes) -> Wire:
    fields = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
    return Wire(
        hash="0x" + keccak(raw).hex(),
        sender=str(Account.recover_transaction(raw)).lower(),
        nonce=fields["nonce"],
        max_fee_wei=fields["maxFeePerGas"],
        tip_wei=fields["maxPriorityFeePerGas"],
        raw=raw,
    )


def _done(question: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": question["id"], "result": result}


def _failed(question: dict[str, Any], code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": question["id"], "error": {"code": code, "message": message}}
