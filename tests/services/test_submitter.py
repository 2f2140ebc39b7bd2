"""A relayer whose bonded key only signs: another sends and pays, under nonces of its own."""

from __future__ import annotations

import pytest

from headrace.core.batching import BatchPolicy
from headrace.core.types import Address, Status
from headrace.services.submitting import MANDATE_S
from tests.fakes import GWEI, FakeSigner
from tests.services.world import World, a_world

AT_ONCE = BatchPolicy(max_age_ms=0)
SUBMITTER = FakeSigner(77)


def sent_by(world: World, account: Address) -> int:
    return world.chain._mined_count(account)


async def test_submitter__record_and_batch__are_sent_by_it_and_count_as_the_relayers() -> None:
    async with a_world(batching=AT_ONCE) as world:
        world.send_by(SUBMITTER)
        (id_,) = await world.serve(world.request())
        await world.settle()
        assert await world.state(id_) == "fulfilled"
        assert (sent_by(world, SUBMITTER.address), sent_by(world, world.signer.address)) == (2, 0)
        (recorded,) = [event for event in world.chain.all_events() if event.name == "RoundRecorded"]
        (settled,) = [event for event in world.chain.all_events() if event.name == "BatchSettled"]
        assert {recorded.args["relayer"], settled.args["relayer"]} == {world.signer.address}


async def test_submitter__expire__is_sent_by_it() -> None:
    async with a_world(nodes=0) as world:
        world.send_by(SUBMITTER)
        (id_,) = await world.post(world.request())
        world.clock.advance((3600 + world.chain.terms.grace_s + 1) * 1000)
        world.chain.mine()
        await world.index()
        assert await world.reaper.step() == 1
        world.chain.mine()
        await world.sender.confirm()
        await world.index()
        assert await world.state(id_) == "expired"
        assert sent_by(world, SUBMITTER.address) == 1


async def test_submitter__mandate__ends_and_names_nobody_else() -> None:
    async with a_world(batching=AT_ONCE) as world:
        world.send_by(SUBMITTER)
        (id_,) = await world.serve(world.request())
        await world.settler.step()
        world.chain.drop_pool()
        (call,) = [intent.call for intent in await world.store.open_intents() if intent.kind == "submit_results"]
        (stolen,) = await world.chain.simulate(FakeSigner(78).address, [call])
        assert "NotSubmitter" in stolen.error
        world.clock.advance((MANDATE_S + 1) * 1000)
        world.chain.mine()
        (late,) = await world.chain.simulate(SUBMITTER.address, [call])
        assert "SignatureExpired" in late.error
        # What got lost for so long reverts, and is drafted anew under a new mandate.
        await world.settler.step()
        world.chain.mine()
        await world.settler.step()
        await world.settle()
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_submitter__taken_on_with_transactions_under_way__leaves_no_gap_in_any_nonce() -> None:
    async with a_world(batching=AT_ONCE) as world:
        first = (await world.serve(world.request(salt=1)))[0]
        await world.settler.step()  # two transactions of the relayer's own key, in no block yet
        world.send_by(SUBMITTER)
        assert not await world.settler.step()
        world.chain.mine()
        await world.index()
        second = (await world.serve(world.request(salt=2)))[0]
        await world.settle()
        assert [await world.state(id_) for id_ in (first, second)] == ["fulfilled", "fulfilled"]
        assert (sent_by(world, SUBMITTER.address), sent_by(world, world.signer.address)) == (2, 2)
        # And back again.
        world.send_by(None)
        third = (await world.serve(world.request(salt=3)))[0]
        await world.settle()
        assert await world.state(third) == "fulfilled"
        assert (sent_by(world, SUBMITTER.address), sent_by(world, world.signer.address)) == (2, 4)


async def test_submitter__lost_transactions_of_the_key_before__are_sent_again_as_they_were() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        await world.settler.step()
        world.chain.drop_pool()
        world.send_by(SUBMITTER)
        world.clock.advance(10_000)
        await world.settler.step()
        assert world.chain.sent[:2] == world.chain.sent[2:]
        await world.settle()
        assert await world.state(id_) == "fulfilled"
        assert sent_by(world, SUBMITTER.address) == 0


async def test_submitter__intent_stored_for_the_key_before_and_never_signed__is_drafted_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())

        async def die(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(world.store, "add_attempt", die)
            with pytest.raises(KeyboardInterrupt):
                await world.settler.step()
        world.send_by(SUBMITTER)
        await world.settle()
        await world.settle()
        assert await world.chain.statuses([id_]) == [Status.FULFILLED]
        assert (sent_by(world, SUBMITTER.address), sent_by(world, world.signer.address)) == (2, 0)
        assert world.metrics.counts[("headrace_transactions_total", "kind=record_round", "outcome=dropped")] == 1


async def test_without_a_submitter__nobody_else_can_send() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await world.serve(world.request())
        await world.settler.step()
        for intent in await world.store.open_intents():
            assert intent.sender == world.signer.address
            (outcome,) = await world.chain.simulate(SUBMITTER.address, [intent.call])
            assert not outcome.succeeded
        assert world.chain.gas.price_wei == 2 * GWEI
