"""E5: the endpoint is, or becomes, one of another chain. A start is refused; while it runs, nothing is undone and
nothing is sent there; what was signed is for one chain only."""

from __future__ import annotations

from contextlib import suppress

import pytest
from web3 import AsyncHTTPProvider, AsyncWeb3

from headrace.core.errors import ConfigurationError, ExpiredContext, HeadraceError
from headrace.core.types import Address
from headrace.services.indexer import ReorgTooDeep
from tests.chaos.bench import Bench
from tests.local_chain import GWEI, running_anvil


async def test_start__other_chain_id__is_refused(bench: Bench) -> None:
    await bench.chain.check()
    bench.proxy.faults.chain_id = 1
    with pytest.raises(ConfigurationError, match="is a node of chain 1, but the deployment is of chain 31337"):
        await bench.chain.check()
    bench.proxy.faults.chain_id = None
    await bench.serve()
    await bench.settle()
    await bench.oracle()


@pytest.mark.parametrize("blocks", [0, 40])
async def test_run__endpoint_becomes_one_of_another_chain__nothing_is_undone_or_sent(bench: Bench, blocks: int) -> None:
    (id_,) = await bench.serve()
    last, upstream = await bench.store.last_block(), bench.proxy.upstream
    with running_anvil("--chain-id", "5") as other:
        web3 = AsyncWeb3(AsyncHTTPProvider(other))
        await web3.provider.make_request("anvil_mine", [hex(blocks)])
        bench.proxy.upstream = other
        if blocks:
            with pytest.raises(ReorgTooDeep, match="another chain"):
                await bench.services.indexer.step()
        else:
            assert await bench.services.indexer.step() is False
        for step in (bench.services.settler.step, bench.services.reaper.step):
            with suppress(HeadraceError):
                assert not await step()
        assert await bench.store.last_block() == last
        assert await bench.state(id_) == "signed"
        assert bench.sent == []
        bench.proxy.upstream = upstream
        await web3.provider.disconnect()
    await bench.settle()
    await bench.oracle()


async def test_run__a_contract_has_other_code__nothing_is_signed_until_it_is_back(bench: Bench) -> None:
    """As on a fork, or on a chain that was begun anew with the same number."""
    (id_,) = await bench.serve()
    codes = {each: await bench.anvil.rpc("eth_getCode", each, "latest") for each in _called(bench)}
    await _set_codes(bench, codes, "00")
    with pytest.raises(ExpiredContext, match=r"has other code at .* than that of the deployment's"):
        await bench.services.settler.step()
    assert bench.sent == []
    assert await bench.store.open_intents() == []

    await _set_codes(bench, codes)
    await bench.services.settler.step()
    first = {wire.hash for wire in bench.sent}
    assert first
    # What is stored and would bid more is held, too.
    await bench.anvil.rpc("anvil_dropAllTransactions")
    await _set_codes(bench, codes, "00")
    await bench.anvil.rpc("anvil_setNextBlockBaseFeePerGas", hex(100 * GWEI))
    for _ in range(3):
        await bench.mine()
        bench.clock.advance(20_000)
        with suppress(HeadraceError):
            await bench.services.settler.step()
    assert {wire.hash for wire in bench.sent} == first
    await _set_codes(bench, codes)
    await bench.settle()
    assert await bench.state(id_) == "fulfilled"
    await bench.oracle()


def _called(bench: Bench) -> tuple[Address, Address]:
    return bench.chain.market, bench.chain.schedule_log


async def _set_codes(bench: Bench, codes: dict[Address, str], more: str = "") -> None:
    """With a byte more a contract does all that it did: its hash is what tells."""
    for contract, code in codes.items():
        await bench.anvil.rpc("anvil_setCode", contract, code + more)
