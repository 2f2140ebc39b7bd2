"""Several submitters: what one of them cannot get into a block does not hold up the others, on a real chain."""

from __future__ import annotations

import asyncio

from headrace.adapters.keystore import LocalSigner
from headrace.core.batching import BatchPolicy
from headrace.core.calls import selectors
from headrace.core.guard import MAX_FEE_CEILING_WEI, GuardPolicy
from headrace.services.lanes import Lane
from headrace.services.sender import Sender
from headrace.services.settler import Settler, SettlerSettings
from tests.chaos.bench import Bench


async def test_lanes__one_submitters_transaction_is_dropped__others_settle_and_it_is_sent_again(bench: Bench) -> None:
    settler, keys = await _with_lanes(bench, 0, 2)
    ids = await bench.serve(4)
    assert await settler.step(), "the record and a batch behind it"
    await _mine(bench)
    assert [await bench.state(id_) for id_ in ids].count("fulfilled") == 1

    assert await settler.step()
    (stuck,) = await bench.store.open_intents()
    await bench.rpc("anvil_dropTransaction", stuck.attempts[-1].transaction_hash)
    for _ in range(2):
        assert await settler.step()
        (passing,) = [each for each in await bench.store.open_intents() if each.intent_id != stuck.intent_id]
        assert {passing.sender, stuck.sender} == {key.address for key in keys}
        await _mine(bench)
    assert [await bench.state(id_) for id_ in ids].count("fulfilled") == 3

    bench.clock.advance(5_000)
    assert not await settler.step()
    await _mine(bench)
    await settler.step()
    assert [await bench.state(id_) for id_ in ids] == ["fulfilled"] * 4
    assert not await bench.store.open_intents()
    hashes = [each.hash for each in bench.proxy.wire if each.sender == stuck.sender]
    assert hashes.count(stuck.attempts[-1].transaction_hash) == 2, "the same bytes"
    assert bench.sent == [], "the relayer's own key signs only"
    await bench.oracle()


async def _mine(bench: Bench) -> None:
    bench.clock.advance(1_000)
    await bench.mine()
    await bench.index()


async def _with_lanes(bench: Bench, *accounts: int) -> tuple[Settler, list[LocalSigner]]:
    """The relayer's settler with a lane of each account's key."""
    chain, services, allowed = bench.chain, bench.services, selectors()
    guard = GuardPolicy(
        {
            chain.market: frozenset({allowed["submitResultsFor"]}),
            chain.schedule_log: frozenset({allowed["recordRound"]}),
        },
        MAX_FEE_CEILING_WEI,
    )
    keys = [LocalSigner(bench.anvil.keys[account]) for account in accounts]
    lanes = [Lane(Sender(chain, services.store, bench.clock, key, bench.metrics, guard), key.address) for key in keys]
    settler = Settler(
        chain,
        services.store,
        bench.link,
        lanes[0].sender,
        bench.clock,
        bench.signer,
        bench.metrics,
        await chain.market_terms(),
        BatchPolicy(max_items=1, max_age_ms=0),
        asyncio.Lock(),
        services.scheduler.wake.ring,
        SettlerSettings(max_open_batches=1),
        submitter=lanes[0].submitter,
        further=lanes[1:],
    )
    return settler, keys
