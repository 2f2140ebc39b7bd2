"""Verified results, from delivery to settlement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.book import RequestBook
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.payloads import keep_payloads
from headrace.adapters.sql.rows import result_of, row_of_result
from headrace.adapters.sql.tables import assignments, requests, results
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
            book.row(request_id)
            await _end_assignment(connection, result)
            if await _result(connection, request_id) is not None:
                return False
            await keep_payloads(connection, {result.payload_hash: payload}, at_ms)
            await connection.execute(insert(results).values(row_of_result(result)))
            # A request that waits for its block, or is closed, stays where it is; the result is there when it is asked.
            if not book.move_if_possible(request_id, Cause.DELIVERED, detail):
                book.note(request_id, "result_kept", detail)
            await book.flush()
        return True

    async def result(self, request_id: Hash32) -> StoredResult | None:
        async with self._database.read() as connection:
            return await _result(connection, request_id)

    async def ready_results(self, limit: int) -> list[StoredResult]:
        query = (
            select(results)
            .join(requests, requests.c.request_id == results.c.request_id)
            .where(requests.c.state == str(RequestState.SIGNED))
            .order_by(results.c.received_at_ms, results.c.request_id)
            .limit(limit)
        )
        async with self._database.read() as connection:
            return [result_of(row) for row in (await connection.execute(query)).mappings()]


async def _result(connection: AsyncConnection, request_id: Hash32) -> StoredResult | None:
    query = select(results).where(results.c.request_id == request_id)
    row = (await connection.execute(query)).mappings().first()
    return result_of(row) if row else None


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
