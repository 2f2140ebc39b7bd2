"""A whole relayer on a real chain, behind a proxy that misbehaves: driven step by step, stopped and started at will.

`oracle` is asked at the end of each scenario: whatever happened, nothing is lost, and nothing was sent or paid twice.
"""

from __future__ import annotations

import asyncio
import gzip
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_account.typed_transactions import TypedTransaction
from hexbytes import HexBytes
from web3 import AsyncHTTPProvider, AsyncWeb3

from headrace.adapters.json_rpc import connect_http
from headrace.adapters.keystore import LocalSigner
from headrace.adapters.sql.store import SqlStore
from headrace.adapters.web3_chain import Web3Chain
from headrace.core import typed_data
from headrace.core.batching import BatchPolicy
from headrace.core.bidding import REPLACEMENT_BPS
from headrace.core.calls import selectors
from headrace.core.canonical import canonical_json
from headrace.core.envelope import hash_payload
from headrace.core.events import ChainEvent
from headrace.core.fees import BPS
from headrace.core.fields import to_json
from headrace.core.guard import MAX_FEE_CEILING_WEI, GuardPolicy
from headrace.core.reconciliation import Discrepancy
from headrace.core.requests import request_id
from headrace.core.scheduling import Policy
from headrace.core.tasks import Delivery, LinkedNode
from headrace.core.types import Hash32, Request, RoundRecord, Status
from headrace.ports import Call, Chain, ModelFacts, ResultSetCall, Signer, StoredIntent
from headrace.services.aggregator import Aggregator
from headrace.services.dispatcher import Dispatcher
from headrace.services.indexer import Indexer, IndexerSettings
from headrace.services.reaper import Reaper
from headrace.services.reconciler import Reconciler
from headrace.services.scheduler import Scheduler, SchedulerSettings
from headrace.services.sender import Sender, SenderSettings
from headrace.services.settler import Settler
from tests.chaos.fault_proxy import FaultProxy, Wire, fault_proxy
from tests.fakes import FakeClock, FakeMetrics, FakeSigner, make_request
from tests.local_chain import LocalChain, local_chain, running_anvil
from tests.services.world import PROMPT, FakeLink, FakeNode

NODE_KEY = bytes(31) + b"\x07"
AT_ONCE = BatchPolicy(max_age_ms=0)
MAX_REWIND = 64
TTL_S = 3_600


@dataclass
class ChainNode(FakeNode):
    """A node of a real chain's market: it offers a model that is registered there."""

    model_id: Hash32 = ""

    def heartbeat(self, now_ms: int) -> LinkedNode:
        beat = replace(super().heartbeat(now_ms).heartbeat, models=(self.model_id,), warm_models=(self.model_id,))
        content_hash = hash_payload(canonical_json(to_json(beat)))
        signature = self.sign(typed_data.hash_heartbeat(self.key, self.relayer, content_hash))
        return LinkedNode(self.key, beat, signature, now_ms)


@dataclass
class Services:
    """A relayer's loops over one store, as one process has them."""

    store: SqlStore
    indexer: Indexer
    scheduler: Scheduler
    aggregator: Aggregator
    settler: Settler
    reaper: Reaper
    sender: Sender


@dataclass
class Bench:
    """The chain, the proxy and a relayer. `services` is another after a restart."""

    anvil: LocalChain
    proxy: FaultProxy
    chain: Web3Chain
    clock: FakeClock
    link: FakeLink
    metrics: FakeMetrics
    signer: LocalSigner
    database: Path
    models: Sequence[ModelFacts]
    sender_settings: SenderSettings
    indexer_settings: IndexerSettings
    resources: AsyncExitStack
    services: Services = field(init=False)
    requests: dict[Hash32, Request] = field(default_factory=dict)
    deliveries: dict[Hash32, Delivery] = field(default_factory=dict)
    expiring: dict[Hash32, str] = field(default_factory=dict)
    unwitnessed: list[Wire] = field(default_factory=list)
    remote: Signer | None = None  # holds the relayer's key in the place of `signer`
    _salt: int = 0

    @property
    def store(self) -> SqlStore:
        return self.services.store

    # The outside

    def request(self, **changes: Any) -> Request:
        """Another request to this relayer."""
        self._salt += 1
        fields = {
            "requester": self.anvil.accounts[3],
            "relayer": self.signer.address,
            "model_id": self.models[0].model_id,
            "prompt_hash": hash_payload(PROMPT),
            "prompt_bytes": len(PROMPT),
            "deadline_s": self.clock.now_ms() // 1000 + TTL_S,
            "max_reward_wei": 10**15,
            "gas_budget_wei": 10**16,
            "salt": self._salt,
        }
        return make_request(**{**fields, **changes})

    async def post(self, count: int = 1, account: int = 3, **changes: Any) -> list[Hash32]:
        """Put requests of an account into one block, and index it."""
        ids = [await self._put(account, **changes) for _ in range(count)]
        await self.mine()
        await self.index()
        return ids

    async def put(self, count: int = 1, account: int = 3, **changes: Any) -> list[Hash32]:
        """Put each request into a block of its own, unseen."""
        ids = []
        for _ in range(count):
            ids.append(await self._put(account, **changes))
            await self.mine()
        return ids

    async def _put(self, account: int, **changes: Any) -> Hash32:
        request = self.request(**{"requester": self.anvil.accounts[account], **changes})
        await self.anvil.post(request, account=account)
        id_ = request_id(request, self.chain.chain_id, self.chain.market)
        self.requests[id_] = request
        await self.store.put_prompt(PROMPT, self.anvil.accounts[account], self.clock.now_ms())
        return id_

    async def mine(self, blocks: int = 1) -> None:
        await self.anvil.mine(blocks)

    async def send(self, raw: bytes) -> None:
        """Put a transaction into the pool, past the proxy."""
        await self.rpc("eth_sendRawTransaction", "0x" + raw.hex())

    async def raw_of(self, transaction_hash: Hash32) -> str:
        """The bytes of a transaction that anvil has, for `anvil_reorg`."""
        return str(await self.rpc("eth_getRawTransactionByHash", transaction_hash))

    async def mined_nonce(self) -> int:
        """How many transactions of the relayer's are in blocks."""
        return int(await self.rpc("eth_getTransactionCount", self.signer.address, "latest"), 16)

    async def pass_time(self, seconds: int) -> None:
        """For the relayer's clock and the chain's next block."""
        self.clock.advance(seconds * 1000)
        await self.anvil.rpc("evm_increaseTime", seconds)

    async def rpc(self, method: str, *params: Any) -> Any:
        """Ask anvil itself, past the proxy."""
        return await self.anvil.rpc(method, *params)

    async def restart_chain(self, state: Path) -> None:
        """Another anvil with the chain of this one: its pool is gone."""
        _write_state(state, await self.rpc("anvil_dumpState"))
        self.anvil.url = self.proxy.upstream = self.resources.enter_context(running_anvil("--load-state", str(state)))
        self.anvil.web3 = AsyncWeb3(AsyncHTTPProvider(self.anvil.url))
        self.resources.push_async_callback(self.anvil.web3.provider.disconnect)

    # Others who have the relayer's word

    def round_by_another(self, record: RoundRecord) -> Call:
        """The record of a round as anyone can bring it, who has the relayer's signature."""
        domain = typed_data.Domain(self.chain.chain_id, self.chain.schedule_log)
        signature = self.signer.sign_digest(typed_data.digest(domain, typed_data.hash_round_record(record)))
        return self.chain.record_round_call(self.signer.address, record, signature)

    def results_by_another(self, account: int, ids: Sequence[Hash32]) -> Call:
        """Delivered results as an account can bring them that the relayer mandates."""
        sender, until_s = self.anvil.accounts[account], self.clock.now_ms() // 1000 + TTL_S
        domain = typed_data.Domain(self.chain.chain_id, self.chain.market)
        mandate = typed_data.digest(domain, typed_data.hash_submitter(self.signer.address, sender, until_s))
        signature = self.signer.sign_digest(mandate)
        sets = [self._lone_set(self.deliveries[id_]) for id_ in ids]
        return self.chain.submit_results_for_call(self.signer.address, sets, until_s, signature)

    async def by_another(self, account: int, call: Call) -> Hash32:
        """Put a call into the pool from an account that is not the relayer's."""
        raw, hash_ = await self.anvil.sign(account, call.to, "0x" + call.data.hex())
        await self.send(raw)
        return hash_

    def _lone_set(self, delivery: Delivery) -> ResultSetCall:
        result = delivery.result
        items = ((self.requests[result.request_id], result),)
        return ResultSetCall(result.round, (delivery.node,), (delivery.signature,), items, (), ())

    # The relayer

    @property
    def sent(self) -> list[Wire]:
        """What the relayer sent until now."""
        return [each for each in self.proxy.wire if each.sender == self.signer.address]

    async def index(self) -> None:
        """Follow the chain to the head that it tells."""
        for _ in range(400):
            if not await self.services.indexer.step():
                last = await self.store.last_block()
                if last == self.services.indexer.head:
                    return
        raise AssertionError("the indexer does not come to the head")

    async def serve(self, count: int = 1, **changes: Any) -> list[Hash32]:
        """Post requests, assign them, and have them answered."""
        ids = await self.post(count, **changes)
        await self.answer(ids)
        return ids

    async def send_three(self) -> list[Wire]:
        """A record, its batch, and an `expire` of a request that nobody answered, in the pool."""
        nodes = dict(self.link.nodes)
        self.link.nodes.clear()
        self.expiring = dict.fromkeys(await self.post(deadline_s=self.clock.now_ms() // 1000 + 60), "expired")
        await self.pass_time(60 + (await self.chain.market_terms()).grace_s + 1)
        self.link.nodes.update(nodes)
        await self.serve()
        await self.services.settler.step()
        assert await self.services.reaper.step() == 1
        assert [each.kind for each in await self.store.open_intents()] == ["record_round", "submit_results", "expire"]
        return self.sent

    async def answer(self, ids: Sequence[Hash32], *, cycles: int | None = None) -> None:
        """Assign requests and deliver their answers. A cycle may leave some for the next."""
        for _ in range(cycles or len(ids)):
            async with asyncio.TaskGroup() as group:
                await self.services.scheduler.step(group)
            for node in self.link.nodes.values():
                for task in node.tasks:
                    if task.assignment.request_id in ids:
                        delivery = self.deliveries[task.assignment.request_id] = node.deliver(task)
                        await self.services.aggregator.delivered(delivery)
                node.tasks.clear()

    async def settle(self) -> None:
        """Send what is due, mine it, and see what came of it; until nothing is open."""
        for _ in range(12):
            await self.services.settler.step()
            await self.services.reaper.step()
            self.clock.advance(1_000)
            await self.mine()
            await self.index()
            if not await self.services.sender.confirm() and not await self.store.ready_results(1):
                return
        raise AssertionError(f"still open: {await self.store.open_intents()}")

    async def state(self, request_id: Hash32) -> str:
        stored = await self.store.request(request_id)
        assert stored is not None
        return str(stored.state)

    async def batch(self) -> StoredIntent:
        """The batch that is on its way."""
        (intent,) = [each for each in await self.store.open_intents() if each.kind == "submit_results"]
        return intent

    async def restart(self) -> None:
        """A new process on the same database, as after a crash: what was in memory is gone."""
        await self.store.close()
        self.services = await self.start()
        await self.index()

    async def start(
        self, chain: Chain | None = None, may_assign: Callable[[], bool] = lambda: True, *, is_fenced: bool = False
    ) -> Services:
        """A relayer's services over the database; fenced, they write nothing before they lead."""
        over: Any = chain or self.chain
        clock, metrics = self.clock, self.metrics
        signer: Signer = self.remote or self.signer
        store = await SqlStore.open(f"sqlite:///{self.database}", clock, is_fenced=is_fenced)
        terms, rounds = await over.market_terms(), asyncio.Lock()
        domain = typed_data.Domain(over.chain_id, over.market)
        sender = Sender(over, store, clock, signer, metrics, _guard(over), self.sender_settings)
        names = {each.model_id: each.name for each in self.models}
        dispatcher = Dispatcher(store, self.link, clock, metrics, domain, names, lambda: None)
        scheduler = Scheduler(
            over,
            store,
            self.link,
            dispatcher,
            clock,
            signer,
            metrics,
            terms,
            self.models,
            Policy(),
            await over.next_round(signer.address),
            rounds,
            SchedulerSettings(lease_ms=60_000, confirmations=self.indexer_settings.confirmations),
            has_bond=may_assign,
        )
        settler = Settler(
            over,
            store,
            self.link,
            sender,
            clock,
            signer,
            metrics,
            terms,
            AT_ONCE,
            rounds,
            scheduler.wake.ring,
            bond_wei=(await self.chain.bond(signer.address)).bond_wei,
        )
        return Services(
            store=store,
            indexer=Indexer(
                over,
                store,
                clock,
                metrics,
                signer.address,
                over.deployment.first_block,
                lambda: None,
                self.indexer_settings,
            ),
            scheduler=scheduler,
            aggregator=Aggregator(over, store, clock, metrics, terms, scheduler.wake.ring, settler.wake.ring),
            settler=settler,
            reaper=Reaper(over, store, sender, signer, metrics, terms),
            sender=sender,
        )

    # The judge

    async def events(self, *names: str) -> list[ChainEvent]:
        """What the chain's logs say now, of these names."""
        head = (await self.chain.head()).number
        await self.chain.blocks(0, head)  # or the filters of headers that are gone are held against the logs
        return [each for each in await self.chain.events(0, head) if each.name in names]

    async def closings(self, request_id: Hash32) -> list[ChainEvent]:
        """What closed a request, by the chain's own logs."""
        closed = await self.events("ResultFulfilled", "RequestClosed")
        return [each for each in closed if each.args["requestId"] == request_id]

    async def oracle(self, fates: Mapping[Hash32, str] | None = None, *, skipped: Set[int] = frozenset()) -> None:
        """Whatever happened, each request on the chain ended once, and every transaction was one of an intent's.

        Args:
            fates: of requests that are not meant to be fulfilled: `expired`, `cancelled`, `open`, or `gone` when no
                block has the request.
            skipped: nonces that the test itself used up.
        """
        closed = await self.events("ResultFulfilled", "RequestClosed")
        for id_ in self.requests:
            closings = [each for each in closed if each.args["requestId"] == id_]
            await self._require_fate(id_, (fates or {}).get(id_, "fulfilled"), closings)
        unpaid = {id_ for id_, fate in (fates or {}).items() if fate == "expired"} & self.deliveries.keys()
        await self._require_no_difference(unpaid)
        await self._require_honest_wire(skipped)
        last = await self.store.last_block()
        assert last is not None
        block = await self.rpc("eth_getBlockByNumber", hex(last.number), False)
        assert block["hash"] == last.hash, "the cursor is on the chain"

    async def _require_fate(self, request_id: Hash32, fate: str, closings: Sequence[ChainEvent]) -> None:
        (status,) = await self.chain.statuses([request_id])
        stored = await self.store.request(request_id)
        assert (status is Status.NONE) is (fate == "gone")
        if fate == "gone":
            assert stored is None or stored.state == "withdrawn"
            return
        assert stored is not None
        assert stored.state == ("eligible" if fate == "open" else fate)
        block = await self.rpc("eth_getBlockByNumber", hex(stored.block_number), False)
        assert block["hash"] == stored.block_hash, "its own block is on the chain"
        wanted = {"fulfilled": ["ResultFulfilled"], "expired": ["RequestClosed"], "cancelled": ["RequestClosed"]}
        assert [each.name for each in closings] == wanted.get(fate, [])
        if fate == "fulfilled":
            assert closings[0].args["resultHash"] == self.deliveries[request_id].result.result_hash

    async def _require_no_difference(self, unpaid: Set[Hash32]) -> None:
        terms, first = await self.chain.market_terms(), self.chain.deployment.first_block
        reconciler = Reconciler(self.chain, self.store, self.metrics, self.signer.address, first, terms)
        done = await reconciler.compare(first, (await self.chain.head()).number)
        # What was answered and could not be settled is a loss that it rightly tells.
        told = [each for each in done.findings if each.kind is not Discrepancy.UNPAID or each.request_id not in unpaid]
        assert told == []
        assert done.underpaid_wei == 0 or unpaid

    async def _require_honest_wire(self, skipped: Set[int]) -> None:
        """One nonce is one intent's, every transaction was stored before it was sent, and no nonce is left out."""
        assert self.unwitnessed == [], "sent before it was stored"
        intents: dict[int, set[int]] = {}
        bids: dict[int, list[Wire]] = {}
        for each in self.sent:
            intent = await self.store.intent_of_transaction(each.hash)
            assert intent is not None, f"{each.hash} is no intent's"
            assert intent.nonce == each.nonce
            intents.setdefault(each.nonce, set()).add(intent.intent_id)
            bids.setdefault(each.nonce, []).append(each)
        assert all(len(ids) == 1 for ids in intents.values()), f"a nonce of two intents: {intents}"
        for attempts in bids.values():
            for old, new in pairwise(dict.fromkeys(attempts)):
                for fee, higher in ((old.max_fee_wei, new.max_fee_wei), (old.tip_wei, new.tip_wei)):
                    assert higher * BPS >= fee * REPLACEMENT_BPS, "a replacement that pools refuse"
        open_nonces = sorted(each.nonce for each in await self.store.open_intents())
        mined = await self.mined_nonce()
        sent = sorted({each for each in intents if each < mined} | skipped)
        assert open_nonces == list(range(mined, mined + len(open_nonces))), "a gap in the nonces"
        assert sent == list(range(sent[0], mined)) if sent else True, "a nonce that is not ours"

    async def _witness(self, wire: Wire) -> None:
        if wire.sender == self.signer.address and await self.store.intent_of_transaction(wire.hash) is None:
            self.unwitnessed.append(wire)


@asynccontextmanager
async def a_bench(
    database: Path,
    *arguments: str,
    confirmations: int = 0,
    max_rewind: int = MAX_REWIND,
    range_blocks: int = 500,
    sender: SenderSettings | None = None,
    timeout_s: float = 5,
) -> AsyncIterator[Bench]:
    """Start everything.

    Args:
        database: where the relayer's store is to be.
        arguments: of anvil.
        confirmations: blocks on a request's own before it is served.
        max_rewind: the deepest reorg that is undone.
        range_blocks: how many blocks are indexed at once.
        sender: how transactions are pushed.
        timeout_s: for one question to the chain.
    """
    async with AsyncExitStack() as resources:
        anvil = await resources.enter_async_context(local_chain(*arguments))
        proxy = await resources.enter_async_context(fault_proxy(anvil.url))
        await anvil.register_relayer()
        await anvil.register_node(NODE_KEY, anvil.deployment.models["tiny"])
        await anvil.mine()
        chain = Web3Chain(await connect_http(proxy.url, timeout_s), anvil.deployment)
        signer, clock = LocalSigner(anvil.keys[1]), FakeClock(int(time.time()) * 1000)
        link = FakeLink(clock)
        domain = typed_data.Domain(chain.chain_id, chain.market)
        model_id = anvil.deployment.models["tiny"]
        node = ChainNode(FakeSigner(7), domain, signer.address, model_id=model_id)
        assert node.key == str(Account.from_key(NODE_KEY).address).lower()
        link.nodes[node.key] = node
        bench = Bench(
            anvil,
            proxy,
            chain,
            clock,
            link,
            FakeMetrics(),
            signer,
            database,
            await chain.models(),
            sender or SenderSettings(),
            IndexerSettings(confirmations=confirmations, max_rewind=max_rewind, range_blocks=range_blocks),
            resources,
        )
        await _lay_out(database, clock)
        bench.services = await bench.start()
        proxy.on_transaction = bench._witness
        try:
            await bench.index()
            yield bench
        finally:
            await bench.store.close()
            await chain.close()


class Crash(BaseException):
    """The process ends here: nothing catches it, and nothing after it is done."""


@contextmanager
def crash(target: Any, method: str, *, nth: int = 1, before: bool = False) -> Iterator[None]:
    """End the process at a call of a method of an object or module: before it, or once it is done."""
    original, calls = getattr(target, method), 0

    def dies() -> bool:
        nonlocal calls
        calls += 1
        return calls == nth

    async def waited(*values: Any, **named: Any) -> Any:
        is_last = dies()
        if is_last and before:
            raise Crash(method)
        done = await original(*values, **named)
        if is_last:
            raise Crash(method)
        return done

    def called(*values: Any, **named: Any) -> Any:
        is_last = dies()
        if is_last and before:
            raise Crash(method)
        done = original(*values, **named)
        if is_last:
            raise Crash(method)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, method, waited if inspect.iscoroutinefunction(original) else called)
        try:
            yield
        except Crash:
            return
    raise AssertionError(f"{method} was called {calls} times, and not {nth}")


def fields_of(raw: bytes) -> dict[str, Any]:
    """A transaction's fields."""
    return dict(TypedTransaction.from_bytes(HexBytes(raw)).as_dict())


_EMPTY: dict[str, bytes] = {}


async def _lay_out(database: Path, clock: FakeClock) -> None:
    """An empty store: a copy, since making its tables takes a fifth of a second."""
    if not _EMPTY:
        store = await SqlStore.open(f"sqlite:///{database}", clock)
        await store.close()
        _EMPTY["bytes"] = await asyncio.to_thread(database.read_bytes)
    await asyncio.to_thread(database.write_bytes, _EMPTY["bytes"])


def _write_state(file: Path, dumped: str) -> None:
    file.write_bytes(gzip.decompress(bytes.fromhex(dumped[2:])))


def _guard(chain: Web3Chain) -> GuardPolicy:
    allowed = selectors()
    market = frozenset({allowed["submitResults"], allowed["expire"]})
    return GuardPolicy(
        {chain.market: market, chain.schedule_log: frozenset({allowed["recordRound"]})}, MAX_FEE_CEILING_WEI
    )
