"""F24: two relayers of one key, and counts that drift apart. A lock keeps two processes off one database; two that work
on it all the same never give a nonce to two intents, since the store gives them out. A nonce is reckoned from store and
chain: what drifts, in either direction, is mended, and no transaction waits for ever.

Not built, so not tested: leases with fencing tokens, which would let a replica take over a shared database.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from headrace.adapters.file_lock import Held, alone_with
from headrace.adapters.sql.tables import intents
from headrace.ports import StoredAttempt
from tests.chaos.bench import Bench, crash


def test_lock__database_is_taken__second_process_is_told_who_has_it(tmp_path: Path) -> None:
    with alone_with(tmp_path / "relayer.db"):
        with pytest.raises(Held), alone_with(tmp_path / "relayer.db"):
            pass
        with alone_with(tmp_path / "other.db"):
            pass
    with alone_with(tmp_path / "relayer.db"):
        pass


async def test_two_relayers__work_on_one_store__each_nonce_is_one_intents(bench: Bench) -> None:
    first, second = bench.services, await bench.start()
    try:
        for leader, follower in ((first, second), (second, first)):
            await bench.serve()
            for _ in range(3):
                await leader.settler.step()
                await follower.settler.step()
            bench.clock.advance(46_000)
            await leader.sender.confirm()
            await follower.sender.confirm()
            await bench.mine()
            await bench.index()
            await follower.sender.confirm()
            await leader.sender.confirm()
        assert {each.nonce for each in bench.sent} == set(range(bench.sent[0].nonce, bench.sent[0].nonce + 4))
        await bench.settle()
        await bench.oracle()
    finally:
        await second.store.close()


async def test_two_relayers__one_is_paused_between_signing_and_storing__other_goes_on_and_nothing_is_doubled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = bench.services, await bench.start()
    signed, resumed = asyncio.Event(), asyncio.Event()
    add_attempt = leader.store.add_attempt

    async def paused(intent_id: int, attempt: StoredAttempt) -> None:
        signed.set()
        await resumed.wait()
        await add_attempt(intent_id, attempt)

    await bench.serve()
    monkeypatch.setattr(leader.store, "add_attempt", paused)
    pausing = asyncio.create_task(leader.settler.step())
    await signed.wait()
    await follower.sender.confirm()
    assert len(bench.sent) == 1, "the other one signed and sent what was stored"
    resumed.set()
    with pytest.raises(IntegrityError):
        await pausing
    monkeypatch.undo()
    await follower.store.close()
    await bench.restart()
    await bench.settle()
    await bench.oracle()


async def test_drift__node_told_too_high_a_count__hole_is_filled_with_nothing(bench: Bench) -> None:
    mined = await bench.mined_nonce()
    await bench.serve()
    bench.proxy.faults.count_ahead = 5
    await bench.services.settler.step()
    bench.proxy.faults.count_ahead = 0
    assert [each.nonce for each in bench.sent] == [mined + 5, mined + 6]
    await bench.mine()
    assert await bench.mined_nonce() == mined, "nothing behind the hole is ever in a block"
    await bench.settle()
    assert await bench.mined_nonce() == mined + 7
    await bench.oracle()


async def test_drift__store_counts_too_high__hole_is_filled_with_nothing(bench: Bench) -> None:
    mined = await bench.mined_nonce()
    await bench.serve()
    with crash(type(bench.store), "add_intent"):
        await bench.services.settler.step()
    async with bench.store._database.write() as connection:
        await connection.execute(update(intents).values(nonce=intents.c.nonce + 50))
    await bench.restart()
    await bench.services.sender.confirm()
    await bench.mine()
    assert await bench.mined_nonce() == mined
    await bench.settle()
    assert await bench.mined_nonce() == mined + 52
    await bench.oracle()


async def test_drift__chain_counts_higher__goes_on_above_it(bench: Bench) -> None:
    await bench.serve()
    await bench.services.settler.step()
    nonce = bench.sent[0].nonce
    await bench.rpc("anvil_setNonce", bench.signer.address, hex(nonce + 5))
    await bench.mine()
    await bench.settle()
    assert bench.metrics.counts[("headrace_transactions_total", "kind=record_round", "outcome=dropped")] == 1
    assert bench.metrics.counts[("headrace_transactions_total", "kind=submit_results", "outcome=dropped")] == 1
    assert {each.nonce for each in bench.sent} == {nonce, nonce + 1, nonce + 5, nonce + 6}
    await bench.oracle(skipped={nonce + 2, nonce + 3, nonce + 4})


async def test_drift__nonce_that_was_given_up_is_free_again__hole_is_filled(bench: Bench) -> None:
    """A stranger took it, and long after it was believed to be gone a reorg took the stranger away."""
    await bench.serve()
    nonce = await bench.mined_nonce()
    stranger, _ = await bench.anvil.sign(1, bench.anvil.accounts[0], "0x", nonce=nonce, gas=21_000)
    await bench.send(stranger)
    await bench.services.settler.step()
    await bench.settle()
    (lost,) = {each for each in bench.sent if each.nonce == nonce}
    dropped = await bench.store.intent_of_transaction(lost.hash)
    assert dropped is not None and dropped.state == "dropped"
    head = await bench.chain.head()
    await bench.rpc("anvil_reorg", head.number - 9, [])  # all since the request
    await bench.index()
    assert await bench.mined_nonce() == nonce
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    await bench.mine()
    assert await bench.mined_nonce() == nonce
    await bench.settle()
    filled = await bench.store.intent_of_transaction(lost.hash)
    assert filled is not None and filled.intent_id == dropped.intent_id
    assert (filled.kind, filled.state) == ("fill_nonce", "cancelled")
    await bench.oracle()
