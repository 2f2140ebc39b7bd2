"""Callbacks and verifiers at the relayer: paid for before a node works, proven before a result counts (I40), and a
batch that has the gas for all of them (I39)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.core.batching import BatchPolicy
from headrace.core.errors import ChainUnavailable, InvalidInput
from headrace.core.gas import MAX_BATCH_GAS, batch_gas, required_answer_bytes, spare_gas
from headrace.core.guard import MAX_TRANSACTION_GAS
from headrace.core.types import ItemStatus, Mode, Reason, Request
from headrace.ports import Call, CallOutcome, ResultSetCall
from tests.fakes import GWEI, VERIFIER
from tests.services.world import FakeNode, World, a_world

AT_ONCE = BatchPolicy(max_age_ms=0)
PROOF = b"\x07" * 65
RICH = 10**17


def verified_request(world: World, **changes: object) -> Request:
    fields: dict[str, object] = {"mode": Mode.VERIFIER, "verifier": VERIFIER, "gas_budget_wei": RICH}
    return world.request(**{**fields, **changes})


async def computing(world: World, request: Request) -> tuple[str, FakeNode]:
    """A request that a node works on."""
    (id_,) = await world.post(request)
    await world.cycle()
    (node,) = (node for node in world.link.nodes.values() if node.tasks)
    return id_, node


def only_node(world: World, **changes: object) -> FakeNode:
    (node,) = world.link.nodes.values()
    for name, value in changes.items():
        setattr(node, name, value)
    return node


def spied_sets(world: World) -> list[Sequence[ResultSetCall]]:
    """The sets of each batch that is drafted from here on."""
    seen: list[Sequence[ResultSetCall]] = []
    submit = world.chain.submit_results_call

    def spy(relayer: str, sets: Sequence[ResultSetCall]) -> Call:
        seen.append(sets)
        return submit(relayer, sets)

    world.chain.submit_results_call = spy  # type: ignore[method-assign]
    return seen


async def last_reason(world: World, id_: str) -> Reason:
    return (await world.store.last_decisions([id_]))[id_].reason


# Scheduling


async def test_cycle__gas_budget_without_the_callbacks_gas__waits_with_a_reason() -> None:
    async with a_world() as world:
        gas = world.chain.terms.fixed_gas // 8 + world.chain.terms.item_gas + 200_000 + 10_000
        price_wei = world.chain.gas.price_wei
        short, enough = await world.post(
            world.request(salt=1, callback_gas=200_000, gas_budget_wei=gas * price_wei - 1),
            world.request(salt=2, callback_gas=200_000, gas_budget_wei=gas * price_wei),
        )
        await world.cycle()
        assert await last_reason(world, short) is Reason.GAS_BUDGET_SHORT
        assert await world.state(enough) == "computing"


async def test_cycle__answer_that_no_transaction_takes__waits_with_a_reason() -> None:
    async with a_world() as world:
        request = world.request(
            callback_gas=1, inline_result=True, max_output_tokens=20_000, gas_budget_wei=RICH, max_reward_wei=RICH
        )
        (id_,) = await world.post(request)
        await world.cycle()
        assert await last_reason(world, id_) is Reason.ANSWER_TOO_LONG


async def test_cycle__verified_request__goes_to_a_node_that_can_prove() -> None:
    async with a_world(nodes=2) as world:
        (id_,) = await world.post(verified_request(world))
        await world.cycle()
        assert await last_reason(world, id_) is Reason.NO_PROOF
        *_, able = world.link.nodes.values()
        able.verifiers = (VERIFIER,)
        await world.cycle()
        assert (await world.store.assignments(id_))[0].assignment.node == able.key


async def test_cycle__foreign_verifier__is_counted_with_all_that_it_may_use() -> None:
    async with a_world() as world:
        foreign = "0x" + "5e" * 20
        only_node(world, verifiers=(foreign, VERIFIER))
        gas = world.chain.terms.fixed_gas // 8 + world.chain.terms.item_gas + 100_000
        budget = {"gas_budget_wei": gas * world.chain.gas.price_wei}
        own, theirs = await world.post(
            verified_request(world, salt=1, **budget), verified_request(world, salt=2, verifier=foreign, **budget)
        )
        await world.cycle()
        assert await world.state(own) == "computing"
        assert await last_reason(world, theirs) is Reason.GAS_BUDGET_SHORT


# Proofs


async def test_delivered__proof_that_the_verifier_takes__is_kept_and_settled_with_the_result() -> None:
    async with a_world(batching=AT_ONCE) as world:
        world.chain.accepted_proofs.add(PROOF)
        only_node(world, verifiers=(VERIFIER,))
        id_, node = await computing(world, verified_request(world))
        sets = spied_sets(world)
        await world.aggregator.delivered(node.deliver(node.tasks[0], proof=PROOF))
        await world.settle()
        assert sets[-1][0].proofs == (PROOF,)
        assert await world.state(id_) == "fulfilled"


async def test_delivered__proof_that_the_verifier_refuses__frees_the_request_for_another_node() -> None:
    async with a_world(nodes=2) as world:
        for node in world.link.nodes.values():
            node.verifiers = (VERIFIER,)
        id_, first = await computing(world, verified_request(world))
        with pytest.raises(InvalidInput, match="does not take the proof"):
            await world.aggregator.delivered(first.deliver(first.tasks[0], proof=PROOF))
        assert await world.store.result(id_) is None
        assert (await world.store.assignments(id_))[0].state == "failed"
        await world.cycle()
        assert (await world.store.assignments(id_))[1].assignment.node != first.key


async def test_delivered__chain_does_not_answer_the_proof__is_unknown_not_failed() -> None:
    async with a_world() as world:
        world.chain.accepted_proofs.add(PROOF)
        only_node(world, verifiers=(VERIFIER,))
        id_, node = await computing(world, verified_request(world))
        world.chain.fail("is_verified", ChainUnavailable("no answer"))
        with pytest.raises(ChainUnavailable):
            await world.aggregator.delivered(node.deliver(node.tasks[0], proof=PROOF))
        assert await world.state(id_) == "computing"
        await world.aggregator.delivered(node.deliver(node.tasks[0], proof=PROOF))
        assert await world.state(id_) == "signed"


async def test_delivered__again_after_the_key_was_revoked__stays_taken() -> None:
    async with a_world() as world:
        world.chain.accepted_proofs.add(PROOF)
        only_node(world, verifiers=(VERIFIER,))
        id_, node = await computing(world, verified_request(world))
        await world.aggregator.delivered(node.deliver(node.tasks[0], proof=PROOF))
        world.chain.accepted_proofs.clear()
        await world.aggregator.delivered(node.deliver(node.tasks[0], proof=PROOF))
        assert await world.state(id_) == "signed"


async def test_step__key_revoked_before_the_batch__is_left_out_and_served_by_another() -> None:
    async with a_world(nodes=2, batching=AT_ONCE) as world:
        world.chain.accepted_proofs.add(PROOF)
        for node in world.link.nodes.values():
            node.verifiers = (VERIFIER,)
        id_, node = await computing(world, verified_request(world))
        await world.aggregator.delivered(node.deliver(node.tasks[0], proof=PROOF))
        world.chain.accepted_proofs.clear()
        await world.settler.step()
        assert await world.state(id_) == "eligible"
        key = ("headrace_items_left_out_total", f"status={ItemStatus.VERIFICATION_FAILED.name}")
        assert world.metrics.counts[key] == 1


async def test_delivered__proof_for_a_request_that_names_no_verifier__is_refused() -> None:
    async with a_world() as world:
        _, node = await computing(world, world.request())
        with pytest.raises(InvalidInput, match="that name a verifier"):
            await world.aggregator.delivered(node.deliver(node.tasks[0], proof=PROOF))


# Callbacks


def called_request(world: World, **changes: object) -> Request:
    fields: dict[str, object] = {"callback_gas": 200_000, "inline_result": True, "gas_budget_wei": RICH}
    return world.request(**{**fields, **changes})


async def test_step__callback_with_bytes__always_carries_them() -> None:
    async with a_world(batching=AT_ONCE) as world:
        id_, node = await computing(world, called_request(world, max_output_tokens=1_000))
        # Longer than what is published for those who only asked for it.
        answer = b"x" * 5_000
        sets = spied_sets(world)
        await world.aggregator.delivered(node.deliver(node.tasks[0], content=answer))
        # Gas is dearer now than when it was assigned, and the budget does not cover the bytes any more.
        world.chain.gas = replace(world.chain.gas, base_fee_wei=10**6 * GWEI)
        items = (await world.settler._items())[0]
        assert [item.inline for item in items] == [answer]
        world.chain.gas = replace(world.chain.gas, base_fee_wei=GWEI)
        await world.settle()
        assert sets[-1][0].payloads == (answer,)
        assert await world.state(id_) == "fulfilled"


async def test_delivered__answer_longer_than_its_callback_is_paid_for__is_refused() -> None:
    async with a_world() as world:
        request = called_request(world)
        most = required_answer_bytes(request)
        _, node = await computing(world, request)
        with pytest.raises(InvalidInput, match=f"paid for {most}"):
            await world.aggregator.delivered(node.deliver(node.tasks[0], content=b"x" * (most + 1)))
        await world.aggregator.delivered(node.deliver(node.tasks[0], content=b"x" * most))


async def test_step__callback_fails__is_fulfilled_all_the_same_and_says_so() -> None:
    async with a_world(batching=AT_ONCE) as world:
        id_, node = await computing(world, called_request(world))
        world.chain.failing_callbacks.add(id_)
        await world.aggregator.delivered(node.deliver(node.tasks[0]))
        await world.settle()
        stored = await world.store.request(id_)
        assert stored is not None
        assert stored.closed is not None
        assert str(stored.state) == "fulfilled"
        assert stored.closed["callback"]["made"] is False
        world.chain.mine(world.chain.callback_retried(id_))
        await world.index()
        retried = await world.store.request(id_)
        assert retried is not None
        assert retried.closed is not None
        assert retried.closed["callback"]["made"] is True
        stages = [entry.stage for entry in await world.store.timeline(id_)]
        assert stages[-2:] == ["callback_failed", "callback_retried"]


async def test_step__more_callbacks_than_a_transaction_takes__are_settled_in_several() -> None:
    async with a_world(nodes=4, batching=BatchPolicy(max_age_ms=10**9)) as world:
        requests = [called_request(world, salt=number, callback_gas=2_000_000) for number in range(10)]
        ids = await world.serve(*requests)
        waiting = (await world.settler._items())[0]
        items = await world.settler._fitting(waiting)
        assert 0 < len(items) < len(waiting) == 10
        assert batch_gas([item.load for item in items]) <= MAX_BATCH_GAS
        # A batch that is cut is full, though its thresholds are far away.
        await world.settle()
        states = [await world.state(id_) for id_ in ids]
        assert states.count("fulfilled") == len(items)
        world.settler._batching = AT_ONCE
        await world.settle()
        assert {await world.state(id_) for id_ in ids} == {"fulfilled"}


async def test_step__batch_with_callbacks__has_a_limit_that_is_enough_whatever_they_use() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await world.serve(*[called_request(world, salt=number, callback_gas=900_000) for number in range(3)])
        items = (await world.settler._items())[0]
        await world.settler.step()
        (intent,) = [each for each in await world.store.open_intents() if each.kind == "submit_results"]
        (*_, outcome) = await world.chain.simulate(world.signer.address, [intent.call])
        loads = [item.load for item in items]
        assert intent.gas_limit >= outcome.gas_used + 3 * 900_000 + spare_gas(loads)
        assert intent.gas_limit <= MAX_TRANSACTION_GAS


async def test_step__batch_that_the_simulation_refuses__is_tried_in_halves() -> None:
    async with a_world(batching=AT_ONCE) as world:
        ids = await world.serve(*[world.request(salt=number) for number in range(5)])
        simulate = world.chain.simulate

        async def with_small_blocks(sender: str, calls: Sequence[Call]) -> list[CallOutcome]:
            outcomes = await simulate(sender, calls)
            settled = [event for event in outcomes[-1].events if event.name == "ResultFulfilled"]
            if len(settled) > 2:
                outcomes[-1] = CallOutcome(False, 0, (), "out of gas")
            return outcomes

        world.chain.simulate = with_small_blocks  # type: ignore[method-assign]
        for _ in range(3):
            await world.settle()
        assert {await world.state(id_) for id_ in ids} == {"fulfilled"}
