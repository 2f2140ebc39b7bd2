"""Keeping: what nobody asked with goes, what is needed stays, and handed-in prompts are bounded together."""

from __future__ import annotations

import pytest

from headrace.core.batching import BatchPolicy
from headrace.core.envelope import hash_payload, seal
from headrace.core.errors import NoRoom
from headrace.services.keeper import Keeper, KeeperSettings
from tests.fakes import REQUESTER
from tests.services.world import PROMPT, World, a_world

AT_ONCE = BatchPolicy(max_age_ms=0)
SETTINGS = KeeperSettings(most_unused_bytes=4_000, keep_unused_s=1_000, posting_s=100, keep_ended_s=5_000)


def keeper(world: World) -> Keeper:
    return Keeper(world.store, world.clock, world.metrics, SETTINGS)


async def hand_in(world: World, number: int, size: int = 500) -> str:
    payload = seal(bytes([number]) * (size - 17), bytes(16))
    return await world.store.put_prompt(payload, REQUESTER, world.clock.now_ms())


async def test_step__prompt_that_no_request_names__is_thrown_out_in_the_end() -> None:
    async with a_world() as world:
        unused = await hand_in(world, 1)
        await world.post(world.request())
        world.clock.advance(1_000_000)
        await keeper(world).step()
        assert await world.store.payload(unused) is not None
        world.clock.advance(1)
        await keeper(world).step()
        assert await world.store.payload(unused) is None
        assert await world.store.held_prompts({(unused, REQUESTER)}) == set()
        assert await world.store.payload(hash_payload(PROMPT)) == PROMPT
        assert world.metrics.total("headrace_payloads_pruned_total") == 1


async def test_step__request_ended__prompt_and_answer_go_when_they_were_kept_long_enough() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        await world.settle()
        result, stored = await world.store.result(id_), await world.store.request(id_)
        assert result is not None
        assert stored is not None
        hashes = [stored.request.prompt_hash, result.payload_hash]
        world.clock.advance(stored.effective_deadline_s * 1000 + 5_000_000 - world.clock.now_ms())
        await keeper(world).step()
        assert [await world.store.payload(each) is not None for each in hashes] == [True, True]
        world.clock.advance(1)
        await keeper(world).step()
        assert [await world.store.payload(each) is not None for each in hashes] == [False, False]
        assert await world.store.result(id_) == result, "what was signed stays"
        await world.store.put_prompt(PROMPT, REQUESTER, world.clock.now_ms())
        assert await world.store.payload(hash_payload(PROMPT)) == PROMPT


async def test_step__request_still_open__keeps_what_it_needs() -> None:
    async with a_world() as world:
        (id_,) = await world.serve(world.request())
        result = await world.store.result(id_)
        assert result is not None
        world.clock.advance(10**9)
        await keeper(world).step()
        assert await world.store.payload(hash_payload(PROMPT)) is not None
        assert await world.store.payload(result.payload_hash) is not None


async def test_step__prompt_of_an_ended_and_of_an_open_request__stays() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await world.serve(world.request(salt=1))
        await world.settle()
        world.clock.advance(10**9)
        await world.post(world.request(salt=2, deadline_s=world.clock.now_ms() // 1000 + 600))
        await keeper(world).step()
        assert await world.store.payload(hash_payload(PROMPT)) is not None


async def test_take__no_room__is_refused_until_the_oldest_are_gone() -> None:
    async with a_world() as world:
        keeping = keeper(world)
        await keeping.step()
        handed_in = []
        for number in range(8):
            keeping.take(500)
            handed_in.append(await hand_in(world, number))
            world.clock.advance(10)
        with pytest.raises(NoRoom, match="try again later"):
            keeping.take(500)
        await keeping.step()
        with pytest.raises(NoRoom):
            keeping.take(500)  # each may yet be posted
        world.clock.advance(100_000)
        await keeping.step()
        assert [await world.store.payload(each) is not None for each in handed_in].count(True) <= 4
        keeping.take(500)
        assert world.metrics.gauges[("headrace_unused_prompt_bytes",)] <= 2_000
