"""Payloads, under their hashes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import insert, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.rows import request_of
from headrace.adapters.sql.tables import payloads, prompt_holders, requests, results
from headrace.core.envelope import hash_payload
from headrace.core.types import ZERO_ADDRESS, Address, Hash32
from headrace.ports import StoredRequest


class PayloadStore(StorePart):
    """Bytes that requests and results name by their hashes."""

    async def put_prompt(self, payload: bytes, holder: Address, at_ms: int) -> Hash32:
        payload_hash = hash_payload(payload)
        async with self._database.write() as connection:
            await keep_payloads(connection, {payload_hash: payload}, at_ms)
            await keep_holders(connection, {(payload_hash, holder)})
        return payload_hash

    async def payload(self, payload_hash: Hash32) -> bytes | None:
        query = select(payloads.c.content).where(payloads.c.payload_hash == payload_hash)
        async with self._database.read() as connection:
            content: bytes | None = (await connection.execute(query)).scalar()
        return content

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
    present = await _present(connection, list(contents))
    rows = [
        {"payload_hash": payload_hash, "content": content, "stored_at_ms": at_ms}
        for payload_hash, content in contents.items()
        if payload_hash not in present
    ]
    if rows:
        await connection.execute(insert(payloads), rows)


async def keep_holders(connection: AsyncConnection, holders: Collection[tuple[Hash32, Address]]) -> None:
    """Note who handed a prompt in; the zero address stands for everybody."""
    held = await _held(connection, {payload_hash for payload_hash, _ in holders})
    if new := [{"payload_hash": hash_, "account": account} for hash_, account in sorted(set(holders) - held)]:
        await connection.execute(insert(prompt_holders), new)


async def _held(connection: AsyncConnection, payload_hashes: Collection[Hash32]) -> set[tuple[Hash32, Address]]:
    found: set[tuple[Hash32, Address]] = set()
    for chunk in chunks(sorted(payload_hashes)):
        query = select(prompt_holders.c.payload_hash, prompt_holders.c.account)
        rows = await connection.execute(query.where(prompt_holders.c.payload_hash.in_(chunk)))
        found.update((row.payload_hash, row.account) for row in rows)
    return found


async def _present(connection: AsyncConnection, payload_hashes: Sequence[Hash32]) -> set[Hash32]:
    found: set[Hash32] = set()
    for chunk in chunks(payload_hashes):
        query = select(payloads.c.payload_hash).where(payloads.c.payload_hash.in_(chunk))
        found.update((await connection.execute(query)).scalars())
    return found
