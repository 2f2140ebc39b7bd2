"""Requests, their moves and their timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.batched import Batched
from headrace.adapters.sql.book import RequestBook
from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.rows import block_of, request_of, result_of
from headrace.adapters.sql.tables import assignments, requests, results, timeline
from headrace.adapters.sql.tables import blocks as block_table
from headrace.core.events import BlockRef
from headrace.core.lifecycle import TERMINAL, Cause, RequestState
from headrace.core.types import Address, Hash32
from headrace.ports import StoredRequest, TimelineEntry

_OVER = tuple(str(state) for state in (*TERMINAL, RequestState.WITHDRAWN))


class RequestStore(StorePart):
    """Requests."""

    async def request(self, request_id: Hash32) -> StoredRequest | None:
        return await self._lookup(request_id)

    async def requests_of(self, request_ids: Sequence[Hash32]) -> dict[Hash32, StoredRequest]:
        found: dict[Hash32, StoredRequest] = {}
        async with self._database.read() as connection:
            for chunk in chunks(request_ids):
                rows = await connection.execute(select(requests).where(requests.c.request_id.in_(chunk)))
                found.update({row["request_id"]: request_of(row) for row in rows.mappings()})
        return found

    async def requests(
        self,
        *,
        states: Sequence[RequestState] | None = None,
        requester: Address | None = None,
        limit: int = 1000,
        before_block: int | None = None,
    ) -> list[StoredRequest]:
        query = select(requests).order_by(requests.c.block_number.desc(), requests.c.request_id).limit(limit)
        if states is not None:
            query = query.where(requests.c.state.in_([str(state) for state in states]))
        if requester is not None:
            query = query.where(requests.c.requester == requester)
        if before_block is not None:
            query = query.where(requests.c.block_number < before_block)
        return await self._requests(query)

    async def relayer(self) -> Address | None:
        async with self._database.read() as connection:
            return (await connection.execute(select(assignments.c.relayer).limit(1))).scalar()

    async def eligible(self, limit: int) -> list[StoredRequest]:
        query = (
            select(requests)
            .where(requests.c.state == str(RequestState.ELIGIBLE))
            .order_by(requests.c.included_at_s, requests.c.request_id)
            .limit(limit)
        )
        return await self._requests(query)

    async def waiting_at_head(self, limit: int, confirmations: int) -> tuple[BlockRef, list[StoredRequest]] | None:
        newest = select(block_table).order_by(block_table.c.number.desc()).limit(1)
        waiting = select(requests).where(requests.c.state == RequestState.ELIGIBLE.value)
        waiting = waiting.order_by(requests.c.included_at_s, requests.c.request_id).limit(limit)
        async with self._database.read() as connection:
            row = (await connection.execute(newest)).mappings().first()
            if row is None:
                return None
            late = select(requests.c.request_id).where(
                requests.c.state == RequestState.INCLUDED.value,
                requests.c.servable.is_(True),
                requests.c.block_number <= row["number"] - confirmations,
            )
            if (await connection.execute(late.limit(1))).first() is not None:
                return None
            return block_of(row), [request_of(each) for each in (await connection.execute(waiting)).mappings()]

    async def expirable(self, before_s: int, limit: int) -> list[StoredRequest]:
        query = (
            select(requests)
            .where(
                requests.c.state.not_in(_OVER),
                requests.c.servable.is_(True),
                requests.c.effective_deadline_s < before_s,
            )
            .order_by(requests.c.effective_deadline_s, requests.c.request_id)
            .limit(limit)
        )
        return await self._requests(query)

    async def move(self, request_id: Hash32, cause: Cause, at_ms: int, detail: Mapping[str, Any]) -> RequestState:
        async with self._database.write() as connection:
            book = RequestBook(connection, at_ms)
            await book.load([request_id])
            state = book.move(request_id, cause, detail)
            if cause is Cause.UNPAYABLE:
                await drop_result(connection, book, request_id)
            await book.flush()
        return state

    async def release(self, request_id: Hash32, until_s: int, at_ms: int) -> bool:
        async with self._database.write() as connection:
            book = RequestBook(connection, at_ms)
            await book.load([request_id])
            running = select(assignments.c.attempt).where(
                assignments.c.request_id == request_id, assignments.c.state.in_(("open", "accepted"))
            )
            is_waiting = book.state(request_id) in (RequestState.INCLUDED, RequestState.ELIGIBLE)
            if not is_waiting or (await connection.execute(running)).first() is not None:
                return False
            # A shorter release never takes back a longer one that was signed.
            until_s = max(until_s, book.row(request_id)["released_until_s"])
            book.change(request_id, released_until_s=until_s)
            book.note(request_id, "released", {"until_s": until_s})
            await book.flush()
        return True

    async def note(self, request_id: Hash32, at_ms: int, stage: str, detail: Mapping[str, Any]) -> None:
        async with self._database.write() as connection:
            book = RequestBook(connection, at_ms)
            await book.load([request_id])
            book.note(request_id, stage, detail)
            await book.flush()

    async def timeline(self, request_id: Hash32) -> list[TimelineEntry]:
        query = select(timeline).where(timeline.c.request_id == request_id).order_by(timeline.c.entry_id)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).mappings()
            return [TimelineEntry(row["at_ms"], row["stage"], row["detail"]) for row in rows]

    @cached_property
    def _lookup(self) -> Batched[Hash32, StoredRequest | None]:
        async def work(request_ids: Sequence[Hash32]) -> list[StoredRequest | Exception | None]:
            found = await self.requests_of(list(dict.fromkeys(request_ids)))
            return [found.get(request_id) for request_id in request_ids]

        return Batched(work)

    async def _requests(self, query: Any) -> list[StoredRequest]:
        async with self._database.read() as connection:
            return [request_of(row) for row in (await connection.execute(query)).mappings()]


async def drop_result(connection: AsyncConnection, book: RequestBook, request_id: Hash32) -> None:
    """Make room for another node's result; the one that cannot be paid is kept in the timeline. The votes of a quorum
    stay: which of its nodes is at fault, nothing says."""
    if book.row(request_id)["k"]:
        return
    query = select(results).where(results.c.request_id == request_id)
    row = (await connection.execute(query)).mappings().first()
    if row is None:
        return
    stored = result_of(row)
    await connection.execute(delete(results).where(results.c.request_id == request_id))
    detail = {
        "node": stored.node,
        "round": stored.result.round,
        "reward_wei": str(stored.result.reward_wei),
        "result_hash": stored.result.result_hash,
        "signature": "0x" + stored.signature.hex(),
    }
    book.note(request_id, "result_dropped", detail)
