"""The scheduling loop: what it stores before it acts, and what it does with the answers."""

from __future__ import annotations

from dataclasses import replace

from headrace.core import typed_data
from headrace.core.errors import Unknown
from headrace.core.lost import MAX_UNRECORDED, lost_record
from headrace.core.scheduling import Policy, plan_cycle
from headrace.core.snapshot import decode_snapshot, policy_hash
from headrace.core.types import ZERO_HASH, DecisionKind, GasQuote, Reason
from tests.services.world import LEASE_MS, a_world


async def test_step__one_request_and_one_node__is_assigned_and_accepted() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request())
        plan = await world.cycle()
        assert plan is not None
        assert [planned.decision.kind for planned in plan.decisions] == [DecisionKind.ASSIGNED]
        (stored,) = await world.store.assignments(id_)
        assert stored.state == "accepted"
        assert await world.state(id_) == "computing"
        digest = typed_data.digest(
            typed_data.Domain(world.chain.chain_id, world.chain.market), typed_data.hash_assignment(stored.assignment)
        )
        assert typed_data.signer_of(digest, stored.signature) == world.signer.address


async def test_step__a_cycle__stores_a_snapshot_that_replays_to_its_decisions() -> None:
    async with a_world(nodes=2) as world:
        await world.post(*[world.request(salt=salt) for salt in range(5)])
        plan = await world.cycle()
        (cycle,) = await world.store.cycles(1)
        snapshot = await world.store.snapshot(cycle.snapshot_hash)
        assert snapshot is not None
        inputs = decode_snapshot(snapshot)
        assert plan_cycle(inputs) == plan == cycle.plan
        (round_,) = await world.store.rounds()
        assert round_.policy_hash == policy_hash(Policy())


async def test_step__heartbeats_come_while_it_reads__are_not_later_than_the_plan() -> None:
    """An audit takes one that is for the relayer's invention."""
    async with a_world(nodes=2) as world:
        quote = world.chain.gas_quote

        async def slow_quote() -> GasQuote:
            world.clock.advance(50)
            return await quote()

        world.chain.gas_quote = slow_quote  # type: ignore[method-assign]
        await world.post(world.request())
        await world.cycle()
        (cycle,) = await world.store.cycles(1)
        snapshot = await world.store.snapshot(cycle.snapshot_hash)
        assert snapshot is not None
        inputs = decode_snapshot(snapshot)
        assert max(node.heartbeat_at_ms for node in inputs.nodes) <= inputs.now_ms


async def test_step__nothing_new__stores_no_further_cycle() -> None:
    async with a_world(nodes=0) as world:
        (id_,) = await world.post(world.request())
        assert await world.cycle() is not None
        assert await world.cycle() is None
        assert (await world.store.last_decisions([id_]))[id_].reason is Reason.NO_NODE_FOR_MODEL


async def test_step__many_rounds_wait_for_their_records__none_is_decided_until_some_are_on_record() -> None:
    """What a relayer that loses its store may have signed for has a bound by it."""
    async with a_world() as world:
        records = [lost_record(world.signer.address, number, 1, ZERO_HASH) for number in range(1, MAX_UNRECORDED + 1)]
        await world.store.seal_lost_rounds(records, world.clock.now_ms())
        (id_,) = await world.post(world.request())
        assert await world.cycle() is None
        world.chain.mine(world.chain.recorded(world.signer.address, records[0]))
        await world.index()
        assert await world.cycle() is not None
        (stored,) = await world.store.assignments(id_)
        assert stored.assignment.round == MAX_UNRECORDED + 1


async def test_step__policy_changed_after_an_assignment__goes_on_in_a_new_round() -> None:
    async with a_world(nodes=2) as world:
        await world.post(world.request())
        await world.cycle()
        changed = Policy(realtime_streak=5)
        world.adopt(changed)
        (second,) = await world.post(world.request(salt=2))
        await world.cycle()
        later, earlier = await world.store.rounds()
        assert (earlier.state, earlier.policy_hash) == ("closed", policy_hash(Policy()))
        assert earlier.record is not None and earlier.record.policy_hash == policy_hash(Policy())
        assert (later.round, later.state, later.policy_hash) == (2, "open", policy_hash(changed))
        assert (await world.store.assignments(second))[-1].assignment.round == 2


async def test_step__policy_changed_before_any_assignment__starts_the_round_over() -> None:
    async with a_world(nodes=0) as world:
        (id_,) = await world.post(world.request())
        await world.cycle()
        changed = Policy(realtime_streak=5)
        world.adopt(changed)
        await world.cycle()
        (round_,) = await world.store.rounds()
        assert (round_.round, round_.state, round_.cycles) == (1, "open", 1)
        assert round_.policy_hash == policy_hash(changed)
        assert (await world.store.last_decisions([id_]))[id_].reason is Reason.NO_NODE_FOR_MODEL


async def test_step__prompt_not_handed_in__waits_and_is_assigned_once_it_is() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request(), prompt=None)
        await world.cycle()
        assert (await world.store.last_decisions([id_]))[id_].reason is Reason.PROMPT_MISSING
        await world.post()
        await world.cycle()
        assert await world.state(id_) == "computing"


async def test_step__node_refuses__another_node_is_tried_and_the_first_never_again() -> None:
    async with a_world(nodes=2) as world:
        (id_,) = await world.post(world.request())
        for node in world.link.nodes.values():
            node.answer = node.refuse
        await world.cycle()
        assert await world.state(id_) == "eligible"
        await world.cycle()
        tried = await world.store.assignments(id_)
        assert [each.state for each in tried] == ["refused", "refused"]
        assert {each.assignment.node for each in tried} == set(world.link.nodes)
        await world.cycle()
        assert (await world.store.last_decisions([id_]))[id_].reason is Reason.NODES_EXCLUDED


async def test_step__node_cannot_take_it_now__another_has_it_at_once() -> None:
    async with a_world(nodes=2) as world:
        (id_,) = await world.post(world.request())
        first, second = world.link.nodes.values()
        first.answer = first.put_off
        second.answer = second.put_off
        await world.cycle()
        await world.cycle()
        assert [each.state for each in await world.store.assignments(id_)] == ["put_off", "put_off"]
        assert {each.assignment.round for each in await world.store.assignments(id_)} == {1}


async def test_step__node_could_not_take_it__is_asked_again_in_a_later_round_after_a_pause() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request())
        (node,) = world.link.nodes.values()
        node.answer = node.put_off
        pauses = [5_000, 10_000, 15_000, 20_000]
        for asked, pause_ms in enumerate(pauses, start=1):
            await world.cycle()
            assert len(await world.store.assignments(id_)) == asked
            world.clock.advance(pause_ms - 1)
            await world.cycle()
            assert len(await world.store.assignments(id_)) == asked
            assert (await world.store.last_decisions([id_]))[id_].reason is Reason.NODES_EXCLUDED
            world.clock.advance(1)
        node.answer = None
        await world.cycle()
        tried = await world.store.assignments(id_)
        # It was never tried: what a policy allows is not used up.
        assert [each.state for each in tried] == ["put_off"] * 4 + ["accepted"]
        assert [each.assignment.round for each in tried] == [1, 2, 3, 4, 5]
        assert [each.attempt for each in tried] == [1, 2, 3, 4, 5]
        decisions = [
            planned.decision
            for round_ in range(1, 6)
            for cycle in await world.store.cycles(round_)
            for planned in cycle.plan.of_kind(DecisionKind.ASSIGNED)
        ]
        assert [decision.supersedes_round for decision in decisions] == [0, 1, 2, 3, 4]


async def test_step__retry__names_the_round_it_supersedes() -> None:
    async with a_world(nodes=2) as world:
        await world.post(world.request())
        for node in world.link.nodes.values():
            node.answer = node.refuse
        await world.cycle()
        await world.cycle()
        decisions = [planned.decision for cycle in await world.store.cycles(1) for planned in cycle.plan.decisions]
        assert [decision.supersedes_round for decision in decisions] == [0, 1]


async def test_step__answer_is_lost__stays_open_and_is_sent_again_as_the_same_task() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request())
        (node,) = world.link.nodes.values()
        node.answer = Unknown("the link broke")
        await world.cycle()
        assert await world.state(id_) == "assigned"
        node.answer = None
        await world.cycle()
        assert await world.state(id_) == "computing"
        assert len(node.tasks) == 2
        assert node.tasks[0] == node.tasks[1]


async def test_step__lease_ends_without_result__request_goes_back_and_the_metric_counts_it() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request())
        await world.cycle()
        world.clock.advance(LEASE_MS - 1)
        await world.cycle()
        assert await world.state(id_) == "computing"
        world.clock.advance(1)
        await world.cycle()
        assert await world.state(id_) == "eligible"
        assert world.metrics.counts["headrace_assignments_total", "outcome=lease_expired"] == 1


async def test_step__node_is_not_linked_any_more__request_goes_back_at_once() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request())
        (node,) = world.link.nodes.values()
        node.answer = Unknown("the link broke")
        await world.cycle()
        world.link.nodes.clear()
        await world.cycle()
        assert await world.state(id_) == "eligible"


async def test_step__accept_signed_by_another_key__counts_as_a_refusal() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request())
        (node,) = world.link.nodes.values()
        node.answer = lambda task: replace(node.accept(task), signature=world.signer.sign_digest(bytes(32)))
        await world.cycle()
        (stored,) = await world.store.assignments(id_)
        assert stored.state == "refused"
        assert "accept is signed by" in stored.detail


async def test_step__deadline_passed__is_too_late_once_and_left_alone_after() -> None:
    async with a_world(nodes=0) as world:
        request = world.request()
        (id_,) = await world.post(request)
        world.clock.advance((request.deadline_s + 1) * 1000 - world.clock.now_ms())
        plan = await world.cycle()
        assert plan is not None
        assert plan.decisions[0].decision.kind is DecisionKind.TOO_LATE
        assert await world.cycle() is None
        assert await world.state(id_) == "eligible"


async def test_step__inactive_or_left_node__gets_nothing() -> None:
    async with a_world() as world:
        (key,) = world.link.nodes
        world.chain.facts[key] = replace(world.chain.facts[key], is_active=False)
        (id_,) = await world.post(world.request())
        await world.cycle()
        assert (await world.store.last_decisions([id_]))[id_].reason is Reason.NO_NODE_FOR_MODEL


async def test_step__request_of_another_relayer__is_never_scheduled() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request(relayer="0x" + "99" * 20))
        assert await world.cycle() is None
        assert await world.state(id_) == "included"


async def test_hold__waiting_request__is_not_assigned_while_its_release_counts() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request())
        until_ms = world.clock.now_ms() + 60_000
        assert await world.scheduler.hold(id_, until_ms)
        await world.cycle()
        assert (await world.store.last_decisions([id_]))[id_].reason is Reason.RELEASED
        world.clock.advance(60_000 + 30_000)
        await world.cycle()
        assert await world.state(id_) == "eligible", "a cancel may still be on its way"
        world.clock.advance(1_000)
        await world.cycle()
        assert await world.state(id_) == "computing"


async def test_hold__assigned_request__is_refused() -> None:
    async with a_world() as world:
        (id_,) = await world.post(world.request())
        await world.cycle()
        assert not await world.scheduler.hold(id_, world.clock.now_ms() + 60_000)
        stored = await world.store.request(id_)
        assert stored is not None
        assert stored.released_until_s == 0


async def test_hold__shorter_than_one_before__does_not_take_it_back() -> None:
    async with a_world(nodes=0) as world:
        (id_,) = await world.post(world.request())
        now_ms = world.clock.now_ms()
        assert await world.scheduler.hold(id_, now_ms + 60_000)
        assert await world.scheduler.hold(id_, now_ms + 1_000)
        stored = await world.store.request(id_)
        assert stored is not None
        assert stored.released_until_s * 1000 == now_ms + 60_000


async def test_cycle__block_is_stored_and_its_requests_are_not_eligible_yet__waits_for_them() -> None:
    """Its snapshot would name the block, and leave out what an audit finds eligible at it."""
    async with a_world() as world:
        (early,) = await world.post(world.request(salt=1))
        late = world.request(salt=3)
        world.chain.mine(world.chain.requested(late))
        await world.store.add_blocks(
            [world.chain.all_blocks()[-1]], world.chain.all_events()[-1:], world.signer.address
        )
        assert await world.cycle() is None
        await world.store.confirm_up_to(world.chain.all_blocks()[-1].number, world.clock.now_ms())
        plan = await world.cycle()
        assert plan is not None
        decided = {planned.decision.request_id for planned in plan.decisions}
        assert {early, world.chain.id_of(late)} <= decided
