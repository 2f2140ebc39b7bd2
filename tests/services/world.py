"""A relayer's services around a fake chain, a fake link and the real store, driven step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headrace.adapters.sql.store import SqlStore
from headrace.core import typed_data
from headrace.core.adaptive_batching import AdaptivePolicy
from headrace.core.batching import BatchPolicy
from headrace.core.canonical import canonical_json
from headrace.core.envelope import hash_payload, seal
from headrace.core.errors import Unavailable
from headrace.core.fields import to_json
from headrace.core.guard import GuardPolicy
from headrace.core.scheduling import CyclePlan, Offer, Policy
from headrace.core.tasks import Accept, Delivery, Heartbeat, LinkedNode, Refusal, RefusalReason, Task
from headrace.core.types import Address, Hash32, Price, Request, Result
from headrace.ports import ModelFacts, NodeFacts
from headrace.services.aggregator import Aggregator
from headrace.services.bonding import Bonding
from headrace.services.dispatcher import Dispatcher
from headrace.services.reaper import Reaper
from headrace.services.scheduler import Scheduler, SchedulerSettings
from headrace.services.sender import Sender
from headrace.services.settler import Settler
from headrace.services.wake import Wake
from tests.fakes import (
    MARKET,
    MODEL_ID,
    REQUESTER,
    SCHEDULE_LOG,
    FakeChain,
    FakeClock,
    FakeMetrics,
    FakeSigner,
    make_request,
)

PROMPT = seal(b"Why is the sky blue?", bytes(16))
PRICE = Price(per_prompt_kib_wei=10**12, per_thousand_tokens_wei=10**13)
LEASE_MS = 10_000
MODEL = ModelFacts(MODEL_ID, "gpt-2", "main", "0x" + "77" * 32, "f32", 500, 1024, 300, "output_token")


@dataclass
class FakeNode:
    """A node that answers as it is told to. `answer` decides on a task; by default it accepts."""

    signer: FakeSigner
    domain: typed_data.Domain
    relayer: Address
    in_flight: int = 0
    max_in_flight: int = 4
    answer: Callable[[Task], Accept | Refusal] | Exception | None = None
    signs_sets: bool = True
    verifiers: tuple[Address, ...] = ()
    tasks: list[Task] = field(default_factory=list)

    @property
    def key(self) -> Address:
        return self.signer.address

    def accept(self, task: Task) -> Accept:
        word = task.assignment
        struct_hash = typed_data.hash_accept(word.request_id, word.relayer, word.round, word.deadline_s)
        return Accept(word.request_id, word.round, self.sign(struct_hash))

    def refuse(self, task: Task) -> Refusal:
        return Refusal(task.assignment.request_id, task.assignment.round, RefusalReason.REWARD_TOO_LOW, "too little")

    def put_off(self, task: Task) -> Refusal:
        """It could not take it now."""
        return Refusal(task.assignment.request_id, task.assignment.round, RefusalReason.BUSY, "no room")

    def deliver(
        self, task: Task, content: bytes = b"Rayleigh scattering.", salt: int = 7, proof: bytes = b""
    ) -> Delivery:
        word = task.assignment
        payload = content if task.request.inline_result else seal(content, bytes([salt]) * 16)
        result = Result(word.request_id, hash_payload(payload), word.reward_wei, word.relayer, word.round)
        return Delivery(self.key, result, self.sign(typed_data.hash_result(result)), payload, 5, 120, proof)

    def sign(self, struct_hash: bytes) -> bytes:
        return self.signer.sign_digest(typed_data.digest(self.domain, struct_hash))

    def heartbeat(self, now_ms: int) -> LinkedNode:
        beat = Heartbeat(
            node=self.key,
            sequence=1,
            sent_at_ms=now_ms,
            free_memory_mb=4_000,
            in_flight=self.in_flight,
            max_in_flight=self.max_in_flight,
            load_milli=100,
            models=(MODEL_ID,),
            warm_models=(MODEL_ID,),
            avg_latency_ms=1_000,
            region="test",
            verifiers=self.verifiers,
        )
        content_hash = hash_payload(canonical_json(to_json(beat)))
        signature = self.sign(typed_data.hash_heartbeat(self.key, self.relayer, content_hash))
        return LinkedNode(self.key, beat, signature, now_ms)


class FakeLink:
    """The `NodeLink` port over fake nodes. Unlink one by taking it out of `nodes`."""

    def __init__(self, clock: FakeClock) -> None:
        self.nodes: dict[Address, FakeNode] = {}
        self.set_requests: list[tuple[Address, int, int]] = []
        self._clock = clock

    def linked(self) -> Sequence[LinkedNode]:
        return [self.nodes[key].heartbeat(self._clock.now_ms()) for key in sorted(self.nodes)]

    async def dispatch(self, task: Task, timeout_s: float) -> Accept | Refusal:
        node = self.nodes.get(task.assignment.node)
        if node is None:
            raise Unavailable("the node is not linked")
        node.tasks.append(task)
        if isinstance(node.answer, Exception):
            raise node.answer
        return (node.answer or node.accept)(task)

    async def sign_set(self, node: Address, round_: int, results: Sequence[Result], timeout_s: float) -> bytes | None:
        self.set_requests.append((node, round_, len(results)))
        fake = self.nodes.get(node)
        if fake is None or not fake.signs_sets:
            return None
        hashes = [typed_data.hash_result(result) for result in results]
        return fake.sign(typed_data.hash_result_set(results[0].relayer, round_, hashes))


@dataclass
class World:
    """Everything together. Each method is one step that a loop would take."""

    chain: FakeChain
    clock: FakeClock
    store: SqlStore
    link: FakeLink
    metrics: FakeMetrics
    signer: FakeSigner
    scheduler: Scheduler
    aggregator: Aggregator
    settler: Settler
    reaper: Reaper
    sender: Sender
    bonding: Bonding

    def request(self, **changes: object) -> Request:
        """A request to this relayer, whose prompt `post` hands in."""
        fields = {"relayer": self.signer.address, "prompt_hash": hash_payload(PROMPT), "prompt_bytes": len(PROMPT)}
        return make_request(**{**fields, **changes})

    async def post(self, *requests: Request, prompt: bytes | None = PROMPT) -> list[Hash32]:
        """Hand in the prompt, mine the requests and index them."""
        if prompt is not None:
            for requester in {REQUESTER, *(request.requester for request in requests)}:
                await self.store.put_prompt(prompt, requester, self.clock.now_ms())
        self.chain.mine(*[self.chain.requested(request) for request in requests])
        await self.index()
        return [self.chain.id_of(request) for request in requests]

    async def index(self) -> None:
        """Read all new blocks; every block is confirmed at once."""
        last = await self.store.last_block()
        blocks = [block for block in self.chain.all_blocks() if last is None or block.number > last.number]
        numbers = {block.number for block in blocks}
        events = [event for event in self.chain.all_events() if event.block_number in numbers]
        await self.store.add_blocks(blocks, events, self.signer.address)
        await self.store.confirm_up_to(self.chain.all_blocks()[-1].number, self.clock.now_ms())

    async def set_bonded(self, bonded: bool) -> None:
        """The relayer takes its bond out, or has one again, and finds out."""
        (self.chain.bonded.add if bonded else self.chain.bonded.discard)(self.signer.address)
        await self.bonding.step()

    async def cycle(self) -> CyclePlan | None:
        """One pass of the scheduler, dispatches included."""
        async with asyncio.TaskGroup() as group:
            return await self.scheduler.step(group)

    def restart(self, batching: BatchPolicy | AdaptivePolicy | None = None) -> World:
        """The services anew, on the same store, chain and nodes."""
        policy = batching or BatchPolicy()
        return _wire(
            self.chain, self.clock, self.store, self.link, self.metrics, self.signer, self.scheduler._policy, policy
        )

    def adopt(self, policy: Policy) -> None:
        """Have the scheduler follow another policy, as an operator does."""
        self.scheduler.use(policy)

    def guard(self, policy: GuardPolicy) -> None:
        """Have the sender sign what another policy allows."""
        self.sender._guard = self.sender._pusher._guard = policy

    def send_by(self, submitter: FakeSigner | None) -> None:
        """Restart what sends with a submitter, or with the relayer's own key, as an operator does."""
        old, named = self.settler, submitter.address if submitter else None
        self.sender = Sender(
            self.chain, self.store, self.clock, submitter or self.signer, self.metrics, self.sender._guard
        )
        self.settler = Settler(
            self.chain,
            self.store,
            self.link,
            self.sender,
            self.clock,
            self.signer,
            self.metrics,
            self.chain.terms,
            old._batching,
            old._rounds,
            old._on_requeued,
            submitter=named,
            has_bond=self.bonding.holds,
        )
        self.reaper = Reaper(
            self.chain, self.store, self.sender, self.signer, self.metrics, self.chain.terms, submitter=named
        )

    async def serve(self, *requests: Request) -> list[Hash32]:
        """Post, assign and deliver."""
        ids = await self.post(*requests)
        wanted = set(ids)
        while wanted:
            plan = await self.cycle()
            assert plan is not None, f"no cycle assigns {wanted}"
            for node in self.link.nodes.values():
                for task in node.tasks:
                    if task.assignment.request_id in wanted:
                        wanted.discard(task.assignment.request_id)
                        await self.aggregator.delivered(node.deliver(task))
        return ids

    async def settle(self) -> None:
        """Send what is due, mine it, index it, and end its intents."""
        await self.settler.step()
        self.clock.advance(1_000)
        self.chain.mine()
        await self.sender.confirm()
        await self.index()

    async def state(self, request_id: Hash32) -> str:
        stored = await self.store.request(request_id)
        assert stored is not None
        return str(stored.state)


@asynccontextmanager
async def a_world(
    nodes: int = 1, policy: Policy | None = None, batching: BatchPolicy | AdaptivePolicy | None = None
) -> AsyncIterator[World]:
    """A relayer with linked, staked nodes."""
    clock, metrics, signer = FakeClock(), FakeMetrics(), FakeSigner(1)
    chain = FakeChain(clock)
    chain.bonded.add(signer.address)
    chain.registered_models.append(MODEL)
    store = await SqlStore.open("sqlite:///:memory:", clock)
    link = FakeLink(clock)
    domain = typed_data.Domain(chain.chain_id, chain.market)
    for number in range(nodes):
        node = FakeNode(FakeSigner(100 + number), domain, signer.address)
        link.nodes[node.key] = node
        payee = "0x" + f"{number + 1:040x}"
        chain.facts[node.key] = NodeFacts(node.key, payee, 10**18, 0, True, payee, 1, 100, 0, 0)
        chain.node_offers[node.key] = [Offer(MODEL_ID, "gpt-2", PRICE)]
    try:
        yield _wire(chain, clock, store, link, metrics, signer, policy or Policy(), batching or BatchPolicy())
    finally:
        await store.close()


def _wire(
    chain: FakeChain,
    clock: FakeClock,
    store: SqlStore,
    link: FakeLink,
    metrics: FakeMetrics,
    signer: FakeSigner,
    policy: Policy,
    batching: BatchPolicy | AdaptivePolicy,
) -> World:
    domain = typed_data.Domain(chain.chain_id, chain.market)
    rounds = asyncio.Lock()
    guard = GuardPolicy({MARKET: AnySelector(), SCHEDULE_LOG: AnySelector()}, 10**12)
    sender = Sender(chain, store, clock, signer, metrics, guard)
    dispatcher = Dispatcher(store, link, clock, metrics, domain, {MODEL_ID: "gpt-2"}, lambda: None)
    settings = SchedulerSettings(lease_ms=LEASE_MS, confirmations=0)
    wake = Wake()
    bonding = Bonding(chain, metrics, signer.address, wake.ring)
    scheduler = Scheduler(
        chain,
        store,
        link,
        dispatcher,
        clock,
        signer,
        metrics,
        chain.terms,
        [MODEL],
        policy,
        1,
        rounds,
        settings,
        wake,
        has_bond=bonding.holds,
    )
    settler = Settler(
        chain,
        store,
        link,
        sender,
        clock,
        signer,
        metrics,
        chain.terms,
        batching,
        rounds,
        scheduler.wake.ring,
        has_bond=bonding.holds,
    )
    aggregator = Aggregator(chain, store, clock, metrics, chain.terms, scheduler.wake.ring, settler.wake.ring)
    reaper = Reaper(chain, store, sender, signer, metrics, chain.terms)
    return World(chain, clock, store, link, metrics, signer, scheduler, aggregator, settler, reaper, sender, bonding)


class AnySelector(frozenset[bytes]):
    """The fake chain's call data is a hash, without a selector of its own."""

    def __contains__(self, _: object) -> bool:
        return True
