"""F24: two relayers of one key, and counts that drift apart. Of two processes on one database one leads, by a lease
whose token is held against the store's in each write: who was overtaken stores nothing, and so sends nothing, whatever
it had signed already. Two that work on it without a lease never give a nonce to two intents all the same, since the
store gives them out. A nonce is reckoned from store and chain: what drifts, in either direction, is mended, and no
transaction waits for ever.

The lease's rules are in `tests/core/test_lease.py`, and a pair of real processes in `tests/e2e/test_pair.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from headrace.adapters.file_lock import FileLock, Held, alone_with
from headrace.adapters.sql.tables import intents
from headrace.core.errors import NotLeader
from headrace.ports import StoredAttempt
from headrace.services.leading import Leading, LeadSettings
from tests.chaos.bench import Bench, Services, crash
from tests.fakes import FakeClock, FakeMetrics


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


async def test_pair__leader_is_paused_between_signing_and_storing__its_write_is_refused_and_nothing_is_sent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.store.close()
    leader, follower = [await bench.start(is_fenced=True) for _ in range(2)]
    bench.services = leader
    steady = FakeClock()
    first, second = _leading(leader, "leader", steady), _leading(follower, "follower", steady)
    assert await first.take()
    signed, resumed = asyncio.Event(), asyncio.Event()
    add_attempt = leader.store.add_attempt

    async def paused(intent_id: int, attempt: StoredAttempt) -> None:
        signed.set()
        await resumed.wait()
        await add_attempt(intent_id, attempt)

    (served,) = await bench.serve()
    monkeypatch.setattr(leader.store, "add_attempt", paused)
    pausing = asyncio.create_task(leader.settler.step())
    await signed.wait()
    assert not await second.take(), "the lease counts"
    with pytest.raises(NotLeader, match="stands by"):
        await follower.sender.confirm()
    assert bench.sent == []

    steady.advance(6_000)
    assert await second.take()
    resumed.set()
    with pytest.raises(NotLeader, match=r"another process \(follower\) leads this relayer now, by token 2 after 1"):
        await pausing
    assert bench.sent == [], "what it had signed was not stored, so it is not sent"

    bench.services = follower
    (waiting,) = await bench.post()
    async with asyncio.TaskGroup() as group:
        with pytest.raises(NotLeader):
            await leader.scheduler.step(group)
    for refused in (
        lambda: leader.scheduler.hold(waiting, bench.clock.now_ms() + 60_000),
        lambda: leader.aggregator.delivered(bench.deliveries[served]),
        leader.settler.step,
        leader.sender.confirm,
    ):
        with pytest.raises(NotLeader):
            await refused()
    with pytest.raises(NotLeader):
        await first.run()
    assert bench.sent == []
    await leader.store.close()

    await bench.answer([waiting])
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


def _leading(services: Services, name: str, steady: FakeClock) -> Leading:
    """The lead as a process of one host sees it: while the other is alive, it has the lock."""
    lock = FileLock(Path(services.store._database._engine.url.database or ""))
    return Leading(services.store, lock, name, FakeMetrics(), LeadSettings(renew_ms=1), steady.now_ms)
