"""What a run must have come to, by the chain as it is in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.core.lifecycle import RequestState
from headrace.core.reconciliation import Discrepancy, OnChain, ledger
from headrace.core.types import Hash32, Status
from headrace.services.reconciler import Reconciler
from tests.fakes import FakeMetrics

if TYPE_CHECKING:
    from tests.simulation.world import Simulation


@dataclass
class Verdict:
    """The sums of a run, and everything that is wrong with it."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    objections: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.objections


async def judge(run: Simulation) -> Verdict:
    """Hold the chain, the relayer's store and what was seen on the way against each other."""
    verdict = Verdict(run.seed, Counter(run.weather.counts), list(run.objections))
    if run._relayer is None:
        verdict.objections.append("the relayer is down")
        return verdict
    known = ledger(run.chain.all_events(), run.signer.address)
    verdict.counts["requests"] = run._salt
    for id_, each in known.items():
        _judge_end(verdict, id_, each)
    if run.witness.cursor() == run.chain.all_blocks()[-1].hash:
        await _reconcile(run, verdict, known)
    else:
        verdict.objections.append("the indexer is not at the head")
    _judge_unpaid(run, verdict, known)
    _judge_withdrawn(run, verdict, known)
    _judge_batches(run, verdict)
    for intent_id, nonce in run.witness.open_intents():
        verdict.objections.append(f"intent {intent_id} of nonce {nonce} is still open")
    return verdict


def _judge_end(verdict: Verdict, id_: Hash32, each: OnChain) -> None:
    """It ended once, and its parts add up to its escrow."""
    ends = len(each.payments) + len(each.closings)
    name = "fulfilled" if each.payments else each.closings[0].name.lower() if each.closings else "open"
    verdict.counts[name] += 1
    if ends == 0:
        verdict.counts["lost"] += 1
        verdict.objections.append(f"{id_} never ended")
    elif ends > 1:
        verdict.counts["paid_twice"] += 1
        verdict.objections.append(f"{id_} ended {ends} times")
    escrow_wei = each.request.escrow_wei + each.fee_added_wei
    for paid in each.payments:
        if paid.node_wei + paid.relayer_wei + paid.refund_wei != escrow_wei:
            verdict.objections.append(f"{id_}: {paid} is not the escrow of {escrow_wei}")


async def _reconcile(run: Simulation, verdict: Verdict, known: dict[Hash32, OnChain]) -> None:
    """What an operator would be told."""
    chain, store = run.chain, run.relayer.store
    last = await store.last_block()
    assert last is not None
    reconciler = Reconciler(chain, store, FakeMetrics(), run.signer.address, 0, chain.terms)
    for finding in (await reconciler.compare(0, last.number)).findings:
        is_refund = finding.kind is Discrepancy.UNPAID and Status.EXPIRED in known[finding.request_id].closings
        if is_refund and not _is_owed(run, finding.request_id, known[finding.request_id]):
            continue  # by the relayer's clock, which was wrong, it came in time
        verdict.counts[str(finding.kind)] += 1
        verdict.counts["underpaid_wei"] += finding.wei if finding.kind is Discrepancy.UNPAID else 0
        verdict.objections.append(f"{finding.request_id}: {finding.kind}: {finding.why}")


def _judge_unpaid(run: Simulation, verdict: Verdict, known: dict[Hash32, OnChain]) -> None:
    """What was taken from a node in time, by the true clock, is paid."""
    for id_, each in known.items():
        if Status.EXPIRED in each.closings and not each.request.k and _is_owed(run, id_, each):
            verdict.counts["underpaid"] += 1
            verdict.objections.append(f"{id_}: was answered in time, and refunded")


def _is_owed(run: Simulation, id_: Hash32, each: OnChain) -> bool:
    times = sorted(at_s for (request_id, _), at_s in run.link.answered_at_s.items() if request_id == id_)
    needed = max(1, each.request.k)
    return len(times) >= needed and times[needed - 1] <= each.effective_deadline_s


def _judge_withdrawn(run: Simulation, verdict: Verdict, known: dict[Hash32, OnChain]) -> None:
    states = run.witness.states()
    for id_ in run.chain.posted:
        if id_ in known or id_ not in states:
            continue
        verdict.counts["withdrawn"] += 1
        if states[id_] != RequestState.WITHDRAWN:
            verdict.objections.append(f"{id_} is on no chain, and the store says {states[id_]}")
    verdict.counts["never_seen"] = sum(id_ not in known and id_ not in states for id_ in run.chain.posted)
    strangers = set(states) - set(run.chain.posted)
    if strangers:
        verdict.objections.append(f"the store has requests that never were: {sorted(strangers)}")


def _judge_batches(run: Simulation, verdict: Verdict) -> None:
    """A request that was paid is not put on the chain a second time: the market would refuse it, and gas is lost."""
    paid_by: dict[Hash32, Hash32] = {}
    for event in run.chain.all_events():
        if event.name == "ResultFulfilled":
            paid_by[event.args["requestId"]] = event.transaction_hash
    order = [hash_ for hash_, _ in run.chain.batches()]
    for hash_, ids in run.chain.batches():
        for id_ in ids:
            first = paid_by.get(id_)
            if first is not None and first != hash_ and order.index(first) < order.index(hash_):
                verdict.counts["settled_again"] += 1
                verdict.objections.append(f"{id_} was paid by {first}, and is in {hash_} as well")
