"""Several submitters side by side: batches go out in parallel, each record before what needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.core.batching import BatchPolicy
from headrace.core.errors import ExpiredContext, SignerUnavailable
from headrace.core.types import Address
from headrace.ports import StoredIntent
from headrace.services.lanes import Lane
from headrace.services.sender import Sender
from headrace.services.settler import Settler, SettlerSettings
from tests.fakes import FakeSigner
from tests.services.world import World, a_world

ONE_BY_ONE = BatchPolicy(max_items=1, max_age_ms=0)
KEYS = tuple(FakeSigner(number) for number in (77, 78, 79))


@asynccontextmanager
async def lanes_world(keys: tuple[FakeSigner, ...] = KEYS, most: int = 1, nodes: int = 1) -> AsyncIterator[World]:
    """A world whose settler has a lane of each key, and takes so many open batches in each."""
    async with a_world(batching=ONE_BY_ONE, nodes=nodes) as world:
        use_lanes(world, keys, most)
        yield world


def use_lanes(world: World, keys: tuple[FakeSigner, ...], most: int = 1) -> None:
    old, guard = world.settler, world.sender._guard
    senders = [Sender(world.chain, world.store, world.clock, key, world.metrics, guard) for key in keys]
    world.sender = senders[0]
    world.settler = Settler(
        world.chain,
        world.store,
        world.link,
        senders[0],
        world.clock,
        world.signer,
        world.metrics,
        world.chain.terms,
        old._batching,
        old._rounds,
        old._on_requeued,
        SettlerSettings(max_open_batches=most),
        submitter=keys[0].address,
        further=[Lane(sender, key.address) for sender, key in zip(senders[1:], keys[1:], strict=True)],
        has_bond=world.bonding.holds,
    )


async def open_of(world: World, key: FakeSigner) -> list[StoredIntent]:
    return [intent for intent in await world.store.open_intents() if intent.sender == key.address]


async def record(world: World) -> None:
    """Have a block take what is on its way, and see it."""
    world.clock.advance(1_000)
    world.chain.mine()
    await world.settler._lanes.confirm()
    await world.index()


async def answered(world: World, count: int) -> list[str]:
    """Requests of one round that is recorded, all answered; the first is settled."""
    ids = await world.serve(*(world.request(salt=salt) for salt in range(1, count + 2)))
    assert await world.settler.step()
    await record(world)
    return ids[1:]


def sent_by(world: World, account: Address) -> int:
    return world.chain._mined_count(account)


async def test_lanes__round_is_recorded__batches_go_out_side_by_side_and_each_once() -> None:
    async with lanes_world() as world:
        ids = await answered(world, 3)
        for _ in range(3):
            assert await world.settler.step()
        assert not await world.settler.step(), "each lane has as many as it takes"
        assert [len(await open_of(world, key)) for key in KEYS] == [1, 1, 1]
        await record(world)
        assert [await world.state(id_) for id_ in ids] == ["fulfilled"] * 3
        assert sum(sent_by(world, key.address) for key in KEYS) == 5  # with the record and the batch of it
        assert not await world.store.open_intents()


async def test_lanes__record_is_on_its_way__what_needs_it_goes_behind_it() -> None:
    async with lanes_world(most=2) as world:
        ids = await world.serve(world.request(salt=1), world.request(salt=2))
        assert await world.settler.step()
        (carrier,) = [key for key in KEYS if await open_of(world, key)]
        assert await world.settler.step()
        assert [intent.kind for intent in await open_of(world, carrier)] == [
            "record_round",
            "submit_results",
            "submit_results",
        ]
        await record(world)
        assert [await world.state(id_) for id_ in ids] == ["fulfilled"] * 2


async def test_lanes__next_round_is_recorded_by_the_lane_of_the_one_before_while_that_is_on_its_way() -> None:
    async with lanes_world(most=2) as world:
        (first,) = await world.serve(world.request(salt=1))
        assert await world.settler.step()
        world.chain.drop_pool()
        (second,) = await world.serve(world.request(salt=2))
        assert await world.settler.step()
        kinds = [[intent.kind for intent in await open_of(world, key)] for key in KEYS]
        assert sorted(map(len, kinds)) == [0, 0, 4]
        world.clock.advance(10_000)
        await world.settler._lanes.confirm()
        await record(world)
        assert [await world.state(id_) for id_ in (first, second)] == ["fulfilled"] * 2


async def test_lanes__carrier_is_full__others_take_what_needs_no_record() -> None:
    async with lanes_world() as world:
        ids = await answered(world, 2)
        (fresh,) = await world.serve(world.request(salt=50))
        world.chain.drop_pool()
        order = []
        for _ in range(3):
            assert await world.settler.step()
            order.append([len(await open_of(world, key)) for key in KEYS])
        assert [sum(each) for each in order] == [1, 2, 4], "the last one with its record"
        await record(world)
        assert [await world.state(id_) for id_ in (*ids, fresh)] == ["fulfilled"] * 3


async def test_lanes__one_is_stuck__others_go_on() -> None:
    async with lanes_world(keys=KEYS[:2]) as world:
        ids = await answered(world, 4)
        assert await world.settler.step()
        (stuck,) = [key for key in KEYS[:2] if await open_of(world, key)]
        world.chain.drop_pool()  # no pool has it, and no block takes it
        done = 0
        for _ in range(3):
            assert await world.settler.step()
            await record(world)
            done += 1
        assert done == 3
        states = [await world.state(id_) for id_ in ids]
        assert states.count("fulfilled") == 3
        assert len(await open_of(world, stuck)) == 1


async def test_lanes__one_is_unfunded__others_take_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lanes_world(keys=KEYS[:2], most=4) as world:
        balance_wei = world.chain.balance_wei

        async def balance(account: Address) -> int:
            return 0 if account == KEYS[0].address else await balance_wei(account)

        monkeypatch.setattr(world.chain, "balance_wei", balance)
        ids = await answered(world, 2)
        for _ in range(2):
            assert await world.settler.step()
        await record(world)
        assert [await world.state(id_) for id_ in ids] == ["fulfilled"] * 2
        assert sent_by(world, KEYS[0].address) == 0


async def test_lanes__none_is_funded__says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lanes_world() as world:
        await world.serve(world.request())

        async def broke(_: Address) -> int:
            return 0

        monkeypatch.setattr(world.chain, "balance_wei", broke)
        with pytest.raises(ExpiredContext, match="send it ether"):
            await world.settler.step()
        assert not await world.store.open_intents()


async def test_lanes__one_cannot_confirm__others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lanes_world(keys=KEYS[:2]) as world:
        ids = await answered(world, 2)
        for _ in range(2):
            assert await world.settler.step()

        async def gone() -> list[StoredIntent]:
            raise SignerUnavailable("gone")

        first, second = (lane.sender for lane in world.settler._lanes)
        monkeypatch.setattr(first, "confirm", gone)
        await record(world)
        assert len(await open_of(world, KEYS[0])) == 1
        assert not await open_of(world, KEYS[1])
        monkeypatch.setattr(second, "confirm", gone)
        with pytest.raises(SignerUnavailable):
            await world.settler._lanes.confirm()
        monkeypatch.undo()
        await record(world)
        assert [await world.state(id_) for id_ in ids] == ["fulfilled"] * 2


async def test_lanes__one_is_dropped_at_a_restart__first_one_follows_what_it_left() -> None:
    async with lanes_world(keys=KEYS[:2]) as world:
        ids = await answered(world, 2)
        for _ in range(2):
            assert await world.settler.step()
        world.chain.drop_pool()
        use_lanes(world, (KEYS[0],))
        world.clock.advance(10_000)
        await world.settler.step()
        await record(world)
        assert [await world.state(id_) for id_ in ids] == ["fulfilled"] * 2


async def test_lanes__any_of_them__gives_a_nonce_to_one_intent() -> None:
    async with lanes_world(most=3) as world:
        ids = await answered(world, 9)
        for _ in range(9):
            await world.settler.step()
        intents = await world.store.open_intents()
        assert len({(intent.sender, intent.nonce) for intent in intents}) == len(intents) == 9
        assert {len(await open_of(world, key)) for key in KEYS} == {3}
        await record(world)
        assert [await world.state(id_) for id_ in ids] == ["fulfilled"] * 9
