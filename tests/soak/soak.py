"""`make soak`: real processes on a real chain, faults of every kind as they work, and one line at the end.

A relayer and its nodes are processes, the chain is anvil with a block a second, and between relayer and chain stands
the proxy of the chaos tests. The nodes' models answer at once: what is tested is what becomes of the money. Requests
are sent by accounts of their own, and sent again when a reorg drops them, as any wallet does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from aiohttp import web
from rich.console import Console

from headrace.adapters.abi_codec import ContractAbi
from headrace.adapters.deployment import Deployment, load_deployment
from headrace.core.envelope import hash_payload, seal
from headrace.core.requests import params_of, request_id
from headrace.core.types import Hash32, Request, Status
from scripts._stack import MODEL, RELAYER, ROOT, Stack, clean_environment, private_key, test_account
from tests.chaos.fault_proxy import FaultProxy, Faults, fault_proxy
from tests.fakes import make_request
from tests.local_chain import CHAIN_ID, GWEI, LocalChain

PROMPT = seal(b"How deep is the sea?", bytes(16))
REQUESTERS = (8, 9, 10, 11)
IN_ONE_TRANSACTION = 50
RESULTS = ROOT / "tests" / "bench" / "results" / "soak.json"
TTL_S = 7_200
SURE_AFTER_S = 60  # reorgs are of twelve blocks at most, one a second
ENDED = frozenset({Status.FULFILLED, Status.FULFILLED_CALLBACK_FAILED, Status.EXPIRED, Status.CANCELLED})
MARKET = ContractAbi("InferenceMarket")


class SoakStack(Stack):
    """A stack whose relayer reaches the chain through a proxy, and whose nodes have a stub for a model."""

    relayer_rpc_url = ""
    model_url = ""

    def relayer_environment(self) -> dict[str, str]:
        return {
            **super().relayer_environment(),
            "HEADRACE_CHAIN__RPC_URL": self.relayer_rpc_url or self.rpc_url,
            "HEADRACE_RELAYER__BATCH__MAX_RESULTS": "200",
            "HEADRACE_RELAYER__SPENDING_LIMIT_WEI": "0",
            "HEADRACE_LOG__LEVEL": "WARNING",
        }

    def node_environment(self, number: int) -> dict[str, str]:
        return {
            **super().node_environment(number),
            "HEADRACE_NODE__BACKEND": "openai",
            "HEADRACE_NODE__OPENAI_URL": self.model_url,
            "HEADRACE_NODE__MAX_IN_FLIGHT": "256",
            "HEADRACE_LOG__LEVEL": "WARNING",
        }


@dataclass
class Tally:
    """What happened on the way."""

    faults: Counter[str] = field(default_factory=Counter)
    recoveries_s: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    sent_again: int = 0


@dataclass
class Soak:
    """One run."""

    stack: SoakStack
    proxy: FaultProxy
    chain: LocalChain
    rng: random.Random
    screen: Console
    tally: Tally = field(default_factory=Tally)
    requests: dict[Hash32, Request] = field(default_factory=dict)
    ended_at_s: dict[Hash32, float] = field(default_factory=dict)  # when it was first seen so
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while something is down
    producing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while blocks come or go

    # Requesters

    async def post(self, count: int) -> None:
        """Send requests, some in a transaction."""
        account = self.rng.choice(REQUESTERS)
        now_s = await self.chain.now_s()
        made = [self._request(account, now_s) for _ in range(count)]
        for start in range(0, count, IN_ONE_TRANSACTION):
            await self._send(account, made[start : start + IN_ONE_TRANSACTION])

    def _request(self, account: int, now_s: int) -> Request:
        return make_request(
            requester=test_account(account).address.lower(),
            relayer=test_account(RELAYER).address.lower(),
            model_id=self.chain.deployment.models[MODEL],
            prompt_hash=hash_payload(PROMPT),
            prompt_bytes=len(PROMPT),
            max_output_tokens=16,
            deadline_s=now_s + TTL_S,
            max_reward_wei=3 * 10**14,
            gas_budget_wei=10**15,
            salt=self.rng.getrandbits(63),
        )

    async def _send(self, account: int, some: list[Request]) -> None:
        data = "0x" + MARKET.call("requestInferenceBatch", [params_of(each) for each in some], [b""] * len(some)).hex()
        to, value = self.chain.deployment.address_of("InferenceMarket"), sum(each.escrow_wei for each in some)
        fees = {"gas": 40_000 * len(some) + 200_000, "maxFeePerGas": 1_000 * GWEI}
        raw, _ = await self.chain.sign(account, to, data, value, **fees)
        with contextlib.suppress(AssertionError):  # a reorg may have set the account's nonce back: it is sent again
            await self.chain.rpc("eth_sendRawTransaction", "0x" + raw.hex())
        for each in some:
            self.requests[request_id(each, CHAIN_ID, to)] = each

    async def send_again(self) -> int:
        """Send what is not on the chain any more."""
        waiting: dict[str, list[Request]] = {}
        for id_, status in (await self.statuses()).items():
            if status is Status.NONE:
                request = self.requests[id_]
                waiting.setdefault(request.requester, []).append(request)
        accounts = {test_account(each).address.lower(): each for each in REQUESTERS}
        for requester, some in waiting.items():
            for start in range(0, len(some), IN_ONE_TRANSACTION):
                await self._send(accounts[requester], some[start : start + IN_ONE_TRANSACTION])
        self.tally.sent_again += sum(map(len, waiting.values()))
        return sum(map(len, waiting.values()))

    async def statuses(self) -> dict[Hash32, Status]:
        """By the market itself, of all that have not ended so long ago that no reorg of this run brings them back."""
        found: dict[Hash32, Status] = {}
        now_s = time.monotonic()
        ids = [id_ for id_ in self.requests if now_s - self.ended_at_s.get(id_, now_s) < SURE_AFTER_S]
        for start in range(0, len(ids), 1_000):
            some = ids[start : start + 1_000]
            data = MARKET.call("statusOf", [bytes.fromhex(id_[2:]) for id_ in some])
            call = {"to": self.chain.deployment.address_of("InferenceMarket"), "data": "0x" + data.hex()}
            answer = await self.chain.rpc("eth_call", call, "latest")
            (statuses,) = MARKET.result("statusOf", bytes.fromhex(answer[2:]))
            found.update(zip(some, [Status(each) for each in statuses], strict=True))
        for id_, status in found.items():
            if status in ENDED:
                self.ended_at_s.setdefault(id_, now_s)
            else:
                self.ended_at_s.pop(id_, None)
        return found

    # Faults

    async def fault(self) -> None:
        """One of them, and the way back."""
        kind = self.rng.choice(
            ("kill relayer", "kill node", "stop relayer", "reorg", "deep reorg", *self._of_the_proxy(), "pool lost")
        )
        self.tally.faults[kind] += 1
        async with self.busy:
            if kind == "kill relayer":
                await asyncio.to_thread(self._kill_relayer)
            elif kind == "kill node":
                await asyncio.to_thread(self._kill_node, self.rng.randint(1, self.stack.nodes))
            elif kind == "stop relayer":
                await self._stop_relayer(self.rng.uniform(1, 6))
            elif kind in ("reorg", "deep reorg"):
                await self._reorg(self.rng.randint(1, 4) if kind == "reorg" else self.rng.randint(5, 12))
            elif kind == "pool lost":
                await self.chain.rpc("anvil_dropAllTransactions")
            else:
                self._of_the_proxy()[kind](self.proxy.faults)
                await asyncio.sleep(self.rng.uniform(0.5, 4))
                self.proxy.faults = Faults()

    def _of_the_proxy(self) -> dict[str, Any]:
        def set_to(**fields: Any) -> Any:
            return lambda faults: [setattr(faults, name, value) for name, value in fields.items()]

        send, receipt = "eth_sendRawTransaction", "eth_getTransactionReceipt"
        return {
            "sends lost on the way": set_to(drop={send}),
            "answers of sends lost": set_to(lose_answer={send}),
            "sends swallowed": set_to(swallow=True),
            "receipts null": set_to(null_receipts=True),
            "logs empty": set_to(empty_logs=True),
            "node lags": set_to(lag_blocks=3),
            "429 for receipts": set_to(http_status={receipt: 429}),
            "500 for all reads": set_to(
                http_status=dict.fromkeys(("eth_getBlockByNumber", "eth_call", "eth_getLogs", "eth_feeHistory"), 500)
            ),
            "geth's rule for replacements": set_to(geth_rule=True),
        }

    async def _reorg(self, depth: int) -> None:
        async with self.producing:
            await self.chain.rpc("anvil_reorg", depth, [])

    async def mine(self) -> NoReturn:
        """A block every second. Anvil is not left to do it by itself: it was seen to lose blocks for good when one that
        it mines falls into a reorg."""
        await self.chain.rpc("evm_setIntervalMining", 0)
        while True:
            due_s = time.monotonic() + 1
            async with self.producing:
                await self.chain.rpc("evm_mine")
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    def _kill_relayer(self) -> None:
        self.stack.kill("relayer")
        started_s = time.monotonic()
        self.stack.start_relayer()
        self.stack.await_ready(self.stack.nodes)
        self.tally.recoveries_s.append(time.monotonic() - started_s)

    def _kill_node(self, number: int) -> None:
        self.stack.kill(f"node-{number}")
        self.stack.start_node(number)
        self.stack.await_ready(self.stack.nodes)

    async def _stop_relayer(self, seconds: float) -> None:
        process = self.stack.parts["relayer"].process
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    # The run

    async def run(self, count: int, per_second: int) -> None:
        """Post all, with a fault every few seconds; then wait until everything has ended."""
        faulting = asyncio.create_task(self._keep_faulting())
        posted = 0
        started_s = time.monotonic()
        while posted < count:
            some = min(per_second, count - posted)
            await self.post(some)
            posted += some
            if posted % (10 * per_second) < per_second:
                await self._report(started_s, count)
            await asyncio.sleep(max(0.0, started_s + posted / per_second - time.monotonic()))
        faulting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await faulting
        self.proxy.faults = Faults()
        last = time.monotonic()
        ended = -1
        is_over = False
        while ended < len(self.requests):
            await self.send_again()
            await asyncio.sleep(5)
            now_ended = await self._report(started_s, count)
            if now_ended > ended:
                ended, last = now_ended, time.monotonic()
            if time.monotonic() - last > (300 if is_over else 60):
                if is_over:
                    raise AssertionError(f"{len(self.requests) - ended} requests do not end")
                # Those that no node may try any more: each of the few failed it. Their time is let run out.
                await self.chain.rpc("evm_increaseTime", 2 * TTL_S)
                is_over, last = True, time.monotonic()

    async def _keep_faulting(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(2, 9))
            await self.fault()
            await self.send_again()

    async def _report(self, started_s: float, count: int) -> int:
        await self.statuses()
        ended = len(self.ended_at_s)
        memory_mb = _resident_mb(self.stack.parts["relayer"].process.pid) if "relayer" in self.stack.parts else 0
        if memory_mb:
            self.tally.memory_mb.append(memory_mb)
        elapsed_s = time.monotonic() - started_s
        self.screen.print(
            f"{elapsed_s:6.0f} s  sent {len(self.requests):,} of {count:,}  ended {ended:,}  "
            f"faults {self.tally.faults.total()}  relayer {memory_mb:.0f} MB",
            highlight=False,
        )
        return ended

    def verdict(self) -> dict[str, Any]:
        """By `headrace reconcile`, over the whole chain."""
        environment = {**clean_environment(), **self.stack.relayer_environment()}
        environment["HEADRACE_CHAIN__RPC_URL"] = self.stack.rpc_url
        environment["HEADRACE_RELAYER_PRIVATE_KEY"] = private_key(RELAYER)
        done = subprocess.run(
            ["headrace", "reconcile", "--json"], env=environment, cwd=ROOT, text=True, capture_output=True, check=False
        )
        if done.returncode not in (0, 1):
            raise AssertionError(done.stderr)
        document: dict[str, Any] = json.loads(done.stdout)
        return document


async def main() -> int:
    """Run it; 0 if nothing was lost or paid twice."""
    count, seed = int(os.environ.get("REQUESTS", "2000")), int(os.environ.get("SEED", "1"))
    per_second = int(os.environ.get("PER_SECOND", "20"))
    screen = Console()
    async with _stub_model() as model_url:
        stack = SoakStack(ROOT / ".headrace" / "soak", report=lambda text: screen.print(f"[dim]{text}[/dim]"))
        stack.model_url = model_url
        try:
            await asyncio.to_thread(stack.start)
            async with fault_proxy(stack.rpc_url) as proxy:
                return await _soak(stack, proxy, count, seed, per_second, screen)
        finally:
            await asyncio.to_thread(stack.stop)


async def _soak(stack: SoakStack, proxy: FaultProxy, count: int, seed: int, per_second: int, screen: Console) -> int:
    stack.relayer_rpc_url = proxy.url
    await asyncio.to_thread(stack.kill, "relayer")
    await asyncio.to_thread(stack.start_relayer)
    await asyncio.to_thread(stack.await_ready, stack.nodes)
    chain = _chain_of(stack)
    soak = Soak(stack, proxy, chain, random.Random(seed), screen)
    try:
        for account in REQUESTERS:
            address = test_account(account).address
            await chain.rpc("anvil_setBalance", address, hex(10**27))
            await asyncio.to_thread(_hand_in, stack, address.lower())
        started_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            mining = group.create_task(soak.mine())
            await soak.run(count, per_second)
            elapsed_s = time.monotonic() - started_s
            await asyncio.sleep(3)  # for the relayer to read the last blocks
            mining.cancel()
        found = await asyncio.to_thread(soak.verdict)
    finally:
        await chain.web3.provider.disconnect()
    return _tell(soak, found, elapsed_s, screen)


def _tell(soak: Soak, found: dict[str, Any], elapsed_s: float, screen: Console) -> int:
    tally = soak.tally
    line = {
        "requests": found["requests"],
        "fulfilled": found["fulfilled"],
        "expired": found["expired"],
        "lost": found["lost"] + len(soak.requests) - found["requests"],
        "paid_twice": found["duplicated"],
        "stuck": found["stuck"] + found["open"],
        "underpaid_wei": int(found["underpaid_wei"]),
    }
    facts = {
        **line,
        "seconds": round(elapsed_s),
        "sent_again": tally.sent_again,
        "faults": dict(tally.faults),
        "recoveries_s": [round(each, 1) for each in tally.recoveries_s],
        "memory_mb": [round(each) for each in tally.memory_mb],
        "findings": found["findings"][:20],
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    for kind, times in sorted(tally.faults.items()):
        screen.print(f"{times:6}  {kind}", highlight=False)
    if tally.recoveries_s:
        worst, middle = max(tally.recoveries_s), statistics.median(tally.recoveries_s)
        screen.print(f"ready again after kill -9: median {middle:.1f} s, worst {worst:.1f} s", highlight=False)
    screen.print(" ".join(f"{name}={value}" for name, value in line.items()), highlight=False, soft_wrap=True)
    wrong = line["lost"] or line["paid_twice"] or line["underpaid_wei"] or line["stuck"]
    return 1 if wrong else 0


def _chain_of(stack: SoakStack) -> LocalChain:
    from web3 import AsyncHTTPProvider, AsyncWeb3

    deployment: Deployment = load_deployment(stack.deployments, CHAIN_ID)
    keys = [bytes(test_account(number).key) for number in range(12)]
    accounts = [test_account(number).address.lower() for number in range(12)]
    return LocalChain(stack.rpc_url, AsyncWeb3(AsyncHTTPProvider(stack.rpc_url)), keys, accounts, deployment)


def _hand_in(stack: SoakStack, requester: str) -> None:
    import urllib.request

    url = f"{stack.api_url}/v1/payloads/{hash_payload(PROMPT)}?requester={requester}"
    with urllib.request.urlopen(urllib.request.Request(url, PROMPT, method="PUT"), timeout=10) as answer:
        assert answer.status == 201


def _resident_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2
    return 0.0


@contextlib.asynccontextmanager
async def _stub_model() -> Any:
    """A model server that always knows the answer. Gives its URL."""

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        message = {"role": "assistant", "content": "About 3,700 metres on average."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21}
        return web.json_response({"id": "1", "model": body["model"], "choices": [choice], "usage": usage})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL, "max_model_len": 100_000}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()
