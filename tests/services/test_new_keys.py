"""A new key for a relayer or its submitter: what the old one owes is paid, and nobody acts in another's rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.adapters.sql.store import SqlStore
from headrace.bootstrap.relayer import require_own
from headrace.core import typed_data
from headrace.core.batching import BatchPolicy
from headrace.core.errors import ConfigurationError
from headrace.core.scheduling import Policy
from tests.fakes import FakeSigner
from tests.services.world import FakeLink, FakeNode, World, _wire, a_world

AT_ONCE = BatchPolicy(max_age_ms=0)
NEW = FakeSigner(2)


async def beside(old: World, store: SqlStore, node: FakeSigner) -> World:
    """Another relayer, with a key, a store and a link of its own, on the same chain."""
    old.chain.bonded.add(NEW.address)
    link = FakeLink(old.clock)
    linked = FakeNode(node, typed_data.Domain(old.chain.chain_id, old.chain.market), NEW.address)
    link.nodes[linked.key] = linked
    return _wire(old.chain, old.clock, store, link, old.metrics, NEW, Policy(), AT_ONCE)


async def test_relayer__new_key__is_a_new_relayer_and_the_old_one_finishes_what_it_owes() -> None:
    async with a_world(nodes=1, batching=AT_ONCE) as old:
        owed = await old.serve(old.request(salt=1), old.request(salt=2))
        store = await SqlStore.open("sqlite+aiosqlite:///:memory:", old.clock)
        try:
            new = await beside(old, store, FakeSigner(100))
            (asked_anew,) = await new.serve(new.request(salt=3))
            await new.settle()
            assert await new.state(asked_anew) == "fulfilled"
            await old.index()
            assert not await old.cycle(), "nobody names the old one any more"
            await old.settle()
            assert [await old.state(id_) for id_ in owed] == ["fulfilled", "fulfilled"]
            assert await old.store.open_assignments() == await old.store.open_intents() == []
            # Drained: its bond may go, and what it recorded stays.
            await old.set_bonded(False)
            assert await old.chain.next_round(old.signer.address) > 1
        finally:
            await store.close()


async def test_relayer__new_key_with_the_old_ones_store__is_refused() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await require_own(world.store, NEW.address, Path("relayer.db"))
        await world.serve(world.request())
        await require_own(world.store, world.signer.address, Path("relayer.db"))
        with pytest.raises(ConfigurationError, match=f"store of the relayer {world.signer.address}.*new relayer"):
            await require_own(world.store, NEW.address, Path("relayer.db"))


async def test_submitter__changed_with_transactions_that_are_stuck__says_so_and_the_old_key_frees_them() -> None:
    first, second = FakeSigner(77), FakeSigner(78)
    async with a_world(batching=AT_ONCE) as world:
        world.send_by(first)
        (id_,) = await world.serve(world.request(deadline_s=world.clock.now_ms() // 1000 + 6_000))
        await world.settler.step()
        stored = await world.store.open_intents()
        world.chain.drop_pool()
        world.send_by(second)
        world.clock.advance(60_000)
        sent = len(world.chain.sent)
        await world.sender.confirm()
        assert world.chain.sent[sent:] == [each.attempts[0].raw for each in stored], "the same bytes again"
        assert world.metrics.total("headrace_transactions_held_total") == 1
        assert [each.attempts for each in await world.store.open_intents()] == [each.attempts for each in stored]
        # Whoever takes the old key back bids more.
        world.send_by(first)
        await world.sender.confirm()
        assert len((await world.store.open_intents())[0].attempts) == 2
        await world.settle()
        assert await world.state(id_) == "fulfilled"
        assert world.chain._mined_count(second.address) == 0
