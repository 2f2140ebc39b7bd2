"""Watching: by the relayer over its own store, and by anyone over what the chain and a relayer's API say (I35)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import structlog

import tests.services.world as world_module
from headrace.adapters.sql.store import SqlStore
from headrace.core import typed_data
from headrace.core.errors import InvalidInput, Refused, Unavailable
from headrace.core.faults import Fault, SignedAccept, SignedAssignment, SignedResult, WatchedRound
from headrace.core.guard import GuardPolicy
from headrace.core.submissions import Submission, SubmittedSet
from headrace.core.tasks import Accept, Refusal, Task
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Assignment, Decision, GasQuote, Hash32, Result, Status
from headrace.ports import StoredFault
from headrace.services.dossiers import Dossiers
from headrace.services.prover import Prover, ProverSettings, RelayersProofs
from headrace.services.watch import StoreWords, Watch, WatchSettings
from tests.fakes import MARKET, SCHEDULE_LOG, FakeMetrics, FakeSigner, Log
from tests.services.faulty import FAULTS, TERMS, FaultyChain
from tests.services.world import LEASE_MS, AnySelector, FakeNode, World, a_world

HOUR_S = 3_600
GRACE_S = 300


@dataclass
class Relayer:
    """A relayer with its own watch."""

    world: World
    chain: FaultyChain
    watch: Watch

    @property
    def node(self) -> FakeNode:
        return next(iter(self.world.link.nodes.values()))

    async def serve(self, **changes: Any) -> Hash32:
        (request_id,) = await self.world.serve(self.world.request(**changes))
        await self.settle()
        return request_id

    async def settle(self) -> None:
        self.world.clock.advance(2_000)  # a batch waits for more
        await self.world.settle()

    async def leave_unserved(self, answer: Callable[[FakeNode, Task], Accept | Refusal] | None = None) -> Hash32:
        """A request that a node took and nobody answered, until it is expired."""
        if answer is not None:
            self.node.answer = lambda task: answer(self.node, task)
        now_s = self.world.clock.now_ms() // 1000
        (request_id,) = await self.world.post(self.world.request(deadline_s=now_s + HOUR_S))
        await self.world.cycle()
        await self.pass_time(LEASE_MS + 1)
        await self.world.cycle()  # the lease has ended
        await self.pass_time((HOUR_S - 3) * 1000 - LEASE_MS)
        await self.world.settle()  # a deadline is near
        await self.pass_time((GRACE_S + 10) * 1000)
        await self.world.reaper.step()
        await self.mine()
        return request_id

    async def pass_time(self, ms: int) -> None:
        self.world.clock.advance(ms)
        await self.mine()

    async def mine(self) -> None:
        self.chain.mine()
        await self.world.sender.confirm()
        await self.world.index()

    async def faults(self) -> list[tuple[Fault, str, str]]:
        return [(each.fault, each.culprit, each.state) for each in await self.world.store.faults(None, 100)]


def watch_of(world: World, chain: FaultyChain, settings: ProverSettings | None = None) -> Watch:
    proofs = RelayersProofs(world.store, world.sender, world.signer.address)
    prover = Prover(
        chain, world.store, world.clock, world.metrics, proofs, TERMS, settings or ProverSettings(confirmations=0)
    )
    dossiers = Dossiers(chain, world.store, StoreWords(world.store), world.signer.address)
    return Watch(
        chain,
        world.store,
        world.clock,
        world.metrics,
        dossiers,
        prover,
        WatchSettings(is_relayers_own=True, confirmations=0),
    )


@pytest.fixture
async def relayer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Relayer]:
    monkeypatch.setattr(world_module, "FakeChain", FaultyChain)
    async with a_world() as world:
        assert isinstance(world.chain, FaultyChain)
        allowed = {MARKET: AnySelector(), SCHEDULE_LOG: AnySelector(), FAULTS: AnySelector()}
        world.guard(GuardPolicy(allowed, 10**12))
        yield Relayer(world, world.chain, watch_of(world, world.chain))


# A relayer's own


async def test_own_watch__honest_history__finds_nothing(relayer: Relayer) -> None:
    await relayer.serve(salt=1)
    await relayer.serve(salt=2)
    await relayer.watch.step()
    assert await relayer.faults() == []
    assert relayer.chain.calls["is_proven"] == 0


async def test_own_watch__accepted_and_silent__is_proven_once(relayer: Relayer) -> None:
    request_id = await relayer.leave_unserved()
    await relayer.watch.step()
    assert await relayer.faults() == [(Fault.MISSED, relayer.node.key, "sent")]
    await relayer.mine()
    assert relayer.chain.proofs() == [(Fault.MISSED, relayer.node.key, request_id)]
    for _ in range(3):
        relayer.world.clock.advance(20_000)
        await relayer.watch.step()
        await relayer.mine()
    assert await relayer.faults() == [(Fault.MISSED, relayer.node.key, "proven")]
    assert len(relayer.chain.proofs()) == 1
    key = f"fault={Fault.MISSED.name}"
    for name in ("headrace_faults_found_total", "headrace_faults_proven_total"):
        assert relayer.world.metrics.counts[name, key] == 1


async def test_own_watch__refused_the_task__is_no_miss(relayer: Relayer) -> None:
    await relayer.leave_unserved(FakeNode.refuse)
    await relayer.watch.step()
    assert await relayer.faults() == []


async def test_own_watch__answered_too_late_to_be_settled__is_no_miss(relayer: Relayer) -> None:
    """The relayer has the node's result: that nobody was paid is not the node's doing."""
    world = relayer.world
    now_s = world.clock.now_ms() // 1000
    await world.post(world.request(deadline_s=now_s + HOUR_S))
    await world.cycle()
    await relayer.pass_time((HOUR_S - 3) * 1000)
    await world.settler.step()
    await relayer.mine()
    await world.aggregator.delivered(relayer.node.deliver(relayer.node.tasks[0]))
    await relayer.pass_time((GRACE_S + 10) * 1000)
    await world.reaper.step()
    await relayer.mine()
    assert [each.state for each in await world.store.requests()] == ["expired"]
    await relayer.watch.step()
    assert await relayer.faults() == []


async def test_own_watch__cancelled_before__is_no_miss(relayer: Relayer) -> None:
    world = relayer.world
    now_s = world.clock.now_ms() // 1000
    (request_id,) = await world.post(world.request(deadline_s=now_s + HOUR_S))
    await world.cycle()
    relayer.chain.mine(relayer.chain.cancel_announced(request_id, now_s + 5))
    await world.index()
    await relayer.pass_time((GRACE_S + 10) * 1000)
    await world.reaper.step()
    await relayer.mine()
    await relayer.watch.step()
    assert await relayer.faults() == []


@pytest.mark.parametrize("when", ["before it is settled", "after it is settled"])
async def test_own_watch__second_answer__is_kept_and_proven(relayer: Relayer, when: str) -> None:
    world = relayer.world
    (request_id,) = await world.serve(world.request())
    if when == "after it is settled":
        await relayer.settle()
        assert await world.state(request_id) == "fulfilled"
    await relayer.watch.step()
    with pytest.raises(InvalidInput, match="equivocation"):
        await world.aggregator.delivered(relayer.node.deliver(relayer.node.tasks[0], b"Because."))
    await relayer.watch.step()
    await relayer.mine()
    assert relayer.chain.proofs() == [(Fault.EQUIVOCATION, relayer.node.key, request_id)]


async def test_own_watch__second_answer_that_the_node_did_not_sign__is_no_evidence(relayer: Relayer) -> None:
    world = relayer.world
    (request_id,) = await world.serve(world.request())
    forged = replace(relayer.node.deliver(relayer.node.tasks[0], b"Because."), signature=bytes(65))
    with pytest.raises(InvalidInput):
        await world.aggregator.delivered(forged)
    await relayer.watch.step()
    assert await relayer.faults() == []
    assert len((await world.store.noted_results([request_id]))[request_id]) == 1


async def test_own_watch__restarted__goes_on_with_what_is_stored(relayer: Relayer) -> None:
    request_id = await relayer.leave_unserved()
    await relayer.watch.look()
    assert await relayer.faults() == [(Fault.MISSED, relayer.node.key, "found")]
    again = watch_of(relayer.world, relayer.chain)
    await again.step()
    await relayer.mine()
    assert relayer.chain.proofs() == [(Fault.MISSED, relayer.node.key, request_id)]


async def test_own_watch__crashed_after_it_was_sent__is_not_sent_again(relayer: Relayer) -> None:
    await relayer.leave_unserved()
    await relayer.watch.step()
    sent = len(relayer.chain.sent)
    (fault,) = await relayer.world.store.faults(None, 10)
    await relayer.world.store.set_fault(replace(fault, state="found", tried_at_ms=0))
    await watch_of(relayer.world, relayer.chain).step()
    assert len(relayer.chain.sent) == sent


async def test_own_watch__block_of_the_proof_is_gone__is_sent_again_byte_for_byte(relayer: Relayer) -> None:
    await relayer.leave_unserved()
    await relayer.watch.step()
    await relayer.mine()
    proof = relayer.chain.sent[-1]
    relayer.chain.reorg(1)
    await relayer.world.store.rewind_to(relayer.chain.all_blocks()[-2].number)
    await relayer.world.index()
    relayer.world.clock.advance(20_000)
    await relayer.watch.step()
    await relayer.world.sender.confirm()
    assert relayer.chain.sent[-1] == proof
    await relayer.mine()
    assert len(relayer.chain.proofs()) == 1


async def test_own_watch__its_own_fault__is_told_and_not_proven(relayer: Relayer) -> None:
    """A relayer does not slash itself; others may."""
    await relayer.leave_unserved()
    dossiers = relayer.watch._dossiers
    known = await dossiers.round(1)
    assert known is not None
    beside = replace(known.leaves[0], node="0x" + "ee" * 20)
    (key,) = dossiers._rounds
    dossiers._rounds[key] = WatchedRound(known.relayer, known.record, known.recorded_at_s, [*known.leaves, beside])
    with structlog.testing.capture_logs() as logs:
        await relayer.watch.step()
    assert [each["fault"] for each in logs if each["event"] == "own_fault"] == [Fault.DOUBLE_ASSIGNMENT.name]
    assert {fault for fault, _, _ in await relayer.faults()} == {Fault.MISSED}


# Whether it pays


@pytest.mark.parametrize(
    ("held_wei", "min_return_bps", "is_sent"), [(10**18, 10_000, True), (0, 10_000, False), (0, 0, True)]
)
async def test_prover__bounty_below_the_gas__waits_unless_it_is_told_not_to(
    relayer: Relayer, held_wei: int, min_return_bps: int, is_sent: bool
) -> None:
    await relayer.leave_unserved()
    relayer.chain.held[relayer.node.key] = held_wei
    await watch_of(relayer.world, relayer.chain, ProverSettings(min_return_bps, confirmations=0)).step()
    ((_, _, state),) = await relayer.faults()
    assert state == ("sent" if is_sent else "found")
    (fault,) = await relayer.world.store.faults(None, 10)
    assert ("does not pay" in fault.detail) != is_sent


async def test_prover__gas_gets_cheaper__is_sent_then(relayer: Relayer) -> None:
    await relayer.leave_unserved()
    cheap = relayer.chain.gas
    relayer.chain.gas = GasQuote(base_fee_wei=10**13, tip_wei=10**13)
    await relayer.watch.step()
    assert (await relayer.faults())[0][2] == "found"
    relayer.chain.gas = cheap
    await relayer.watch.step()
    assert (await relayer.faults())[0][2] == "found"  # it was tried a moment ago
    relayer.world.clock.advance(20_000)
    await relayer.watch.step()
    assert (await relayer.faults())[0][2] == "sent"


async def test_prover__somebody_was_faster__is_proven_without_sending(relayer: Relayer) -> None:
    request_id = await relayer.leave_unserved()
    await relayer.watch.look()
    sent = len(relayer.chain.sent)
    key = {"fault": int(Fault.MISSED), "culprit": relayer.node.key, "requestId": request_id, "node": ZERO_ADDRESS}
    args = {**key, "reporter": MARKET}
    relayer.chain.mine(Log(FAULTS, "FaultProven", args))
    await relayer.watch.step()
    assert (await relayer.faults())[0][2] == "proven"
    assert len(relayer.chain.sent) == sent


async def test_prover__chain_does_not_agree__is_refused_in_words(relayer: Relayer) -> None:
    await relayer.leave_unserved()
    await relayer.watch.look()
    (fault,) = await relayer.world.store.faults(None, 10)
    _, (found,) = relayer.chain._known_calls[fault.call.to, fault.call.data]
    spoilt = relayer.chain.prove_call(replace(found, proof=replace(found.proof, accept_deadline_s=1)))
    await relayer.world.store.set_fault(replace(fault, call=spoilt))
    await relayer.watch.step()
    (fault,) = await relayer.world.store.faults(None, 10)
    assert (fault.state, fault.detail) == ("refused", "not proven: not signed so")


async def test_prover__guard_says_no__is_tried_again_later(relayer: Relayer) -> None:
    await relayer.leave_unserved()
    relayer.world.guard(GuardPolicy({}, 10**12))
    await relayer.watch.step()
    (fault,) = await relayer.world.store.faults(None, 10)
    assert fault.state == "found"
    assert "not on the list" in fault.detail


async def test_watch__chain_does_not_answer__raises_and_goes_on_later(relayer: Relayer) -> None:
    await relayer.leave_unserved()
    relayer.chain.fail("simulate", Unavailable("no"))
    with pytest.raises(Unavailable):
        await relayer.watch.step()
    relayer.world.clock.advance(20_000)
    await relayer.watch.step()
    assert (await relayer.faults())[0][2] == "sent"


# Anyone's


@dataclass
class Words:
    """A relayer's API, as far as it goes: its own store's words, unless they are changed or withheld."""

    store: SqlStore
    changed: dict[int, list[Decision]] = field(default_factory=dict)
    withheld: set[int] = field(default_factory=set)
    accepts_withheld: bool = False

    async def leaves(self, round_: int, count: int) -> list[Decision] | None:
        if round_ in self.withheld:
            return None
        return self.changed.get(round_) or await self.store.leaves(round_)

    async def accepts(self, round_: int) -> list[SignedAccept] | None:
        return None if self.accepts_withheld else await StoreWords(self.store).accepts(round_)


@dataclass
class Proofs:
    """Sends as an account of its own, at once."""

    chain: FaultyChain
    address: str = "0x" + "ca" * 20
    problem: Exception | None = None

    async def is_under_way(self, fault: StoredFault) -> bool:
        return False

    async def send(self, fault: StoredFault, gas_used: int) -> Hash32:
        if self.problem:
            raise self.problem
        logs, error = self.chain._run(fault.call, self.chain.all_events(), self.address)
        assert not error
        self.chain.mine(*logs)
        return "0x" + "44" * 32


@dataclass
class Journal:
    words: list[SignedAssignment] = field(default_factory=list)

    async def assignments(self, since_ms: int) -> list[SignedAssignment]:
        return self.words


@dataclass
class Anyone:
    """A watcher with a store of its own."""

    relayer: Relayer
    store: SqlStore
    words: Words
    proofs: Proofs
    journal: Journal
    rounds: range | None = None

    def __post_init__(self) -> None:
        self.watch = self._watch(WatchSettings(confirmations=0))

    def _watch(self, settings: WatchSettings) -> Watch:
        chain, clock, metrics = self.relayer.chain, self.relayer.world.clock, FakeMetrics()
        prover = Prover(chain, self.store, clock, metrics, self.proofs, TERMS, ProverSettings(confirmations=0))
        dossiers = Dossiers(chain, self.store, self.words, self.relayer.world.signer.address, self.rounds)
        return Watch(chain, self.store, clock, metrics, dossiers, prover, settings, self.journal)

    async def look(self) -> list[tuple[Fault, str]]:
        """Index, look, prove; what is known to be proven then."""
        chain = self.relayer.chain
        last = await self.store.last_block()
        blocks = [block for block in chain.all_blocks() if last is None or block.number > last.number]
        numbers = {block.number for block in blocks}
        events = [event for event in chain.all_events() if event.block_number in numbers]
        await self.store.add_blocks(blocks, events, self.relayer.world.signer.address)
        await self.watch.step()
        return [(Fault(fault), culprit) for fault, culprit, _ in chain.proofs()]


@pytest.fixture
async def anyone(relayer: Relayer) -> AsyncIterator[Anyone]:
    store = await SqlStore.open("sqlite://", relayer.world.clock)
    yield Anyone(relayer, store, Words(relayer.world.store), Proofs(relayer.chain), Journal())
    await store.close()


def signer_of(relayer: Relayer) -> FakeSigner:
    return relayer.world.signer


def domain_of(relayer: Relayer) -> typed_data.Domain:
    return typed_data.Domain(relayer.chain.chain_id, relayer.chain.market)


async def test_anyone__honest_history__finds_nothing(anyone: Anyone) -> None:
    for salt in range(3):
        await anyone.relayer.serve(salt=salt)
    anyone.journal.words = await assignments_of(anyone.relayer)
    assert len(anyone.journal.words) == 3
    assert await anyone.look() == []
    assert await anyone.watch.withheld() == []


async def assignments_of(relayer: Relayer) -> list[SignedAssignment]:
    """All that the relayer signed, as its nodes have it."""
    assigned = [
        each
        for stored in await relayer.world.store.requests()
        for each in await relayer.world.store.assignments(stored.request_id)
    ]
    return [SignedAssignment(each.assignment, each.signature) for each in assigned]


async def test_anyone__silent_node__is_found_by_the_published_accepts(anyone: Anyone) -> None:
    await anyone.relayer.leave_unserved()
    assert await anyone.look() == [(Fault.MISSED, anyone.relayer.node.key)]


async def test_anyone__accepts_withheld__is_told_and_found_once_they_are_there(anyone: Anyone) -> None:
    anyone.words.accepts_withheld = True
    await anyone.relayer.leave_unserved()
    assert await anyone.look() == []
    assert await anyone.watch.withheld() == [1]
    anyone.words.accepts_withheld = False
    assert await anyone.look() == []  # it was asked a moment ago
    anyone.relayer.world.clock.advance(61_000)
    assert await anyone.look() == [(Fault.MISSED, anyone.relayer.node.key)]
    assert await anyone.watch.withheld() == []


@pytest.mark.parametrize("how", ["withheld", "not what was recorded"])
async def test_anyone__leaves_withheld__is_told_and_judged_once_they_are_there(anyone: Anyone, how: str) -> None:
    await anyone.relayer.leave_unserved()
    if how == "withheld":
        anyone.words.withheld.add(1)
    else:
        (leaf,) = await anyone.relayer.world.store.leaves(1)
        anyone.words.changed[1] = [replace(leaf, reward_wei=leaf.reward_wei + 1)]
    assert await anyone.look() == []
    assert await anyone.watch.withheld() == [1]
    anyone.words.withheld.clear()
    anyone.words.changed.clear()
    anyone.relayer.world.clock.advance(61_000)
    assert await anyone.look() == [(Fault.MISSED, anyone.relayer.node.key)]
    assert await anyone.watch.withheld() == []


async def test_anyone__node_paid_that_was_not_chosen__costs_the_relayer(anyone: Anyone) -> None:
    """The relayer settles a result under a round that assigned something else."""
    relayer = anyone.relayer
    await relayer.serve(salt=1)
    (request_id,) = await relayer.world.post(relayer.world.request(salt=2))
    batch = {"relayer": signer_of(relayer).address, "round": 1, "nodes": [relayer.node.key], "statuses": "0x00"}
    relayer.chain.mine(relayer.chain.fulfilled(request_id), Log(MARKET, "BatchSettled", batch))
    assert await anyone.look() == [(Fault.UNDECIDED, signer_of(relayer).address)]


def assignment(relayer: Relayer, request_id: Hash32, **changes: Any) -> SignedAssignment:
    """A word of the relayer's that its store does not have."""
    word = Assignment(request_id, signer_of(relayer).address, relayer.node.key, 1, 7, 2**39)
    word = replace(word, **changes)
    digest = typed_data.digest(domain_of(relayer), typed_data.hash_assignment(word))
    return SignedAssignment(word, signer_of(relayer).sign_digest(digest))


@pytest.mark.parametrize("order", ["journal first", "record first"])
async def test_anyone__assignment_against_the_record__costs_the_relayer(anyone: Anyone, order: str) -> None:
    relayer = anyone.relayer
    request_id = (await relayer.world.post(relayer.world.request(salt=9)))[0]
    signed = assignment(relayer, request_id, node="0x" + "ee" * 20)
    if order == "journal first":
        anyone.journal.words = [signed]
        assert await anyone.look() == []
    await relayer.serve(salt=1)
    if order == "record first":
        assert await anyone.look() == []
        anyone.journal.words = [signed]
    assert await anyone.look() == [(Fault.UNDECIDED, signer_of(relayer).address)]


async def test_anyone__assignment_with_another_reward__costs_the_relayer(anyone: Anyone) -> None:
    relayer = anyone.relayer
    request_id = await relayer.serve(salt=1)
    (stored,) = await relayer.world.store.assignments(request_id)
    signed = assignment(relayer, request_id, node=stored.assignment.node, reward_wei=stored.assignment.reward_wei + 1)
    unsigned = replace(signed, assignment=replace(signed.assignment, reward_wei=5))
    anyone.journal.words = [unsigned]
    assert await anyone.look() == []
    anyone.journal.words = [unsigned, signed]
    assert await anyone.look() == [(Fault.CONTRADICTED, signer_of(relayer).address)]


async def test_anyone__released_though_assigned__costs_the_relayer(anyone: Anyone) -> None:
    relayer = anyone.relayer
    await relayer.leave_unserved()  # so that there is a recorded round
    request_id = (await relayer.world.post(relayer.world.request(salt=5)))[0]
    anyone.journal.words = [assignment(relayer, request_id, round=99)]
    relayer.chain.mine(relayer.chain.closed(request_id, Status.CANCELLED))
    relayer.node.answer = None
    found = await anyone.look()
    assert (Fault.RELEASED, signer_of(relayer).address) in found


async def test_anyone__settled_calldata_says_another_answer__costs_the_node(
    anyone: Anyone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One result was paid, and another of the same node stands in the calldata of a settlement that was refused."""
    relayer = anyone.relayer
    request_id = await relayer.serve(salt=1)
    assert await anyone.look() == []
    other = Result(request_id, "0x" + "5e" * 32, 1, signer_of(relayer).address, 1)
    signed = SignedResult(relayer.node.key, other, relayer.node.sign(typed_data.hash_result(other)))
    batch = {"relayer": signer_of(relayer).address, "round": 1, "nodes": [relayer.node.key], "statuses": "0x02"}
    relayer.chain.mine(Log(MARKET, "BatchSettled", batch))
    (settled,) = [each for each in relayer.chain.all_events() if each.args.get("statuses") == "0x02"]
    real = relayer.chain.submitted

    async def submitted(transaction_hash: Hash32) -> Submission | None:
        if transaction_hash != settled.transaction_hash:
            return await real(transaction_hash)
        given = SubmittedSet(other.relayer, 1, (relayer.node.key,), ((signed,),))
        return Submission((given,), None)

    monkeypatch.setattr(relayer.chain, "submitted", submitted)
    assert await anyone.look() == [(Fault.EQUIVOCATION, relayer.node.key)]


async def test_anyone__calldata_with_what_no_node_signed__is_not_noted(
    anyone: Anyone, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayer = anyone.relayer
    request_id = await relayer.serve(salt=1)
    other = Result(request_id, "0x" + "5e" * 32, 1, signer_of(relayer).address, 1)
    batch = {"relayer": signer_of(relayer).address, "round": 1, "nodes": [relayer.node.key], "statuses": "0x07"}
    relayer.chain.mine(Log(MARKET, "BatchSettled", batch))
    (settled,) = [each for each in relayer.chain.all_events() if each.args.get("statuses") == "0x07"]

    async def submitted(transaction_hash: Hash32) -> Submission | None:
        signed = SignedResult(relayer.node.key, other, bytes(65))
        given = SubmittedSet(other.relayer, 1, (relayer.node.key,), ((signed,),))
        return Submission((given,), None) if transaction_hash == settled.transaction_hash else None

    monkeypatch.setattr(relayer.chain, "submitted", submitted)
    assert await anyone.look() == []
    assert await anyone.store.noted_results([request_id]) == {request_id: []}


async def test_anyone__settled_through_another_contract__says_nothing(anyone: Anyone) -> None:
    request_id = await anyone.relayer.serve(salt=1)
    (settled,) = [each for each in anyone.relayer.chain.all_events() if each.name == "BatchSettled"]
    anyone.relayer.chain.through_others.add(settled.transaction_hash)
    assert await anyone.look() == []
    assert await anyone.store.noted_results([request_id]) == {request_id: []}


async def test_anyone__another_relayers_requests__are_not_looked_at(anyone: Anyone) -> None:
    relayer = anyone.relayer
    other = "0x" + "b7" * 20
    request = relayer.world.request(salt=3, relayer=other)
    relayer.chain.mine(relayer.chain.requested(request))
    request_id = relayer.chain.id_of(request)
    batch = {"relayer": other, "round": 1, "nodes": [relayer.node.key], "statuses": "0x00"}
    relayer.chain.mine(relayer.chain.fulfilled(request_id), Log(MARKET, "BatchSettled", batch))
    assert await anyone.look() == []


async def test_anyone__rounds_that_were_not_asked_for__are_left_alone(anyone: Anyone) -> None:
    await anyone.relayer.leave_unserved()
    anyone.rounds = range(2, 10)
    anyone.watch = anyone._watch(WatchSettings(confirmations=0, is_once=True))
    anyone.words.withheld.add(1)
    assert await anyone.look() == []
    assert await anyone.watch.withheld() == []
    assert await anyone.store.watched_up_to() == -1


async def test_anyone__refused_to_send__is_kept_with_the_reason(anyone: Anyone) -> None:
    await anyone.relayer.leave_unserved()
    anyone.proofs.problem = Refused("the account has 0 wei")
    assert await anyone.look() == []
    (fault,) = await anyone.store.faults(None, 10)
    assert (fault.state, fault.detail, fault.transaction_hash) == ("found", "the account has 0 wei", ZERO_HASH)


async def test_anyone__proven__is_not_sent_again(anyone: Anyone) -> None:
    await anyone.relayer.leave_unserved()
    await anyone.look()
    assert [each.state for each in await anyone.store.faults(None, 10)] == ["sent"]
    anyone.relayer.world.clock.advance(20_000)
    await anyone.look()
    (fault,) = await anyone.store.faults(None, 10)
    assert (fault.state, fault.transaction_hash) == ("proven", "0x" + "44" * 32)
    assert len(anyone.relayer.chain.proofs()) == 1


async def test_run__postpones_what_the_chain_does_not_answer(relayer: Relayer, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    async def step() -> None:
        steps.append(1)
        if len(steps) == 1:
            raise Unavailable("no")
        raise asyncio.CancelledError

    monkeypatch.setattr(relayer.watch, "step", step)
    monkeypatch.setattr(relayer.watch, "_settings", WatchSettings(poll_ms=0))
    with pytest.raises(asyncio.CancelledError):
        await relayer.watch.run()
    assert len(steps) == 2
