"""Postings: requests that their requesters signed, until the chain has them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.payloads import keep_holders, keep_payloads
from headrace.adapters.sql.rows import posting_of, row_of_posting
from headrace.adapters.sql.tables import attempts, intents, postings
from headrace.core.envelope import hash_payload
from headrace.core.errors import NotFound
from headrace.core.postings import PostingState
from headrace.core.types import Address, Hash32
from headrace.ports import StoredPosting

REQUEST_FOR = "request_for"
_LAST_ATTEMPT = (
    select(attempts.c.transaction_hash)
    .where(attempts.c.intent_id == postings.c.intent_id)
    .order_by(attempts.c.position.desc())
    .limit(1)
    .scalar_subquery()
)


class PostingStore(StorePart):
    """Postings."""

    async def add_posting(self, posting: StoredPosting, prompt: bytes | None) -> StoredPosting:
        key, row = postings.c.request_id == posting.request_id, row_of_posting(posting)
        async with self._database.write() as connection:
            known = await _postings(connection, key)
            if known and known[0].state is not PostingState.UNPOSTED:
                return known[0]
            if prompt is not None:
                payload_hash = hash_payload(prompt)
                await keep_payloads(connection, {payload_hash: prompt}, posting.submitted_at_ms)
                await keep_holders(connection, {(payload_hash, posting.request.requester)})
            await connection.execute(update(postings).where(key).values(row) if known else insert(postings).values(row))
        return posting

    async def posting(self, request_id: Hash32) -> StoredPosting | None:
        async with self._database.read() as connection:
            found = await _postings(connection, postings.c.request_id == request_id)
        return found[0] if found else None

    async def postings(
        self, state: PostingState, *, requester: Address | None = None, limit: int = 1000
    ) -> list[StoredPosting]:
        condition = postings.c.state == str(state)
        if requester is not None:
            condition &= postings.c.requester == requester
        async with self._database.read() as connection:
            return await _postings(connection, condition, limit)

    async def reverted_postings(self, requester: Address, since_ms: int) -> int:
        query = select(intents.c.detail).where(
            intents.c.state == "reverted", intents.c.kind == REQUEST_FOR, intents.c.created_at_ms >= since_ms
        )
        async with self._database.read() as connection:
            details = (await connection.execute(query)).scalars()
            return sum(1 for detail in details if detail["requester"] == requester)

    async def end_posting(self, request_id: Hash32, state: PostingState, reason: str, at_ms: int) -> None:
        async with self._database.write() as connection:
            done = await connection.execute(
                update(postings)
                .where(postings.c.request_id == request_id)
                .values(state=str(state), reason=reason, ended_at_ms=at_ms)
            )
            if done.rowcount == 0:
                raise NotFound(f"there is no posting {request_id}")


async def tie_posting(connection: AsyncConnection, request_id: Hash32, intent_id: int) -> None:
    """Note the intent that posts a posting."""
    await connection.execute(update(postings).where(postings.c.request_id == request_id).values(intent_id=intent_id))


async def end_tied_posting(connection: AsyncConnection, intent_id: int, state: str, at_ms: int) -> None:
    """What becomes of a posting when its intent ends. Why one was reverted is found out by the poster."""
    values: dict[str, Any] = {}
    if state == "included":
        values = {"state": str(PostingState.POSTED), "reason": "", "ended_at_ms": at_ms}
    elif state in ("cancelled", "dropped"):
        values = {"intent_id": None}
    if values:
        await connection.execute(update(postings).where(postings.c.intent_id == intent_id).values(values))


async def reopen_tied_posting(connection: AsyncConnection, intent_id: int) -> None:
    """A reorg took the block that ended its intent, whose transaction is sent again."""
    await connection.execute(
        update(postings)
        .where(postings.c.intent_id == intent_id)
        .values(state=str(PostingState.SUBMITTED), reason="", ended_at_ms=0)
    )


async def _postings(connection: AsyncConnection, condition: Any, limit: int = 1) -> list[StoredPosting]:
    query = (
        select(
            postings,
            intents.c.state.label("intent_state"),
            intents.c.block_number.label("intent_block"),
            _LAST_ATTEMPT.label("transaction_hash"),
        )
        .select_from(postings.outerjoin(intents, intents.c.intent_id == postings.c.intent_id))
        .where(condition)
        .order_by(postings.c.submitted_at_ms.desc(), postings.c.request_id)
        .limit(limit)
    )
    return [posting_of(row) for row in (await connection.execute(query)).mappings()]
