"""What a node's journal has of settling by itself: two tables beside its tasks, in the same file and transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    delete,
    insert,
    inspect,
    select,
    text,
    update,
)

from headrace.core.errors import IllegalTransition
from headrace.core.self_settlement import ENDED, Settlement, SettlementAttempt, SettlementState
from headrace.core.types import Address, Hash32

_T = TypeVar("_T")
_metadata = MetaData()
_settlements = Table(
    "settlements",
    _metadata,
    Column("request_id", String(66), primary_key=True),
    Column("state", String(16), nullable=False, index=True),
    Column("deadline_s", Integer, nullable=False),
    Column("detail", String, nullable=False, default=""),
    Column("reverts", Integer, nullable=False, default=0),
    Column("payer", String(42), nullable=False, default=""),
    Column("nonce", Integer, nullable=False, default=-1),
    Column("data", LargeBinary, nullable=False, default=b""),
    Column("gas_limit", Integer, nullable=False, default=0),
    Column("changed_at_ms", Integer, nullable=False),
)
_attempts = Table(
    "settlement_attempts",
    _metadata,
    Column("transaction_hash", String(66), primary_key=True),
    Column("request_id", String(66), nullable=False, index=True),
    Column("nonce", Integer, nullable=False),
    Column("raw", LargeBinary, nullable=False),
    Column("max_fee_wei", String(78), nullable=False),  # may pass what SQLite's integers hold
    Column("tip_wei", String(78), nullable=False),
    Column("created_at_ms", Integer, nullable=False),
)
_NOTHING = {"payer": "", "nonce": -1, "data": b"", "gas_limit": 0}
# Of journals that are older than these tables. What has a result and its task is all that there is to settle.
_ADOPT = """
    INSERT INTO settlements
        (request_id, state, deadline_s, detail, reverts, payer, nonce, data, gas_limit, changed_at_ms)
    SELECT request_id, 'watched', json_extract(task, '$.assignment.deadline_s'), '', 0, '', -1, x'', 0, changed_at_ms
    FROM tasks WHERE result_hash != '' AND json_valid(task) AND json_extract(task, '$.assignment.deadline_s') > 0
"""


class Transact(Protocol):
    """Runs work in one transaction of the journal."""

    def __call__(self, work: Callable[[Connection], _T], /) -> Awaitable[_T]:
        """Run it and return what it returned."""
        ...


class SqlSettlements:
    """The settlements of a journal."""

    def __init__(self, transact: Transact) -> None:
        self._transact = transact

    async def unsettled(self, limit: int) -> list[Settlement]:
        statement = (
            select(_settlements)
            .where(_settlements.c.state.not_in([state.value for state in ENDED]))
            # "open" comes before "watched".
            .order_by(_settlements.c.state, _settlements.c.deadline_s, _settlements.c.request_id)
            .limit(limit)
        )
        return await self._transact(
            lambda connection: [_settlement(connection, row) for row in connection.execute(statement)]
        )

    async def begin(
        self, request_id: Hash32, payer: Address, nonce: int, data: bytes, gas_limit: int, at_ms: int
    ) -> Settlement:
        values = {"payer": payer, "nonce": nonce, "data": data, "gas_limit": gas_limit}

        def write(connection: Connection) -> Settlement:
            open_ = SettlementState.OPEN.value
            if not _change(connection, request_id, SettlementState.WATCHED, at_ms, state=open_, **values):
                raise IllegalTransition(f"the settling of {request_id} is not to begin: it is under way, or ended")
            row = connection.execute(select(_settlements).where(_settlements.c.request_id == request_id)).one()
            return _settlement(connection, row)

        return await self._transact(write)

    async def add_attempt(self, request_id: Hash32, nonce: int, attempt: SettlementAttempt) -> None:
        statement = insert(_attempts).values(
            transaction_hash=attempt.transaction_hash,
            request_id=request_id,
            nonce=nonce,
            raw=attempt.raw,
            max_fee_wei=str(attempt.max_fee_wei),
            tip_wei=str(attempt.tip_wei),
            created_at_ms=attempt.created_at_ms,
        )

        def write(connection: Connection) -> None:
            under_way = (_settlements.c.request_id == request_id) & (_settlements.c.nonce == nonce)
            open_ = _settlements.c.state == SettlementState.OPEN.value
            if connection.execute(select(_settlements).where(under_way, open_)).first() is None:
                raise IllegalTransition(f"the settling of {request_id} is not under way with nonce {nonce}")
            connection.execute(statement)

        await self._transact(write)

    async def step_back(self, request_id: Hash32, detail: str, reverted: bool, at_ms: int) -> None:
        values: dict[str, Any] = {"state": SettlementState.WATCHED.value, "detail": detail, **_NOTHING}
        if reverted:
            values["reverts"] = _settlements.c.reverts + 1
        await self._transact(lambda connection: _change(connection, request_id, SettlementState.OPEN, at_ms, **values))

    async def note(self, request_id: Hash32, detail: str, at_ms: int) -> None:
        await self._transact(
            lambda connection: _change(connection, request_id, SettlementState.WATCHED, at_ms, detail=detail)
        )

    async def end(self, request_id: Hash32, state: SettlementState, detail: str, at_ms: int) -> None:
        if state not in ENDED:
            raise IllegalTransition(f"the settling of an answer does not end as {state}")

        def write(connection: Connection) -> None:
            for before in (SettlementState.WATCHED, SettlementState.OPEN):
                _change(connection, request_id, before, at_ms, state=state.value, detail=detail)

        await self._transact(write)


def prepare(connection: Connection) -> None:
    """Make the tables, and take on the answers of a journal that had none."""
    is_new = not inspect(connection).has_table(_settlements.name)
    _metadata.create_all(connection)
    if is_new:
        connection.execute(text(_ADOPT))


def watch(connection: Connection, request_id: Hash32, deadline_s: int, at_ms: int) -> None:
    """Begin to look after an answer, in the transaction that fixes it."""
    values = {"request_id": request_id, "state": SettlementState.WATCHED.value, "deadline_s": deadline_s}
    connection.execute(insert(_settlements).values(**values, changed_at_ms=at_ms))


def prune(connection: Connection, before_ms: int) -> None:
    """Forget what ended before."""
    has_ended = _settlements.c.state.in_([state.value for state in ENDED])
    old = select(_settlements.c.request_id).where(has_ended, _settlements.c.changed_at_ms < before_ms)
    connection.execute(delete(_attempts).where(_attempts.c.request_id.in_(old)))
    connection.execute(delete(_settlements).where(has_ended, _settlements.c.changed_at_ms < before_ms))


def _change(connection: Connection, request_id: Hash32, before: SettlementState, at_ms: int, **values: Any) -> bool:
    """Change a settlement that is in a state; False when it is in another."""
    statement = (
        update(_settlements)
        .where(_settlements.c.request_id == request_id, _settlements.c.state == before.value)
        .values(**values, changed_at_ms=at_ms)
    )
    return connection.execute(statement).rowcount == 1


def _settlement(connection: Connection, row: Row[Any]) -> Settlement:
    attempts: list[Row[Any]] = []
    if row.nonce >= 0:
        of_intent = (_attempts.c.request_id == row.request_id, _attempts.c.nonce == row.nonce)
        statement = select(_attempts).where(*of_intent).order_by(_attempts.c.created_at_ms, text("rowid"))
        attempts = list(connection.execute(statement))
    return Settlement(
        request_id=row.request_id,
        state=SettlementState(row.state),
        deadline_s=row.deadline_s,
        detail=row.detail,
        reverts=row.reverts,
        payer=row.payer,
        nonce=row.nonce,
        data=row.data,
        gas_limit=row.gas_limit,
        attempts=tuple(
            SettlementAttempt(
                each.transaction_hash, each.raw, int(each.max_fee_wei), int(each.tip_wei), each.created_at_ms
            )
            for each in attempts
        ),
    )
