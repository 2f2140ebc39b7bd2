"""A node's journal in an SQLite file of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    case,
    create_engine,
    delete,
    event,
    inspect,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import NullPool, StaticPool

from headrace.adapters import node_settlements
from headrace.adapters.file_lock import Held, alone_with
from headrace.adapters.node_settlements import SqlSettlements
from headrace.core.errors import ConfigurationError, IllegalTransition, InvalidInput
from headrace.core.faults import SignedAssignment
from headrace.core.journal import JournalEntry, TaskState
from headrace.core.link_messages import read_task
from headrace.core.types import Address, Hash32, Result

_VARIABLES_PER_QUERY = 500
_T = TypeVar("_T")

_metadata = MetaData()
_tasks = Table(
    "tasks",
    _metadata,
    Column("request_id", String(66), primary_key=True),
    Column("round", Integer, nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("task", String, nullable=False),
    Column("accept_signature", LargeBinary, nullable=False),
    Column("result_hash", String(66), nullable=False, default=""),  # empty: there is no result yet
    Column("reward_wei", String(29), nullable=False, default="0"),  # may pass what SQLite's integers hold
    Column("relayer", String(42), nullable=False, default=""),
    Column("payload", LargeBinary, nullable=False, default=b""),
    Column("output_tokens", Integer, nullable=False, default=0),
    Column("compute_ms", Integer, nullable=False, default=0),
    Column("detail", String, nullable=False),
    Column("received_at_ms", Integer, nullable=False, index=True),
    Column("changed_at_ms", Integer, nullable=False),
    Column("proof", LargeBinary, nullable=False, server_default=text("x''")),
)


class JournalAssignments:
    """What a relayer assigned to a node, read from its journal, which the node may be using."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool)

    async def assignments(self, since_ms: int) -> list[SignedAssignment]:
        """Those of tasks that came at this time or later and are not pruned.

        Raises:
            ConfigurationError: the file is missing, or no journal.
        """
        return await asyncio.to_thread(self._read, since_ms)

    def _read(self, since_ms: int) -> list[SignedAssignment]:
        if not self._path.is_file():
            raise ConfigurationError(f"there is no journal {self._path}: correct --journal")
        query = select(_tasks.c.task).where(_tasks.c.task != "", _tasks.c.received_at_ms >= since_ms)
        found = []
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA query_only = ON")
                # A task holds its prompt: only one of them at a time is in memory.
                for (frame,) in connection.execution_options(yield_per=1).execute(query):
                    with suppress(InvalidInput):
                        task = read_task(frame)
                        found.append(SignedAssignment(task.assignment, task.assignment_signature))
        except DatabaseError as exc:
            raise ConfigurationError(f"the journal {self._path} cannot be read: {exc.orig}") from None
        return found


class SqlNodeJournal:
    """A journal that one process has to itself: a second one on the same file could sign other results.

    Use it as `async with SqlNodeJournal(path) as journal`, or call `open` and `close`. A call that is cancelled is not
    torn: its transaction, once begun, is finished in the journal's own thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        # One connection: SQLite has one writer, and the lock below is the connection's.
        self._engine: Engine = create_engine(
            URL.create("sqlite", database=str(path)), poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        event.listen(self._engine, "connect", _configure)
        self._held = ExitStack()
        self._settlements = SqlSettlements(self._transact)

    async def open(self) -> None:
        """Take the file, and make it if it is missing.

        Raises:
            ConfigurationError: it cannot be used; the message says why.
        """
        try:
            await asyncio.to_thread(self._path.parent.mkdir, parents=True, exist_ok=True)
            # Not SQLite's own lock, which would keep readers out: a watcher reads what a running node was assigned.
            self._held.enter_context(alone_with(self._path))
            await self._transact(_take_file)
        except Held as exc:
            await self.close()
            raise ConfigurationError(
                f"the journal {self._path} is in use by another node (process {exc.pid}); give each node a journal of "
                "its own"
            ) from None
        except (OSError, DatabaseError) as exc:
            await self.close()
            reason = str(getattr(exc, "orig", exc))
            raise ConfigurationError(f"the journal {self._path} cannot be opened: {reason}") from None

    async def __aenter__(self) -> SqlNodeJournal:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def settlements(self) -> SqlSettlements:
        """What of its answers is not settled."""
        return self._settlements

    async def entry(self, request_id: Hash32) -> JournalEntry | None:
        def read(connection: Connection) -> JournalEntry | None:
            row = connection.execute(select(_tasks).where(_tasks.c.request_id == request_id)).first()
            return None if row is None else _entry(row)

        return await self._transact(read)

    async def put(self, entry: JournalEntry) -> None:
        fields = {
            "round": entry.round,
            "state": entry.state.value,
            "task": entry.task,
            "accept_signature": entry.accept_signature,
            "detail": entry.detail,
            "received_at_ms": entry.received_at_ms,
            "changed_at_ms": entry.changed_at_ms,
        }
        statement = (
            insert(_tasks)
            .values(request_id=entry.request_id, **fields)
            .on_conflict_do_update(index_elements=[_tasks.c.request_id], set_=fields, where=_tasks.c.result_hash == "")
        )

        def write(connection: Connection) -> None:
            if connection.execute(statement).rowcount != 1:
                raise IllegalTransition(f"there is a result of {entry.request_id} already")

        await self._transact(write)

    async def add_result(
        self,
        request_id: Hash32,
        result: Result,
        payload: bytes,
        output_tokens: int,
        compute_ms: int,
        at_ms: int,
        deadline_s: int,
        proof: bytes = b"",
    ) -> JournalEntry:
        of_request = _tasks.c.request_id == request_id
        statement = (
            update(_tasks)
            .where(of_request, _tasks.c.result_hash == "", _tasks.c.state == TaskState.ACCEPTED.value)
            .where(_tasks.c.round == result.round)
            .values(
                state=TaskState.COMPUTED.value,
                result_hash=result.result_hash,
                reward_wei=str(result.reward_wei),
                relayer=result.relayer,
                payload=payload,
                output_tokens=output_tokens,
                compute_ms=compute_ms,
                proof=proof,
                changed_at_ms=at_ms,
            )
        )

        def write(connection: Connection) -> JournalEntry:
            if connection.execute(statement).rowcount != 1:
                raise IllegalTransition(f"{request_id} is not waiting for a result of round {result.round}")
            node_settlements.watch(connection, request_id, deadline_s, at_ms)
            return _entry(connection.execute(select(_tasks).where(of_request)).one())

        return await self._transact(write)

    async def move_to_round(
        self, request_id: Hash32, round_: int, task: str, accept_signature: bytes, reward_wei: int, at_ms: int
    ) -> JournalEntry:
        of_request = _tasks.c.request_id == request_id
        is_fixed = _tasks.c.result_hash != ""
        going_on = (TaskState.ACCEPTED.value, TaskState.COMPUTED.value, TaskState.ACKNOWLEDGED.value)
        statement = (
            update(_tasks)
            .where(of_request, _tasks.c.state.in_(going_on), _tasks.c.round < round_)
            .values(
                round=round_,
                state=case((is_fixed, TaskState.COMPUTED.value), else_=TaskState.ACCEPTED.value),
                task=task,
                accept_signature=accept_signature,
                reward_wei=case((is_fixed, str(reward_wei)), else_=_tasks.c.reward_wei),
                changed_at_ms=at_ms,
            )
        )

        def write(connection: Connection) -> JournalEntry:
            if connection.execute(statement).rowcount != 1:
                raise IllegalTransition(f"{request_id} cannot be moved to round {round_}")
            return _entry(connection.execute(select(_tasks).where(of_request)).one())

        return await self._transact(write)

    async def end_delivery(self, request_id: Hash32, round_: int, state: TaskState, detail: str, at_ms: int) -> None:
        # One statement: between a look at the round and the write, the answer could move to a newer one, unseen.
        statement = (
            update(_tasks)
            .where(_tasks.c.request_id == request_id, _tasks.c.round == round_)
            .where(_tasks.c.state == TaskState.COMPUTED.value)
            .values(state=state.value, detail=detail, changed_at_ms=at_ms)
        )
        await self._transact(lambda connection: connection.execute(statement).close())

    async def set_state(self, request_id: Hash32, state: TaskState, detail: str, at_ms: int) -> None:
        statement = (
            update(_tasks)
            .where(_tasks.c.request_id == request_id)
            .values(state=state.value, detail=detail, changed_at_ms=at_ms)
        )
        await self._transact(lambda connection: connection.execute(statement).close())

    async def accepted(self) -> list[JournalEntry]:
        return await self._in_state(TaskState.ACCEPTED, _tasks.c.result_hash == "", None)

    async def undelivered(self, relayer: Address, limit: int) -> list[JournalEntry]:
        return await self._in_state(TaskState.COMPUTED, _tasks.c.relayer == relayer, limit)

    async def results(self, request_ids: Sequence[Hash32]) -> dict[Hash32, Result]:
        def read(connection: Connection) -> dict[Hash32, Result]:
            found: dict[Hash32, Result] = {}
            for start in range(0, len(request_ids), _VARIABLES_PER_QUERY):
                some = request_ids[start : start + _VARIABLES_PER_QUERY]
                statement = select(_tasks).where(_tasks.c.request_id.in_(some), _tasks.c.result_hash != "")
                found |= {row.request_id: _result(row) for row in connection.execute(statement)}
            return found

        return await self._transact(read)

    async def prune(self, before_ms: int) -> int:
        is_old = _tasks.c.changed_at_ms < before_ms
        finished = (TaskState.REFUSED.value, TaskState.ACKNOWLEDGED.value, TaskState.FAILED.value)
        is_done = _tasks.c.state.in_(finished)
        has_bulk = or_(_tasks.c.task != "", _tasks.c.payload != b"")

        def write(connection: Connection) -> int:
            dropped = connection.execute(delete(_tasks).where(is_old, is_done, _tasks.c.result_hash == ""))
            node_settlements.prune(connection, before_ms)
            emptied = connection.execute(update(_tasks).where(is_old, is_done, has_bulk).values(task="", payload=b""))
            return dropped.rowcount + emptied.rowcount

        return await self._transact(write)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        await asyncio.to_thread(self._engine.dispose)
        self._held.close()

    async def _in_state(self, state: TaskState, which: ColumnElement[bool], limit: int | None) -> list[JournalEntry]:
        statement = (
            select(_tasks)
            .where(_tasks.c.state == state.value, which)
            .order_by(_tasks.c.received_at_ms, _tasks.c.request_id)
            .limit(limit)
        )
        return await self._transact(lambda connection: [_entry(row) for row in connection.execute(statement)])

    async def _transact(self, work: Callable[[Connection], _T]) -> _T:
        """Run work in one transaction, in the journal's thread."""

        def run() -> _T:
            with self._engine.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)


def _take_file(connection: Connection) -> None:
    _metadata.create_all(connection)
    if "proof" not in {column["name"] for column in inspect(connection).get_columns(_tasks.name)}:
        # A journal from before there were proofs.
        connection.execute(text("ALTER TABLE tasks ADD COLUMN proof BLOB NOT NULL DEFAULT x''"))
    node_settlements.prepare(connection)


def _configure(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # FULL: what was signed must survive a power cut, or another result would be signed after it.
    for pragma in ("busy_timeout=5000", "journal_mode=WAL", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _entry(row: Row[Any]) -> JournalEntry:
    return JournalEntry(
        request_id=row.request_id,
        round=row.round,
        state=TaskState(row.state),
        task=row.task,
        accept_signature=row.accept_signature,
        result=_result(row) if row.result_hash else None,
        payload=row.payload,
        output_tokens=row.output_tokens,
        compute_ms=row.compute_ms,
        detail=row.detail,
        received_at_ms=row.received_at_ms,
        changed_at_ms=row.changed_at_ms,
        proof=row.proof,
    )


def _result(row: Row[Any]) -> Result:
    return Result(row.request_id, row.result_hash, int(row.reward_wei), row.relayer, row.round)
