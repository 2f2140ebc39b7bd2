"""Steps that tests of the store have in common."""

from __future__ import annotations

from headrace.adapters.sql.store import SqlStore
from headrace.core.envelope import hash_payload
from headrace.core.fairness import Account
from headrace.core.lifecycle import RequestState
from headrace.core.scheduling import Anchor, CyclePlan, PlannedDecision
from headrace.core.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Assignment,
    Decision,
    DecisionKind,
    Hash32,
    Reason,
    Request,
    Result,
)
from headrace.ports import Call, StoredAssignment, StoredCycle, StoredIntent, StoredResult
from tests.fakes import MARKET, NODE, RELAYER, REQUESTER, START_S, FakeChain, make_request

NOW_MS = START_S * 1000
ANSWER = b"\x01" + bytes(16) + b"Rayleigh scattering."
POLICY_HASH = "0x" + "55" * 32


async def follow(store: SqlStore, chain: FakeChain) -> None:
    """Bring the store to the chain's head, by way of the common ancestor."""
    canonical = chain.all_blocks()
    last = await store.last_block()
    if last is not None:
        number = min(last.number, canonical[-1].number)
        while await store.block(number) != canonical[number]:
            number -= 1
        if number < last.number:
            await store.rewind_to(number)
    start = 0 if last is None else number + 1
    events = [event for event in chain.all_events() if event.block_number >= start]
    await store.add_blocks(canonical[start:], events, RELAYER)


async def post(store: SqlStore, chain: FakeChain, **changes: object) -> Hash32:
    """A request that is on the chain, and eligible."""
    request = make_request(**changes)
    block = chain.mine(chain.requested(request))
    await follow(store, chain)
    await store.confirm_up_to(block.number, NOW_MS)
    return chain.id_of(request)


async def assign(store: SqlStore, *ids: Hash32, node: str = NODE, skipped: tuple[Hash32, ...] = ()) -> int:
    """One cycle that assigns requests to a node. Returns its round."""
    round_ = await store.open_round(NOW_MS, 1)
    decisions = [Decision(each, node, DecisionKind.ASSIGNED, Reason.LOWEST_COST, 7, 0) for each in ids]
    decisions += [Decision(each, ZERO_ADDRESS, DecisionKind.SKIPPED, Reason.NODES_BUSY, 0, 0) for each in skipped]
    planned = tuple(PlannedDecision(each, -(10**9), 2**200, ZERO_ADDRESS, 0) for each in decisions)
    snapshot = f"{round_.round}/{round_.cycles}".encode()
    cycle = StoredCycle(
        round=round_.round,
        cycle=round_.cycles,
        snapshot_hash=hash_payload(snapshot),
        anchor=Anchor(5, ZERO_HASH, START_S),
        planned_at_ms=NOW_MS,
        plan=CyclePlan(planned, 3 + round_.cycles, -70, 2**40, (Account(REQUESTER, 2**41 + round_.cycles),)),
    )
    assignments = [await _assignment(store, each, node, round_.round) for each in ids]
    await store.add_cycle(cycle, snapshot, assignments, POLICY_HASH)
    return round_.round


async def deliver(store: SqlStore, request_id: Hash32, round_: int, node: str = NODE, answer: bytes = ANSWER) -> bool:
    """A node's result arrives."""
    result = Result(request_id, hash_payload(answer), 7, RELAYER, round_)
    stored = StoredResult(node, result, b"signature", result.result_hash, len(answer), NOW_MS + 9)
    return await store.add_result(stored, answer, NOW_MS + 9, {"node": node})


async def batch(store: SqlStore, *ids: Hash32, chain_nonce: int = 0, key: str = "batch") -> StoredIntent:
    """An intent that settles requests."""
    call = Call(MARKET, b"data")
    return await store.add_intent("submit_results", key, {"request_ids": list(ids)}, call, 10**6, chain_nonce, NOW_MS)


async def signed(store: SqlStore, chain: FakeChain, **changes: object) -> Hash32:
    """A request whose result is there."""
    request_id = await post(store, chain, **changes)
    await deliver(store, request_id, await assign(store, request_id))
    return request_id


async def state_of(store: SqlStore, request_id: Hash32) -> RequestState:
    stored = await store.request(request_id)
    assert stored is not None
    return stored.state


async def stages_of(store: SqlStore, request_id: Hash32) -> list[str]:
    return [entry.stage for entry in await store.timeline(request_id)]


def request_named(salt: int) -> Request:
    return make_request(salt=salt)


async def _assignment(store: SqlStore, request_id: Hash32, node: str, round_: int) -> StoredAssignment:
    attempt = len(await store.assignments(request_id)) + 1
    word = Assignment(request_id, RELAYER, node, round_, 7, START_S + 3600)
    return StoredAssignment(request_id, attempt, word, "open", NOW_MS, NOW_MS + 5000 * attempt, b"word", b"", "")
