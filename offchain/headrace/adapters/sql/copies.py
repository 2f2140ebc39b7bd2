"""Copies of a relayer's database: made while it runs, looked through, and put back."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from headrace.adapters.file_lock import Held, alone_with
from headrace.adapters.sql.recovery import COPY_MARK
from headrace.core.errors import InvalidInput, NotFound, Refused
from headrace.ports import StoreFacts

_PAGES_AT_ONCE = 2_048
_BUSY_TIMEOUT_S = 10
_BESIDE = ("-wal", "-shm")  # what SQLite keeps beside a database


def back_up(database: Path, copy: Path, on_progress: Callable[[int, int], None]) -> StoreFacts:
    """Copy a database that may be in use, as of one moment. The copy appears whole or not at all.

    Args:
        database: the relayer's.
        copy: where to; nothing may be there.
        on_progress: is told how many pages of how many are copied.

    Raises:
        NotFound: there is no such database.
        Refused: there is a file of the copy's name already.
        InvalidInput: the copy is damaged, which its source is too then.
    """
    if not database.is_file():
        raise NotFound(f"there is no database {database}: correct --store or HEADRACE_RELAYER__DATABASE")
    _require_free(copy)
    partial = copy.with_name(f"{copy.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with closing(_read_only(database)) as source, closing(sqlite3.connect(partial)) as target:
            # One read transaction over all of it: without it, each write of the relayer would begin the copy anew.
            source.execute("BEGIN")
            source.execute("SELECT 1 FROM sqlite_master").fetchone()
            source.backup(
                target,
                pages=_PAGES_AT_ONCE,
                progress=lambda _, remaining, total: on_progress(total - remaining, total),
                sleep=0,
            )
            target.execute(f"PRAGMA user_version = {COPY_MARK}")
            target.execute("PRAGMA journal_mode = DELETE")  # all of it in one file; a relayer turns it back
        facts = look_through(partial)
        _keep(partial, copy)
    finally:
        partial.unlink(missing_ok=True)
    return facts


def look_through(database: Path) -> StoreFacts:
    """What is in a database that nobody writes to.

    Raises:
        NotFound: there is no such file.
        InvalidInput: it is no relayer's database, or is damaged; the message says where.
    """
    if not database.is_file():
        raise NotFound(f"there is no file {database}")
    try:
        with closing(_read_only(database)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise InvalidInput(f"{database} is damaged, so take another copy: {found}")
            return _facts(connection, database.stat().st_size)
    except sqlite3.DatabaseError as exc:
        raise InvalidInput(f"{database} is not a relayer's database: {exc}") from exc


def put_back(copy: Path, database: Path) -> Path | None:
    """Put a copy in the place of a database. What was there is kept beside it.

    Returns:
        Where the former database is kept, if there was one.

    Raises:
        NotFound: there is no such copy.
        Refused: it was not made by `back_up`, so a relayer would take it for all that it ever signed; or a relayer
            works with the database.
        InvalidInput: it is damaged.
    """
    facts = look_through(copy)
    if not facts.is_copy:
        raise Refused(f"{copy} was not made by `headrace store backup`: a relayer cannot tell what it lacks")
    database.parent.mkdir(parents=True, exist_ok=True)
    try:
        with alone_with(database):
            return _put_in_place(copy, database)
    except Held as exc:
        raise Refused(f"a relayer (process {exc.pid}) works with {database}: stop it first") from None


def _put_in_place(copy: Path, database: Path) -> Path | None:
    partial = database.with_name(f"{database.name}.partial")
    try:
        shutil.copyfile(copy, partial)
        partial.chmod(0o600)
        former = _set_aside(database)
        _keep(partial, database)
    finally:
        partial.unlink(missing_ok=True)
    return former


def _facts(connection: sqlite3.Connection, size_bytes: int) -> StoreFacts:
    def one(query: str) -> int:
        return int(connection.execute(query).fetchone()[0])

    (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return StoreFacts(
        is_copy=one("PRAGMA user_version") == COPY_MARK,
        revision=revision,
        last_block=one("SELECT coalesce(max(number), -1) FROM blocks"),
        requests=one("SELECT count(*) FROM requests"),
        newest_round=one("SELECT coalesce(max(round), 0) FROM rounds"),
        open_intents=one("SELECT count(*) FROM intents WHERE state = 'open'"),
        size_bytes=size_bytes,
    )


def _read_only(database: Path) -> sqlite3.Connection:
    path = f"{database.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(path, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S)


def _require_free(path: Path) -> None:
    if path.exists():
        raise Refused(f"there is a file {path} already, which is not overwritten: name another")
    if not path.parent.is_dir():
        raise NotFound(f"there is no folder {path.parent}")


def _keep(partial: Path, path: Path) -> None:
    """Give a finished file its name, on the disk, unless another has taken it."""
    with _opened(partial) as descriptor:
        os.fsync(descriptor)
    _require_free(path)
    partial.rename(path)
    with _opened(path.parent) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _set_aside(database: Path) -> Path | None:
    if not database.exists():
        # What a database that is gone has left beside it would be taken for the copy's.
        for ending in _BESIDE:
            database.with_name(database.name + ending).unlink(missing_ok=True)
        return None
    number = 1
    while (former := database.with_name(f"{database.name}.before-restore-{number}")).exists():
        number += 1
    # Its log first: without the file itself, it is nothing.
    for ending in _BESIDE:
        with suppress(FileNotFoundError):
            database.with_name(database.name + ending).rename(former.with_name(former.name + ending))
    database.rename(former)
    return former
