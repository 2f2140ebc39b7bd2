"""What tells an old copy of a store from the store itself, and what is written down once it is known."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import exists, func, insert, select, text, update

from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.rows import json_of_record, round_of
from headrace.adapters.sql.tables import leaves, rounds
from headrace.core.lost import LOST_POLICY_HASH
from headrace.core.types import ZERO_HASH, RoundRecord
from headrace.ports import StoredRound

COPY_MARK = 1
"""`PRAGMA user_version` of a file that was made by a backup. It is in the file itself, so that a copy is known as one
whichever way it came to its place."""


class RecoveryStore(StorePart):
    """What a store says of itself."""

    async def is_behind(self) -> bool:
        async with self._database.read() as connection:
            mark = (await connection.execute(text("PRAGMA user_version"))).scalar()
            if mark == COPY_MARK:
                return True
            is_lost = rounds.c.policy_hash == LOST_POLICY_HASH
            last_lost = (await connection.execute(select(func.max(rounds.c.round)).where(is_lost))).scalar() or 0
            is_unknown = ~exists().where(leaves.c.round == rounds.c.round)
            newest = select(rounds.c.round).where(rounds.c.state == "recorded", is_unknown, ~is_lost)
            newest = newest.where(rounds.c.round > last_lost).limit(1)
            return (await connection.execute(newest)).first() is not None

    async def last_lost_round(self) -> StoredRound | None:
        query = select(rounds).where(rounds.c.policy_hash == LOST_POLICY_HASH, rounds.c.opened_at_ms > 0)
        async with self._database.read() as connection:
            row = (await connection.execute(query.order_by(rounds.c.round.desc()).limit(1))).mappings().first()
        return round_of(row) if row else None

    async def seal_lost_rounds(self, records: Sequence[RoundRecord], at_ms: int) -> None:
        async with self._database.write() as connection:
            for record in records:
                known = select(rounds.c.state).where(rounds.c.round == record.round)
                state = (await connection.execute(known)).scalar()
                values = {
                    "state": "closed",
                    "opened_at_ms": at_ms,
                    "record": json_of_record(record),
                    "policy_hash": record.policy_hash,
                }
                if state == "open":
                    await connection.execute(update(rounds).where(rounds.c.round == record.round).values(values))
                elif state is None:
                    blank = {"cycles": 0, "recorded_block": 0, "transaction_hash": ZERO_HASH}
                    await connection.execute(insert(rounds).values(round=record.round, **values, **blank))
            await connection.execute(text("PRAGMA user_version = 0"))
