"""Gathering for an audit: from the chain, and from a relayer's API or its store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.client.audits import AuditReport, StoreRounds, audit, parse_rounds
from headrace.core.audit import Severity
from headrace.core.errors import InvalidInput, NotFound, Unavailable
from headrace.core.events import ChainEvent
from headrace.core.scheduling import CyclePlan, plan_cycle
from headrace.core.snapshot import decode_snapshot
from headrace.core.types import ZERO_HASH
from headrace.ports import StoredCycle, StoredRound
from tests.api.memory import MemoryStore
from tests.client.conftest import World as ApiWorld
from tests.core.audit_world import CONFIRMATIONS, NODE_SIGNER, World
from tests.fakes import RELAYER, make_request


def two_rounds() -> World:
    """Round 1 assigns the one request; round 2 serves one that came later."""
    world = World(make_request(salt=1))
    first = world.inputs()
    world.record(first)
    later = make_request(salt=2)
    world.chain.mine(world.chain.requested(later))
    block = world.chain.all_blocks()[-1]
    world.chain.mine_many(CONFIRMATIONS)
    world.requests = (later,)
    second = world.inputs(round_=2, streak=plan_cycle(first).lane_streak)
    request = replace(second.requests[0], included_at_s=block.timestamp_s)
    world.record(replace(second, requests=(request,)))
    return world


def fill(store: MemoryStore, world: World) -> MemoryStore:
    """Put a world's rounds where an API or an audit reads them."""
    for recorded, served in world.rounds:
        assert served is not None
        number = recorded.record.round
        for index, hash_ in enumerate(served.snapshot_hashes):
            store.snapshots[hash_] = served.snapshots[hash_]
            anchor = decode_snapshot(served.snapshots[hash_]).anchor
            store.all_cycles[number].append(StoredCycle(number, index, hash_, anchor, 0, CyclePlan((), 0)))
        store.all_leaves[number] = world.leaves[number]
        store.all_rounds[number] = StoredRound(
            number, "recorded", 0, 1, recorded.record, recorded.record.policy_hash, recorded.block, ZERO_HASH
        )
    return store


async def run(world: World, store: MemoryStore, first: int | None = None, last: int | None = None) -> AuditReport:
    source = StoreRounds(store)  # type: ignore[arg-type]
    return await audit(world.chain, source, RELAYER, first=first, last=last, first_block=0, confirmations=CONFIRMATIONS)


def severities(report: AuditReport) -> list[tuple[Severity, int, str]]:
    return [(finding.severity, finding.round, finding.field) for finding in report.findings]


async def test_audit__honest_relayer__finds_nothing() -> None:
    world = two_rounds()
    report = await run(world, fill(MemoryStore(), world))
    assert (report.findings, report.first, report.last) == ((), 1, 2)
    assert not report.differs
    assert not report.is_withheld


async def test_audit__from_a_later_round__knows_what_was_assigned_before() -> None:
    world = two_rounds()
    assert (await run(world, fill(MemoryStore(), world), first=2)).findings == ()


async def test_audit__earlier_leaves_withheld_or_changed__is_a_violation() -> None:
    world = two_rounds()
    store = fill(MemoryStore(), world)
    honest = store.all_leaves.pop(1)
    report = await run(world, store, first=2)
    assert (Severity.VIOLATION, 1, "decisions") in severities(report)
    store.all_leaves[1] = [replace(honest[0], reward_wei=1)]
    report = await run(world, store, first=2)
    assert (Severity.VIOLATION, 1, "decisions") in severities(report)
    assert report.is_withheld


async def test_audit__snapshot_withheld__is_a_violation() -> None:
    world = two_rounds()
    store = fill(MemoryStore(), world)
    store.snapshots.clear()
    report = await run(world, store)
    assert [finding.got for finding in report.findings] == ["withheld", "withheld"]


async def test_audit__request_left_out__is_a_difference() -> None:
    world = World(make_request(salt=1), make_request(salt=2))
    world.requests = world.requests[:1]
    world.record(world.inputs())
    report = await run(world, fill(MemoryStore(), world))
    assert severities(report) == [(Severity.DIFFERENCE, 1, "completeness")]
    assert report.differs


@pytest.mark.parametrize(("first", "last"), [(3, None), (1, 3), (2, 9)])
async def test_audit__round_not_recorded__says_which_are(first: int, last: int | None) -> None:
    world = two_rounds()
    with pytest.raises(InvalidInput, match=r"has recorded rounds 1\.\.2"):
        await run(world, MemoryStore(), first, last)


async def test_audit__relayer_without_rounds__says_so() -> None:
    with pytest.raises(NotFound, match="no round"):
        await run(World(make_request()), MemoryStore())


async def test_audit__endpoint_hides_a_record__is_not_taken_for_the_relayers_fault() -> None:
    world = two_rounds()
    events = world.chain.events

    async def some(from_block: int, to_block: int) -> list[Any]:
        found = await events(from_block, to_block)
        return [each for each in found if each.name != "RoundRecorded" or each.args["round"] != 1]

    world.chain.events = some  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="round 1"):
        await run(world, fill(MemoryStore(), world))


async def test_audit__over_the_api__is_the_same(world: ApiWorld) -> None:
    audited = two_rounds()
    fill(world.relayer.store, audited)

    async def over_the_api() -> AuditReport:
        return await audit(
            audited.chain,
            world.client.rounds(),
            RELAYER,
            first=2,
            last=2,
            first_block=0,
            confirmations=CONFIRMATIONS,
        )

    assert (await over_the_api()).findings == ()
    world.relayer.store.snapshots.clear()
    assert severities(await over_the_api()) == [(Severity.VIOLATION, 2, "snapshot")]
    world.relayer.store.all_rounds.clear()
    fields = severities(await over_the_api())
    assert fields == [(Severity.VIOLATION, 1, "decisions"), (Severity.VIOLATION, 2, "snapshots")]


@pytest.mark.parametrize(
    ("text", "rounds"), [("1..20", (1, 20)), ("3..", (3, None)), ("..9", (None, 9)), ("5", (5, 5))]
)
def test_parse_rounds__each_form(text: str, rounds: tuple[int | None, int | None]) -> None:
    assert parse_rounds(text) == rounds


@pytest.mark.parametrize("text", ["", "..", "a..b", "0..3", "-1", "9..3", "1...3", "²"])
def test_parse_rounds__no_rounds__is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="names no rounds"):
        parse_rounds(text)


async def test_audit__key_took_over_from_another__has_the_others_owner() -> None:
    world = two_rounds()
    new_key = NODE_SIGNER.address
    events = [event for event in world.chain.all_events() if event.args.get("key") != new_key]
    old_key = "0x" + "0d" * 20

    async def with_a_rotation(from_block: int, to_block: int) -> list[ChainEvent]:
        first = events[0]
        args = {"key": old_key, "owner": world.owners[new_key], "stake": 1, "metadataURI": ""}
        rotated = replace(first, name="KeyRotated", args={"oldKey": old_key, "newKey": new_key})
        return [replace(first, args=args), rotated, *events] if from_block == 0 else []

    world.chain.events = with_a_rotation  # type: ignore[method-assign]
    assert (await run(world, fill(MemoryStore(), world))).findings == ()


async def test_audit__node_that_nobody_registered__is_a_difference() -> None:
    world = two_rounds()
    everything = world.chain.all_events()

    async def without_it(from_block: int, to_block: int) -> list[ChainEvent]:
        return (
            [event for event in everything if event.args.get("key") != NODE_SIGNER.address] if from_block == 0 else []
        )

    world.chain.events = without_it  # type: ignore[method-assign]
    report = await run(world, fill(MemoryStore(), world))
    assert {finding.field for finding in report.findings} == {f"node {NODE_SIGNER.address} owner"}
