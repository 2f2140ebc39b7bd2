"""Verified results, from delivery to settlement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.book import RequestBook
from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.payloads import keep_payloads
from headrace.adapters.sql.quorums import standing_in
from headrace.adapters.sql.rows import result_of, row_of_result
from headrace.adapters.sql.tables import assignments, dead_letters, requests, results
from headrace.core.lifecycle import Cause, RequestState
from headrace.core.types import Hash32
from headrace.ports import StoredResult


class ResultStore(StorePart):
    """Results."""

    async def add_result(self, result: StoredResult, payload: bytes, at_ms: int, detail: Mapping[str, Any]) -> bool:
        request_id = result.result.request_id
        async with self._database.write() as connection:
            book = RequestBook(connection, at_ms)
            await book.load([request_id])
            k = book.row(request_id)["k"]
            await _end_assignment(connection, result)
            if any(not k or _is_same(result, each) for each in await _results(connection, request_id)):
                return False
            await keep_payloads(connection, {result.payload_hash: payload}, at_ms)
            await connection.execute(insert(results).values(row_of_result(result)))
            cause = await _cause(connection, request_id, k)
            # A request that waits for its block, or is closed, stays where it is; the result is there when it is asked.
            if cause is None or not book.move_if_possible(request_id, cause, detail):
                book.note(request_id, "voted" if k else "result_kept", detail)
            await book.flush()
        return True

    async def result(self, request_id: Hash32) -> StoredResult | None:
        async with self._database.read() as connection:
            found = await _results(connection, request_id)
            k = (await connection.execute(select(requests.c.k).where(requests.c.request_id == request_id))).scalar()
            if k:
                standing = await standing_in(connection, request_id, k)
                found = [each for each in found if standing.agreed and each.result.round == standing.round]
        return found[0] if found else None

    async def results(self, request_id: Hash32) -> list[StoredResult]:
        async with self._database.read() as connection:
            return await _results(connection, request_id)

    async def ready_results(self, limit: int) -> list[tuple[StoredResult, ...]]:
        last = select(assignments.c.request_id, func.max(assignments.c.round).label("round"))
        last_round = last.group_by(assignments.c.request_id).subquery()
        ready = (
            select(results.c.request_id, results.c.node, results.c.round, results.c.received_at_ms)
            .join(requests, requests.c.request_id == results.c.request_id)
            .outerjoin(last_round, last_round.c.request_id == results.c.request_id)
            .where(requests.c.state == str(RequestState.SIGNED))
            .where(~exists().where(dead_letters.c.request_id == requests.c.request_id))
            # A quorum may have votes of earlier rounds, too.
            .where(or_(requests.c.k == 0, results.c.round == last_round.c.round))
            .subquery()
        )
        query = (
            select(ready.c.request_id)
            .group_by(ready.c.request_id)
            .order_by(func.max(ready.c.received_at_ms), ready.c.request_id)
            .limit(limit)
        )
        found: dict[Hash32, list[StoredResult]] = {}
        async with self._database.read() as connection:
            ids = list((await connection.execute(query)).scalars())
            for chunk in chunks(ids):
                rows = await connection.execute(
                    select(results)
                    .join(
                        ready,
                        (ready.c.request_id == results.c.request_id)
                        & (ready.c.node == results.c.node)
                        & (ready.c.round == results.c.round),
                    )
                    .where(results.c.request_id.in_(chunk))
                    .order_by(results.c.node)
                )
                for row in rows.mappings():
                    found.setdefault(row["request_id"], []).append(result_of(row))
        return [tuple(found[request_id]) for request_id in ids]


async def _results(connection: AsyncConnection, request_id: Hash32) -> list[StoredResult]:
    query = select(results).where(results.c.request_id == request_id).order_by(results.c.round, results.c.node)
    return [result_of(row) for row in (await connection.execute(query)).mappings()]


def _is_same(one: StoredResult, other: StoredResult) -> bool:
    return (one.node, one.result.round) == (other.node, other.result.round)


async def _cause(connection: AsyncConnection, request_id: Hash32, k: int) -> Cause | None:
    """Where a new result moves its request: of a quorum the one that completes it, or the first that contradicts."""
    if not k:
        return Cause.DELIVERED
    standing = await standing_in(connection, request_id, k)
    if standing.agreed:
        return Cause.DELIVERED
    return Cause.DISSENTED if standing.is_broken else None


async def _end_assignment(connection: AsyncConnection, result: StoredResult) -> None:
    """The node did what it was assigned, be it late."""
    await connection.execute(
        update(assignments)
        .where(
            assignments.c.request_id == result.result.request_id,
            assignments.c.node == result.node,
            assignments.c.round == result.result.round,
        )
        .values(state="delivered")
    )
