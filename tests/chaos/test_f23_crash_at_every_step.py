"""F23: the process ends at any step: with a nonce taken and nothing signed, signed and not stored, stored and not sent,
sent and not told, mined and not marked, in the middle of indexing or of undoing. Started again it sends the same bytes
or finds them on the chain: no nonce is left out and no intent is made twice. So when the node's pool is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.adapters.sql import blocks
from tests.chaos.bench import Bench, crash

RECORD, BATCH = 1, 2


@pytest.mark.parametrize("nth", [RECORD, BATCH])
async def test_submit__crash__is_taken_up_where_it_was_left(bench: Bench, nth: int) -> None:
    """The record is the first call of each, the batch the second."""
    for method, owner, attempts in (
        ("add_intent", "store", nth - 1),
        ("sign_transaction", "signer", nth - 1),
        ("add_attempt", "store", nth),
        ("send_raw", "chain", nth),
    ):
        await bench.serve()
        done = len(bench.sent)
        with crash(type(getattr(bench, owner)), method, nth=nth):
            await bench.services.settler.step()
        left = await bench.store.open_intents()
        assert len(left) == nth
        assert sum(len(each.attempts) for each in left) == attempts
        assert len(bench.sent) - done == (nth if method == "send_raw" else nth - 1), method
        await bench.restart()
        assert [each.nonce for each in await bench.store.open_intents()] == [each.nonce for each in left]
        await bench.settle()
        await bench.oracle()
        signed = {each.transaction_hash for intent in left for each in intent.attempts}
        assert signed <= {each.hash for each in bench.sent}, "what was signed and stored is what is sent"


async def test_confirm__crash_after_mining_before_marking__is_found_on_the_chain(bench: Bench) -> None:
    for nth in (RECORD, BATCH):
        await bench.serve()
        await bench.services.settler.step()
        await bench.mine()
        with crash(type(bench.store), "end_intent", nth=nth, before=True):
            await bench.services.sender.confirm()
        assert len(await bench.store.open_intents()) == 3 - nth
        sent = len(bench.sent)
        await bench.restart()
        await bench.settle()
        assert len(bench.sent) == sent
        await bench.oracle()


async def test_index__crash_between_events_and_requests__nothing_of_the_block_is_stored(bench: Bench) -> None:
    """Blocks, events and what they do are one transaction."""
    before = await bench.store.last_block()
    (id_,) = await bench.put()
    for step in ("_insert_events", "_apply_to_requests", "_apply_to_rounds", "reopen_unseen"):
        with crash(blocks, step):
            await bench.index()
        assert await bench.store.last_block() == before
        assert await bench.store.request(id_) is None
        await bench.store.close()
        bench.services = await bench.start()
    await bench.index()
    await bench.answer([id_])
    await bench.settle()
    await bench.oracle()


async def test_rewind__crash_in_the_middle__nothing_is_undone_until_it_is_whole(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.settle()
    last = await bench.store.last_block()
    await bench.rpc("anvil_reorg", 1, [])
    for step in ("_ids_in_order", "_events_of", "reconcile", "reopen_above", "step_back"):
        with crash(blocks, step):
            await bench.services.indexer.step()
        assert await bench.store.last_block() == last
        assert await bench.state(id_) == "fulfilled"
        await bench.store.close()
        bench.services = await bench.start()
    await bench.index()
    assert await bench.state(id_) == "settling"
    await bench.services.sender.confirm()
    await bench.settle()
    await bench.oracle()


@pytest.mark.parametrize(("owner", "method"), [("signer", "sign_transaction"), ("store", "add_attempt")])
async def test_replace__crash_around_storing_it__is_bid_again_or_sent(bench: Bench, owner: str, method: str) -> None:
    await bench.serve()
    await bench.services.settler.step()
    bench.clock.advance(46_000)
    with crash(type(getattr(bench, owner)), method):
        await bench.services.sender.confirm()
    record, _ = await bench.store.open_intents()
    assert len(record.attempts) == (1 if owner == "signer" else 2)
    assert len(bench.sent) == 2
    await bench.restart()
    await bench.services.sender.confirm()
    (again, _) = await bench.store.open_intents()
    assert len(again.attempts) == 2
    assert again.attempts[: len(record.attempts)] == record.attempts
    assert again.attempts[1].transaction_hash in {each.hash for each in bench.sent}
    await bench.settle()
    await bench.oracle()


async def test_cancel__crash_before_it_is_signed__nonce_is_given_up_after_the_start(bench: Bench) -> None:
    (id_,) = await bench.serve()
    await bench.services.settler.step()
    await bench.rpc("anvil_dropTransaction", bench.sent[1].hash)
    await bench.mine()
    await bench.index()
    batch = await bench.batch()
    await bench.pass_time(batch.until_s - bench.clock.now_ms() // 1000 + 1)
    await bench.mine()
    await bench.index()
    with crash(type(bench.signer), "sign_transaction", before=True):
        await bench.services.sender.confirm()
    assert not (await bench.batch()).attempts[-1].is_noop
    await bench.restart()
    await bench.services.sender.confirm()
    assert (await bench.batch()).attempts[-1].is_noop
    await bench.settle()
    await bench.oracle({id_: "expired"})


async def test_node__restarts_with_an_empty_pool__same_bytes_are_sent_again(bench: Bench, tmp_path: Path) -> None:
    await bench.serve()
    await bench.services.settler.step()
    sent = [each.raw for each in bench.sent]
    head = await bench.chain.head()
    await bench.restart_chain(tmp_path / "state.json")
    assert await bench.chain.head() == head
    await bench.mine()
    assert await bench.mined_nonce() == bench.sent[0].nonce, "the pool is gone"
    await bench.restart()
    await bench.services.sender.confirm()
    assert [each.raw for each in bench.sent[2:]] == sent
    await bench.settle()
    await bench.oracle()
