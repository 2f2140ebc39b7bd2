"""Intents and their attempts: what was put, or is to be put, on the chain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.book import RequestBook
from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.postings import (
    REQUEST_FOR,
    end_tied_posting,
    reopen_tied_posting,
    tie_posting,
)
from headrace.adapters.sql.requests import drop_result
from headrace.adapters.sql.rows import Row, intent_of, row_of_attempt
from headrace.adapters.sql.tables import attempts, blocks, intents
from headrace.core.batching import NODES_FAULT
from headrace.core.errors import IllegalTransition, NotFound
from headrace.core.events import BlockRef
from headrace.core.guard import NOOP_GAS
from headrace.core.lifecycle import Cause
from headrace.core.spending import Signed, worst_wei
from headrace.core.types import ZERO_ADDRESS, Address, Hash32
from headrace.ports import Call, StoredAttempt, StoredIntent

SUBMIT_RESULTS = "submit_results"
FILL_NONCE = "fill_nonce"
_MOST_FILLED = 64  # at once: pools keep no more of an account
_MOST_RECENT = 20_000  # intents of all keys in an hour
_OVER_S = 1  # long ago: an intent that is over only has its nonce taken
_ENDED = ("included", "reverted", "cancelled", "dropped")
_NODES_FAULT = frozenset(status.name for status in NODES_FAULT)


class IntentStore(StorePart):
    """Intents."""

    async def add_intent(
        self,
        kind: str,
        key: str,
        detail: Mapping[str, Any],
        call: Call,
        gas_limit: int,
        chain_nonce: int,
        at_ms: int,
        sender: Address = ZERO_ADDRESS,
        *,
        until_s: int = 0,
        worth_wei: int = 0,
    ) -> StoredIntent:
        async with self._database.write() as connection:
            if same := await _intents(connection, (intents.c.key == key) & _is_unfinished()):
                return same[0]
            inserted = await connection.execute(
                insert(intents).values(
                    kind=kind,
                    key=key,
                    state="open",
                    detail=dict(detail),
                    outcome={},
                    to=call.to,
                    data=call.data,
                    value_wei=call.value_wei,
                    gas_limit=gas_limit,
                    nonce=await _next_nonce(connection, sender, chain_nonce),
                    block_number=0,
                    created_at_ms=at_ms,
                    sender=sender,
                    until_s=until_s,
                    worth_wei=worth_wei,
                )
            )
            (intent_id,) = inserted.inserted_primary_key or (0,)
            await _tie(connection, intent_id, kind, detail, at_ms)
            (intent,) = await _intents(connection, intents.c.intent_id == intent_id)
        return intent

    async def fill_nonces(self, sender: Address, start: int, end: int, at_ms: int) -> list[StoredIntent]:
        async with self._database.write() as connection:
            among = (intents.c.sender == sender) & intents.c.nonce.between(start, end - 1)
            there = await _intents(connection, among)
            taken = {intent.nonce for intent in there if intent.state != "dropped"}
            dropped = {intent.nonce: intent.intent_id for intent in there if intent.state == "dropped"}
            free = [nonce for nonce in range(start, end) if nonce not in taken][:_MOST_FILLED]
            for nonce in free:
                key = f"{FILL_NONCE}:{sender}:{nonce}"
                fields = {
                    "kind": FILL_NONCE,
                    "key": key,
                    "state": "open",
                    "detail": {},
                    "outcome": {},
                    "until_s": _OVER_S,
                }
                if nonce in dropped:
                    query = update(intents).where(intents.c.intent_id == dropped[nonce])
                    await connection.execute(query.values(block_number=0, **fields))
                else:
                    nothing = {"to": sender, "data": b"", "value_wei": 0, "gas_limit": NOOP_GAS, "worth_wei": 0}
                    row = {"nonce": nonce, "block_number": 0, "created_at_ms": at_ms, "sender": sender}
                    await connection.execute(insert(intents).values(**fields, **nothing, **row))
            return await _intents(connection, among & (intents.c.kind == FILL_NONCE) & (intents.c.state == "open"))

    async def add_attempt(self, intent_id: int, attempt: StoredAttempt) -> None:
        async with self._database.write() as connection:
            intent = await _intent(connection, intent_id)
            if intent.state != "open":
                raise IllegalTransition(f"intent {intent_id} is {intent.state} and takes no more attempts")
            row = {"intent_id": intent_id, "position": len(intent.attempts), **row_of_attempt(attempt)}
            await connection.execute(insert(attempts).values(row))

    async def open_intents(self) -> list[StoredIntent]:
        async with self._database.read() as connection:
            return await _intents(connection, intents.c.state == "open")

    async def signed_since(self, sender: Address, since_ms: int) -> list[Signed]:
        # There is no index on the time of an attempt; what is further back than so many intents is older than an hour.
        newest = select(func.coalesce(func.max(intents.c.intent_id), 0)).scalar_subquery()
        is_late = (attempts.c.intent_id > newest - _MOST_RECENT) & (attempts.c.created_at_ms > since_ms)
        query = (
            select(intents.c.intent_id, intents.c.gas_limit, intents.c.value_wei)
            .add_columns(attempts.c.created_at_ms, attempts.c.max_fee_wei, attempts.c.is_noop)
            .join(attempts, attempts.c.intent_id == intents.c.intent_id)
            .where(intents.c.sender == sender, intents.c.intent_id.in_(select(attempts.c.intent_id).where(is_late)))
            .order_by(attempts.c.intent_id, attempts.c.position)
        )
        async with self._database.read() as connection:
            return [_signed(row) for row in (await connection.execute(query)).all()]

    async def end_intent(self, intent_id: int, state: str, block_number: int, detail: Mapping[str, Any]) -> None:
        if state not in _ENDED:
            raise IllegalTransition(f"an intent does not end as {state}")
        async with self._database.write() as connection:
            intent = await _intent(connection, intent_id)
            if intent.state != "open":
                raise IllegalTransition(f"intent {intent_id} is {intent.state} and cannot become {state}")
            await connection.execute(
                update(intents)
                .where(intents.c.intent_id == intent_id)
                .values(state=state, block_number=block_number, outcome=dict(detail))
            )
            if intent.kind == SUBMIT_RESULTS:
                book = RequestBook(connection, self._clock.now_ms())
                await book.load(intent.detail["request_ids"])
                await _take_back(connection, book, intent, state, detail.get("unpaid", {}))
                await book.flush()
            if intent.kind == REQUEST_FOR:
                await end_tied_posting(connection, intent_id, state, self._clock.now_ms())

    async def intent_of_transaction(self, transaction_hash: Hash32) -> StoredIntent | None:
        async with self._database.read() as connection:
            query = select(attempts.c.intent_id).where(attempts.c.transaction_hash == transaction_hash)
            intent_id = (await connection.execute(query)).scalar()
            return None if intent_id is None else await _intent(connection, intent_id)


def _signed(row: Any) -> Signed:
    gas, value_wei = (NOOP_GAS, 0) if row.is_noop else (row.gas_limit, row.value_wei)
    return Signed(row.intent_id, row.created_at_ms, worst_wei(gas, row.max_fee_wei, value_wei))


async def _tie(connection: AsyncConnection, intent_id: int, kind: str, detail: Mapping[str, Any], at_ms: int) -> None:
    """Move what a new intent is for."""
    if kind == SUBMIT_RESULTS:
        book = RequestBook(connection, at_ms)
        await book.load(detail["request_ids"])
        for request_id in detail["request_ids"]:
            book.move(request_id, Cause.BATCHED, {"intent": intent_id})
        await book.flush()
    if kind == REQUEST_FOR:
        await tie_posting(connection, detail["request_id"], intent_id)


async def reopen_above(connection: AsyncConnection, book: RequestBook, number: int) -> None:
    """Reopen what was ended by a block above `number`, which is gone: its transaction is to be found or sent again."""
    ended = (intents.c.state != "open") & (intents.c.block_number > number)
    await _reopen(connection, book, await _intents(connection, ended))


async def reopen_unseen(
    connection: AsyncConnection, book: RequestBook, new_blocks: Sequence[BlockRef], transactions: set[Hash32]
) -> None:
    """Reopen what was ended by a block that the store had not seen then, unless the block turns out to hold it.

    A receipt may come from a block that a reorg takes away before it is indexed. Transactions that log nothing here
    cannot be told: their receipts are looked for once more.
    """
    first, last = new_blocks[0].number, new_blocks[-1].number
    ended = await _intents(connection, (intents.c.state != "open") & intents.c.block_number.between(first, last))
    unseen = [
        intent for intent in ended if not any(attempt.transaction_hash in transactions for attempt in intent.attempts)
    ]
    await _reopen(connection, book, unseen)


async def _reopen(connection: AsyncConnection, book: RequestBook, ended: Iterable[StoredIntent]) -> None:
    for intent in ended:
        await connection.execute(
            update(intents)
            .where(intents.c.intent_id == intent.intent_id)
            .values(state="open", block_number=0, outcome={})
        )
        if intent.kind == REQUEST_FOR:
            await reopen_tied_posting(connection, intent.intent_id)
        if intent.kind == SUBMIT_RESULTS:
            await book.load(intent.detail["request_ids"])
            for request_id in intent.detail["request_ids"]:
                book.move_if_possible(request_id, Cause.BATCHED, {"intent": intent.intent_id, "again": True})


async def _take_back(
    connection: AsyncConnection, book: RequestBook, intent: StoredIntent, state: str, unpaid: Mapping[str, str]
) -> None:
    """Move requests back that an ended batch did not settle."""
    settled = state == "included"
    for request_id in unpaid if settled else intent.detail["request_ids"]:
        status = unpaid.get(request_id, state)
        cause = Cause.UNPAYABLE if settled and status in _NODES_FAULT else Cause.UNBATCHED
        moved = book.move_if_possible(request_id, cause, {"intent": intent.intent_id, "status": status})
        if moved and cause is Cause.UNPAYABLE:
            await drop_result(connection, book, request_id)


def _is_unfinished() -> ColumnElement[bool]:
    """Of intents that are open, or ended in a block that is not indexed yet: what they did is not known until then, and
    a node that lags would let them be drafted once more."""
    last = select(func.coalesce(func.max(blocks.c.number), 0)).scalar_subquery()
    return (intents.c.state == "open") | (intents.c.block_number > last)


async def _next_nonce(connection: AsyncConnection, sender: Address, chain_nonce: int) -> int:
    # Not only of those that are open: the count may come from a node that lags, and an included one may be open again.
    signed = select(attempts.c.intent_id).where(attempts.c.intent_id == intents.c.intent_id).exists()
    query = select(func.max(intents.c.nonce)).where((intents.c.state != "dropped") | signed, intents.c.sender == sender)
    highest = (await connection.execute(query)).scalar()
    return chain_nonce if highest is None else max(chain_nonce, highest + 1)


async def _intent(connection: AsyncConnection, intent_id: int) -> StoredIntent:
    found = await _intents(connection, intents.c.intent_id == intent_id)
    if not found:
        raise NotFound(f"there is no intent {intent_id}")
    return found[0]


async def _intents(connection: AsyncConnection, condition: Any) -> list[StoredIntent]:
    query = select(intents).where(condition).order_by(intents.c.nonce, intents.c.intent_id)
    rows = (await connection.execute(query)).mappings().all()
    tried: defaultdict[int, list[Row]] = defaultdict(list)
    for chunk in chunks([row["intent_id"] for row in rows]):
        query = select(attempts).where(attempts.c.intent_id.in_(chunk)).order_by(attempts.c.position)
        for row in (await connection.execute(query)).mappings():
            tried[row["intent_id"]].append(row)
    return [intent_of(row, tried[row["intent_id"]]) for row in rows]
