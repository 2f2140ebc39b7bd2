"""A quorum from its first listing to its pay: misses, dissent, spares, restarts, what must never be (I36, I37)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.client.audits import StoreRounds, audit
from headrace.core.batching import BatchPolicy
from headrace.core.envelope import hash_payload, seal
from headrace.core.errors import InvalidInput, Unknown
from headrace.core.tasks import Refusal, RefusalReason, Task
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Address, DecisionKind, Hash32, Mode, Reason, Request
from headrace.ports import ResultSetCall, StoredAssignment
from tests.services.world import LEASE_MS, MODEL, FakeNode, World, a_world

AT_ONCE = BatchPolicy(max_age_ms=0)
GOOD, OTHER = b"Rayleigh scattering.", b"Magic."


def quorum(world: World, k: int = 2, n: int = 3, **changes: object) -> Request:
    return world.request(**{"mode": Mode.QUORUM, "k": k, "n": n, **changes})


def nodes_of(world: World) -> list[FakeNode]:
    """By key: routes cost the same, so they are chosen in this order."""
    return [world.link.nodes[key] for key in sorted(world.link.nodes)]


def last_task(node: FakeNode) -> Task:
    return node.tasks[-1]


async def deliver(world: World, node: FakeNode, content: bytes = GOOD) -> None:
    """Its answer to the last task that it got."""
    await world.aggregator.delivered(node.deliver(last_task(node), content))


async def listings(world: World, request_id: Hash32) -> dict[int, dict[Address, str]]:
    """The states of its assignments, by round and node."""
    found: dict[int, dict[Address, str]] = {}
    for stored in await world.store.assignments(request_id):
        found.setdefault(stored.assignment.round, {})[stored.assignment.node] = stored.state
    return found


def spied_sets(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[ResultSetCall]]:
    """The sets of each batch that is drafted from now on."""
    calls: list[Sequence[ResultSetCall]] = []
    submit = world.chain.submit_results_call

    def spy(relayer: Address, sets: Sequence[ResultSetCall]) -> object:
        calls.append(sets)
        return submit(relayer, sets)

    monkeypatch.setattr(world.chain, "submit_results_call", spy)
    return calls


async def reason_of(world: World, request_id: Hash32) -> Reason:
    return (await world.store.last_decisions([request_id]))[request_id].reason


# All goes well


async def test_all_agree__is_settled_with_all_their_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world(nodes=3, batching=AT_ONCE) as world:
        sets = spied_sets(world, monkeypatch)
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        a, b, c = nodes_of(world)
        assert await listings(world, id_) == {1: {a.key: "accepted", b.key: "accepted"}}
        assert c.tasks == []
        await deliver(world, b)
        assert await world.state(id_) == "computing"
        assert await world.store.result(id_) is None
        assert await world.store.ready_results(9) == []
        await deliver(world, a)
        assert await world.state(id_) == "signed"
        await world.settle()
        assert await world.state(id_) == "fulfilled"
        (only,) = sets[-1]
        assert only.nodes == (a.key, b.key)
        assert only.signatures == tuple(node.deliver(last_task(node)).signature for node in (a, b))
        (paid,) = [event for event in world.chain.all_events() if event.name == "ResultFulfilled"]
        reward_wei = last_task(a).assignment.reward_wei
        # 80 % of the priority fee is theirs, in equal parts.
        assert paid.args["nodePaid"] == 2 * (reward_wei + 8 * 10**13 // 2)
        assert world.link.set_requests == []


async def test_several_of_the_same_nodes__are_one_set_that_each_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world(nodes=2, batching=AT_ONCE) as world:
        sets = spied_sets(world, monkeypatch)
        ids = await serve_all(world, quorum(world, n=2, salt=1), quorum(world, n=2, salt=2))
        await world.settle()
        assert [await world.state(id_) for id_ in ids] == ["fulfilled", "fulfilled"]
        (only,) = sets[-1]
        assert (len(only.items), len(only.signatures)) == (2, 2)
        assert world.link.set_requests == [(node.key, 1, 2) for node in nodes_of(world)]


async def test_one_of_them_signs_no_set__each_result_is_signed_item_by_item(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world(nodes=2, batching=AT_ONCE) as world:
        sets = spied_sets(world, monkeypatch)
        ids = await serve_all(world, quorum(world, n=2, salt=1), quorum(world, n=2, salt=2))
        nodes_of(world)[1].signs_sets = False
        await world.settle()
        assert [await world.state(id_) for id_ in ids] == ["fulfilled", "fulfilled"]
        (only,) = sets[-1]
        by_id = {task.assignment.request_id: task for task in nodes_of(world)[0].tasks}
        expected = [
            node.deliver(replace(by_id[result.request_id], assignment=word_of(node, result.request_id))).signature
            for _, result in only.items
            for node in nodes_of(world)
        ]
        assert list(only.signatures) == expected


async def test_with_single_requests_beside_them__each_kind_has_its_own_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world(nodes=3, batching=AT_ONCE) as world:
        sets = spied_sets(world, monkeypatch)
        ids = await serve_all(world, quorum(world, salt=1), world.request(salt=2))
        await world.settle()
        assert [await world.state(id_) for id_ in ids] == ["fulfilled", "fulfilled"]
        assert sorted(len(each.nodes) for each in sets[-1]) == [1, 2]


async def test_owners_too_few__waits_and_asks_nobody() -> None:
    async with a_world(nodes=2) as world:
        a, b = nodes_of(world)
        world.chain.facts[b.key] = replace(world.chain.facts[b.key], owner=world.chain.facts[a.key].owner)
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        assert await reason_of(world, id_) is Reason.OWNERS_TOO_FEW
        assert (await listings(world, id_), a.tasks, b.tasks) == ({}, [], [])


async def test_model_of_unknown_weights__is_not_assigned() -> None:
    async with a_world(nodes=2) as world:
        world.scheduler._models = {MODEL.model_id: replace(MODEL, weights_hash=ZERO_HASH)}
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        assert await reason_of(world, id_) is Reason.NOT_DETERMINISTIC


async def test_prompt_that_leaves_the_answer_open__is_not_assigned() -> None:
    async with a_world(nodes=2) as world:
        chat = seal(b'{"messages":[{"role":"user","content":"Hi"}],"temperature":1,"seed":1}', bytes(16))
        request = quorum(world, prompt_hash=hash_payload(chat), prompt_bytes=len(chat))
        (id_,) = await world.post(request, prompt=chat)
        await world.cycle()
        assert await reason_of(world, id_) is Reason.NOT_DETERMINISTIC


# Misses


async def test_one_refuses__all_of_it_is_listed_again_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world(nodes=3, batching=AT_ONCE) as world:
        sets = spied_sets(world, monkeypatch)
        a, b, c = nodes_of(world)
        b.answer = b.refuse
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        assert await world.state(id_) == "eligible"
        await deliver(world, a)
        await world.cycle()
        assert await listings(world, id_) == {
            1: {a.key: "delivered", b.key: "refused"},
            2: {a.key: "accepted", c.key: "accepted"},
        }
        leaves = [planned.decision for cycle in await world.store.cycles(2) for planned in cycle.plan.decisions]
        assert {(leaf.node, leaf.reason, leaf.supersedes_round) for leaf in leaves} == {
            (a.key, Reason.QUORUM_KEPT, 1),
            (c.key, Reason.LOWEST_COST, 1),
        }
        await deliver(world, c)
        assert await world.state(id_) == "computing", "the first node's word was for another round"
        await deliver(world, a)
        await world.settle()
        assert await world.state(id_) == "fulfilled"
        assert [(each.round, each.nodes) for each in sets[-1]] == [(2, tuple(sorted((a.key, c.key))))]
        assert await world.chain.recorded_at_s(world.signer.address, 1) > 0, "what was promised in it must be provable"


async def test_lease_lapses__a_spare_is_asked_and_the_other_keeps_its_work() -> None:
    async with a_world(nodes=3, batching=AT_ONCE) as world:
        a, b, c = nodes_of(world)
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        await deliver(world, a)
        world.clock.advance(LEASE_MS)
        await world.cycle()
        assert (await listings(world, id_))[1] == {a.key: "delivered", b.key: "lease_expired"}
        last = (await world.store.assignments(id_))[-1]
        assert last.lease_until_ms - last.assigned_at_ms == 2 * LEASE_MS, "leases grow with each listing"
        for node in (a, c):
            await deliver(world, node)
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_one_gives_up_while_the_other_computes__the_computing_one_is_kept() -> None:
    async with a_world(nodes=3, batching=AT_ONCE) as world:
        a, b, c = nodes_of(world)
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        await world.aggregator.gave_up(b.key, Refusal(id_, 1, RefusalReason.BACKEND_FAILED, "out of memory"))
        assert await world.state(id_) == "eligible"
        await world.cycle()
        assert await listings(world, id_) == {
            1: {a.key: "superseded", b.key: "failed"},
            2: {a.key: "accepted", c.key: "accepted"},
        }
        await deliver(world, a)
        await deliver(world, c)
        assert await world.state(id_) == "signed"


async def test_answer_to_the_old_listing_comes_late__counts_but_does_not_complete_the_new_one() -> None:
    async with a_world(nodes=3) as world:
        a, b, c = nodes_of(world)
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        old_word = last_task(a)
        await world.aggregator.gave_up(b.key, Refusal(id_, 1, RefusalReason.BACKEND_FAILED, "out of memory"))
        await world.cycle()
        await world.aggregator.delivered(a.deliver(old_word))
        await deliver(world, c)
        assert await world.state(id_) == "computing"
        await deliver(world, a)
        assert await world.state(id_) == "signed"
        ((first, second),) = await world.store.ready_results(9)
        assert {first.result.round, second.result.round} == {2}


async def test_missed_node_delivers_before_a_spare_is_asked__it_agrees_after_all() -> None:
    async with a_world(nodes=2, batching=AT_ONCE) as world:
        a, b = nodes_of(world)
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        await deliver(world, a)
        world.clock.advance(LEASE_MS)
        await world.cycle()
        assert await world.state(id_) == "eligible"
        await deliver(world, b)
        assert await world.state(id_) == "signed"
        await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_n_nodes_tried__is_given_up_until_it_expires() -> None:
    async with a_world(nodes=4) as world:
        for node in nodes_of(world):
            node.answer = node.refuse
        request = quorum(world)
        (id_,) = await world.post(request)
        for _ in range(4):
            await world.cycle()
        assert await reason_of(world, id_) is Reason.ATTEMPTS_EXHAUSTED
        tried = {node for nodes in (await listings(world, id_)).values() for node in nodes}
        assert len(tried) <= 3
        world.clock.advance((request.deadline_s + 301) * 1000 - world.clock.now_ms())
        world.chain.mine()
        await world.index()
        assert await world.reaper.step() == 1


async def test_word_of_a_node_is_lost__is_asked_again_in_the_same_listing() -> None:
    async with a_world(nodes=2) as world:
        a, b = nodes_of(world)
        b.answer = Unknown("the link broke")
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        assert await listings(world, id_) == {1: {a.key: "accepted", b.key: "open"}}
        b.answer = None
        await world.cycle()
        assert await listings(world, id_) == {1: {a.key: "accepted", b.key: "accepted"}}
        assert b.tasks[0] == b.tasks[1]
        assert len(a.tasks) == 1


# Dissent


async def test_two_answers__a_spare_decides_and_who_was_outvoted_is_not_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world(nodes=3, batching=AT_ONCE) as world:
        sets = spied_sets(world, monkeypatch)
        a, b, c = nodes_of(world)
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        await deliver(world, a, OTHER)
        await deliver(world, b, GOOD)
        assert await world.state(id_) == "eligible"
        said = {(result.node, result.result.result_hash) for result in await world.store.results(id_)}
        assert len({hash_ for _, hash_ in said}) == 2
        stages = [
            (entry.stage, entry.detail["node"]) for entry in await world.store.timeline(id_) if "node" in entry.detail
        ]
        assert ("voted", a.key) in stages
        assert ("dissented", b.key) in stages
        await world.cycle()
        await deliver(world, c, GOOD)
        # Their hashes say which of the two was kept beside the spare; if it was the other, that takes another listing.
        await world.cycle()
        for node in (b, c):
            await deliver(world, node, GOOD)
        assert await world.state(id_) == "signed"
        await world.settle()
        assert await world.state(id_) == "fulfilled"
        assert sets[-1][0].nodes == tuple(sorted((b.key, c.key)))
        (settled,) = [event for event in world.chain.all_events() if event.name == "ResultFulfilled"]
        assert settled.args["resultHash"] == b.deliver(last_task(b), GOOD).result.result_hash


async def test_three_answers__nothing_is_ever_settled() -> None:
    async with a_world(nodes=3, batching=AT_ONCE) as world:
        (id_,) = await world.post(quorum(world))
        answers = dict(zip(sorted(world.link.nodes), (b"one", b"two", b"three"), strict=True))
        for _ in range(4):
            await world.cycle()
            for node in nodes_of(world):
                if node.tasks:
                    await deliver(world, node, answers[node.key])
        assert await reason_of(world, id_) is Reason.ATTEMPTS_EXHAUSTED
        await world.settle()
        assert [event.name for event in world.chain.all_events() if event.name == "ResultFulfilled"] == []


async def test_another_hash_for_the_newer_round__is_an_equivocation_and_counts_for_nothing() -> None:
    async with a_world(nodes=3) as world:
        a, b, c = nodes_of(world)
        b.answer = b.refuse
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        await deliver(world, a)
        await world.cycle()
        with pytest.raises(InvalidInput, match="equivocation"):
            await deliver(world, a, OTHER)
        await deliver(world, c, OTHER)
        assert await world.state(id_) == "eligible", "its first word still contradicts the spare's"


async def test_node_that_was_never_listed__is_refused() -> None:
    async with a_world(nodes=3) as world:
        _, b, c = nodes_of(world)
        await world.post(quorum(world))
        await world.cycle()
        stolen = last_task(b)
        with pytest.raises(InvalidInput, match="not assigned to"):
            await world.aggregator.delivered(c.deliver(stolen))


# Money


async def test_node_left_the_market__the_others_are_listed_again_with_a_spare() -> None:
    async with a_world(nodes=3, batching=AT_ONCE) as world:
        a, b, c = nodes_of(world)
        (id_,) = await serve_all(world, quorum(world))
        facts = world.chain.facts[b.key]
        world.chain.facts[b.key] = replace(facts, payee=ZERO_ADDRESS)
        world.clock.advance(6_000)  # what the scheduler knows of nodes is that old at most
        await world.settle()
        assert await world.state(id_) == "eligible"
        await world.cycle()
        assert set((await listings(world, id_))[2]) == {a.key, c.key}
        for node in (a, c):
            await deliver(world, node)
        for _ in range(2):
            await world.settle()
        assert await world.state(id_) == "fulfilled"


async def test_dearest_of_its_nodes__sets_the_reward_of_all() -> None:
    async with a_world(nodes=2) as world:
        a, b = nodes_of(world)
        (offer,) = world.chain.node_offers[b.key]
        dear = replace(offer, price=replace(offer.price, per_thousand_tokens_wei=3 * 10**13))
        world.chain.node_offers[b.key] = [dear]
        await world.post(quorum(world, n=2))
        await world.cycle()
        assert {last_task(node).assignment.reward_wei for node in (a, b)} == {10**12 + 3 * 10**13}


# Restarts and reorgs


@pytest.mark.parametrize("moment", ["one delivered", "one missed", "dissent", "listed again", "ready"])
async def test_relayer_restarts__goes_on_where_it_was(moment: str) -> None:
    async with a_world(nodes=3, batching=AT_ONCE) as world:
        a, b, c = nodes_of(world)
        (id_,) = await world.post(quorum(world))
        await world.cycle()
        await deliver(world, a)
        if moment in ("one missed", "listed again"):
            await world.aggregator.gave_up(b.key, Refusal(id_, 1, RefusalReason.BACKEND_FAILED, "out of memory"))
        elif moment in ("dissent", "ready"):
            await deliver(world, b, OTHER if moment == "dissent" else GOOD)
        if moment == "listed again":
            await world.cycle()
        world = world.restart(AT_ONCE)
        for _ in range(4):
            await world.cycle()
            for node in (a, b, c):
                for stored in await world.store.open_assignments():
                    if stored.assignment.node == node.key:
                        content = OTHER if (moment, node) == ("dissent", b) else GOOD
                        await deliver(world, node, content)
        for _ in range(2):
            await world.settle()
        assert await world.state(id_) == "fulfilled"
        paid = [event for event in world.chain.all_events() if event.name == "ResultFulfilled"]
        assert [event.args["resultHash"] for event in paid] == [a.deliver(last_task(a)).result.result_hash]


async def test_reorg_takes_its_settlement__is_settled_once_more() -> None:
    async with a_world(nodes=2, batching=AT_ONCE) as world:
        (id_,) = await serve_all(world, quorum(world, n=2))
        await world.settle()
        world.chain.reorg(1)
        await world.store.rewind_to(world.chain.all_blocks()[-2].number)
        await world.index()
        world.clock.advance(10_000)
        for _ in range(3):
            await world.settle()
        assert await world.state(id_) == "fulfilled"
        assert len([event for event in world.chain.all_events() if event.name == "ResultFulfilled"]) == 1


@pytest.mark.parametrize("delivered", [0, 1, 2])
async def test_reorg_takes_its_own_block_and_gives_it_back__stands_where_it_stood(delivered: int) -> None:
    async with a_world(nodes=2) as world:
        request = quorum(world, n=2)
        (id_,) = await world.post(request)
        await world.cycle()
        for node in nodes_of(world)[:delivered]:
            await deliver(world, node)
        before = await world.state(id_)
        world.chain.reorg(1, [world.chain.requested(request)])
        await world.store.rewind_to(world.chain.all_blocks()[-2].number)
        assert await world.state(id_) == "withdrawn"
        await world.index()
        assert await world.state(id_) == before == ("signed" if delivered == 2 else "computing")


# An auditor's view


async def test_audit__of_listings_after_miss_and_dissent__holds() -> None:
    async with a_world(nodes=4, batching=AT_ONCE) as world:
        registered = [world.chain.registered(key, facts.owner) for key, facts in world.chain.facts.items()]
        world.chain.mine(*registered)
        await world.index()
        a, b, c, d = nodes_of(world)
        a.answer = a.refuse
        (id_,) = await world.post(quorum(world, n=4))
        await world.cycle()
        await deliver(world, b, OTHER)
        await world.cycle()
        await deliver(world, c, GOOD)
        await world.cycle()
        await deliver(world, d, GOOD)
        for _ in range(3):
            await world.cycle()
            for stored in await world.store.open_assignments():
                await deliver(world, world.link.nodes[stored.assignment.node], GOOD)
        for _ in range(3):
            await world.settle()
        assert await world.state(id_) == "fulfilled"
        report = await audit(
            world.chain,
            StoreRounds(world.store),
            world.signer.address,
            first=None,
            last=None,
            first_block=0,
            confirmations=0,
        )
        assert report.last >= 3
        # The chain in memory makes up the heads of its records.
        assert [finding for finding in report.findings if finding.field != "head"] == []


# Whatever nodes do


BEHAVIOURS = ("good", "good", "good", "other", "refuses", "gives up", "silent", "late")


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    k=st.integers(2, 3),
    extra=st.integers(0, 3),
    behaviours=st.lists(st.sampled_from(BEHAVIOURS), min_size=6, max_size=6),
    data=st.data(),
)
async def test_whatever_nodes_do__what_is_settled_is_what_k_of_n_agree_on(
    k: int, extra: int, behaviours: list[str], data: st.DataObject
) -> None:
    """Nodes are tried in the order of their keys, so the first n decide: with k good ones among them it is answered."""
    n = k + extra
    async with a_world(nodes=6, batching=AT_ONCE) as world:
        (id_,) = await world.post(quorum(world, k, n, max_reward_wei=10**16))
        keys = sorted(world.link.nodes)
        behaves = dict(zip(keys, behaviours, strict=True))
        for key in keys:
            if behaves[key] == "refuses":
                world.link.nodes[key].answer = world.link.nodes[key].refuse
        for _ in range(60):
            await world.cycle()
            open_ = [each for each in await world.store.open_assignments() if behaves[each.assignment.node] != "silent"]
            if open_:
                await behave(world, data.draw(st.sampled_from(open_)), behaves)
            else:
                world.clock.advance(4 * n * LEASE_MS)
            await require_sound(world, id_, k, n)
            await world.settle()
            is_over = not open_ and await reason_of(world, id_) is Reason.ATTEMPTS_EXHAUSTED
            if is_over or await world.state(id_) == "fulfilled":
                break
        else:
            pytest.fail("it never ends")
        agree = behaves_of(behaves, keys[:n])
        paid = [event.args["resultHash"] for event in world.chain.all_events() if event.name == "ResultFulfilled"]
        assert len(paid) <= 1
        if paid:
            votes = [r for r in await world.store.results(id_) if r.result.result_hash == paid[0]]
            assert len({vote.node for vote in votes}) >= k
        if agree["good"] >= k and agree["other"] < k:
            assert paid == [hash_payload(seal(GOOD, bytes([7]) * 16))]
        if agree["good"] + agree["late"] < k and agree["other"] < k:
            assert paid == []


async def serve_all(world: World, *requests: Request) -> list[Hash32]:
    """Post requests, and let every node deliver what it is asked, until all are signed."""
    ids = await world.post(*requests)
    for _ in range(2 * len(requests) + 1):
        await world.cycle()
        for stored in await world.store.open_assignments():
            node = world.link.nodes[stored.assignment.node]
            (task,) = [each for each in node.tasks if each.assignment == stored.assignment]
            await world.aggregator.delivered(node.deliver(task))
    assert {await world.state(id_) for id_ in ids} == {"signed"}
    return ids


def word_of(node: FakeNode, request_id: Hash32) -> object:
    return next(task.assignment for task in node.tasks if task.assignment.request_id == request_id)


async def behave(world: World, stored: StoredAssignment, behaves: dict[Address, str]) -> None:
    node = world.link.nodes[stored.assignment.node]
    behaviour = behaves[node.key]
    if behaviour == "gives up":
        word = stored.assignment
        refusal = Refusal(word.request_id, word.round, RefusalReason.BACKEND_FAILED, "out of memory")
        await world.aggregator.gave_up(node.key, refusal)
        return
    if behaviour == "late":
        world.clock.advance(12 * LEASE_MS)
        await world.cycle()
    await deliver(world, node, OTHER if behaviour == "other" else GOOD)


async def require_sound(world: World, request_id: Hash32, k: int, n: int) -> None:
    """Each listing is of k nodes of different owners, one a round, and n nodes were tried at most."""
    found = await listings(world, request_id)
    assert all(len(nodes) == k for nodes in found.values())
    owners = [{world.chain.facts[node].owner for node in nodes} for nodes in found.values()]
    assert all(len(each) == k for each in owners)
    assert len({node for nodes in found.values() for node in nodes}) <= n
    for round_ in await world.store.rounds():
        leaves = [p.decision for c in await world.store.cycles(round_.round) for p in c.plan.decisions]
        assigned = [leaf for leaf in leaves if leaf.kind is DecisionKind.ASSIGNED]
        assert len(assigned) in (0, k)


def behaves_of(behaves: dict[Address, str], keys: Sequence[Address]) -> dict[str, int]:
    found = dict.fromkeys(BEHAVIOURS, 0)
    for key in keys:
        found[behaves[key]] += 1
    return found
