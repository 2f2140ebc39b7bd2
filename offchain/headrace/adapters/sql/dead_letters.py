"""Dead letters: results that are not settled, and why."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, insert, select

from headrace.adapters.sql.book import RequestBook
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.rows import Row
from headrace.adapters.sql.tables import dead_letters
from headrace.core.types import Hash32
from headrace.ports import Call, StoredDeadLetter


class DeadLetterStore(StorePart):
    """Dead letters."""

    async def add_dead_letter(self, letter: StoredDeadLetter) -> None:
        async with self._database.write() as connection:
            await connection.execute(delete(dead_letters).where(dead_letters.c.request_id == letter.request_id))
            await connection.execute(insert(dead_letters).values(_row_of(letter)))
            book = RequestBook(connection, letter.at_ms)
            await book.load([letter.request_id])
            book.note(letter.request_id, "dead_letter", {"reason": letter.reason, "error": letter.error})
            await book.flush()

    async def dead_letters(self, limit: int) -> list[StoredDeadLetter]:
        query = select(dead_letters).order_by(dead_letters.c.at_ms.desc(), dead_letters.c.request_id).limit(limit)
        async with self._database.read() as connection:
            return [_letter_of(row) for row in (await connection.execute(query)).mappings()]

    async def replay_dead_letter(self, request_id: Hash32, at_ms: int) -> bool:
        async with self._database.write() as connection:
            gone = await connection.execute(delete(dead_letters).where(dead_letters.c.request_id == request_id))
            if gone.rowcount == 0:
                return False
            book = RequestBook(connection, at_ms)
            await book.load([request_id])
            book.note(request_id, "replayed", {})
            await book.flush()
            return True


def _row_of(letter: StoredDeadLetter) -> dict[str, Any]:
    return {
        "request_id": letter.request_id,
        "reason": letter.reason,
        "error": letter.error,
        "to": letter.call.to if letter.call else "",
        "data": letter.call.data if letter.call else b"",
        "block_number": letter.block_number,
        "at_ms": letter.at_ms,
    }


def _letter_of(row: Row) -> StoredDeadLetter:
    call = Call(row["to"], row["data"]) if row["to"] else None
    return StoredDeadLetter(row["request_id"], row["reason"], row["error"], call, row["block_number"], row["at_ms"])
