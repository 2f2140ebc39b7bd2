"""The indexer follows the chain, and what it has stored is always what the chain says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from headrace.adapters.json_rpc import connect_http
from headrace.adapters.sql.store import SqlStore
from headrace.adapters.web3_chain import Web3Chain
from headrace.core.errors import ChainUnavailable
from headrace.core.events import ChainEvent
from headrace.core.lifecycle import RequestState
from headrace.core.requests import request_id
from headrace.core.types import Hash32, Status
from headrace.ports import Chain
from headrace.services.indexer import Indexer, IndexerSettings, ReorgTooDeep
from tests.fakes import RELAYER, FakeChain, FakeClock, FakeMetrics, LoopClock, make_request
from tests.local_chain import local_chain


@dataclass
class World:
    """An indexer between a chain and a store."""

    chain: FakeChain
    store: SqlStore
    indexer: Indexer
    metrics: FakeMetrics
    changes: list[int] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def settle(self) -> None:
        """Step until nothing is left to do."""
        while await self.indexer.step():
            pass

    async def state(self, id_: Hash32) -> RequestState:
        stored = await self.store.request(id_)
        assert stored is not None
        return stored.state

    async def agrees(self) -> bool:
        """Whether the store holds the chain's very blocks."""
        blocks = self.chain.all_blocks()
        return [await self.store.block(block.number) for block in blocks] == blocks and (
            await self.store.last_block() == blocks[-1]
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as opened:
        yield opened


@asynccontextmanager
async def a_world(chain: FakeChain | None = None, url: str = "sqlite://", **settings: int) -> AsyncIterator[World]:
    store = await SqlStore.open(url, FakeClock())
    try:
        yield make_world(chain or FakeChain(), store, **settings)
    finally:
        await store.close()


def make_world(chain: FakeChain, store: SqlStore, **settings: int) -> World:
    metrics = FakeMetrics()
    changes: list[int] = []
    changed = asyncio.Event()

    def on_change() -> None:
        changes.append(1)
        changed.set()

    bounds = IndexerSettings(**{"confirmations": 0, "range_blocks": 4, "max_rewind": 8, **settings})
    indexer = Indexer(chain, store, FakeClock(), metrics, RELAYER, 0, on_change, bounds)
    return World(chain, store, indexer, metrics, changes, changed)


class LateChain(FakeChain):
    """A chain whose node denies events of some blocks, as long as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.denied: set[int] = set()
        self.questions: list[tuple[int, int]] = []

    async def events(self, from_block: int, to_block: int) -> list[ChainEvent]:
        self.questions.append((from_block, to_block))
        found = await super().events(from_block, to_block)
        return [event for event in found if event.block_number not in self.denied]


async def test_reread__events_that_were_denied__are_taken_in_later() -> None:
    chain = LateChain()
    async with a_world(chain, reread_blocks=8, reread_every_blocks=4) as world:
        early, late = make_request(salt=1), make_request(salt=2)
        chain.mine(chain.requested(early))
        chain.denied = {chain.mine(chain.requested(late)).number}
        await world.settle()
        chain.denied = set()
        for _ in range(3):
            chain.mine()
            await world.settle()
        assert await world.store.request(chain.id_of(late)) is None  # it is not asked again in each block
        chain.mine()
        await world.settle()
        assert await world.state(chain.id_of(late)) is RequestState.ELIGIBLE
        assert await world.state(chain.id_of(early)) is RequestState.ELIGIBLE
        assert await world.agrees()
        assert world.metrics.counts["headrace_blocks_reread_total",] == 1


async def test_reread__nothing_was_denied__changes_nothing_and_asks_now_and_then() -> None:
    chain = LateChain()
    async with a_world(chain, reread_blocks=6, reread_every_blocks=4) as world:
        for number in range(12):
            chain.mine(chain.requested(make_request(salt=number)))
            await world.settle()
        again = [end for start, end in chain.questions if end - start == 5]
        assert again == [5, 9]
        assert ("headrace_blocks_reread_total",) not in world.metrics.counts


async def test_reread__a_node_that_denies_what_was_told__takes_nothing_away() -> None:
    chain = LateChain()
    async with a_world(chain, reread_blocks=8, reread_every_blocks=1) as world:
        request = make_request(salt=1)
        chain.mine(chain.requested(request))
        await world.settle()
        chain.denied = {block.number for block in chain.all_blocks()}
        chain.mine()
        await world.settle()
        assert await world.state(chain.id_of(request)) is RequestState.ELIGIBLE


# Forward


async def test_step__behind__stores_one_range_after_the_other(world: World) -> None:
    world.chain.mine_many(9)
    assert [await world.indexer.step() for _ in range(4)] == [True, True, True, False]
    assert await world.agrees()
    assert len(world.changes) == 3
    assert world.metrics.counts["headrace_blocks_indexed_total",] == 10
    assert world.indexer.head == world.chain.all_blocks()[-1]


async def test_step__many_events__ranges_shrink_to_them_and_grow_again() -> None:
    chain = LateChain()
    for number in range(40):
        count = 5 if number < 12 else 0
        chain.mine(*(chain.requested(make_request(salt=10 * number + each)) for each in range(count)))
    chain.mine_many(200)
    async with a_world(chain, range_blocks=64, range_events=20) as world:
        await world.settle()
        lengths = [end - start + 1 for start, end in chain.questions]
        assert lengths[0] == 32, "nothing is known of the chain yet"
        assert lengths[1] == 10, "60 events in 32 blocks, and 20 are right"
        assert lengths[2:5] == [20, 40, 64], "twice as many at most"
        assert await world.agrees()


async def test_step__back_fill__lets_nothing_be_served_until_the_head_is_known(world: World) -> None:
    """What is eligible by an old block may be settled in a newer one."""
    served, waiting = make_request(salt=1), make_request(salt=2)
    world.chain.mine(world.chain.requested(served), world.chain.requested(waiting))
    world.chain.mine_many(6)
    world.chain.mine(world.chain.fulfilled(world.chain.id_of(served)))
    await world.indexer.step()
    assert await world.store.eligible(10) == []
    assert not world.indexer.caught_up.is_set()
    await world.settle()
    assert world.indexer.caught_up.is_set()
    assert [stored.request for stored in await world.store.eligible(10)] == [waiting]
    assert await world.state(world.chain.id_of(served)) is RequestState.FULFILLED


async def test_step__confirmations__are_waited_for(world: World) -> None:
    indexer = make_world(world.chain, world.store, confirmations=2).indexer
    id_ = world.chain.id_of(make_request())
    world.chain.mine(world.chain.requested(make_request()))
    states = []
    for _ in range(3):
        await indexer.step()
        states.append(await world.state(id_))
        world.chain.mine()
    assert states == [RequestState.INCLUDED, RequestState.INCLUDED, RequestState.ELIGIBLE]


async def test_step__starts_at_the_deployment__and_not_before(world: World) -> None:
    world.chain.mine_many(5)
    indexer = Indexer(world.chain, world.store, FakeClock(), FakeMetrics(), RELAYER, 3, lambda: None)
    await indexer.step()
    assert await world.store.block(2) is None
    assert await world.store.block(3) is not None


async def test_step__deployment_above_the_head__waits(world: World) -> None:
    indexer = Indexer(world.chain, world.store, FakeClock(), FakeMetrics(), RELAYER, 3, lambda: None)
    assert not await indexer.step()
    assert await world.store.last_block() is None


# Reorgs


@pytest.mark.parametrize("depth", range(1, 9))
async def test_step__reorg__is_undone_and_followed(world: World, depth: int) -> None:
    kept, lost = make_request(salt=1), make_request(salt=2)
    world.chain.mine(world.chain.requested(kept))
    world.chain.mine(world.chain.requested(lost))
    world.chain.mine_many(8)
    await world.settle()
    world.chain.reorg(depth)
    await world.settle()
    assert await world.agrees()
    assert await world.state(world.chain.id_of(lost)) is RequestState.ELIGIBLE
    assert world.metrics.total("headrace_reorgs_total") == 1


async def test_step__reorg_of_the_request__withdraws_it_until_it_is_back(world: World) -> None:
    request = make_request()
    id_ = world.chain.id_of(request)
    world.chain.mine(world.chain.requested(request))
    await world.settle()
    world.chain.reorg(1)
    await world.settle()
    assert await world.state(id_) is RequestState.WITHDRAWN
    block = world.chain.mine(world.chain.requested(request))
    await world.settle()
    stored = await world.store.request(id_)
    assert stored is not None
    assert (stored.state, stored.block_hash) == (RequestState.ELIGIBLE, block.hash)


async def test_step__request_moves_to_another_block__is_one_request(world: World) -> None:
    request = make_request()
    world.chain.mine(world.chain.requested(request))
    world.chain.mine()
    await world.settle()
    world.chain.reorg(2, [], [world.chain.requested(request)])
    await world.settle()
    (stored,) = await world.store.requests()
    assert (stored.block_number, stored.state) == (2, RequestState.ELIGIBLE)


async def test_step__settlement_is_reorged_out__is_open_again(world: World) -> None:
    id_ = world.chain.id_of(make_request())
    world.chain.mine(world.chain.requested(make_request()))
    world.chain.mine(world.chain.closed(id_, Status.CANCELLED))
    await world.settle()
    assert await world.state(id_) is RequestState.CANCELLED
    world.chain.reorg(1, [], [])
    await world.settle()
    assert await world.state(id_) is RequestState.ELIGIBLE


async def test_step__same_height_other_hash__is_a_reorg(world: World) -> None:
    """F06: numbers say nothing."""
    world.chain.mine_many(3)
    await world.settle()
    head = await world.chain.head()
    world.chain.reorg(1)
    assert (await world.chain.head()).number == head.number
    await world.settle()
    assert await world.agrees()


async def test_step__reorg_while_it_was_down__is_seen_before_anything_else(tmp_path: object) -> None:
    """F08."""
    url = f"sqlite:///{tmp_path}/relayer.db"
    chain, id_ = FakeChain(), FakeChain().id_of(make_request())
    async with a_world(chain, url) as before:
        chain.mine_many(2)
        chain.mine(chain.requested(make_request()))
        await before.settle()
        assert await before.state(id_) is RequestState.ELIGIBLE
    chain.reorg(2, *[[] for _ in range(9)])
    async with a_world(chain, url) as after:
        assert await after.indexer.step()
        assert await after.state(id_) is RequestState.WITHDRAWN
        assert not after.indexer.caught_up.is_set()
        await after.settle()
        assert await after.agrees()


async def test_step__deeper_than_it_may_rewind__halts_and_undoes_nothing(world: World) -> None:
    """F07."""
    world.chain.mine_many(20)
    await world.settle()
    last = await world.store.last_block()
    world.chain.reorg(9)
    with pytest.raises(ReorgTooDeep, match="no block in common from 20 down to 12"):
        await world.indexer.step()
    assert await world.store.last_block() == last


async def test_step__another_chain__halts(world: World) -> None:
    world.chain.mine_many(2)
    await world.settle()
    other = make_world(FakeChain(), world.store)
    other.chain._blocks[0].ref = replace(other.chain._blocks[0].ref, hash="0x" + "99" * 32)
    other.chain.mine_many(3)
    with pytest.raises(ReorgTooDeep, match="or this is another chain"):
        await other.indexer.step()


# Nodes that lag or fail


async def test_step__node_lags__changes_nothing(world: World) -> None:
    """F11: a lower head with the same hashes is no reorg."""
    world.chain.mine(world.chain.requested(make_request()))
    world.chain.mine_many(5)
    await world.settle()
    world.chain.lag = 3
    assert not await world.indexer.step()
    assert await world.agrees()
    world.chain.lag = 0
    assert not await world.indexer.step()
    assert world.metrics.total("headrace_reorgs_total") == 0


async def test_step__chain_is_shorter__is_undone_once_it_differs(world: World) -> None:
    id_ = world.chain.id_of(make_request())
    world.chain.mine_many(3)
    world.chain.mine(world.chain.requested(make_request()))
    await world.settle()
    world.chain.rollback(2)
    assert not await world.indexer.step(), "nothing tells it from a node that lags"
    world.chain.mine()
    assert await world.indexer.step(), "block 3 is another one"
    assert await world.state(id_) is RequestState.WITHDRAWN
    await world.settle()
    assert await world.agrees()


@pytest.mark.parametrize("method", ["head", "block", "blocks", "events"])
async def test_step__node_fails__moves_nothing(world: World, method: str) -> None:
    world.chain.mine_many(3)
    await world.settle()
    last = await world.store.last_block()
    world.chain.mine_many(2)
    world.chain.fail(method, ChainUnavailable("down"))
    with pytest.raises(ChainUnavailable):
        await world.indexer.step()
    assert await world.store.last_block() == last
    await world.settle()
    assert await world.agrees()


async def test_step__reorg_between_headers_and_events__stores_nothing(world: World) -> None:
    world.chain.mine(world.chain.requested(make_request()))
    real = world.chain.blocks

    async def blocks_then_reorg(from_block: int, to_block: int) -> object:
        found = await real(from_block, to_block)
        world.chain.reorg(1, [world.chain.requested(make_request())])
        world.chain.blocks = real  # type: ignore[method-assign]
        return found

    world.chain.blocks = blocks_then_reorg  # type: ignore[method-assign, assignment]
    assert not await world.indexer.step()
    assert await world.store.last_block() is None
    await world.settle()
    assert await world.agrees()


async def test_step__headers_clipped__stores_nothing(world: World) -> None:
    world.chain.mine_many(3)
    head = await world.chain.head()
    world.chain.lag = 2

    async def head_of_another_node() -> object:
        return head

    world.chain.head = head_of_another_node  # type: ignore[method-assign, assignment]
    assert not await world.indexer.step()
    assert await world.store.last_block() is None


# The loop


@asynccontextmanager
async def running(world: World) -> AsyncIterator[asyncio.Task[None]]:
    """The loop, stopped between two steps: a change is the last thing that a step does."""
    task = asyncio.create_task(world.indexer.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
async def test_run__errors__are_waited_out_longer_and_longer(world: World) -> None:
    world.chain.mine_many(3)
    world.chain.fail("head", *[ChainUnavailable("down")] * 5)
    times: list[float] = []
    real = world.chain.head

    async def noted_head() -> object:
        times.append(asyncio.get_running_loop().time())
        return await real()

    world.chain.head = noted_head  # type: ignore[method-assign, assignment]
    async with running(world):
        await world.changed.wait()
    assert [round(later - sooner, 2) for sooner, later in pairwise(times[:6])] == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert await world.agrees()


async def test_run__new_blocks__are_seen_at_the_next_poll(world: World) -> None:
    quick = make_world(world.chain, world.store, poll_ms=2)
    async with running(quick):
        for salt in range(3):
            quick.changed.clear()
            world.chain.mine(world.chain.requested(make_request(salt=salt)))
            await quick.changed.wait()
    await world.settle()
    assert await world.agrees()
    assert len(await world.store.eligible(10)) == 3


async def test_run__reorg_too_deep__ends_the_loop(world: World) -> None:
    world.chain.mine_many(12)
    await world.settle()
    world.chain.reorg(10)
    async with asyncio.timeout(10):
        with pytest.raises(ReorgTooDeep):
            await world.indexer.run()


# A real chain


@pytest.mark.slow
async def test_run__anvil_reorg__is_followed() -> None:
    async with local_chain() as anvil:
        await anvil.register_relayer()
        await anvil.mine()
        chain: Chain = Web3Chain(await connect_http(anvil.url), anvil.deployment)
        store = await SqlStore.open("sqlite://", LoopClock())
        try:
            first = anvil.deployment.first_block
            settings = IndexerSettings(confirmations=0)
            indexer = Indexer(
                chain, store, LoopClock(), FakeMetrics(), anvil.accounts[1], first, lambda: None, settings
            )
            request = make_request(
                requester=anvil.accounts[3],
                relayer=anvil.accounts[1],
                model_id=anvil.deployment.models["tiny"],
                deadline_s=await anvil.now_s() + 3600,
            )
            id_ = request_id(request, chain.chain_id, chain.market)
            hash_ = await anvil.post(request, b"Why is the sky blue?")
            raw = await anvil.rpc("eth_getRawTransactionByHash", hash_)
            await anvil.mine(2)
            await indexer.step()
            assert [stored.request for stored in await store.eligible(10)] == [request]
            assert await store.payload(request.prompt_hash) == b"Why is the sky blue?"

            await anvil.rpc("anvil_reorg", 2, [])
            while await indexer.step():
                pass
            assert [stored.state for stored in await store.requests()] == [RequestState.WITHDRAWN]

            await anvil.rpc("anvil_reorg", 1, [[raw, 0]])
            while await indexer.step():
                pass
            (stored,) = await store.eligible(10)
            head = await chain.head()
            assert (stored.request_id, stored.block_hash) == (id_, head.hash)
            assert await store.last_block() == head
        finally:
            await store.close()
            await chain.close()  # type: ignore[attr-defined]


async def test_run_or_halt__reorg_too_deep__ends_what_acts_and_waits(world: World) -> None:
    world.chain.mine_many(20)
    await world.settle()
    world.chain.reorg(12)
    world.chain.mine()
    acting = [asyncio.create_task(asyncio.Event().wait())]
    last = await world.store.last_block()
    running = asyncio.create_task(world.indexer.run_or_halt(acting))
    with pytest.raises(asyncio.CancelledError):
        await acting[0]
    assert "HEADRACE_CHAIN__MAX_REWIND" in world.indexer.halted
    assert not running.done()
    assert await world.store.last_block() == last
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
