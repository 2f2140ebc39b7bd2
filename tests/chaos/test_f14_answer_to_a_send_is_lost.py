"""F14: the node takes a transaction and its answer is lost. Whether it was taken is not known: the nonce is kept, the
same bytes are sent again, and "known" or "nonce too low" are looked into before they are believed."""

from __future__ import annotations

import pytest

from tests.chaos.bench import Bench
from tests.chaos.fault_proxy import SEND


async def test_send__answer_lost_and_mined__is_found_and_not_sent_under_another_nonce(bench: Bench) -> None:
    await bench.serve()
    bench.proxy.faults.lose_answer = {SEND}
    await bench.services.settler.step()
    assert len(await bench.store.open_intents()) == 2
    await bench.mine()
    await bench.index()
    bench.clock.advance(5_000)
    assert await bench.services.sender.confirm() == []
    bench.proxy.faults.lose_answer = set()
    await bench.settle()
    assert len(bench.sent) == 2
    await bench.oracle()


async def test_send__answer_lost_and_waiting__same_bytes_are_sent_until_they_are_in_a_block(bench: Bench) -> None:
    await bench.serve()
    bench.proxy.faults.lose_answer = {SEND}
    await bench.services.settler.step()
    sent = [each.raw for each in bench.sent]
    for _ in range(3):
        bench.clock.advance(5_000)
        await bench.services.sender.confirm()  # anvil: "transaction already imported"
    assert [each.raw for each in bench.sent] == sent * 4
    assert bench.metrics.counts[("headrace_transactions_refused_total", "kind=record_round")] == 0
    await bench.settle()
    await bench.oracle()


@pytest.mark.parametrize(
    "words",
    [
        (-32_000, "already known"),  # geth
        (-32_000, "nonce too low: next nonce 3, tx nonce 1"),
        (-32_003, "nonce too low"),  # anvil
    ],
)
async def test_send__is_refused_as_known_or_too_low__is_believed_only_of_what_the_node_has(
    bench: Bench, words: tuple[int, str]
) -> None:
    await bench.serve()
    bench.proxy.faults.lose_answer = {SEND}
    await bench.services.settler.step()
    bench.proxy.faults.lose_answer = set()
    bench.proxy.faults.errors = {SEND: words}
    bench.clock.advance(5_000)
    await bench.services.sender.confirm()
    assert len(bench.sent) == 4
    assert not [key for key in bench.metrics.counts if key[0] == "headrace_transactions_refused_total"]
    bench.proxy.faults.errors = {}
    await bench.settle()
    await bench.oracle()
