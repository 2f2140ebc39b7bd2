"""E9: the store is lost, and an old copy of it is put back. What the relayer signed since is forgotten, and in the
hands of nodes: nothing is paid twice, nobody can prove a fault of it, and it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from eth_account import Account

from headrace.adapters.sql.copies import back_up, put_back
from headrace.adapters.sql.store import SqlStore
from headrace.core import typed_data
from headrace.core.errors import InvalidInput
from headrace.core.faults import Fault, SignedAccept, SignedAssignment
from headrace.core.lost import LOST_POLICY_HASH, LOST_ROUNDS
from headrace.core.tasks import Accept, Delivery, Refusal, Task
from headrace.core.types import Address, Decision, Hash32
from headrace.services.dossiers import Dossiers
from headrace.services.indexer import Indexer
from headrace.services.recovery import Recovery
from headrace.services.watch import StoreWords, Watch, WatchSettings
from tests.chaos.bench import Bench, ChainNode, a_bench
from tests.fakes import FakeMetrics, FakeSigner
from tests.services.world import FakeNode

SECOND_KEY = bytes(31) + b"\x08"
HOLD_S = 120


@dataclass
class Nodes:
    """Both nodes, as true as real ones: each takes a request once, and keeps what the relayer signed."""

    bench: Bench
    signed: list[SignedAssignment] = field(default_factory=list)
    computed: dict[tuple[Address, Hash32], Delivery] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.bench.link.nodes.values():
            node.answer = self._answer

    def _answer(self, task: Task) -> Accept | Refusal:
        node = self.bench.link.nodes[task.assignment.node]
        own = [each.assignment for each in self.signed if each.assignment.node == node.key]
        known = [each for each in own if each.request_id == task.assignment.request_id]
        if known and known[0] != task.assignment:
            return node.refuse(task)
        if not known:
            self.signed.append(SignedAssignment(task.assignment, task.assignment_signature))
        return node.accept(task)

    async def assignments(self, since_ms: int) -> list[SignedAssignment]:
        """As the port AssignmentJournal: all that nodes were handed, whoever remembers it."""
        return self.signed

    async def work(self, ids: list[Hash32]) -> None:
        """Assign and answer, as long as there is something to do."""
        for _ in range(6):
            async with asyncio.TaskGroup() as group:
                await self.bench.services.scheduler.step(group)
            for node in self.bench.link.nodes.values():
                for task in node.tasks:
                    if task.assignment.request_id in ids:
                        await self._deliver(node, task)
                node.tasks.clear()

    async def _deliver(self, node: FakeNode, task: Task) -> None:
        if SignedAssignment(task.assignment, task.assignment_signature) not in self.signed:
            return
        delivery = node.deliver(task)
        self.computed[node.key, task.assignment.request_id] = delivery
        try:
            await self.bench.services.aggregator.delivered(delivery)
        except InvalidInput:
            return
        self.bench.deliveries[task.assignment.request_id] = delivery

    async def assign(self) -> None:
        async with asyncio.TaskGroup() as group:
            await self.bench.services.scheduler.step(group)


class TwoWords:
    """Leaves and accepts of the store that was lost and of the copy: what anyone may have fetched from the API."""

    def __init__(self, *stores: SqlStore) -> None:
        self._words = [StoreWords(store) for store in stores]

    async def leaves(self, round_: int, count: int) -> list[Decision] | None:
        for each in self._words:
            found = await each.leaves(round_, count)
            if found is not None and len(found) == count:
                return found
        return None

    async def accepts(self, round_: int) -> list[SignedAccept] | None:
        return [accept for each in self._words for accept in await each.accepts(round_) or []]


@asynccontextmanager
async def opened(bench: Bench, path: Path) -> AsyncIterator[SqlStore]:
    store = await SqlStore.open(f"sqlite+aiosqlite:///{path}", bench.clock)
    try:
        yield store
    finally:
        await store.close()


async def faults_of_the_relayer(bench: Bench, nodes: Nodes, former: Path, folder: Path) -> list[Fault]:
    """What a watcher finds who has the chain, every leaf that was ever had and the journals of both nodes."""
    async with opened(bench, former) as lost, opened(bench, folder / "watch.db") as own:
        first, relayer = bench.chain.deployment.first_block, bench.signer.address
        indexer = Indexer(
            bench.chain, own, bench.clock, FakeMetrics(), relayer, first, lambda: None, bench.indexer_settings
        )
        while not indexer.caught_up.is_set():
            await indexer.step()
        dossiers = Dossiers(bench.chain, own, TwoWords(lost, bench.store), relayer)
        settings = WatchSettings(confirmations=0)
        watch = Watch(bench.chain, own, bench.clock, FakeMetrics(), dossiers, None, settings, nodes)
        await watch.look()
        return [each.fault for each in await own.faults(None, 100) if each.culprit == relayer]


@dataclass
class Loss:
    """What happened before the store was lost."""

    nodes: Nodes
    copy: Path
    former: Path
    assigned: list[Hash32]  # and never answered by who is remembered
    answered: list[Hash32]  # and not settled


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path / "relayer.db") as made:
        model_id = made.anvil.deployment.models["tiny"]
        await made.anvil.register_node(SECOND_KEY, model_id)
        domain = typed_data.Domain(made.chain.chain_id, made.chain.market)
        node = ChainNode(FakeSigner(8), domain, made.signer.address, model_id=model_id)
        assert node.key == str(Account.from_key(SECOND_KEY).address).lower()
        made.link.nodes[node.key] = node
        await made.mine()
        await made.index()
        yield made


async def lose(bench: Bench, folder: Path, *, keeps_pool: bool) -> Loss:
    """Serve, make a copy, go on serving, and lose the store: with rounds that are on record since, one whose record
    hangs in the pool with its batch, and an open one."""
    nodes = Nodes(bench)
    await nodes.work(await bench.post(2))
    await bench.settle()
    known = await bench.post()
    await nodes.assign()  # in the round that is open in the copy
    back_up(bench.database, folder / "copy.db", lambda done, total: None)

    await nodes.work([*known, *await bench.post(2)])
    await bench.settle()
    answered = await bench.post(2)
    await nodes.work(answered)
    await bench.services.settler.step()
    hanging = await bench.store.open_intents()
    assert [each.kind for each in hanging] == ["record_round", "submit_results"]
    await bench.rpc("anvil_dropAllTransactions")
    assigned = await bench.post(2)
    await nodes.assign()
    assert {each.request_id for each in await bench.store.open_assignments()} == set(assigned)
    for intent in hanging if keeps_pool else []:
        await bench.send(intent.attempts[-1].raw)

    await bench.store.close()
    former = put_back(folder / "copy.db", bench.database)
    assert former is not None
    return Loss(nodes, folder / "copy.db", former, assigned, answered)


async def recover(bench: Bench) -> Recovery:
    """A relayer on the copy, as `bootstrap` starts one."""
    bench.services = await bench.start(may_assign=lambda: recovery.may_assign())  # noqa: PLW0108
    recovery = Recovery(bench.chain, bench.store, bench.clock, bench.signer.address, HOLD_S)
    await bench.index()
    assert await recovery.step(), "the copy is known as one"
    return recovery


async def settle_all(bench: Bench) -> None:
    """Send what is due, mine it, and see what came of it; nonces that are not its own are waited for."""
    for _ in range(40):
        await bench.services.settler.step()
        await bench.services.reaper.step()
        bench.clock.advance(16_000)
        await bench.mine()
        await bench.index()
        open_rounds = [each for each in await bench.store.rounds(limit=40) if each.state == "closed"]
        if not await bench.services.sender.confirm() and not await bench.store.ready_results(1) and not open_rounds:
            return
    raise AssertionError(f"still open: {await bench.store.open_intents()}")


@pytest.mark.parametrize("keeps_pool", [True, False])
async def test_old_copy__is_put_back__nothing_is_paid_twice_and_no_fault_can_be_proven(
    bench: Bench, tmp_path: Path, keeps_pool: bool
) -> None:
    loss = await lose(bench, tmp_path, keeps_pool=keeps_pool)
    next_round = await bench.chain.next_round(bench.signer.address)
    recovery = await recover(bench)
    signed = len(loss.nodes.signed)
    await loss.nodes.work(loss.assigned)
    assert len(loss.nodes.signed) == signed, "nothing is assigned yet"
    for request_id in loss.assigned:
        assert not await recovery.guarding(bench.services.scheduler.hold)(request_id, 10**13)

    await settle_all(bench)
    records = {int(each.args["round"]): each.args["record"] for each in await bench.events("RoundRecorded")}
    lost = {number for number, record in records.items() if record["policyHash"] == LOST_POLICY_HASH}
    assert lost | {number for number in records if number >= next_round} == set(
        range(next_round, next_round + LOST_ROUNDS)
    )
    bench.clock.advance(HOLD_S * 1000)
    assert recovery.may_assign()
    fresh = await bench.post(3)
    await loss.nodes.work([*fresh, *loss.assigned, *loss.answered])
    await settle_all(bench)

    await require_paid_once(bench, loss)
    assert {await bench.state(request_id) for request_id in fresh} == {"fulfilled"}
    assert await faults_of_the_relayer(bench, loss.nodes, loss.former, tmp_path) == []


async def require_paid_once(bench: Bench, loss: Loss) -> None:
    """Each request ended once, with an answer that a node computed for it; store and chain tell the same."""
    for request_id in bench.requests:
        (closing,) = await bench.closings(request_id)
        assert closing.name == "ResultFulfilled"
        hashes = {each.result.result_hash for (_, id_), each in loss.nodes.computed.items() if id_ == request_id}
        assert closing.args["resultHash"] in hashes
    await bench._require_no_difference(set())


async def test_old_copy__is_started_as_if_it_were_whole__faults_of_the_relayer_are_provable(
    bench: Bench, tmp_path: Path
) -> None:
    """What the recovery is for: the watcher of the test above does find what is to be found."""
    loss = await lose(bench, tmp_path, keeps_pool=False)
    bench.services = await bench.start()
    await bench.index()
    # Gone for now: else it may be assigned the same again, by chance.
    forgotten = next(each for each in loss.nodes.signed if each.assignment.request_id in loss.answered)
    del bench.link.nodes[forgotten.assignment.node]
    await loss.nodes.work([*await bench.post(2)])
    await settle_all(bench)
    assert Fault.UNDECIDED in await faults_of_the_relayer(bench, loss.nodes, loss.former, tmp_path)


async def test_other_store__of_a_key_that_has_a_past__is_known_to_be_behind(bench: Bench, tmp_path: Path) -> None:
    nodes = Nodes(bench)
    await nodes.work(await bench.post(2))
    await bench.settle()
    await bench.store.close()
    bench.database = tmp_path / "another.db"
    bench.services = await bench.start()
    await bench.index()
    recovery = Recovery(bench.chain, bench.store, bench.clock, bench.signer.address, HOLD_S)
    assert not recovery.may_assign(), "as long as it is not known"
    assert await recovery.step()
    assert not recovery.may_assign()
    assert recovery.why_not_ready() == [
        f"an old copy of the store was put back: nothing is assigned for {HOLD_S} seconds"
    ]
    again = Recovery(bench.chain, bench.store, bench.clock, bench.signer.address, HOLD_S)
    assert not await again.step(), "sealed once"
    assert not again.may_assign(), "and held over a restart"
    await settle_all(bench)
    bench.clock.advance(HOLD_S * 1000)
    assert again.may_assign()
    assert again.why_not_ready() == []
    await nodes.work(await bench.post(1))
    await settle_all(bench)
    await bench._require_no_difference(set())
