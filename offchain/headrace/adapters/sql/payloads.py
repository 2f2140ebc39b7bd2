"""Payloads, under their hashes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from sqlalchemy import Select, and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.batched import Batched
from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.rows import request_of
from headrace.adapters.sql.tables import payloads, postings, prompt_holders, requests, results
from headrace.core.envelope import hash_payload
from headrace.core.lifecycle import TERMINAL
from headrace.core.types import ZERO_ADDRESS, Address, Hash32
from headrace.ports import StoredRequest

_IS_ANSWER = results.c.payload_hash == payloads.c.payload_hash
_IS_TO_BE_POSTED = exists().where(
    postings.c.request["prompt_hash"].as_string() == payloads.c.payload_hash, postings.c.ended_at_ms == 0
)
_UNUSED = and_(
    ~exists().where(requests.c.prompt_hash == payloads.c.payload_hash), ~exists().where(_IS_ANSWER), ~_IS_TO_BE_POSTED
)


class PayloadStore(StorePart):
    """Bytes that requests and results name by their hashes."""

    async def put_prompt(self, payload: bytes, holder: Address, at_ms: int) -> Hash32:
        payload_hash = hash_payload(payload)
        async with self._database.write() as connection:
            await keep_payloads(connection, {payload_hash: payload}, at_ms)
            await keep_holders(connection, {(payload_hash, holder)})
        return payload_hash

    async def unused_prompt_bytes(self) -> int:
        query = select(func.coalesce(func.sum(func.length(payloads.c.content)), 0)).where(_UNUSED)
        async with self._database.read() as connection:
            return int((await connection.execute(query)).scalar_one())

    async def prune_unused_prompts(self, before_ms: int, *, at_most: int = 100_000) -> int:
        old = select(payloads.c.payload_hash).where(_UNUSED, payloads.c.stored_at_ms < before_ms)
        async with self._database.write() as connection:
            query = old.order_by(payloads.c.stored_at_ms).limit(at_most)
            return await _forget(connection, query, is_referred_to=False)

    async def prune_ended_payloads(self, before_ms: int) -> int:
        ended = [str(state) for state in TERMINAL]
        is_needed = or_(requests.c.state.not_in(ended), requests.c.effective_deadline_s * 1000 >= before_ms)
        for_prompt = exists().where(requests.c.prompt_hash == payloads.c.payload_hash, is_needed)
        for_answer = exists().where(_IS_ANSWER, results.c.request_id == requests.c.request_id, is_needed)
        old = select(payloads.c.payload_hash).where(
            payloads.c.content != b"",
            ~_UNUSED,
            ~for_prompt,
            ~for_answer,
            ~_IS_TO_BE_POSTED,
            payloads.c.stored_at_ms < before_ms,
        )
        async with self._database.write() as connection:
            return await _forget(connection, old, is_referred_to=True)

    async def payload(self, payload_hash: Hash32) -> bytes | None:
        return await self._content(payload_hash)

    @cached_property
    def _content(self) -> Batched[Hash32, bytes | None]:
        async def work(payload_hashes: Sequence[Hash32]) -> list[bytes | Exception | None]:
            found: dict[Hash32, bytes] = {}
            async with self._database.read() as connection:
                for chunk in chunks(list(dict.fromkeys(payload_hashes))):
                    query = select(payloads.c.payload_hash, payloads.c.content)
                    rows = await connection.execute(query.where(payloads.c.payload_hash.in_(chunk)))
                    found.update({row.payload_hash: row.content for row in rows})
            return [found.get(payload_hash) or None for payload_hash in payload_hashes]

        return Batched(work)

    async def held_prompts(self, prompts: Collection[tuple[Hash32, Address]]) -> set[tuple[Hash32, Address]]:
        async with self._database.read() as connection:
            held = await _held(connection, {payload_hash for payload_hash, _ in prompts})
        return {(hash_, account) for hash_, account in prompts if {(hash_, account), (hash_, ZERO_ADDRESS)} & held}

    async def requests_of_payload(self, payload_hash: Hash32) -> list[StoredRequest]:
        answered = select(results.c.request_id).where(results.c.payload_hash == payload_hash)
        query = (
            select(requests)
            .where(or_(requests.c.prompt_hash == payload_hash, requests.c.request_id.in_(answered)))
            .order_by(requests.c.block_number, requests.c.request_id)
        )
        async with self._database.read() as connection:
            return [request_of(row) for row in (await connection.execute(query)).mappings()]


async def keep_payloads(connection: AsyncConnection, contents: Mapping[Hash32, bytes], at_ms: int) -> None:
    """Store those that are not there yet."""
    sizes = await _sizes(connection, list(contents))
    rows = {
        payload_hash: {"payload_hash": payload_hash, "content": content, "stored_at_ms": at_ms}
        for payload_hash, content in contents.items()
        if not sizes.get(payload_hash)
    }
    for payload_hash in rows.keys() & sizes.keys():  # thrown out before
        await connection.execute(
            update(payloads).where(payloads.c.payload_hash == payload_hash).values(rows.pop(payload_hash))
        )
    if rows:
        await connection.execute(insert(payloads), list(rows.values()))


async def keep_holders(connection: AsyncConnection, holders: Collection[tuple[Hash32, Address]]) -> None:
    """Note who handed a prompt in; the zero address stands for everybody."""
    held = await _held(connection, {payload_hash for payload_hash, _ in holders})
    if new := [{"payload_hash": hash_, "account": account} for hash_, account in sorted(set(holders) - held)]:
        await connection.execute(insert(prompt_holders), new)


async def _forget(connection: AsyncConnection, old: Select[tuple[Hash32]], *, is_referred_to: bool) -> int:
    hashes = list((await connection.execute(old)).scalars())
    for chunk in chunks(hashes):
        await connection.execute(delete(prompt_holders).where(prompt_holders.c.payload_hash.in_(chunk)))
        await connection.execute(
            # Results refer to their row, so it stays, without its content.
            update(payloads).where(payloads.c.payload_hash.in_(chunk)).values(content=b"")
            if is_referred_to
            else delete(payloads).where(payloads.c.payload_hash.in_(chunk))
        )
    return len(hashes)


async def _held(connection: AsyncConnection, payload_hashes: Collection[Hash32]) -> set[tuple[Hash32, Address]]:
    found: set[tuple[Hash32, Address]] = set()
    for chunk in chunks(sorted(payload_hashes)):
        query = select(prompt_holders.c.payload_hash, prompt_holders.c.account)
        rows = await connection.execute(query.where(prompt_holders.c.payload_hash.in_(chunk)))
        found.update((row.payload_hash, row.account) for row in rows)
    return found


async def _sizes(connection: AsyncConnection, payload_hashes: Sequence[Hash32]) -> dict[Hash32, int]:
    """Bytes of those that have a row; 0 when they were thrown out."""
    found: dict[Hash32, int] = {}
    for chunk in chunks(payload_hashes):
        query = select(payloads.c.payload_hash, func.length(payloads.c.content).label("size"))
        rows = await connection.execute(query.where(payloads.c.payload_hash.in_(chunk)))
        found.update({row.payload_hash: row.size for row in rows})
    return found
