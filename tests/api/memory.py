"""The part of the `Store` port that the API uses, in memory, and a link to nodes that are set by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headrace.core.cycle import Policy
from headrace.core.envelope import hash_payload
from headrace.core.events import BlockRef
from headrace.core.lifecycle import RequestState
from headrace.core.postings import PostingState
from headrace.core.quorum import Member, Vote, standing_of
from headrace.core.tasks import LinkedNode
from headrace.core.types import Address, Decision, Hash32
from headrace.ports import (
    StoredAssignment,
    StoredCycle,
    StoredIntent,
    StoredPosting,
    StoredRequest,
    StoredResult,
    StoredRound,
    TimelineEntry,
)


class MemoryStore:
    """Holds what tests put into its public attributes."""

    def __init__(self) -> None:
        self.blocks: dict[int, BlockRef] = {}
        self.all_requests: dict[Hash32, StoredRequest] = {}
        self.entries: defaultdict[Hash32, list[TimelineEntry]] = defaultdict(list)
        self.decisions: dict[Hash32, Decision] = {}
        self.all_assignments: defaultdict[Hash32, list[StoredAssignment]] = defaultdict(list)
        self.all_results: defaultdict[Hash32, list[StoredResult]] = defaultdict(list)
        self.payloads: dict[Hash32, bytes] = {}
        self.holders: set[tuple[Hash32, Address]] = set()
        self.all_rounds: dict[int, StoredRound] = {}
        self.all_cycles: defaultdict[int, list[StoredCycle]] = defaultdict(list)
        self.all_leaves: defaultdict[int, list[Decision]] = defaultdict(list)
        self.snapshots: dict[Hash32, bytes] = {}
        self.intents: dict[Hash32, StoredIntent] = {}
        self.all_postings: dict[Hash32, StoredPosting] = {}
        self.adopted: tuple[Hash32, Policy] | None = None
        self.failure: Exception | None = None

    async def adopted_policy(self, configured_hash: Hash32) -> Policy | None:
        return self.adopted[1] if self.adopted and self.adopted[0] == configured_hash else None

    async def adopt_policy(self, configured_hash: Hash32, policy: Policy, at_ms: int) -> None:
        self.adopted = configured_hash, policy

    async def last_block(self) -> BlockRef | None:
        if self.failure:
            raise self.failure
        return self.blocks[max(self.blocks)] if self.blocks else None

    async def block(self, number: int) -> BlockRef | None:
        return self.blocks.get(number)

    async def request(self, request_id: Hash32) -> StoredRequest | None:
        if self.failure:
            raise self.failure
        return self.all_requests.get(request_id)

    async def requests(
        self,
        *,
        states: Sequence[RequestState] | None = None,
        requester: Address | None = None,
        limit: int = 1000,
        before_block: int | None = None,
    ) -> list[StoredRequest]:
        newest_first = sorted(self.all_requests.values(), key=lambda each: -each.block_number)
        return [
            each
            for each in newest_first
            if (states is None or each.state in states)
            and (requester is None or each.request.requester == requester)
            and (before_block is None or each.block_number < before_block)
        ][:limit]

    async def timeline(self, request_id: Hash32) -> list[TimelineEntry]:
        return self.entries[request_id]

    async def note(self, request_id: Hash32, at_ms: int, stage: str, detail: Mapping[str, Any]) -> None:
        self.entries[request_id].append(TimelineEntry(at_ms, stage, detail))

    async def last_decisions(self, request_ids: Sequence[Hash32]) -> dict[Hash32, Decision]:
        return {each: self.decisions[each] for each in request_ids if each in self.decisions}

    async def assignments(self, request_id: Hash32) -> list[StoredAssignment]:
        return self.all_assignments[request_id]

    async def assignments_of_round(self, round_: int) -> list[StoredAssignment]:
        made = [each for found in self.all_assignments.values() for each in found if each.assignment.round == round_]
        return sorted(made, key=lambda each: (each.request_id, each.attempt))

    async def result(self, request_id: Hash32) -> StoredResult | None:
        found = self.all_results[request_id]
        stored = self.all_requests.get(request_id)
        if stored is not None and stored.request.k:
            members = [
                Member(each.assignment.node, each.assignment.round, each.state)
                for each in self.all_assignments[request_id]
            ]
            votes = [Vote(each.node, each.result.round, each.result.result_hash) for each in found]
            standing = standing_of(stored.request.k, members, votes)
            found = [each for each in found if standing.agreed and each.result.round == standing.round]
        return found[0] if found else None

    async def results(self, request_id: Hash32) -> list[StoredResult]:
        return self.all_results[request_id]

    async def put_prompt(self, payload: bytes, holder: Address, at_ms: int) -> Hash32:
        self.payloads[hash_payload(payload)] = payload
        self.holders.add((hash_payload(payload), holder))
        return hash_payload(payload)

    async def held_prompts(self, prompts: Collection[tuple[Hash32, Address]]) -> set[tuple[Hash32, Address]]:
        return set(prompts) & self.holders

    async def payload(self, payload_hash: Hash32) -> bytes | None:
        return self.payloads.get(payload_hash)

    async def requests_of_payload(self, payload_hash: Hash32) -> list[StoredRequest]:
        return [
            each
            for id_, each in self.all_requests.items()
            if each.request.prompt_hash == payload_hash
            or any(result.payload_hash == payload_hash for result in self.all_results[id_])
        ]

    async def round(self, round_: int) -> StoredRound | None:
        return self.all_rounds.get(round_)

    async def rounds(self, *, limit: int = 100, before: int | None = None) -> list[StoredRound]:
        found = [
            each for number, each in sorted(self.all_rounds.items(), reverse=True) if not before or number < before
        ]
        return found[:limit]

    async def cycles(self, round_: int) -> list[StoredCycle]:
        return self.all_cycles[round_]

    async def leaves(self, round_: int) -> list[Decision]:
        return self.all_leaves[round_]

    async def snapshot(self, snapshot_hash: Hash32) -> bytes | None:
        return self.snapshots.get(snapshot_hash)

    async def intent_of_transaction(self, transaction_hash: Hash32) -> StoredIntent | None:
        return self.intents.get(transaction_hash)

    async def add_posting(self, posting: StoredPosting, prompt: bytes | None) -> StoredPosting:
        known = self.all_postings.get(posting.request_id)
        if known is not None and known.state is not PostingState.UNPOSTED:
            return known
        if prompt is not None:
            await self.put_prompt(prompt, posting.request.requester, posting.submitted_at_ms)
        self.all_postings[posting.request_id] = posting
        return posting

    async def posting(self, request_id: Hash32) -> StoredPosting | None:
        return self.all_postings.get(request_id)

    async def postings(
        self, state: PostingState, *, requester: Address | None = None, limit: int = 1000
    ) -> list[StoredPosting]:
        newest_first = reversed(self.all_postings.values())
        return [
            each
            for each in newest_first
            if each.state is state and (requester is None or each.request.requester == requester)
        ][:limit]

    async def reverted_postings(self, requester: Address, since_ms: int) -> int:
        return 0


class FakeLink:
    """Nodes that are linked."""

    def __init__(self, *nodes: LinkedNode) -> None:
        self.nodes = list(nodes)

    def linked(self) -> Sequence[LinkedNode]:
        return self.nodes
