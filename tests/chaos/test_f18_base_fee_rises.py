"""F18: the base fee rises above what pending transactions bid. anvil drops them and refuses them until it falls, geth
keeps them: both ways they come to a block, by a higher bid within bounds, or by the same bytes when it has fallen."""

from __future__ import annotations

import pytest

from headrace.core.errors import Refused
from tests.chaos.bench import Bench
from tests.local_chain import GWEI

RATHER_DEAR_WEI = 10 * GWEI
TOO_DEAR_WEI = 300 * GWEI  # a batch is not worth that


async def spike(bench: Bench, base_fee_wei: int) -> None:
    await bench.rpc("anvil_setNextBlockBaseFeePerGas", hex(base_fee_wei))
    await bench.mine()
    for each in bench.sent:
        assert await bench.rpc("eth_getTransactionByHash", each.hash) is None
    with pytest.raises(Refused, match="max fee per gas less than block base fee"):
        await bench.chain.send_raw(bench.sent[0].raw)


async def test_base_fee__rises__bids_follow(bench: Bench) -> None:
    await bench.serve()
    await bench.services.settler.step()
    await spike(bench, RATHER_DEAR_WEI)
    for _ in range(3):
        bench.clock.advance(46_000)
        await bench.services.sender.confirm()
        await bench.rpc("anvil_setNextBlockBaseFeePerGas", hex(RATHER_DEAR_WEI))
        await bench.mine()
    await bench.index()
    await bench.settle()
    bids = [each.max_fee_wei for each in bench.sent]
    assert max(bids) > RATHER_DEAR_WEI > bids[0]
    await bench.oracle()


async def test_base_fee__rises_beyond_all_that_depends_on_a_record__record_is_held_too(bench: Bench) -> None:
    """What its batch pays out, and the bond, which is for rounds that are recorded."""
    await bench.serve()
    await bench.services.settler.step()
    record, batch = await bench.store.open_intents()
    bond_wei = (await bench.chain.bond(bench.signer.address)).bond_wei
    assert (record.kind, record.worth_wei) == ("record_round", batch.worth_wei + bond_wei)
    assert batch.worth_wei > 0
    most_wei = record.worth_wei // record.gas_limit
    for base_fee_wei in (most_wei // 3, most_wei):
        await bench.rpc("anvil_setBalance", bench.signer.address, hex(10**24))
        await bench.rpc("anvil_setNextBlockBaseFeePerGas", hex(base_fee_wei))
        await bench.mine()
        for _ in range(3):
            bench.clock.advance(46_000)
            await bench.services.sender.confirm()
    bids = [each.max_fee_wei for each in bench.sent if each.nonce == record.nonce]
    assert bids[0] < most_wei // 3 < max(bids) <= most_wei
    assert bench.metrics.counts[("headrace_transactions_held_total", "kind=record_round")] == 1


@pytest.mark.parametrize("pool_keeps_it", [False, True])
async def test_base_fee__rises_too_far_and_falls_again__same_bytes_are_included(
    bench: Bench, pool_keeps_it: bool
) -> None:
    (id_,) = await bench.serve()
    await bench.services.settler.step()
    record, batch = bench.sent
    await bench.mine()
    await bench.index()
    await bench.services.sender.confirm()
    await bench.rpc("anvil_reorg", 1, [["0x" + record.raw.hex(), 0]])
    await bench.index()
    await bench.services.sender.confirm()
    assert [each.kind for each in await bench.store.open_intents()] == ["submit_results"]
    await bench.rpc("anvil_setNextBlockBaseFeePerGas", hex(TOO_DEAR_WEI))
    await bench.mine()
    for _ in range(3):
        bench.clock.advance(46_000 if pool_keeps_it else 5_000)
        await bench.services.sender.confirm()
    held = bench.metrics.counts[("headrace_transactions_held_total", "kind=submit_results")]
    refused = bench.metrics.counts[("headrace_transactions_refused_total", "kind=submit_results")]
    assert (held, refused) == ((1, 3) if pool_keeps_it else (0, 3))
    assert {each.hash for each in bench.sent} == {record.hash, batch.hash}

    await bench.rpc("anvil_setNextBlockBaseFeePerGas", hex(GWEI // 2))
    await bench.mine()
    await bench.rpc("anvil_setNextBlockBaseFeePerGas", hex(GWEI // 2))
    if pool_keeps_it:
        await bench.send(batch.raw)
        await bench.mine()
    await bench.index()
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    await bench.settle()
    assert await bench.state(id_) == "fulfilled"
    assert {each.hash for each in bench.sent} == {record.hash, batch.hash}
    await bench.oracle()
