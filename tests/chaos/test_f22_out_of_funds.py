"""F22: the key runs out of ether with transactions under way. Nothing is given up and no nonce is given out; with ether
it goes on with the same bytes."""

from __future__ import annotations

import pytest

from headrace.core.errors import ExpiredContext
from tests.chaos.bench import Bench


async def test_pending__account_is_drained__goes_on_with_the_same_bytes_when_it_has_ether(bench: Bench) -> None:
    sent = await bench.send_three()
    balance = await bench.rpc("eth_getBalance", bench.signer.address, "latest")
    await bench.rpc("anvil_setBalance", bench.signer.address, "0x1")
    await bench.mine()
    assert await bench.mined_nonce() == sent[0].nonce
    for _ in range(3):
        bench.clock.advance(5_000)
        assert await bench.services.settler.step() is False
        await bench.mine()
    assert bench.metrics.counts[("headrace_transactions_refused_total", "kind=record_round")] == 3
    assert len(await bench.store.open_intents()) == 3

    await bench.rpc("anvil_setBalance", bench.signer.address, balance)
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    await bench.settle()
    assert {each.hash for each in bench.sent} == {each.hash for each in sent}
    await bench.oracle(bench.expiring)


async def test_submit__account_is_drained__no_nonce_is_given_out(bench: Bench) -> None:
    (id_,) = await bench.serve()
    balance = await bench.rpc("eth_getBalance", bench.signer.address, "latest")
    await bench.rpc("anvil_setBalance", bench.signer.address, "0x1")
    for _ in range(2):
        with pytest.raises(ExpiredContext, match="send it ether"):
            await bench.services.settler.step()
    assert await bench.store.open_intents() == []
    assert await bench.state(id_) == "signed"
    assert bench.sent == []
    await bench.rpc("anvil_setBalance", bench.signer.address, balance)
    await bench.settle()
    await bench.oracle()
