"""Blocks and events: what the indexer writes, and how a reorg takes it back."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.book import RequestBook
from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.faults import step_back
from headrace.adapters.sql.intents import reopen_above, reopen_unseen
from headrace.adapters.sql.life import REQUEST_EVENTS, fold, reconcile
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.payloads import keep_holders, keep_payloads
from headrace.adapters.sql.rows import block_of, event_of, json_of_record, record_of_event
from headrace.adapters.sql.tables import blocks as block_table
from headrace.adapters.sql.tables import events as event_table
from headrace.adapters.sql.tables import requests, rounds
from headrace.core.errors import InvalidInput
from headrace.core.events import BlockRef, ChainEvent
from headrace.core.lifecycle import Cause, RequestState
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Address, Hash32


class BlockStore(StorePart):
    """Blocks and events."""

    async def last_block(self) -> BlockRef | None:
        async with self._database.read() as connection:
            return await _last_block(connection)

    async def block(self, number: int) -> BlockRef | None:
        async with self._database.read() as connection:
            query = select(block_table).where(block_table.c.number == number)
            row = (await connection.execute(query)).mappings().first()
        return block_of(row) if row else None

    async def event_places(self, from_block: int, to_block: int) -> set[tuple[Hash32, int]]:
        query = select(event_table.c.block_hash, event_table.c.log_index)
        query = query.where(event_table.c.block_number.between(from_block, to_block))
        async with self._database.read() as connection:
            return {(row.block_hash, row.log_index) for row in await connection.execute(query)}

    async def add_blocks(self, blocks: Sequence[BlockRef], events: Sequence[ChainEvent], relayer: Address) -> None:
        if not blocks:
            return
        ordered = sorted(events, key=lambda event: (event.block_number, event.log_index))
        _require_in_blocks(ordered, blocks)
        async with self._database.write() as connection:
            _require_chained(await _last_block(connection), blocks)
            await connection.execute(insert(block_table), [_row_of_block(block) for block in blocks])
            fresh = await _insert_events(connection, ordered)
            book = RequestBook(connection, self._clock.now_ms())
            await _apply_to_requests(connection, book, fresh, {block.number: block for block in blocks}, relayer)
            await _apply_to_rounds(connection, fresh, relayer)
            await reopen_unseen(connection, book, blocks, {event.transaction_hash for event in fresh})
            await book.flush()

    async def rewind_to(self, number: int) -> list[Hash32]:
        async with self._database.write() as connection:
            gone = event_table.c.block_number > number
            touched = await _ids_in_order(connection, gone)
            await connection.execute(delete(event_table).where(gone))
            await connection.execute(delete(block_table).where(block_table.c.number > number))
            book = RequestBook(connection, self._clock.now_ms())
            await book.load(touched)
            left = await _events_of(connection, touched)
            for request_id in touched:
                reconcile(book, request_id, fold(left[request_id]), {}, ZERO_ADDRESS)
            await connection.execute(
                update(rounds)
                .where(rounds.c.state == "recorded", rounds.c.recorded_block > number)
                .values(state="closed", recorded_block=0, transaction_hash=ZERO_HASH)
            )
            await reopen_above(connection, book, number)
            await step_back(connection, number)
            await book.flush()
        return touched

    async def confirm_up_to(self, number: int, at_ms: int) -> int:
        async with self._database.write() as connection:
            query = (
                select(requests.c.request_id)
                .where(
                    requests.c.state == RequestState.INCLUDED.value,
                    requests.c.servable.is_(True),
                    requests.c.block_number <= number,
                )
                .order_by(requests.c.included_at_s, requests.c.request_id)
            )
            confirmed = list((await connection.execute(query)).scalars())
            if not confirmed:
                return 0
            book = RequestBook(connection, at_ms)
            await book.load(confirmed)
            for request_id in confirmed:
                book.move(request_id, Cause.CONFIRMED, {"block_number": book.row(request_id)["block_number"]})
            await book.advance(confirmed)
            await book.flush()
        return len(confirmed)


def keys_of(ordered: Iterable[ChainEvent]) -> list[str]:
    """What tells each event from all others of the chain, wherever a reorg moves it: its transaction, what it says,
    and which of several equal ones of that transaction it is."""
    seen: Counter[str] = Counter()
    keys = []
    for event in ordered:
        content = json.dumps(
            [event.transaction_hash, event.contract, event.name, event.args], sort_keys=True, separators=(",", ":")
        )
        seen[content] += 1
        keys.append("0x" + hashlib.sha256(f"{content}#{seen[content]}".encode()).hexdigest())
    return keys


def _require_chained(last: BlockRef | None, new_blocks: Sequence[BlockRef]) -> None:
    for block in new_blocks:
        if last is not None and (block.number, block.parent_hash) != (last.number + 1, last.hash):
            raise InvalidInput(
                f"block {block.number} {block.hash} does not follow on block {last.number} {last.hash}: "
                f"its parent is {block.parent_hash}"
            )
        last = block


def _require_in_blocks(ordered: Sequence[ChainEvent], new_blocks: Sequence[BlockRef]) -> None:
    hashes = {block.number: block.hash for block in new_blocks}
    for event in ordered:
        if hashes.get(event.block_number) != event.block_hash:
            raise InvalidInput(f"an event is of block {event.block_number} {event.block_hash}, which is not added")


async def _insert_events(connection: AsyncConnection, ordered: Sequence[ChainEvent]) -> list[ChainEvent]:
    """Store events; one that a node lists twice is one event."""
    distinct = list({(event.block_number, event.log_index): event for event in ordered}.values())
    if not distinct:
        return []
    rows = [_row_of_event(event, key) for event, key in zip(distinct, keys_of(distinct), strict=True)]
    try:
        await connection.execute(insert(event_table), rows)
    except IntegrityError as exc:
        raise InvalidInput(f"an event is in the store already, in an earlier block: {exc.orig}") from exc
    return distinct


async def _apply_to_requests(
    connection: AsyncConnection,
    book: RequestBook,
    fresh: Sequence[ChainEvent],
    new_blocks: Mapping[int, BlockRef],
    relayer: Address,
) -> None:
    mine = [event for event in fresh if event.name in REQUEST_EVENTS]
    touched = list(dict.fromkeys(event.args["requestId"] for event in mine))
    await book.load(touched)
    known = [request_id for request_id in touched if request_id in book]
    # A request that is not in the store has no events before these.
    lives = await _events_of(connection, known)
    for event in mine:
        if event.args["requestId"] not in book:
            lives[event.args["requestId"]].append(event)
    for request_id in touched:
        reconcile(book, request_id, fold(lives[request_id]), new_blocks, relayer)
    prompts = {
        event.args["request"]["promptHash"]: bytes.fromhex(event.args["prompt"][2:])
        for event in mine
        if event.name == "InferenceRequested" and event.args["prompt"] != "0x"
    }
    await keep_payloads(connection, prompts, book.at_ms)
    # What stands in a block is no secret of whoever put it there.
    await keep_holders(connection, {(prompt_hash, ZERO_ADDRESS) for prompt_hash in prompts})


async def _apply_to_rounds(connection: AsyncConnection, fresh: Iterable[ChainEvent], relayer: Address) -> None:
    """Mark this relayer's rounds as recorded. One that is not in the store is kept by its record alone."""
    for event in fresh:
        if event.name != "RoundRecorded" or event.args["relayer"] != relayer:
            continue
        record = record_of_event(event.args)
        fields = {
            "state": "recorded",
            "record": json_of_record(record),
            "policy_hash": record.policy_hash,
            "recorded_block": event.block_number,
            "transaction_hash": event.transaction_hash,
        }
        done = await connection.execute(update(rounds).where(rounds.c.round == record.round).values(fields))
        if done.rowcount == 0:
            await connection.execute(insert(rounds).values(round=record.round, opened_at_ms=0, cycles=0, **fields))


async def _last_block(connection: AsyncConnection) -> BlockRef | None:
    query = select(block_table).order_by(block_table.c.number.desc()).limit(1)
    row = (await connection.execute(query)).mappings().first()
    return block_of(row) if row else None


async def _ids_in_order(connection: AsyncConnection, condition: Any) -> list[Hash32]:
    query = (
        select(event_table.c.request_id)
        .where(condition, event_table.c.request_id.is_not(None))
        .order_by(event_table.c.block_number, event_table.c.log_index)
    )
    return list(dict.fromkeys((await connection.execute(query)).scalars()))


async def _events_of(connection: AsyncConnection, ids: Sequence[Hash32]) -> defaultdict[Hash32, list[ChainEvent]]:
    """All stored events of requests, in the order of the chain."""
    found: defaultdict[Hash32, list[ChainEvent]] = defaultdict(list)
    for chunk in chunks(ids):
        query = (
            select(event_table)
            .where(event_table.c.request_id.in_(chunk))
            .order_by(event_table.c.block_number, event_table.c.log_index)
        )
        for row in (await connection.execute(query)).mappings():
            found[row["request_id"]].append(event_of(row))
    return found


def _row_of_block(block: BlockRef) -> dict[str, Any]:
    return {
        "number": block.number,
        "hash": block.hash,
        "parent_hash": block.parent_hash,
        "timestamp_s": block.timestamp_s,
    }


def _row_of_event(event: ChainEvent, key: str) -> dict[str, Any]:
    return {
        "event_key": key,
        "block_number": event.block_number,
        "block_hash": event.block_hash,
        "transaction_hash": event.transaction_hash,
        "log_index": event.log_index,
        "contract": event.contract,
        "name": event.name,
        "request_id": event.args["requestId"] if event.name in REQUEST_EVENTS else None,
        "args": dict(event.args),
    }
