"""What a watcher keeps: leaves of rounds, results that nodes signed, faults and their proofs, how far it looked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Column, Select, delete, exists, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.fault_tables import cursors, faults, signed_results
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.rows import (
    Row,
    assignment_of,
    event_of,
    request_of,
    result_of,
    round_of,
    row_of_decision,
)
from headrace.adapters.sql.tables import assignments, events, leaves, requests, results, rounds
from headrace.core.events import ChainEvent
from headrace.core.faults import Fault
from headrace.core.types import Decision, DecisionKind, Hash32, Result
from headrace.ports import Call, NotedResult, StoredAssignment, StoredFault, StoredRequest, StoredRound

WATCH = "watch"
_ENOUGH = 2  # results of one node and request: more prove nothing more


class FaultStore(StorePart):
    """Faults, and what they are found in."""

    async def assignments_of_round(self, round_: int) -> list[StoredAssignment]:
        query = (
            select(assignments)
            .where(assignments.c.round == round_)
            .order_by(assignments.c.request_id, assignments.c.attempt)
        )
        async with self._database.read() as connection:
            return [assignment_of(row) for row in (await connection.execute(query)).mappings()]

    async def rounds_owed(self, from_s: int, to_s: int) -> set[int]:
        query = select(assignments.c.round).join(rounds, rounds.c.round == assignments.c.round)
        query = query.where(
            rounds.c.state == "open",
            assignments.c.state.in_(("lease_expired", "failed")),
            assignments.c.accept_signature != b"",
            assignments.c.deadline_s.between(from_s, to_s),
        )
        async with self._database.read() as connection:
            return set((await connection.execute(query)).scalars())

    async def note_results(self, noted: Sequence[NotedResult]) -> None:
        async with self._database.write() as connection:
            for each in noted:
                row = _row_of_noted(each)
                of_node = (signed_results.c[name] == row[name] for name in ("request_id", "node"))
                query = select(signed_results.c.result_hash).where(*of_node)
                known = (await connection.execute(query)).scalars().all()
                if len(known) < _ENOUGH and row["result_hash"] not in known:
                    await connection.execute(insert(signed_results).values(row))

    async def known_requests(self, request_ids: Sequence[Hash32]) -> dict[Hash32, StoredRequest]:
        rows = await self._rows_of(select(requests), requests.c.request_id, request_ids)
        return {row["request_id"]: request_of(row) for row in rows}

    async def noted_results(self, request_ids: Sequence[Hash32]) -> dict[Hash32, list[NotedResult]]:
        found: dict[Hash32, list[NotedResult]] = {request_id: [] for request_id in request_ids}
        delivered = select(results).order_by(results.c.round, results.c.node)
        for row in await self._rows_of(delivered, results.c.request_id, request_ids):
            kept = result_of(row)
            found[row["request_id"]].append(NotedResult(kept.node, kept.result, kept.signature))
        noted = select(signed_results).order_by(signed_results.c.entry_id)
        for row in await self._rows_of(noted, signed_results.c.request_id, request_ids):
            found[row["request_id"]].append(_noted_of(row))
        return found

    async def noted_in_round(self, round_: int) -> list[Hash32]:
        query = select(signed_results.c.request_id).where(signed_results.c.round == round_).distinct()
        async with self._database.read() as connection:
            return list((await connection.execute(query.order_by(signed_results.c.request_id))).scalars())

    async def equivocated(self, after: int) -> tuple[list[Hash32], int]:
        noted = signed_results
        other = signed_results.alias()
        beside_noted = exists().where(
            other.c.request_id == noted.c.request_id,
            other.c.node == noted.c.node,
            other.c.result_hash != noted.c.result_hash,
        )
        beside_kept = exists().where(
            results.c.request_id == noted.c.request_id,
            results.c.node == noted.c.node,
            results.c.result_hash != noted.c.result_hash,
        )
        async with self._database.read() as connection:
            last = (await connection.execute(select(func.max(noted.c.entry_id)))).scalar() or after
            query = select(noted.c.request_id).where(noted.c.entry_id > after, beside_noted | beside_kept).distinct()
            return list((await connection.execute(query)).scalars()), max(last, after)

    async def events_between(self, from_block: int, to_block: int, names: Collection[str]) -> list[ChainEvent]:
        query = select(events).where(
            events.c.block_number.between(from_block, to_block), events.c.name.in_(sorted(names))
        )
        query = query.order_by(events.c.block_number, events.c.log_index)
        async with self._database.read() as connection:
            return [event_of(row) for row in (await connection.execute(query)).mappings()]

    async def events_of(self, request_ids: Sequence[Hash32]) -> dict[Hash32, list[ChainEvent]]:
        found: dict[Hash32, list[ChainEvent]] = {request_id: [] for request_id in request_ids}
        query = select(events).order_by(events.c.block_number, events.c.log_index)
        for row in await self._rows_of(query, events.c.request_id, request_ids):
            found[row["request_id"]].append(event_of(row))
        return found

    async def keep_leaves(self, round_: int, decisions: Sequence[Decision]) -> None:
        rows = [
            {"round": round_, "position": position, **row_of_decision(decision)}
            for position, decision in enumerate(decisions)
        ]
        async with self._database.write() as connection:
            await connection.execute(delete(leaves).where(leaves.c.round == round_))
            if rows:
                await connection.execute(insert(leaves), rows)

    async def rounds_assigning(self, request_ids: Sequence[Hash32]) -> dict[Hash32, set[int]]:
        found: dict[Hash32, set[int]] = {request_id: set() for request_id in request_ids}
        query = select(leaves.c.request_id, leaves.c.round).where(leaves.c.kind == int(DecisionKind.ASSIGNED))
        for row in await self._rows_of(query, leaves.c.request_id, request_ids):
            found[row["request_id"]].add(row["round"])
        return found

    async def rounds_without_leaves(self, limit: int) -> list[StoredRound]:
        has_leaves = exists().where(leaves.c.round == rounds.c.round)
        query = select(rounds).where(rounds.c.state == "recorded", ~has_leaves).order_by(rounds.c.round).limit(limit)
        async with self._database.read() as connection:
            return [round_of(row) for row in (await connection.execute(query)).mappings()]

    async def add_fault(self, fault: StoredFault) -> bool:
        async with self._database.write() as connection:
            known = await _fault(connection, fault)
            if known is None:
                await connection.execute(insert(faults).values(_row_of_fault(fault)))
            elif known["state"] == "refused":
                # What a reorg took away, or what was missing, may be there now.
                await connection.execute(update(faults).where(*_is(fault)).values(_row_of_fault(fault)))
            return known is None

    async def faults(self, states: Sequence[str] | None, limit: int) -> list[StoredFault]:
        query = select(faults).order_by(faults.c.tried_at_ms, faults.c.found_at_ms, faults.c.request_id).limit(limit)
        if states is not None:
            query = query.where(faults.c.state.in_(list(states)))
        async with self._database.read() as connection:
            return [_fault_of(row) for row in (await connection.execute(query)).mappings()]

    async def set_fault(self, fault: StoredFault) -> None:
        async with self._database.write() as connection:
            await connection.execute(update(faults).where(*_is(fault)).values(_row_of_fault(fault)))

    async def watched_up_to(self) -> int:
        query = select(cursors.c.block_number).where(cursors.c.name == WATCH)
        async with self._database.read() as connection:
            found = (await connection.execute(query)).scalar()
        return -1 if found is None else found

    async def _rows_of(self, query: Select[Any], column: Column[Any], request_ids: Sequence[Hash32]) -> list[Row]:
        """The rows of a query that are about these requests."""
        found: list[Row] = []
        async with self._database.read() as connection:
            for chunk in chunks(request_ids):
                found += (await connection.execute(query.where(column.in_(chunk)))).mappings().all()
        return found

    async def set_watched_up_to(self, block_number: int) -> None:
        async with self._database.write() as connection:
            moved = await connection.execute(
                update(cursors).where(cursors.c.name == WATCH).values(block_number=block_number)
            )
            if moved.rowcount == 0:
                await connection.execute(insert(cursors).values(name=WATCH, block_number=block_number))


async def step_back(connection: AsyncConnection, number: int) -> None:
    """Have what stands in other blocks now looked at again: the blocks above `number` are gone."""
    await connection.execute(update(cursors).where(cursors.c.block_number > number).values(block_number=number))


def _row_of_noted(noted: NotedResult) -> dict[str, Any]:
    return {
        "request_id": noted.result.request_id,
        "node": noted.node,
        "result_hash": noted.result.result_hash,
        "reward_wei": noted.result.reward_wei,
        "relayer": noted.result.relayer,
        "round": noted.result.round,
        "signature": noted.signature,
        "transaction_hash": noted.transaction_hash,
    }


def _noted_of(row: Row) -> NotedResult:
    result = Result(row["request_id"], row["result_hash"], row["reward_wei"], row["relayer"], row["round"])
    return NotedResult(row["node"], result, row["signature"], row["transaction_hash"])


def _is(fault: StoredFault) -> tuple[Any, ...]:
    key = {"fault": int(fault.fault), "culprit": fault.culprit, "request_id": fault.request_id, "node": fault.node}
    return tuple(faults.c[name] == value for name, value in key.items())


async def _fault(connection: AsyncConnection, fault: StoredFault) -> Row | None:
    return (await connection.execute(select(faults).where(*_is(fault)))).mappings().first()


def _row_of_fault(fault: StoredFault) -> dict[str, Any]:
    return {
        "fault": int(fault.fault),
        "culprit": fault.culprit,
        "request_id": fault.request_id,
        "node": fault.node,
        "state": fault.state,
        "round": fault.round,
        "to": fault.call.to,
        "data": fault.call.data,
        "transaction_hash": fault.transaction_hash,
        "detail": fault.detail,
        "found_at_ms": fault.found_at_ms,
        "tried_at_ms": fault.tried_at_ms,
    }


def _fault_of(row: Row) -> StoredFault:
    return StoredFault(
        fault=Fault(row["fault"]),
        culprit=row["culprit"],
        request_id=row["request_id"],
        node=row["node"],
        round=row["round"],
        call=Call(row["to"], row["data"]),
        state=row["state"],
        detail=row["detail"],
        transaction_hash=row["transaction_hash"],
        found_at_ms=row["found_at_ms"],
        tried_at_ms=row["tried_at_ms"],
    )
