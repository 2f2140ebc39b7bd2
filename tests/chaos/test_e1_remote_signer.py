"""E1: the remote signer is slow, gone, or answers wrongly. No answer is no signature: nothing new is assigned or sent,
what is stored is kept, what was signed is sent on, and when it is back all goes on under the same nonces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from eth_keys.datatypes import PrivateKey

from headrace.adapters.web3signer import SignerAddress, Web3Signer
from headrace.core.errors import SignerUnavailable
from tests.chaos.bench import Bench, a_bench
from tests.local_chain import CHAIN_ID
from tests.web3signer import Answer, Web3SignerStandIn, hang_up, saying, silence, web3signer


async def signs_by_another_key(_signer: Web3SignerStandIn, request: Any) -> Any:
    """What it would answer, had its keys been changed under it."""
    other = Web3SignerStandIn([PrivateKey(b"\x66" * 32)], chain_id=CHAIN_ID)
    if request.path == "/":
        call = await request.json()
        call["params"][0]["from"] = other.keys[0].public_key.to_address()
        return await other._rpc(_Again(call))
    body = await request.json()
    return await other._sign(_Again(body, {"identifier": other.keys[0].public_key.to_hex()}))


class _Again:
    def __init__(self, body: Any, match_info: dict[str, str] | None = None) -> None:
        self._body = body
        self.match_info = match_info or {}

    async def json(self) -> Any:
        return self._body


FAULTS: dict[str, Answer] = {
    "slow": silence,
    "hangs up": hang_up,
    "500": saying("out of order", 500),
    "junk": saying("<html>"),
    "another key": signs_by_another_key,
}
faults = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())


@pytest_asyncio.fixture
async def remote(tmp_path: Path) -> AsyncIterator[tuple[Bench, Web3SignerStandIn]]:
    async with a_bench(tmp_path / "relayer.db") as bench, web3signer(bench.anvil.keys[1], chain_id=CHAIN_ID) as there:
        signer = Web3Signer(SignerAddress(there.url, timeout_s=0.2), bench.signer.address)
        await signer.start()
        signer.report_to(bench.metrics)
        bench.remote = signer
        await bench.restart()
        yield bench, there
        await signer.close()


async def test_all_is_well__serves_as_with_a_key_of_its_own(remote: tuple[Bench, Web3SignerStandIn]) -> None:
    bench, _ = remote
    await bench.send_three()
    await bench.settle()
    await bench.oracle(bench.expiring)


@faults
async def test_cycle__nothing_is_assigned_and_all_is_when_it_is_back(
    remote: tuple[Bench, Web3SignerStandIn], fault: Answer
) -> None:
    bench, there = remote
    ids = await bench.post(3)
    there.instead = fault
    for _ in range(2):
        assert not await _comes_through(lambda: bench.answer(ids, cycles=1))
    assert await bench.store.open_assignments() == []
    assert {await bench.state(id_) for id_ in ids} == {"eligible"}
    there.instead = None
    await bench.answer(ids)
    await bench.settle()
    await bench.oracle()


@faults
async def test_batch__intents_are_kept_and_sent_when_it_is_back(
    remote: tuple[Bench, Web3SignerStandIn], fault: Answer
) -> None:
    bench, there = remote
    await bench.serve(2)
    there.instead = fault
    await bench.services.settler.step()
    stored = await bench.store.open_intents()
    assert [(each.kind, each.attempts) for each in stored] == [("record_round", ()), ("submit_results", ())]
    asked = len(there.asked)
    for _ in range(3):
        bench.clock.advance(5_000)
        assert await bench.services.settler.step() is False
    assert len(there.asked) - asked <= 2 * 3, "one question a look, which a lost connection doubles"
    assert await bench.store.open_intents() == stored
    assert bench.sent == []

    there.instead = None
    await bench.settle()
    assert [each.nonce for each in bench.sent[:2]] == [each.nonce for each in stored]
    assert bench.metrics.total("headrace_transactions_held_total") == 1
    await bench.oracle()


async def test_batch__process_ends_while_it_is_gone__the_next_one_sends_the_same(
    remote: tuple[Bench, Web3SignerStandIn],
) -> None:
    bench, there = remote
    await bench.serve()
    await there.stop()
    await bench.services.settler.step()
    stored = await bench.store.open_intents()
    await bench.restart()
    await bench.services.settler.step()
    assert await bench.store.open_intents() == stored
    await there.start()
    await bench.settle()
    assert sorted({each.nonce for each in bench.sent}) == [each.nonce for each in stored]
    await bench.oracle()


async def test_pending__is_sent_on_without_it__and_bids_more_when_it_is_back(
    remote: tuple[Bench, Web3SignerStandIn],
) -> None:
    bench, there = remote
    await bench.serve()
    await bench.services.settler.step()
    before = list(bench.sent)
    await there.stop()
    bench.clock.advance(60_000)
    await bench.services.sender.confirm()
    assert {each.hash for each in bench.sent} == {each.hash for each in before}
    assert len(bench.sent) == 2 * len(before), "the same bytes again"
    await there.start()
    bench.clock.advance(60_000)
    await bench.services.sender.confirm()
    assert len((await bench.store.open_intents())[0].attempts) == 2
    await bench.settle()
    await bench.oracle()


async def test_others__store_nothing_while_stored_ones_wait(remote: tuple[Bench, Web3SignerStandIn]) -> None:
    bench, there = remote
    nodes = dict(bench.link.nodes)
    bench.link.nodes.clear()
    bench.expiring = dict.fromkeys(await bench.post(deadline_s=bench.clock.now_ms() // 1000 + 60), "expired")
    await bench.pass_time(60 + (await bench.chain.market_terms()).grace_s + 1)
    bench.link.nodes.update(nodes)
    await bench.serve()
    await there.stop()
    await bench.services.settler.step()
    with pytest.raises(SignerUnavailable, match="wait for their signature"):
        await bench.services.reaper.step()
    assert [each.kind for each in await bench.store.open_intents()] == ["record_round", "submit_results"]
    await there.start()
    await bench.settle()
    await bench.oracle(bench.expiring)


async def test_comes_and_goes__every_request_ends_once_and_no_nonce_is_used_twice(
    remote: tuple[Bench, Web3SignerStandIn],
) -> None:
    bench, there = remote
    count = 0

    async def every_third(_signer: Web3SignerStandIn, request: Any) -> Any:
        nonlocal count
        count += 1
        there.instead = None if count % 3 == 0 else every_third
        return await FAULTS["500"](there, request)

    for _ in range(4):
        ids = await bench.post(2)
        there.instead = every_third
        await _until(lambda ids=ids: bench.answer(ids))
        there.instead = every_third
        await _until(bench.settle)
    nonces = [each.nonce for each in bench.sent]
    assert sorted(set(nonces)) == list(range(min(nonces), max(nonces) + 1))
    await bench.oracle()


async def _comes_through(step: Callable[[], Awaitable[object]]) -> bool:
    done = False
    try:
        await step()
        done = True
    except* SignerUnavailable:
        pass
    return done


async def _until(step: Callable[[], Awaitable[object]]) -> None:
    for _ in range(20):
        if await _comes_through(step):
            return
    raise AssertionError("it does not come through")
