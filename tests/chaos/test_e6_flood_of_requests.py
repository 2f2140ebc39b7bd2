"""E6: one account floods the relayer with requests, each with its escrow. Among those that pay alike none overtakes one
that waits, so every request is served after those before it.

Not built: a quota of what one account may have open on the chain; and who pays more is served before others, without a
bound other than the deadline, after which the escrow is given back.
"""

from __future__ import annotations

from tests.chaos.bench import Bench

FLOOD = 3


async def test_flood__goes_on_for_long__request_of_another_is_served_after_those_before_it(bench: Bench) -> None:
    flood = await bench.post(FLOOD)
    await bench.pass_time(5)
    (id_,) = await bench.post(account=0)
    cycles = 0
    while await bench.state(id_) == "eligible":
        await bench.pass_time(5)
        flood += await bench.post()
        await bench.answer([id_, *flood], cycles=1)
        cycles += 1
        assert cycles <= FLOOD + 1, "one that came later was served before it"
    left = [each for each in flood if await bench.state(each) == "eligible"]
    assert left, "there was always more than could be served"
    while left:
        await bench.answer(left)
        left = [each for each in left if await bench.state(each) == "eligible"]
    await bench.settle()
    await bench.oracle()
