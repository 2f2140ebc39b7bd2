"""Rounds with their cycles and leaves, and assignments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.batched import Batched
from headrace.adapters.sql.book import RequestBook
from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.rows import (
    Row,
    assignment_of,
    carried_of,
    cycle_of,
    decision_of,
    json_of_record,
    round_of,
    row_of_assignment,
    row_of_cycle,
    row_of_decision,
    rows_of_plan,
)
from headrace.adapters.sql.tables import assignments as assignment_table
from headrace.adapters.sql.tables import cycles, decisions, requests, rounds, snapshots
from headrace.adapters.sql.tables import leaves as leaf_table
from headrace.core.cycle import Carried
from headrace.core.errors import IllegalTransition, NotFound
from headrace.core.lifecycle import Cause, RequestState, can_move
from headrace.core.types import ZERO_HASH, Address, Decision, Hash32, RoundRecord
from headrace.ports import Running, StoredAssignment, StoredCycle, StoredRound

_RUNNING = ("open", "accepted")
_ENDS = {
    Cause.ACCEPTED: "accepted",
    Cause.REFUSED: "refused",
    Cause.FAILED: "failed",
    Cause.LEASE_EXPIRED: "lease_expired",
}
_RUNNING_QUERY = (
    select(assignment_table)
    .where(assignment_table.c.state.in_(_RUNNING))
    .order_by(assignment_table.c.assigned_at_ms, assignment_table.c.request_id)
)
_UPDATE_END = (
    update(assignment_table)
    .where(assignment_table.c.request_id == bindparam("of"), assignment_table.c.attempt == bindparam("number"))
    .values(
        state=bindparam("new_state"),
        detail=bindparam("new_detail"),
        accept_signature=bindparam("new_signature"),
        lease_until_ms=bindparam("new_until"),
    )
)
_BEING_SERVED = (RequestState.ASSIGNED, RequestState.COMPUTING)


@dataclass(frozen=True, slots=True)
class _End:
    """How an assignment ended."""

    request_id: Hash32
    attempt: int
    cause: Cause
    at_ms: int
    detail: str
    accept_signature: bytes
    again_at_ms: int


class RoundStore(StorePart):
    """Rounds, cycles, leaves and assignments."""

    async def open_round(self, at_ms: int, first: int) -> StoredRound:
        query = select(rounds).where(rounds.c.state == "open").order_by(rounds.c.round).limit(1)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).mappings().first()
        # A cycle asks for it each time, and a write waits for the disk.
        return round_of(row) if row is not None else await self._begin_round(at_ms, first)

    async def _begin_round(self, at_ms: int, first: int) -> StoredRound:
        async with self._database.write() as connection:
            query = select(rounds).where(rounds.c.state == "open").order_by(rounds.c.round).limit(1)
            row = (await connection.execute(query)).mappings().first()
            if row is not None:
                return round_of(row)
            last = (await connection.execute(select(func.max(rounds.c.round)))).scalar() or 0
            # `first` is ahead when the store is younger than the relayer and has not seen its records yet.
            number = max(last + 1, first)
            await connection.execute(
                insert(rounds).values(
                    round=number,
                    state="open",
                    opened_at_ms=at_ms,
                    cycles=0,
                    policy_hash=ZERO_HASH,
                    record=None,
                    recorded_block=0,
                    transaction_hash=ZERO_HASH,
                )
            )
            return await _round(connection, number)

    async def add_cycle(
        self,
        cycle: StoredCycle,
        snapshot: bytes,
        assignments: Sequence[StoredAssignment],
        policy_hash: Hash32,
    ) -> None:
        async with self._database.write() as connection:
            await _require_open(connection, cycle.round)
            await connection.execute(insert(cycles).values(row_of_cycle(cycle)))
            if planned := rows_of_plan(cycle):
                await connection.execute(insert(decisions), planned)
            await _keep_snapshot(connection, cycle.snapshot_hash, snapshot)
            await connection.execute(
                update(rounds)
                .where(rounds.c.round == cycle.round)
                .values(cycles=rounds.c.cycles + 1, policy_hash=policy_hash)
            )
            if assignments:
                await self._assign(connection, cycle, assignments)

    async def restart_round(self, round_: int) -> None:
        async with self._database.write() as connection:
            await _require_open(connection, round_)
            query = select(func.count()).select_from(assignment_table).where(assignment_table.c.round == round_)
            if (await connection.execute(query)).scalar():
                raise IllegalTransition(f"round {round_} has assignments, so it can only be closed")
            await connection.execute(delete(decisions).where(decisions.c.round == round_))
            await connection.execute(delete(cycles).where(cycles.c.round == round_))
            blank = {"cycles": 0, "policy_hash": ZERO_HASH}
            await connection.execute(update(rounds).where(rounds.c.round == round_).values(blank))

    async def close_round(self, round_: int, record: RoundRecord, leaves: Sequence[Decision]) -> None:
        async with self._database.write() as connection:
            await _require_open(connection, round_)
            values = {"state": "closed", "record": json_of_record(record), "policy_hash": record.policy_hash}
            await connection.execute(update(rounds).where(rounds.c.round == round_).values(values))
            rows = [
                {"round": round_, "position": position, **row_of_decision(decision)}
                for position, decision in enumerate(leaves)
            ]
            if rows:
                await connection.execute(insert(leaf_table), rows)

    async def round(self, round_: int) -> StoredRound | None:
        async with self._database.read() as connection:
            row = (await connection.execute(select(rounds).where(rounds.c.round == round_))).mappings().first()
        return round_of(row) if row else None

    async def rounds(self, *, limit: int = 100, before: int | None = None) -> list[StoredRound]:
        query = select(rounds).order_by(rounds.c.round.desc()).limit(limit)
        if before is not None:
            query = query.where(rounds.c.round < before)
        async with self._database.read() as connection:
            return [round_of(row) for row in (await connection.execute(query)).mappings()]

    async def unrecorded_rounds(self) -> list[StoredRound]:
        query = select(rounds).where(rounds.c.state.in_(("open", "closed"))).order_by(rounds.c.round)
        async with self._database.read() as connection:
            return [round_of(row) for row in (await connection.execute(query)).mappings()]

    async def cycles(self, round_: int) -> list[StoredCycle]:
        async with self._database.read() as connection:
            query = select(cycles).where(cycles.c.round == round_).order_by(cycles.c.cycle)
            found = (await connection.execute(query)).mappings().all()
            planned: defaultdict[int, list[Row]] = defaultdict(list)
            query = select(decisions).where(decisions.c.round == round_)
            query = query.order_by(decisions.c.cycle, decisions.c.position)
            for row in (await connection.execute(query)).mappings():
                planned[row["cycle"]].append(row)
        return [cycle_of(row, planned[row["cycle"]]) for row in found]

    async def leaves(self, round_: int) -> list[Decision]:
        query = select(leaf_table).where(leaf_table.c.round == round_).order_by(leaf_table.c.position)
        async with self._database.read() as connection:
            return [decision_of(row) for row in (await connection.execute(query)).mappings()]

    async def snapshot(self, snapshot_hash: Hash32) -> bytes | None:
        query = select(snapshots.c.content).where(snapshots.c.snapshot_hash == snapshot_hash)
        async with self._database.read() as connection:
            content: bytes | None = (await connection.execute(query)).scalar()
        return content

    async def last_decisions(self, request_ids: Sequence[Hash32]) -> dict[Hash32, Decision]:
        found: dict[Hash32, Decision] = {}
        async with self._database.read() as connection:
            for chunk in chunks(list(dict.fromkeys(request_ids))):
                newest = func.row_number().over(
                    partition_by=decisions.c.request_id,
                    order_by=(decisions.c.round.desc(), decisions.c.cycle.desc(), decisions.c.position.desc()),
                )
                ranked = select(decisions, newest.label("rank")).where(decisions.c.request_id.in_(chunk)).subquery()
                rows = await connection.execute(select(ranked).where(ranked.c.rank == 1))
                found.update({row["request_id"]: decision_of(row) for row in rows.mappings()})
        return found

    async def carried(self) -> Carried:
        query = select(cycles).order_by(cycles.c.round.desc(), cycles.c.cycle.desc()).limit(1)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).mappings().first()
        return carried_of(row) if row else Carried()

    async def fulfilled_fees(self, limit: int) -> list[int]:
        columns = (requests.c.priority_fee_wei, requests.c.priority_fee_added_wei)
        query = select(*columns).where(requests.c.state == RequestState.FULFILLED)
        query = query.order_by(requests.c.included_at_s.desc()).limit(limit)
        async with self._database.read() as connection:
            return [fee + added for fee, added in (await connection.execute(query)).all()]

    async def assignments(self, request_id: Hash32) -> list[StoredAssignment]:
        return await self._tried(request_id)

    @cached_property
    def _tried(self) -> Batched[Hash32, list[StoredAssignment]]:
        async def work(request_ids: Sequence[Hash32]) -> list[list[StoredAssignment] | Exception]:
            found = await self.assignments_of(list(dict.fromkeys(request_ids)))
            return [list(found.get(request_id, [])) for request_id in request_ids]

        return Batched(work)

    async def assignments_of(self, request_ids: Sequence[Hash32]) -> dict[Hash32, list[StoredAssignment]]:
        found: defaultdict[Hash32, list[StoredAssignment]] = defaultdict(list)
        async with self._database.read() as connection:
            for chunk in chunks(request_ids):
                query = select(assignment_table).where(assignment_table.c.request_id.in_(chunk))
                rows = await connection.execute(query.order_by(assignment_table.c.attempt))
                for row in rows.mappings():
                    found[row["request_id"]].append(assignment_of(row))
        return dict(found)

    async def open_assignments(self) -> list[StoredAssignment]:
        return await self._assignments(_RUNNING_QUERY)

    async def unsent_assignments(self) -> list[StoredAssignment]:
        return await self._assignments(_RUNNING_QUERY.where(assignment_table.c.state == "open"))

    async def lapsed_assignments(self, now_ms: int) -> list[StoredAssignment]:
        return await self._assignments(_RUNNING_QUERY.where(assignment_table.c.lease_until_ms <= now_ms))

    async def assignments_due(self, before_s: int) -> list[StoredAssignment]:
        return await self._assignments(_RUNNING_QUERY.where(assignment_table.c.deadline_s <= before_s))

    async def running_by_node(self) -> dict[Address, Running]:
        query = select(assignment_table.c.node, assignment_table.c.reward_wei)
        rewards: defaultdict[Address, list[int]] = defaultdict(list)
        async with self._database.read() as connection:
            for node, reward_wei in await connection.execute(query.where(assignment_table.c.state.in_(_RUNNING))):
                rewards[node].append(reward_wei)
        return {node: Running(len(of_it), sum(of_it)) for node, of_it in rewards.items()}

    async def end_assignment(
        self,
        request_id: Hash32,
        attempt: int,
        cause: Cause,
        at_ms: int,
        detail: str,
        accept_signature: bytes = b"",
        again_at_ms: int = 0,
    ) -> None:
        if cause not in _ENDS:
            raise IllegalTransition(f"an assignment is not ended by {cause}")
        await self._ending(_End(request_id, attempt, cause, at_ms, detail, accept_signature, again_at_ms))

    @cached_property
    def _ending(self) -> Batched[_End, None]:
        return Batched(self._end_assignments, key=lambda end: end.request_id)

    async def _end_assignments(self, ends: Sequence[_End]) -> list[Exception | None]:
        """Ends of different requests."""
        async with self._database.write() as connection:
            rows = await _rows_of_attempts(connection, ends)
            book = RequestBook(connection, 0)
            await book.load([end.request_id for end in ends])
            outcomes: list[Exception | None] = []
            changes: list[dict[str, Any]] = []
            for end in ends:
                try:
                    changes.append(_end(book, end, rows.get((end.request_id, end.attempt))))
                    outcomes.append(None)
                except (NotFound, IllegalTransition) as exc:
                    outcomes.append(exc)
            if changes:
                await connection.execute(_UPDATE_END, changes)
            await book.flush()
        return outcomes

    async def _assign(
        self, connection: AsyncConnection, cycle: StoredCycle, assigned: Sequence[StoredAssignment]
    ) -> None:
        book = RequestBook(connection, cycle.planned_at_ms)
        await book.load([stored.request_id for stored in assigned])
        moved: set[Hash32] = set()
        for stored in assigned:
            request_id = stored.request_id
            detail = {
                "attempt": stored.attempt,
                "node": stored.assignment.node,
                "round": cycle.round,
                "cycle": cycle.cycle,
                "reward_wei": str(stored.assignment.reward_wei),
            }
            if request_id in moved:
                book.note(request_id, Cause.ASSIGNED, detail)
            else:
                book.move(request_id, Cause.ASSIGNED, detail)
                moved.add(request_id)
        await _supersede(connection, [request_id for request_id in moved if book.row(request_id)["k"]])
        await connection.execute(insert(assignment_table), [row_of_assignment(stored) for stored in assigned])
        await book.flush()

    async def _assignments(self, query: Any) -> list[StoredAssignment]:
        async with self._database.read() as connection:
            return [assignment_of(row) for row in (await connection.execute(query)).mappings()]


async def _round(connection: AsyncConnection, round_: int) -> StoredRound:
    row = (await connection.execute(select(rounds).where(rounds.c.round == round_))).mappings().first()
    if row is None:
        raise NotFound(f"there is no round {round_}")
    return round_of(row)


async def _require_open(connection: AsyncConnection, round_: int) -> None:
    state = (await _round(connection, round_)).state
    if state != "open":
        raise IllegalTransition(f"round {round_} is {state}: it takes no more decisions")


async def _keep_snapshot(connection: AsyncConnection, snapshot_hash: Hash32, content: bytes) -> None:
    query = select(snapshots.c.snapshot_hash).where(snapshots.c.snapshot_hash == snapshot_hash)
    if (await connection.execute(query)).scalar() is None:
        await connection.execute(insert(snapshots).values(snapshot_hash=snapshot_hash, content=content))


async def _supersede(connection: AsyncConnection, quorums: Sequence[Hash32]) -> None:
    """End what runs of an earlier listing: a quorum is computed for its newest round only."""
    for chunk in chunks(quorums):
        await connection.execute(
            update(assignment_table)
            .where(assignment_table.c.request_id.in_(chunk), assignment_table.c.state.in_(_RUNNING))
            .values(state="superseded")
        )


async def _rows_of_attempts(connection: AsyncConnection, ends: Sequence[_End]) -> dict[tuple[Hash32, int], Row]:
    found: dict[tuple[Hash32, int], Row] = {}
    for chunk in chunks([end.request_id for end in ends]):
        query = select(assignment_table).where(assignment_table.c.request_id.in_(chunk))
        for row in (await connection.execute(query)).mappings():
            found[(row["request_id"], row["attempt"])] = row
    return found


def _end(book: RequestBook, end: _End, row: Row | None) -> dict[str, Any]:
    """Move a request by the end of an assignment, and say what changes in the assignment's row.

    Raises:
        NotFound: there is no such assignment.
        IllegalTransition: it has ended, or was accepted and is to be accepted or refused.
    """
    if row is None:
        raise NotFound(f"the request {end.request_id} has no assignment {end.attempt}")
    # What a node has accepted it can only fail.
    is_past = row["state"] == "accepted" and end.cause in (Cause.ACCEPTED, Cause.REFUSED)
    if row["state"] not in _RUNNING or is_past:
        raise IllegalTransition(
            f"assignment {end.attempt} of {end.request_id} is {row['state']} and cannot be moved by {end.cause}"
        )
    book.at_ms = end.at_ms
    story = {"attempt": end.attempt, "node": row["node"], "round": row["round"], "detail": end.detail}
    # A request that the chain closed or withdrew meanwhile stays where it is; the assignment ends all the same.
    # So does one whose quorum was moved by another of its nodes before.
    state = book.state(end.request_id)
    if (state in _BEING_SERVED and not book.row(end.request_id)["k"]) or can_move(state, end.cause):
        book.move(end.request_id, end.cause, story)
    else:
        book.note(end.request_id, f"assignment_{end.cause}", story)
    is_put_off = end.cause is Cause.REFUSED and end.again_at_ms > 0 and not book.row(end.request_id)["k"]
    return {
        "of": end.request_id,
        "number": end.attempt,
        "new_state": "put_off" if is_put_off else _ENDS[end.cause],
        "new_detail": end.detail,
        "new_signature": end.accept_signature or row["accept_signature"],
        "new_until": end.again_at_ms if is_put_off else row["lease_until_ms"],
    }
