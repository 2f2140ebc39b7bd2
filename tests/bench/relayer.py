"""How fast a relayer indexes, schedules, settles and comes back, on a real chain.

Everything is real but the nodes, which answer at once from within the same process, and so share its core. Absolute
times are of the machine that is printed beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from headrace.adapters.clock import SystemClock
from headrace.adapters.json_rpc import connect_http
from headrace.adapters.keystore import LocalSigner
from headrace.adapters.sql.store import SqlStore
from headrace.adapters.sql.tables import requests as requests_table
from headrace.adapters.web3_chain import Web3Chain
from headrace.core import typed_data
from headrace.core.batching import BatchPolicy
from headrace.core.calls import selectors
from headrace.core.envelope import hash_payload
from headrace.core.guard import MAX_FEE_CEILING_WEI, GuardPolicy
from headrace.core.requests import request_id
from headrace.core.scheduling import Policy
from headrace.core.tasks import Accept, Refusal, Task
from headrace.core.types import Hash32, Request
from headrace.services.aggregator import Aggregator
from headrace.services.dispatcher import Dispatcher
from headrace.services.indexer import Indexer, IndexerSettings
from headrace.services.scheduler import Scheduler, SchedulerSettings
from headrace.services.sender import Sender
from headrace.services.settler import Settler
from tests.bench.rows import Row
from tests.chaos.bench import NODE_KEY, ChainNode
from tests.fakes import FakeMetrics, make_request
from tests.local_chain import GWEI, LocalChain, local_chain, params_of
from tests.services.world import PROMPT, FakeLink

BLOCK_GAS_LIMIT = 120_000_000
NODES = 8
MOST_OF_A_LIGHT_LOAD = 50
IN_ONE_TRANSACTION = 150  # requests; EIP-7825 ends at 16.8M gas


class StubLink(FakeLink):
    """Nodes that accept at once and deliver at once. Notes when each task came."""

    def __init__(self) -> None:
        super().__init__(SystemClock())  # type: ignore[arg-type]
        self.task_at: dict[Hash32, float] = {}
        self.deliver: Callable[[ChainNode, Task], None] | None = None

    async def dispatch(self, task: Task, timeout_s: float) -> Accept | Refusal:
        self.task_at.setdefault(task.assignment.request_id, time.perf_counter())
        node = self.nodes[task.assignment.node]
        assert isinstance(node, ChainNode)
        accept = node.accept(task)
        if self.deliver is not None:
            self.deliver(node, task)
        return accept


@dataclass(frozen=True)
class Posting:
    """Signed transactions, and the ids of the requests in them."""

    transactions: tuple[str, ...]
    request_ids: tuple[Hash32, ...]


@dataclass
class Relayer:
    """A relayer's loops on a chain, in this process."""

    anvil: LocalChain
    chain: Web3Chain
    store: SqlStore
    link: StubLink
    indexer: Indexer
    scheduler: Scheduler
    aggregator: Aggregator
    settler: Settler
    sender: Sender
    random: random.Random

    def requests(self, count: int) -> list[Request]:
        now_s = int(time.time())
        fields: dict[str, Any] = {
            "requester": self.anvil.accounts[3],
            "relayer": self.anvil.accounts[1],
            "model_id": self.anvil.deployment.models["tiny"],
            "prompt_hash": hash_payload(PROMPT),
            "prompt_bytes": len(PROMPT),
            "deadline_s": now_s + 80_000,
            "max_reward_wei": 10**15,
            "gas_budget_wei": 10**16,
        }
        return [make_request(**fields, salt=self.random.getrandbits(63)) for _ in range(count)]

    async def post(self, requests: Sequence[Request]) -> list[Hash32]:
        """Put requests into the pool, some hundred in a transaction."""
        return await self.send(await self.signed(requests))

    async def signed(self, requests: Sequence[Request], transactions_before: int = 0) -> Posting:
        """The transactions that request them, to be sent when some others were."""
        market = self.anvil.contract("InferenceMarket")
        to = self.anvil.deployment.address_of("InferenceMarket")
        nonce = int(await self.anvil.rpc("eth_getTransactionCount", self.anvil.accounts[3], "pending"), 16)
        transactions = []
        for start in range(0, len(requests), IN_ONE_TRANSACTION):
            some = requests[start : start + IN_ONE_TRANSACTION]
            data = market.encode_abi("requestInferenceBatch", [[params_of(each) for each in some], [b""] * len(some)])
            value = sum(each.escrow_wei for each in some)
            fields = {"gas": 16_000_000, "maxFeePerGas": 100 * GWEI}
            fields["nonce"] = nonce + transactions_before + len(transactions)
            raw, _ = await self.anvil.sign(3, to, data, value, **fields)
            transactions.append("0x" + raw.hex())
        ids = [request_id(each, self.chain.chain_id, self.chain.market) for each in requests]
        return Posting(tuple(transactions), tuple(ids))

    async def send(self, posting: Posting) -> list[Hash32]:
        """Put what was signed into the pool."""
        for raw in posting.transactions:
            await self.anvil.rpc("eth_sendRawTransaction", raw)
        return list(posting.request_ids)

    async def index(self) -> None:
        """Come to the head."""
        while True:
            if not await self.indexer.step():
                last = await self.store.last_block()
                if last == self.indexer.head:
                    return

    async def fulfilled(self) -> int:
        """How many are settled."""
        query = select(func.count()).select_from(requests_table).where(requests_table.c.state == "fulfilled")
        async with self.store._database.read() as connection:
            return int((await connection.execute(query)).scalar_one())

    async def eligible_ids(self) -> list[Hash32]:
        """Of those that wait to be assigned."""
        query = select(requests_table.c.request_id).where(requests_table.c.state == "eligible")
        async with self.store._database.read() as connection:
            return list((await connection.execute(query)).scalars())


@asynccontextmanager
async def a_relayer(folder: Path, seed: int, batching: BatchPolicy, *arguments: str) -> AsyncIterator[Relayer]:
    """A chain of its own and a relayer on it."""
    async with local_chain("--gas-limit", str(BLOCK_GAS_LIMIT), *arguments) as anvil:
        await anvil.rpc("anvil_setBalance", anvil.accounts[3], hex(10**27))
        await anvil.register_relayer()
        keys = [NODE_KEY, *(bytes(30) + b"\x09" + bytes([number]) for number in range(NODES - 1))]
        for key in keys:
            await anvil.register_node(key, anvil.deployment.models["tiny"])
        await anvil.mine()
        chain = Web3Chain(await connect_http(anvil.url), anvil.deployment)
        store = await SqlStore.open(f"sqlite:///{folder / f'{time.time_ns()}.db'}", SystemClock())
        try:
            yield await _wire(anvil, chain, store, keys, batching, random.Random(seed))
        finally:
            await store.close()
            await chain.close()


async def _wire(
    anvil: LocalChain,
    chain: Web3Chain,
    store: SqlStore,
    keys: Sequence[bytes],
    batching: BatchPolicy,
    rng: random.Random,
) -> Relayer:
    clock, metrics, signer, link = SystemClock(), FakeMetrics(), LocalSigner(anvil.keys[1]), StubLink()
    domain, terms, models = (
        typed_data.Domain(chain.chain_id, chain.market),
        await chain.market_terms(),
        await chain.models(),
    )
    for key in keys:
        node = ChainNode(LocalSigner(key), domain, signer.address, model_id=models[0].model_id)  # type: ignore[arg-type]
        node.max_in_flight = 10_000
        link.nodes[node.key] = node
    rounds = asyncio.Lock()
    sender = Sender(chain, store, clock, signer, metrics, _guard(chain))
    dispatcher = Dispatcher(
        store, link, clock, metrics, domain, {each.model_id: each.name for each in models}, lambda: None
    )
    scheduler = Scheduler(
        chain,
        store,
        link,
        dispatcher,
        clock,
        signer,
        metrics,
        terms,
        models,
        Policy(name="balanced", lanes="shared"),
        await chain.next_round(signer.address),
        rounds,
        SchedulerSettings(confirmations=0),
    )
    settler = Settler(chain, store, link, sender, clock, signer, metrics, terms, batching, rounds, scheduler.wake.ring)
    aggregator = Aggregator(chain, store, clock, metrics, terms, scheduler.wake.ring, settler.wake.ring)

    def on_change() -> None:
        scheduler.wake.ring()
        settler.wake.ring()

    indexing = IndexerSettings(poll_ms=50, confirmations=0)
    first = chain.deployment.first_block
    indexer = Indexer(chain, store, clock, metrics, signer.address, first, on_change, indexing)
    await store.put_prompt(PROMPT, anvil.accounts[3], clock.now_ms())
    return Relayer(anvil, chain, store, link, indexer, scheduler, aggregator, settler, sender, rng)


def _guard(chain: Web3Chain) -> GuardPolicy:
    allowed = selectors()
    market = frozenset({allowed["submitResults"], allowed["expire"]})
    return GuardPolicy(
        {chain.market: market, chain.schedule_log: frozenset({allowed["recordRound"]})}, MAX_FEE_CEILING_WEI
    )


# What is measured


async def indexing(folder: Path, seed: int) -> list[Row]:
    """Events of a back-fill, decoded and committed; and the way back over a reorg."""
    count = 9_000
    async with a_relayer(folder, seed, BatchPolicy()) as relayer:
        for start in range(0, count, 900):
            await relayer.post(relayer.requests(min(900, count - start)))
            await relayer.anvil.mine()
        started_s = time.perf_counter()
        await relayer.index()
        rate = count / (time.perf_counter() - started_s)
        assert len(await relayer.store.requests(limit=1_000_000)) == count
        for _ in range(64):
            await relayer.post(relayer.requests(1))
            await relayer.anvil.mine()
        await relayer.index()
        await relayer.anvil.rpc("anvil_reorg", 64, [])
        started_s = time.perf_counter()
        await relayer.index()
        back_s = time.perf_counter() - started_s
    return [
        Row("events indexed and committed, back-fill", rate, "/s", 5_000),
        Row("recovery after a reorg of 64 blocks", back_s, "s", 2, at_most=True),
    ]


async def settling(folder: Path, seed: int) -> list[Row]:
    """Results that are ready, until the last is in a block; and what a batch's simulation and guard take."""
    count = int(os.environ.get("READY", "3000"))
    async with a_relayer(folder, seed, BatchPolicy(max_items=350, max_age_ms=0)) as relayer:
        await _make_ready(relayer, count)
        batch = (await relayer.settler._items())[0][:50]
        rounds = await relayer.settler._rounds_to_record(batch, set())
        (drafter,) = relayer.settler._drafters.values()
        times = []
        for _ in range(20):
            started_s = time.perf_counter()
            trial = await drafter.attempt(rounds, batch, as_sets=False)
            assert trial.error is None
            times.append((time.perf_counter() - started_s) * 1000)
        started_s = time.perf_counter()
        while await relayer.store.ready_results(1) or await relayer.store.open_intents():
            if not await relayer.settler.step():
                await relayer.anvil.mine()
                await relayer.index()
        rate = count / (time.perf_counter() - started_s)
        assert await relayer.fulfilled() == count
    return [
        Row(f"settling ready results, block gas limit {BLOCK_GAS_LIMIT:,}", rate, "/s", 2_000),
        Row("simulation and guard of a batch of 50", statistics.median(times), "ms", 10, at_most=True),
    ]


async def _make_ready(relayer: Relayer, count: int) -> None:
    tasks: list[tuple[ChainNode, Task]] = []
    relayer.link.deliver = lambda node, task: tasks.append((node, task))
    for start in range(0, count, 900):
        await relayer.post(relayer.requests(min(900, count - start)))
        await relayer.anvil.mine()
    await relayer.index()
    delivered = 0
    while delivered < count:
        async with asyncio.TaskGroup() as group:
            await relayer.scheduler.step(group)
        for node, task in tasks:
            await relayer.aggregator.delivered(node.deliver(task))
        delivered += len(tasks)
        tasks.clear()


async def from_end_to_end(folder: Path, seed: int, seconds: int, per_block: int) -> list[Row]:
    """A block a second, requests in each; how long an eligible one waits for its task, and how many are settled."""
    async with a_relayer(folder, seed, BatchPolicy(max_items=350, max_age_ms=500)) as relayer:
        eligible_at: dict[Hash32, float] = {}
        confirm = relayer.store.confirm_up_to

        async def confirm_and_note(number: int, at_ms: int) -> int:
            done = await confirm(number, at_ms)
            now_s = time.perf_counter()
            if done:
                for id_ in await relayer.eligible_ids():
                    eligible_at.setdefault(id_, now_s)
            return done

        relayer.store.confirm_up_to = confirm_and_note  # type: ignore[method-assign]
        deliveries: set[asyncio.Task[Any]] = set()

        def deliver(node: ChainNode, task: Task) -> None:
            async def work() -> None:
                await asyncio.sleep(0)
                await relayer.aggregator.delivered(node.deliver(task))

            made = asyncio.create_task(work())
            deliveries.add(made)
            made.add_done_callback(deliveries.discard)

        relayer.link.deliver = deliver
        await relayer.index()
        # Signed before the clock runs: requesters are other machines.
        transactions_each = -(-per_block // IN_ONE_TRANSACTION)
        postings = [
            await relayer.signed(relayer.requests(per_block), second * transactions_each) for second in range(seconds)
        ]
        loops = [relayer.indexer.run(), relayer.scheduler.run(), relayer.settler.run()]
        running = [asyncio.create_task(loop) for loop in loops]
        started_s = time.perf_counter()
        posted: list[Hash32] = []
        for second in range(seconds):
            posted += await relayer.send(postings[second])
            await asyncio.sleep(max(0.0, started_s + second + 1 - time.perf_counter()))
            await relayer.anvil.mine()
        in_time = await relayer.fulfilled()
        elapsed_s = time.perf_counter() - started_s
        for _ in range(120):
            if await relayer.fulfilled() == len(posted):
                break
            await asyncio.sleep(0.5)
            await relayer.anvil.mine()
        done = await relayer.fulfilled()
        for each in running:
            each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*running)
        assert done == len(posted), f"{done} of {len(posted)} were settled"
        waits_ms = sorted(1000 * (relayer.link.task_at[id_] - eligible_at[id_]) for id_ in posted if id_ in eligible_at)
    p50, p99 = waits_ms[len(waits_ms) // 2], waits_ms[len(waits_ms) * 99 // 100]
    load = f"{per_block} requests a block of a second"
    # The waits have a target where nothing queues, the rate where everything does: a block's requests come at once.
    is_light = per_block <= MOST_OF_A_LIGHT_LOAD
    waits = [
        Row(f"eligible to task at the node, p50, {load}", p50, "ms", 50 if is_light else None, at_most=True),
        Row(f"eligible to task at the node, p99, {load}", p99, "ms", 250 if is_light else None, at_most=True),
    ]
    rate = Row(f"end to end, {load}, {seconds} s", in_time / elapsed_s, "/s", None if is_light else 300)
    return [*waits, rate]


def calibration() -> Row:
    """What this core does of what a relayer does most: recover signers."""
    signer, digest = LocalSigner(NODE_KEY), b"\x11" * 32
    signature = signer.sign_digest(digest)
    started_s, count = time.perf_counter(), 0
    while time.perf_counter() - started_s < 0.5:
        typed_data.signer_of(digest, signature)
        count += 1
    return Row("calibration: signers recovered", count / 0.5, "/s")
