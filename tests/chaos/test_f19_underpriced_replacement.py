"""F19: pools take a replacement only when both fees are a tenth higher (geth; anvil takes one wei more, so a proxy
keeps that rule). Bids start from the last one and not from the market. "Underpriced" at a first send means that a
stranger has the nonce: it is no success, and there is no tight loop."""

from __future__ import annotations

import pytest

from headrace.core.errors import Refused
from tests.chaos.bench import Bench
from tests.local_chain import GWEI


async def test_replacement__market_fell__is_taken_by_geths_rule(bench: Bench) -> None:
    bench.proxy.faults.geth_rule = True
    to = bench.anvil.accounts[0]
    for max_fee, tip, is_taken in ((0, 0, True), (1, 1, False), (GWEI, 0, False), (GWEI, GWEI // 8, True)):
        fees = {"maxFeePerGas": 10 * GWEI + max_fee, "maxPriorityFeePerGas": GWEI + tip}
        raw, _ = await bench.anvil.sign(3, to, "0x", nonce=0, gas=21_000, **fees)
        if is_taken:
            await bench.chain.send_raw(raw)
        else:
            with pytest.raises(Refused, match="replacement transaction underpriced"):
                await bench.chain.send_raw(raw)
    await bench.mine()

    await bench.serve()
    await bench.services.settler.step()
    for _ in range(3):
        await bench.rpc("anvil_setNextBlockBaseFeePerGas", hex(GWEI // 10))
        bench.clock.advance(46_000)
        await bench.services.sender.confirm()
    record, _ = await bench.store.open_intents()
    assert len(record.attempts) == 4
    assert not [key for key in bench.metrics.counts if key[0] == "headrace_transactions_refused_total"]
    await bench.settle()
    await bench.oracle()


async def test_first_send__stranger_bids_more_at_the_nonce__is_drafted_anew_when_that_is_over(bench: Bench) -> None:
    await bench.serve()
    nonce = await bench.mined_nonce()
    stranger, _ = await bench.anvil.sign(1, bench.anvil.accounts[0], "0x", nonce=nonce, gas=21_000)
    await bench.send(stranger)
    await bench.services.settler.step()
    assert bench.metrics.counts[("headrace_transactions_refused_total", "kind=record_round")] == 1
    for _ in range(10):
        bench.clock.advance(500)
        await bench.services.sender.confirm()
    assert len(bench.sent) <= 4, "no tight loop"
    await bench.settle()
    assert bench.metrics.counts[("headrace_transactions_total", "kind=record_round", "outcome=dropped")] == 1
    await bench.oracle()
