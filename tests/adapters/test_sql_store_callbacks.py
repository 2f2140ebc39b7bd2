"""What the chain says of callbacks, in the store: beside the settlement, which it never undoes."""

from __future__ import annotations

from typing import Any

from headrace.adapters.sql.store import SqlStore
from headrace.core.lifecycle import RequestState
from headrace.core.types import Hash32
from tests.adapters.steps import follow, post, stages_of, state_of
from tests.fakes import FakeChain, make_request

REASON = "0x08c379a0"


async def closed_of(store: SqlStore, id_: Hash32) -> dict[str, Any]:
    stored = await store.request(id_)
    assert stored is not None
    assert stored.closed is not None
    return dict(stored.closed)


async def test_fulfilled__callback_was_not_asked_for__there_is_none(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain)
    chain.mine(chain.fulfilled(id_))
    await follow(store, chain)
    assert "callback" not in await closed_of(store, id_)


async def test_fulfilled__callback_went_well__was_made(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain, callback_gas=1)
    block = chain.mine(chain.fulfilled(id_))
    await follow(store, chain)
    callback = (await closed_of(store, id_))["callback"]
    assert (callback["made"], callback["reason"], callback["block_number"]) == (True, None, block.number)
    assert not {"callback_failed", "callback_retried"} & set(await stages_of(store, id_))


async def test_callback_failed__is_fulfilled_all_the_same_until_it_is_called_again(
    store: SqlStore, chain: FakeChain
) -> None:
    id_ = await post(store, chain, callback_gas=1)
    # The market tells of the failure before it tells of the payment.
    chain.mine(chain.callback_failed(id_, REASON), chain.fulfilled(id_))
    await follow(store, chain)
    assert await state_of(store, id_) is RequestState.FULFILLED
    callback = (await closed_of(store, id_))["callback"]
    assert (callback["made"], callback["reason"]) == (False, REASON)
    again = chain.mine(chain.callback_retried(id_))
    await follow(store, chain)
    callback = (await closed_of(store, id_))["callback"]
    assert (callback["made"], callback["reason"], callback["block_number"]) == (True, None, again.number)
    stages = await stages_of(store, id_)
    assert [stage for stage in stages if "callback" in stage] == ["callback_failed", "callback_retried"]
    assert await state_of(store, id_) is RequestState.FULFILLED


async def test_rewind_to__second_call_gone__has_failed_again(store: SqlStore, chain: FakeChain) -> None:
    id_ = await post(store, chain, callback_gas=1)
    chain.mine(chain.callback_failed(id_, REASON), chain.fulfilled(id_))
    chain.mine(chain.callback_retried(id_))
    await follow(store, chain)
    chain.reorg(1)
    await follow(store, chain)
    assert (await closed_of(store, id_))["callback"]["made"] is False
    chain.reorg(2)
    await follow(store, chain)
    stored = await store.request(id_)
    assert stored is not None
    assert stored.closed is None


async def test_included__posted_by_the_relayer__notes_its_fee(store: SqlStore, chain: FakeChain) -> None:
    request = make_request()
    id_ = chain.id_of(request)
    chain.mine(chain.requested(request), chain.relayer_fee_paid(id_, 10**15))
    await follow(store, chain)
    (entry,) = await store.timeline(id_)
    assert (entry.stage, entry.detail["relayer_fee_wei"]) == ("included", str(10**15))
