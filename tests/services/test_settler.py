"""Settling: rounds recorded with their batch, everything stored before it is sent, nothing paid twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.core.adaptive_batching import AdaptivePolicy
from headrace.core.batching import BatchPolicy
from headrace.core.errors import ChainUnavailable, ExpiredContext, Refused, Unknown
from headrace.core.fees import charged_gas, charged_gas_price_wei
from headrace.core.types import GasQuote, ItemStatus, Status
from headrace.ports import Call, CallOutcome
from tests.fakes import GWEI, TERMS
from tests.services.world import a_world

AT_ONCE = BatchPolicy(max_age_ms=0)


async def test_step__ready_result__is_recorded_and_settled_in_one_block() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        await world.settle()
        assert await world.state(id_) == "fulfilled"
        names = [event.name for event in world.chain.all_events()]
        assert names == ["InferenceRequested", "RoundRecorded", "ResultFulfilled", "BatchSettled"]
        round_ = await world.store.round(1)
        assert round_ is not None
        assert round_.state == "recorded"
        assert await world.chain.statuses([id_]) == [Status.FULFILLED]


async def test_step__batch_not_due__waits_for_more() -> None:
    async with a_world(batching=BatchPolicy(max_items=2, max_age_ms=5_000)) as world:
        (first,) = await world.serve(world.request(salt=1))
        assert not await world.settler.step()
        (second,) = await world.serve(world.request(salt=2))
        await world.settle()
        assert [await world.state(id_) for id_ in (first, second)] == ["fulfilled", "fulfilled"]


async def test_step__two_results_of_a_node__are_signed_as_a_set() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await world.serve(world.request(salt=1), world.request(salt=2))
        await world.settle()
        (node,) = world.link.nodes
        assert world.link.set_requests == [(node, 1, 2)]


async def test_step__node_signs_no_set__single_signatures_are_used() -> None:
    async with a_world(batching=AT_ONCE) as world:
        ids = await world.serve(world.request(salt=1), world.request(salt=2))
        for node in world.link.nodes.values():
            node.signs_sets = False
        await world.settle()
        assert [await world.state(id_) for id_ in ids] == ["fulfilled", "fulfilled"]


async def test_step__every_broadcast__was_stored_before() -> None:
    async with a_world(batching=AT_ONCE) as world:
        await world.serve(world.request())
        stored_at_send = []
        send_raw = world.chain.send_raw

        async def witness(raw: bytes) -> None:
            intents = await world.store.open_intents()
            stored_at_send.append(any(attempt.raw == raw for intent in intents for attempt in intent.attempts))
            await send_raw(raw)

        world.chain.send_raw = witness  # type: ignore[method-assign]
        await world.settle()
        assert stored_at_send == [True, True]


async def test_step__answer_to_the_send_is_lost__nothing_is_sent_under_another_nonce() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        world.chain.fail("send_raw", Unknown("timed out"), Unknown("timed out"))
        await world.settle()
        assert await world.state(id_) == "fulfilled"
        assert len(world.chain.sent) == 2


async def test_step__dropped_transaction__is_sent_again_byte_for_byte() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        await world.settler.step()
        world.chain.drop_pool()
        world.clock.advance(10_000)
        await world.settler.step()
        assert world.chain.sent[:2] == world.chain.sent[2:]
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_step__nonces_taken_by_another_transaction_of_the_key__are_drafted_anew() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        await world.settler.step()
        world.chain.drop_pool()
        for intent in await world.store.open_intents():
            foreign = {"type": 2, "chainId": world.chain.chain_id, "nonce": intent.nonce, "to": world.signer.address}
            foreign |= {"value": 1, "gas": 21_000, "maxFeePerGas": 10**10, "maxPriorityFeePerGas": 10**9, "data": b""}
            await world.chain.send_raw(world.signer.transaction(foreign)[0])
        world.chain.mine()
        await world.settler.step()
        assert await world.state(id_) == "settling", "a receipt may only be late"
        for _ in range(3):
            world.chain.mine()
        await world.settler.step()
        assert world.metrics.counts[("headrace_transactions_total", "kind=submit_results", "outcome=dropped")] == 1
        await world.index()
        for _ in range(2):
            await world.settle()
        assert await world.state(id_) == "fulfilled"
        assert await world.store.open_intents() == []


async def test_step__unfunded_relayer__keeps_the_intent_and_goes_on_later() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        world.chain.fail("send_raw", *[Refused("insufficient funds for gas")] * 2)
        await world.settler.step()
        assert len(await world.store.open_intents()) == 2
        assert await world.state(id_) == "settling"
        world.clock.advance(10_000)
        await world.settler.step()
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_step__item_that_a_node_spoilt__goes_back_to_be_served_by_another() -> None:
    async with a_world(nodes=2, batching=AT_ONCE) as world:
        good, bad = await world.serve(world.request(salt=1), world.request(salt=2))
        world.chain.item_statuses[bad] = ItemStatus.NODE_NOT_JOINED
        await world.settle()
        assert await world.state(good) == "fulfilled"
        assert await world.state(bad) == "eligible"
        del world.chain.item_statuses[bad]
        await world.cycle()
        second = (await world.store.assignments(bad))[-1]
        node = world.link.nodes[second.assignment.node]
        await world.aggregator.delivered(node.deliver(node.tasks[-1]))
        await world.settle()
        assert await world.state(bad) == "fulfilled"


async def test_step__item_that_nothing_can_pay__is_set_aside_and_does_not_hold_up_others() -> None:
    async with a_world(batching=AT_ONCE) as world:
        good, late = await world.serve(world.request(salt=1), world.request(salt=2))
        world.chain.item_statuses[late] = ItemStatus.LATE
        await world.settle()
        assert await world.state(good) == "fulfilled"
        assert await world.state(late) == "signed"
        assert not await world.settler.step()
        (letter,) = await world.store.dead_letters(10)
        assert (letter.request_id, letter.reason, letter.error) == (
            late,
            "the market will never pay it: its time is over",
            "LATE",
        )
        assert "dead_letter" in [entry.stage for entry in await world.store.timeline(late)]
        world.chain.item_statuses.clear()
        assert await world.store.replay_dead_letter(late, world.clock.now_ms())
        assert not await world.store.replay_dead_letter(late, world.clock.now_ms())
        await world.settle()
        assert await world.state(late) == "fulfilled"


async def test_step__reorg_took_the_record_and_is_not_indexed__is_settled_later_all_the_same() -> None:
    async with a_world(batching=AT_ONCE) as world:
        first, second = world.request(salt=1), world.request(salt=2)
        ids = await world.post(first, second)
        await world.cycle()
        await world.cycle()  # a node has one request a cycle; both are of one round
        (node,) = world.link.nodes.values()
        await world.aggregator.delivered(node.deliver(node.tasks[0]))
        await world.settle()
        await world.aggregator.delivered(node.deliver(node.tasks[1]))
        world.chain.rollback(1)
        assert not await world.settler.step()
        assert await world.store.dead_letters(10) == []
        await world.store.rewind_to(len(world.chain.all_blocks()) - 1)
        await world.settle()
        await world.settle()
        assert [await world.state(id_) for id_ in ids] == ["fulfilled", "fulfilled"]


async def test_step__reorg_takes_a_request_while_it_is_drafted__waits_and_settles_it_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        simulate = world.chain.simulate

        async def reorg_meanwhile(sender: str, calls: Sequence[Call]) -> list[CallOutcome]:
            outcomes = await simulate(sender, calls)
            await world.store.rewind_to(0)
            return outcomes

        monkeypatch.setattr(world.chain, "simulate", reorg_meanwhile)
        assert not await world.settler.step()
        assert await world.state(id_) == "withdrawn"
        monkeypatch.undo()
        await world.index()
        assert await world.state(id_) == "signed"
        await world.settle()
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_step__time_is_over_and_the_round_not_recorded__is_set_aside() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        world.chain.item_statuses[id_] = ItemStatus.NO_ROUND
        assert not await world.settler.step()
        assert await world.store.dead_letters(10) == []
        world.clock.advance((world.request().deadline_s + 1) * 1000 - world.clock.now_ms())
        world.chain.mine()
        assert not await world.settler.step()
        (letter,) = await world.store.dead_letters(10)
        assert letter.error == "NO_ROUND"


@pytest.mark.parametrize("poisoned", [{0}, {49}, {7, 8}, {3, 20, 41}])
async def test_step__items_that_make_the_whole_revert__are_found_and_the_rest_goes_out_at_once(
    poisoned: set[int],
) -> None:
    async with a_world(batching=AT_ONCE) as world:
        for node in world.link.nodes.values():
            node.max_in_flight = 100
        ids = await world.serve(*[world.request(salt=number) for number in range(50)])
        world.chain.poison = {ids[number] for number in poisoned}
        before = world.chain.calls["simulate"]
        await world.settle()
        assert world.chain.calls["simulate"] - before <= 10 + 12 * len(poisoned)
        states = [await world.state(id_) for id_ in ids]
        assert states == ["signed" if number in poisoned else "fulfilled" for number in range(50)]
        assert await world.store.dead_letters(10) == [], "once proves little"


async def test_step__item_that_spoils_its_batch__is_given_up_at_the_third_time_and_can_be_tried_again() -> None:
    async with a_world(batching=AT_ONCE) as world:
        good, bad = await world.serve(world.request(salt=1), world.request(salt=2))
        world.chain.poison = {bad}
        await world.settle()
        for pause_ms in (5_000, 10_000):
            assert await world.store.dead_letters(10) == []
            simulated = world.chain.calls["simulate"]
            await world.settler.step()
            assert world.chain.calls["simulate"] == simulated, "it waits"
            world.clock.advance(pause_ms)
            await world.settler.step()
        (letter,) = await world.store.dead_letters(10)
        assert letter.request_id == bad
        assert letter.error == "InsufficientGas(required=2, available=1)"
        assert letter.call is not None
        assert [await world.state(id_) for id_ in (good, bad)] == ["fulfilled", "signed"]
        world.clock.advance(60_000)
        assert not await world.settler.step()
        world.chain.poison.clear()
        await world.store.replay_dead_letter(bad, world.clock.now_ms())
        await world.settle()
        assert await world.state(bad) == "fulfilled"


async def test_step__more_is_ready_before_a_batch_is_in_a_block__goes_out_behind_it() -> None:
    async with a_world(batching=BatchPolicy(max_items=2, max_age_ms=0)) as world:
        for node in world.link.nodes.values():
            node.max_in_flight = 100
        ids = await world.serve(*[world.request(salt=number) for number in range(12)])
        sent = [await world.settler.step() for _ in range(6)]
        assert sent == [True, True, True, True, False, False], "four are under way"
        intents = await world.store.open_intents()
        assert [intent.kind for intent in intents] == ["record_round", *["submit_results"] * 4]
        assert [intent.nonce for intent in intents] == [0, 1, 2, 3, 4]
        assert len({id_ for intent in intents for id_ in intent.detail.get("request_ids", ())}) == 8
        await world.settle()
        assert [await world.state(id_) for id_ in ids].count("fulfilled") == 8
        for _ in range(3):
            await world.settle()
        assert {await world.state(id_) for id_ in ids} == {"fulfilled"}


async def test_step__record_is_under_way__is_not_made_again() -> None:
    async with a_world() as world:
        (id_,) = await world.serve(world.request())
        stored = await world.store.request(id_)
        assert stored is not None
        world.clock.advance((stored.effective_deadline_s - 3) * 1000 - world.clock.now_ms())
        await world.settler.step()
        simulated = world.chain.calls["simulate"]
        assert not await world.settler.step()
        assert world.chain.calls["simulate"] == simulated


async def test_step__simulation_pays_less_than_promised__nothing_is_signed() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        simulate = world.chain.simulate

        async def cheating(sender: str, calls: list[Call]) -> list[CallOutcome]:
            *others, last = await simulate(sender, calls)
            events = [
                replace(each, args={**each.args, "nodePaid": 1}) if each.name == "ResultFulfilled" else each
                for each in last.events
            ]
            return [*others, replace(last, events=tuple(events))]

        world.chain.simulate = cheating  # type: ignore[method-assign,assignment]
        with pytest.raises(ExpiredContext, match="are promised"):
            await world.settler.step()
        assert world.chain.sent == []
        assert await world.store.open_intents() == []
        world.chain.simulate = simulate  # type: ignore[method-assign]
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_step__too_much_together__goes_out_in_parts() -> None:
    async with a_world(batching=AT_ONCE) as world:
        for node in world.link.nodes.values():
            node.max_in_flight = 100
        ids = await world.serve(*[world.request(salt=number) for number in range(8)])
        simulate = world.chain.simulate

        async def of_at_most_four(sender: str, calls: list[Call]) -> list[CallOutcome]:
            outcomes = await simulate(sender, calls)
            paid = sum(event.name == "ResultFulfilled" for event in outcomes[-1].events)
            return outcomes if paid <= 4 else [*outcomes[:-1], CallOutcome(False, 0, (), "out of gas")]

        world.chain.simulate = of_at_most_four  # type: ignore[method-assign,assignment]
        await world.settle()
        assert [await world.state(id_) for id_ in ids].count("fulfilled") == 4
        await world.settle()
        assert [await world.state(id_) for id_ in ids].count("fulfilled") == 8
        assert await world.store.dead_letters(10) == []


async def test_step__simulation_fails_as_a_whole__nothing_is_sent() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        world.chain.reverts["submit_results"] = "MalformedSet(setIndex=0)"
        assert not await world.settler.step()
        assert world.chain.sent == []
        assert await world.state(id_) == "signed"
        world.chain.reverts.clear()
        world.clock.advance(5_000)
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_step__deadline_nears_before_the_result__round_is_recorded_alone() -> None:
    async with a_world() as world:
        request = world.request()
        (id_,) = await world.post(request)
        await world.cycle()
        assert not await world.settler.step()
        world.clock.advance(request.deadline_s * 1000 - 5_000 - world.clock.now_ms())
        await world.settle()
        assert await world.chain.recorded_at_s(world.signer.address, 1) > 0
        assert await world.state(id_) == "computing"


async def test_step__result_in_grace_of_a_recorded_round__is_still_paid() -> None:
    async with a_world(batching=AT_ONCE) as world:
        request = world.request()
        (id_,) = await world.post(request)
        await world.cycle()
        world.clock.advance(request.deadline_s * 1000 - 5_000 - world.clock.now_ms())
        await world.settle()
        world.clock.advance(60_000)
        (node,) = world.link.nodes.values()
        await world.aggregator.delivered(node.deliver(node.tasks[0]))
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_step__reverted_batch__is_made_again() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        await world.settler.step()
        world.chain.reverts["submit_results"] = "EmptyBatch()"
        world.clock.advance(1_000)
        world.chain.mine()
        await world.sender.confirm()
        assert await world.state(id_) == "signed"
        world.chain.reverts.clear()
        for _ in range(3):
            await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_step__reorg_drops_the_batch__it_is_settled_once_more_and_paid_once() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        await world.settle()
        world.chain.reorg(1)
        await world.store.rewind_to(world.chain.all_blocks()[-2].number)
        await world.index()
        assert await world.state(id_) != "fulfilled"
        world.clock.advance(10_000)
        for _ in range(3):
            await world.settle()
        assert await world.state(id_) == "fulfilled"
        paid = [event for event in world.chain.all_events() if event.name == "ResultFulfilled"]
        assert len(paid) == 1


async def test_run__rpc_fails__is_postponed() -> None:
    async with a_world(batching=AT_ONCE) as world:
        (id_,) = await world.serve(world.request())
        world.chain.fail("simulate", ChainUnavailable("no answer"))
        with pytest.raises(ChainUnavailable):
            await world.settler.step()
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_inline_result__asked_for_and_paid_for__is_published() -> None:
    async with a_world(batching=AT_ONCE) as world:
        calls = []
        submit = world.chain.submit_results_call

        def spy(relayer: str, sets: object) -> object:
            calls.append(sets)
            return submit(relayer, sets)  # type: ignore[arg-type]

        world.chain.submit_results_call = spy  # type: ignore[assignment, method-assign]
        await world.serve(world.request(inline_result=True))
        await world.settle()
        assert calls[-1][0].payloads == (b"Rayleigh scattering.",)  # type: ignore[index]


async def test_inline_result__gas_budget_does_not_pay_for_it__goes_by_hash() -> None:
    async with a_world(batching=AT_ONCE) as world:
        calls = []
        submit = world.chain.submit_results_call

        def spy(relayer: str, sets: object) -> object:
            calls.append(sets)
            return submit(relayer, sets)  # type: ignore[arg-type]

        world.chain.submit_results_call = spy  # type: ignore[assignment, method-assign]
        gas = world.chain.terms.fixed_gas + world.chain.terms.item_gas
        request = replace(world.request(inline_result=True), gas_budget_wei=gas * world.chain.gas.price_wei)
        await world.serve(request)
        await world.settle()
        assert calls[-1][0].payloads == ()  # type: ignore[index]


# Policy `adaptive`


async def test_adaptive__a_budget_that_does_not_pay__waits_for_the_price_and_keeps_no_other_from_its_batch() -> None:
    async with a_world(batching=AdaptivePolicy()) as world:
        world.chain.gas = GasQuote(GWEI, GWEI)
        charge_wei = charged_gas(TERMS, 1, 0) * charged_gas_price_wei(TERMS, world.chain.gas)
        poor = world.request(salt=1, gas_budget_wei=charge_wei * 2)
        rich = world.request(salt=2, gas_budget_wei=charge_wei * 100, batchable=False)
        held, paid = await world.serve(poor, rich)
        world.chain.gas = GasQuote(10 * GWEI, GWEI)
        await world.settle()
        assert [await world.state(held), await world.state(paid)] == ["signed", "fulfilled"]
        assert world.metrics.gauges[("headrace_results_held",)] == 1
        world.chain.gas = GasQuote(GWEI, GWEI)
        world.clock.advance(AdaptivePolicy().longest_wait_ms)
        await world.settle()
        assert await world.state(held) == "fulfilled"


async def test_adaptive__blocks_come_in_time__a_batch_goes_shortly_before_the_next() -> None:
    async with a_world(batching=AdaptivePolicy(block_margin_ms=2_000)) as world:
        for _ in range(4):
            world.chain.mine()
            await world.settler.step()
            world.clock.advance(12_000)
        (id_,) = await world.serve(world.request())
        world.clock.advance(9_900)
        assert not await world.settler.step()
        world.clock.advance(100)
        assert await world.settler.step()
        await world.settle()
        assert await world.state(id_) == "fulfilled"
