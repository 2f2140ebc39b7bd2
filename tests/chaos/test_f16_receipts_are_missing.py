"""F16: a transaction is mined and its receipt is missing, or the question for it fails, for many blocks. Neither says
that it failed: nothing is sent in its place, and when the receipt is there it ends as it should."""

from __future__ import annotations

import pytest

from headrace.core.errors import ChainUnavailable
from tests.chaos.bench import Bench
from tests.chaos.fault_proxy import RECEIPT


async def outcomes(bench: Bench) -> list[str]:
    found = [await bench.store.intent_of_transaction(each.hash) for each in bench.sent]
    return [each.state for each in found if each]


@pytest.mark.parametrize("is_indexed", [True, False])
async def test_receipts__null_for_ten_blocks__nothing_is_given_up_or_sent_twice(bench: Bench, is_indexed: bool) -> None:
    await bench.serve()
    await bench.services.settler.step()
    bench.proxy.faults.null_receipts = True
    for _ in range(10):
        await bench.mine()
        if is_indexed:
            await bench.index()
        bench.clock.advance(2_000)
        await bench.services.settler.step()
    assert await bench.mined_nonce() == bench.sent[1].nonce + 1
    assert {each.nonce for each in bench.sent} == {bench.sent[0].nonce, bench.sent[1].nonce}
    assert set(await outcomes(bench)) == {"open"}

    bench.proxy.faults.null_receipts = False
    await bench.index()
    await bench.settle()
    assert set(await outcomes(bench)) == {"included"}
    await bench.oracle()


@pytest.mark.parametrize("status", [429, 500])
async def test_receipts__question_fails__nothing_is_concluded(bench: Bench, status: int) -> None:
    await bench.serve()
    await bench.services.settler.step()
    bench.proxy.faults.http_status = {RECEIPT: status}
    for _ in range(10):
        await bench.mine()
        await bench.index()
        bench.clock.advance(2_000)
        with pytest.raises(ChainUnavailable, match=str(status)):
            await bench.services.settler.step()
    assert set(await outcomes(bench)) == {"open"}
    bench.proxy.faults.http_status = {}
    await bench.settle()
    assert len(bench.sent) == 2
    assert set(await outcomes(bench)) == {"included"}
    await bench.oracle()
