"""Verified results, from delivery to settlement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import bindparam, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.batched import Batched
from headrace.adapters.sql.book import RequestBook
from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.payloads import keep_payloads
from headrace.adapters.sql.quorums import standing_in
from headrace.adapters.sql.rows import result_of, row_of_result
from headrace.adapters.sql.tables import assignments, dead_letters, requests, results
from headrace.core.errors import NotFound
from headrace.core.lifecycle import Cause, RequestState
from headrace.core.types import Hash32
from headrace.ports import StoredResult

_END_ASSIGNMENT = (
    update(assignments)
    .where(
        assignments.c.request_id == bindparam("of"),
        assignments.c.node == bindparam("by"),
        assignments.c.round == bindparam("within"),
    )
    .values(state="delivered")
)


@dataclass(frozen=True, slots=True)
class _New:
    """A result that comes in."""

    result: StoredResult
    payload: bytes
    at_ms: int
    detail: Mapping[str, Any]

    @property
    def request_id(self) -> Hash32:
        """Whose it is."""
        return self.result.result.request_id


class ResultStore(StorePart):
    """Results."""

    async def add_result(self, result: StoredResult, payload: bytes, at_ms: int, detail: Mapping[str, Any]) -> bool:
        return await self._adding(_New(result, payload, at_ms, detail))

    @cached_property
    def _adding(self) -> Batched[_New, bool]:
        return Batched(self._add_results, key=lambda new: new.request_id)

    async def _add_results(self, news: Sequence[_New]) -> list[bool | Exception]:
        """Results of different requests; whether each is new."""
        async with self._database.write() as connection:
            book = RequestBook(connection, 0)
            await book.load([new.request_id for new in news])
            known = [new for new in news if new.request_id in book]
            if known:
                await connection.execute(_END_ASSIGNMENT, [_ended(new.result) for new in known])
            there = await _results_of(connection, [new.request_id for new in known])
            fresh = [new for new in known if not _is_there(book, new, there.get(new.request_id, []))]
            await keep_payloads(connection, {new.result.payload_hash: new.payload for new in fresh}, news[0].at_ms)
            if fresh:
                await connection.execute(insert(results), [row_of_result(new.result) for new in fresh])
            for new in fresh:
                await _move_by(connection, book, new)
            await book.flush()
        unknown = {new.request_id for new in news} - {new.request_id for new in known}
        added = {new.request_id for new in fresh}
        return [_not_found(new) if new.request_id in unknown else new.request_id in added for new in news]

    async def result(self, request_id: Hash32) -> StoredResult | None:
        async with self._database.read() as connection:
            found = await _results(connection, request_id)
            k = (await connection.execute(select(requests.c.k).where(requests.c.request_id == request_id))).scalar()
            if k:
                standing = await standing_in(connection, request_id, k)
                found = [each for each in found if standing.agreed and each.result.round == standing.round]
        return found[0] if found else None

    async def results(self, request_id: Hash32) -> list[StoredResult]:
        return await self._votes(request_id)

    @cached_property
    def _votes(self) -> Batched[Hash32, list[StoredResult]]:
        async def work(request_ids: Sequence[Hash32]) -> list[list[StoredResult] | Exception]:
            async with self._database.read() as connection:
                found = await _results_of(connection, list(dict.fromkeys(request_ids)))
            return [list(found.get(request_id, [])) for request_id in request_ids]

        return Batched(work)

    async def ready_results(self, limit: int) -> list[tuple[StoredResult, ...]]:
        last_round = select(func.max(assignments.c.round)).where(assignments.c.request_id == requests.c.request_id)
        ready = (
            select(results.c.request_id, results.c.node, results.c.round, results.c.received_at_ms)
            .join(requests, requests.c.request_id == results.c.request_id)
            .where(requests.c.state == str(RequestState.SIGNED))
            .where(~exists().where(dead_letters.c.request_id == requests.c.request_id))
            # A quorum may have votes of earlier rounds, too.
            .where(or_(requests.c.k == 0, results.c.round == last_round.scalar_subquery()))
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
    return (await _results_of(connection, [request_id])).get(request_id, [])


async def _results_of(connection: AsyncConnection, request_ids: Sequence[Hash32]) -> dict[Hash32, list[StoredResult]]:
    found: dict[Hash32, list[StoredResult]] = {}
    for chunk in chunks(request_ids):
        query = select(results).where(results.c.request_id.in_(chunk)).order_by(results.c.round, results.c.node)
        for row in (await connection.execute(query)).mappings():
            found.setdefault(row["request_id"], []).append(result_of(row))
    return found


def _is_there(book: RequestBook, new: _New, there: Sequence[StoredResult]) -> bool:
    """A single request has one result; a quorum has one of each node and round."""
    return any(not book.row(new.request_id)["k"] or _is_same(new.result, each) for each in there)


def _is_same(one: StoredResult, other: StoredResult) -> bool:
    return (one.node, one.result.round) == (other.node, other.result.round)


def _not_found(new: _New) -> NotFound:
    return NotFound(f"the request {new.request_id} is not in the store")


async def _move_by(connection: AsyncConnection, book: RequestBook, new: _New) -> None:
    """A request that waits for its block, or is closed, stays where it is; the result is there when it is asked."""
    k = book.row(new.request_id)["k"]
    cause = await _cause(connection, new.request_id, k)
    book.at_ms = new.at_ms
    if cause is None or not book.move_if_possible(new.request_id, cause, new.detail):
        book.note(new.request_id, "voted" if k else "result_kept", new.detail)


async def _cause(connection: AsyncConnection, request_id: Hash32, k: int) -> Cause | None:
    """Where a new result moves its request: of a quorum the one that completes it, or the first that contradicts."""
    if not k:
        return Cause.DELIVERED
    standing = await standing_in(connection, request_id, k)
    if standing.agreed:
        return Cause.DELIVERED
    return Cause.DISSENTED if standing.is_broken else None


def _ended(stored: StoredResult) -> dict[str, Any]:
    """The node did what it was assigned, be it late."""
    return {"of": stored.result.request_id, "by": stored.node, "within": stored.result.round}
