"""F10: after a reorg, a transaction that is not the relayer's has its nonce. Its own can never be in a block then: some
blocks later what it was for is drafted anew, once, under another nonce, and the operator is told that the key is used
elsewhere."""

from __future__ import annotations

from tests.chaos.bench import Bench


async def taken(bench: Bench) -> str:
    """Served, then reorged: a transfer has the record's nonce."""
    (id_,) = await bench.serve()
    await bench.services.settler.step()
    await bench.mine()
    await bench.index()
    await bench.services.sender.confirm()
    record = bench.sent[0]
    stranger, _ = await bench.anvil.sign(1, bench.anvil.accounts[0], "0x", nonce=record.nonce, gas=21_000)
    await bench.rpc("anvil_reorg", 1, [["0x" + stranger.hex(), 0]])
    await bench.index()
    return id_


async def test_reorg__nonce_went_to_a_stranger__is_drafted_anew_once(bench: Bench) -> None:
    await taken(bench)
    record, result = bench.sent
    await bench.services.sender.confirm()
    assert await bench.chain.receipt(record.hash) is None
    await bench.mine(2)
    await bench.index()
    await bench.services.sender.confirm()
    (lost,) = [each for each in await bench.store.open_intents() if each.kind == "record_round"]
    assert lost.nonce == record.nonce, "it waits: another reorg may take the stranger away"
    await bench.settle()
    lost = await bench.store.intent_of_transaction(record.hash)
    assert lost is not None and lost.state == "dropped"
    assert bench.metrics.counts[("headrace_transactions_total", "kind=record_round", "outcome=dropped")] == 1
    assert len(await bench.events("RoundRecorded")) == 1
    await bench.oracle()
    assert result.nonce == record.nonce + 1


async def test_reorg__stranger_is_gone_again__the_nonce_is_not_given_up(bench: Bench) -> None:
    await taken(bench)
    sent = [each.raw for each in bench.sent]
    await bench.services.sender.confirm()
    await bench.rpc("anvil_reorg", 1, [])
    await bench.index()
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    await bench.settle()
    assert {each.raw for each in bench.sent} == set(sent)
    await bench.oracle()
