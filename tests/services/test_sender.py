"""Stuck transactions: they bid more from what they bid last, stop at what they are worth, and give their nonce up."""

from __future__ import annotations

import pytest
from eth_account.typed_transactions import TypedTransaction
from hexbytes import HexBytes

from headrace.core.batching import BatchPolicy
from headrace.core.errors import ExpiredContext
from headrace.core.types import GasQuote, Request
from headrace.ports import StoredIntent
from tests.services.world import World, a_world

AT_ONCE = BatchPolicy(max_age_ms=0)
GWEI = 10**9
PAUSE_MS = 45_000


async def stuck(world: World, **changes: object) -> StoredIntent:
    """A batch that is sent and in no block, its record being in one."""
    await world.serve(world.request(**{"deadline_s": world.clock.now_ms() // 1000 + 3_600, **changes}))
    await world.settler.step()
    world.chain.drop_pool()
    record, batch = await world.store.open_intents()
    await world.chain.send_raw(record.attempts[0].raw)
    world.chain.mine()
    await world.sender.confirm()
    (batch,) = await world.store.open_intents()
    return batch


async def later(world: World, ms: int = PAUSE_MS) -> StoredIntent:
    """Time passes without a block; how the batch stands then."""
    world.clock.advance(ms)
    await world.sender.confirm()
    (batch,) = await world.store.open_intents()
    return batch


def fields_of(raw: bytes) -> dict[str, int]:
    fields = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
    return {name: fields[name] for name in ("nonce", "gas", "value", "maxFeePerGas", "maxPriorityFeePerGas")}


async def test_confirm__in_no_block_for_long__bids_an_eighth_more_of_both() -> None:
    async with a_world(batching=AT_ONCE) as world:
        first = await stuck(world)
        batch = await later(world)
        assert len(batch.attempts) == 2
        old, new = (fields_of(each.raw) for each in batch.attempts)
        assert new["nonce"] == old["nonce"] == first.nonce
        for name in ("maxFeePerGas", "maxPriorityFeePerGas"):
            assert old[name] * 9 <= new[name] * 8 < old[name] * 10
        assert batch.attempts[1].raw == world.chain.sent[-1]
        assert batch.call == first.call


async def test_confirm__market_fell_meanwhile__still_bids_more_than_before() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await stuck(world)
        world.chain.gas = GasQuote(GWEI // 2, GWEI // 2)
        batch = await later(world)
        assert [each.tip_wei for each in batch.attempts] == [GWEI, GWEI * 9 // 8]


async def test_confirm__either_attempt_is_included__is_settled_once() -> None:
    for included in (0, 1):
        async with a_world(batching=AT_ONCE) as world:
            await stuck(world)
            batch = await later(world)
            world.chain.drop_pool()
            await world.chain.send_raw(batch.attempts[included].raw)
            world.chain.mine()
            await world.sender.confirm()
            await world.index()
            assert await world.store.open_intents() == []
            names = [event.name for event in world.chain.all_events()]
            assert names.count("ResultFulfilled") == 1
            assert await world.state(batch.detail["request_ids"][0]) == "fulfilled"


async def test_confirm__second_in_line__waits_for_the_first_to_bid_more() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await world.serve(world.request())
        await world.settler.step()
        world.clock.advance(PAUSE_MS)
        await world.sender.confirm()
        assert [len(intent.attempts) for intent in await world.store.open_intents()] == [2, 1]


async def test_confirm__worth_no_more__holds_and_goes_on_when_gas_is_cheaper() -> None:
    async with a_world(batching=AT_ONCE) as world:
        request: Request = world.request()
        batch = await stuck(world)
        at_stake_wei = request.priority_fee_wei + request.gas_budget_wei + 11 * 10**12
        assert batch.worth_wei == at_stake_wei
        dear_wei = batch.worth_wei // batch.gas_limit
        world.chain.gas = GasQuote(dear_wei // 2 + 1, GWEI)
        assert len((await later(world)).attempts) == 1
        assert world.metrics.counts[("headrace_transactions_held_total", "kind=submit_results")] == 1
        assert len((await later(world)).attempts) == 1
        assert world.metrics.counts[("headrace_transactions_held_total", "kind=submit_results")] == 1, "is said once"
        world.chain.gas = GasQuote(GWEI, GWEI)
        assert len((await later(world)).attempts) == 2


async def test_confirm__cannot_pay_for_more__keeps_what_it_sent_and_goes_on_later() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await stuck(world)
        world.chain.balances[world.signer.address] = 1
        assert len((await later(world)).attempts) == 1
        world.chain.balances[world.signer.address] = 10**18
        assert len((await later(world)).attempts) == 2


async def test_submit__cannot_pay__stores_nothing_and_goes_on_later() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        world.chain.balances[world.signer.address] = 10**9
        with pytest.raises(ExpiredContext, match="send it ether"):
            await world.settler.step()
        assert await world.store.open_intents() == []
        assert await world.state(id_) == "signed"
        world.chain.balances[world.signer.address] = 10**18
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_confirm__nobody_is_paid_any_more__gives_the_nonce_up_to_a_no_op() -> None:
    async with a_world(batching=AT_ONCE) as world:
        batch = await stuck(world)
        world.clock.advance((batch.until_s - world.clock.now_ms() // 1000) * 1000)
        world.chain.mine()
        world.chain.drop_pool()
        await world.sender.confirm()
        (batch,) = await world.store.open_intents()
        noop = batch.attempts[-1]
        assert noop.is_noop
        fields = TypedTransaction.from_bytes(HexBytes(noop.raw)).as_dict()
        assert (fields["nonce"], fields["gas"], fields["value"], bytes(fields["data"])) == (batch.nonce, 21_000, 0, b"")
        assert "0x" + bytes(fields["to"]).hex() == world.signer.address
        world.chain.mine()
        await world.sender.confirm()
        assert await world.store.open_intents() == []
        ended = await world.store.intent_of_transaction(noop.transaction_hash)
        assert ended is not None
        assert ended.state == "cancelled"
        assert await world.state(batch.detail["request_ids"][0]) == "signed"
        world.clock.advance(2_000)
        world.chain.mine()
        await world.index()
        await world.sender.confirm()  # a block without an event of it: its receipt is looked for once more
        await world.reaper.step()
        (expire,) = await world.store.open_intents()
        assert expire.nonce == batch.nonce + 1


async def test_confirm__no_op_is_orphaned_and_the_batch_included_instead__is_settled_once() -> None:
    async with a_world(batching=AT_ONCE) as world:
        batch = await stuck(world)
        world.clock.advance((batch.until_s - world.clock.now_ms() // 1000) * 1000)
        world.chain.mine()
        await world.index()
        await world.sender.confirm()
        (cancelling,) = await world.store.open_intents()
        world.chain.drop_pool()
        await world.chain.send_raw(cancelling.attempts[-1].raw)
        world.chain.mine()
        await world.index()
        await world.sender.confirm()
        assert await world.store.open_intents() == []
        world.chain.reorg(1)
        last = await world.store.last_block()
        assert last is not None
        await world.store.rewind_to(last.number - 1)
        await world.index()
        (again,) = await world.store.open_intents()
        assert again.intent_id == batch.intent_id
        assert again.state == "open"
