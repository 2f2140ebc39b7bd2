"""How long it takes a standby to go on for a leader that was killed, with real processes under traffic."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

from scripts._stack import Stack
from tests.bench.rows import Row
from tests.e2e.pair import ready, traffic
from tests.e2e.test_requests import times_paid

BEFORE, AFTER = 6, 4  # requests on the way when the leader is killed, and posted as soon as another leads


async def take_over(folder: Path, seed: int) -> list[Row]:
    """Kill a leader under traffic.

    Args:
        folder: for the stack's files; must not exist.
        seed: draws the moment at which it is killed.
    """
    stack = Stack(folder, report=lambda _: None, is_pair=True)
    try:
        await asyncio.to_thread(stack.start)
        await asyncio.to_thread(stack.start_standby)
        async with traffic(stack) as requests:
            await requests.post(BEFORE)
            await asyncio.sleep(random.Random(seed).uniform(0, 2))
            killed_s = time.monotonic()
            await asyncio.to_thread(stack.kill, "relayer")
            await ready(stack.standby_api_port)
            led_s = time.monotonic() - killed_s
            stack.follow()
            await asyncio.to_thread(stack.await_ready, stack.nodes)
            linked_s = time.monotonic() - killed_s
            await requests.post(AFTER)
            await requests.settled()
            settled_s = time.monotonic() - killed_s
            paid = [times_paid(stack, id_) for id_ in requests.ids]
    finally:
        await asyncio.to_thread(stack.stop)
    return [
        Row("take-over after kill -9 of the leader, to ready", led_s, "s", 10, at_most=True),
        Row("until its nodes are linked to the other", linked_s, "s", 10, at_most=True),
        Row(f"{BEFORE + AFTER} requests around it, all settled", settled_s, "s", 60, at_most=True),
        Row("of these, lost or paid twice", sum(times != 1 for times in paid), "", 0, at_most=True),
    ]
