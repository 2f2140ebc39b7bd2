"""Rounds with their cycles and leaves, and assignments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.book import RequestBook
from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.rows import (
    Row,
    assignment_of,
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
from headrace.adapters.sql.tables import cycles, decisions, rounds, snapshots
from headrace.adapters.sql.tables import leaves as leaf_table
from headrace.core.errors import IllegalTransition, NotFound
from headrace.core.lifecycle import Cause, RequestState, can_move
from headrace.core.types import ZERO_HASH, Decision, Hash32, RoundRecord
from headrace.ports import StoredAssignment, StoredCycle, StoredRound

_RUNNING = ("open", "accepted")
_ENDS = {
    Cause.ACCEPTED: "accepted",
    Cause.REFUSED: "refused",
    Cause.FAILED: "failed",
    Cause.LEASE_EXPIRED: "lease_expired",
}
_BEING_SERVED = (RequestState.ASSIGNED, RequestState.COMPUTING)


class RoundStore(StorePart):
    """Rounds, cycles, leaves and assignments."""

    async def open_round(self, at_ms: int, first: int) -> StoredRound:
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
                    order_by=(decisions.c.round.desc(), decisions.c.cycle.desc(), decisions.c.position),
                )
                ranked = select(decisions, newest.label("rank")).where(decisions.c.request_id.in_(chunk)).subquery()
                rows = await connection.execute(select(ranked).where(ranked.c.rank == 1))
                found.update({row["request_id"]: decision_of(row) for row in rows.mappings()})
        return found

    async def lane_streak(self) -> int:
        query = select(cycles.c.lane_streak).order_by(cycles.c.round.desc(), cycles.c.cycle.desc()).limit(1)
        async with self._database.read() as connection:
            return (await connection.execute(query)).scalar() or 0

    async def assignments(self, request_id: Hash32) -> list[StoredAssignment]:
        query = (
            select(assignment_table)
            .where(assignment_table.c.request_id == request_id)
            .order_by(assignment_table.c.attempt)
        )
        return await self._assignments(query)

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
        query = (
            select(assignment_table)
            .where(assignment_table.c.state.in_(_RUNNING))
            .order_by(assignment_table.c.assigned_at_ms, assignment_table.c.request_id)
        )
        return await self._assignments(query)

    async def end_assignment(
        self, request_id: Hash32, attempt: int, cause: Cause, at_ms: int, detail: str, accept_signature: bytes = b""
    ) -> None:
        if cause not in _ENDS:
            raise IllegalTransition(f"an assignment is not ended by {cause}")
        async with self._database.write() as connection:
            row = await _running_assignment(connection, request_id, attempt, cause)
            values: dict[str, Any] = {"state": _ENDS[cause], "detail": detail}
            if accept_signature:
                values["accept_signature"] = accept_signature
            await connection.execute(
                update(assignment_table)
                .where(assignment_table.c.request_id == request_id, assignment_table.c.attempt == attempt)
                .values(values)
            )
            book = RequestBook(connection, at_ms)
            await book.load([request_id])
            story = {"attempt": attempt, "node": row["node"], "round": row["round"], "detail": detail}
            # A request that the chain closed or withdrew meanwhile stays where it is; the assignment ends all the same.
            # So does one whose quorum was moved by another of its nodes before.
            is_served = book.state(request_id) in _BEING_SERVED and not book.row(request_id)["k"]
            if is_served or can_move(book.state(request_id), cause):
                book.move(request_id, cause, story)
            else:
                book.note(request_id, f"assignment_{cause}", story)
            await book.flush()

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


async def _running_assignment(connection: AsyncConnection, request_id: Hash32, attempt: int, cause: Cause) -> Row:
    query = select(assignment_table).where(
        assignment_table.c.request_id == request_id, assignment_table.c.attempt == attempt
    )
    row = (await connection.execute(query)).mappings().first()
    if row is None:
        raise NotFound(f"the request {request_id} has no assignment {attempt}")
    # What a node has accepted it can only fail.
    is_past = row["state"] == "accepted" and cause in (Cause.ACCEPTED, Cause.REFUSED)
    if row["state"] not in _RUNNING or is_past:
        raise IllegalTransition(
            f"assignment {attempt} of {request_id} is {row['state']} and cannot be moved by {cause}"
        )
    return row
