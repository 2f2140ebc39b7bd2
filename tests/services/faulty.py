"""A fake chain with a faults contract, which checks proofs as `tests.core.faults_twin` does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from headrace.adapters.sql.rows import record_of_event
from headrace.core import typed_data
from headrace.core.events import ChainEvent
from headrace.core.faults import Ending, Fault, FaultTerms, FoundFault, SignedResult
from headrace.core.submissions import Submission, SubmittedSet
from headrace.core.types import Address, Hash32, ResultRef, Status
from headrace.ports import Call, ResultSetCall
from tests.core.faults_twin import NotProven, OnChain, culprit_of
from tests.fakes import FakeChain, Log

FAULTS: Address = "0x" + "a5" * 20
TERMS = FaultTerms(10**16, 10**17, 10**17, bounty_bps=1_000, proof_gas=200_000, tip_cap_wei=2 * 10**9)


class FaultyChain(FakeChain):
    """The `FaultChain` port in memory. `held` is what culprits have at stake."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.held: defaultdict[Address, int] = defaultdict(lambda: 10**18)
        self.through_others: set[Hash32] = set()  # transactions that reach the market through another contract

    async def fault_terms(self) -> FaultTerms:
        return TERMS

    async def held_wei(self, fault: Fault, culprit: Address) -> int:
        return self.held[culprit]

    async def is_proven(self, fault: Fault, culprit: Address, request_id: Hash32, node: Address, at_block: int) -> bool:
        self._enter("is_proven")
        events = [event for event in self.all_events() if event.block_number <= at_block]
        return (int(fault), culprit, request_id, node) in _proven(events)

    async def submitted(self, transaction_hash: Hash32) -> Submission | None:
        if transaction_hash in self.through_others:
            return None
        for each in (each for block in self._blocks for each in block.transactions if each.hash == transaction_hash):
            kind, arguments = self._known_calls.get((each.call.to, each.call.data), ("", ()))
            if kind == "submit_results":
                return Submission(tuple(_set_of(*arguments[:1], given) for given in arguments[1]), None)
        return None

    def prove_call(self, found: FoundFault) -> Call:
        return self._call(FAULTS, "prove_fault", found)

    def proofs(self) -> list[tuple[int, Address, Hash32]]:
        """What is proven."""
        return sorted(each[:3] for each in _proven(self.all_events()))

    def _run(self, call: Call, events: Sequence[ChainEvent], sender: Address) -> tuple[list[Log], str]:
        kind, arguments = self._known_calls.get((call.to, call.data), ("", ()))
        if kind != "prove_fault" or kind in self.reverts:
            return super()._run(call, events, sender)
        found: FoundFault = arguments[0]
        try:
            fault, culprit = culprit_of(found, self._seen(events))
        except NotProven as exc:
            return [], f"NotProven(reason=0x{str(exc).encode().ljust(32, bytes(1)).hex()})"
        key = (int(fault), culprit, found.request_id, found.node)
        if key in _proven(events):
            return [], f"AlreadyProven(fault={key[0]}, culprit={culprit}, requestId={found.request_id})"
        args = dict(zip(("fault", "culprit", "requestId", "node"), key, strict=True)) | {"reporter": sender}
        return [Log(FAULTS, "FaultProven", args)], ""

    def _seen(self, events: Sequence[ChainEvent]) -> OnChain:
        """What the contracts would know after these events."""
        times = {block.ref.number: block.ref.timestamp_s for block in self._blocks}
        records, endings, paid = {}, {}, {}
        for event in events:
            args = event.args
            if event.name == "RoundRecorded":
                record = record_of_event(args)
                records[args["relayer"], record.round] = (record, times[event.block_number])
            elif event.name == "CancelAnnounced":
                endings[args["requestId"]] = Ending.EXPIRED_CANCELLED
            elif event.name == "RequestClosed" and Status(args["status"]) is Status.CANCELLED:
                endings[args["requestId"]] = Ending.RELEASED
            elif event.name == "RequestClosed":
                endings.setdefault(args["requestId"], Ending.EXPIRED)
            elif event.name == "ResultFulfilled":
                endings[args["requestId"]] = Ending.SETTLED
                settled = next(
                    each
                    for each in events
                    if each.name == "BatchSettled"
                    and (each.block_number, each.log_index) > (event.block_number, event.log_index)
                )
                paid[args["requestId"]] = ResultRef(
                    args["resultHash"],
                    settled.args["relayer"],
                    settled.args["round"],
                    tuple(settled.args["nodes"]),
                    times[event.block_number],
                )
        domain = typed_data.Domain(self.chain_id, self.market)
        return OnChain(domain, records, defaultdict(lambda: Ending.OPEN, endings), paid)


def _proven(events: Sequence[ChainEvent]) -> set[tuple[int, Address, Hash32, Address]]:
    proven = (event.args for event in events if event.name == "FaultProven")
    return {(args["fault"], args["culprit"], args["requestId"], args["node"]) for args in proven}


def _set_of(relayer: Address, given: ResultSetCall) -> SubmittedSet:
    results = [result for _, result in given.items]
    is_single = len(given.signatures) == len(results) * len(given.nodes)
    hashes = () if is_single else tuple(typed_data.hash_result(result) for result in results)
    words = tuple(
        tuple(
            SignedResult(node, result, given.signatures[(index * len(given.nodes) if is_single else 0) + i], hashes)
            for i, node in enumerate(given.nodes)
        )
        for index, result in enumerate(results)
    )
    return SubmittedSet(relayer, given.round, given.nodes, words)
