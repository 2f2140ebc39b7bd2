"""Traces as CSV files: requests as the Azure Public Dataset has them, and base fees of consecutive blocks."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headrace.core.errors import InvalidInput

REQUEST_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BLOCK_COLUMNS = ("block_number", "timestamp_s", "base_fee_wei")
_MICROSECONDS = len("2023-11-16 18:15:46.680590")  # the trace has a digit more than Python reads


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace: when it came, in seconds after the first, and its size in tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class TracedBlock:
    """A block of a trace."""

    timestamp_s: int
    base_fee_wei: int


def read_requests(path: Path) -> list[Arrival]:
    """The requests of a trace in the order of their times.

    Raises:
        InvalidInput: it is not there, has other columns, no rows, or a row that cannot be read.
    """
    rows = []
    for number, row in _rows(path, REQUEST_COLUMNS):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"][:_MICROSECONDS]).replace(tzinfo=UTC).timestamp()
            rows.append(Arrival(at, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
        except ValueError as exc:
            raise InvalidInput(f"row {number} of {path} is no request: {exc}") from exc
    rows.sort(key=lambda each: each.at_s)
    return [Arrival(each.at_s - rows[0].at_s, each.prompt_tokens, each.output_tokens) for each in rows]


def read_blocks(path: Path) -> list[TracedBlock]:
    """The blocks of a trace.

    Raises:
        InvalidInput: it is not there, has other columns, no rows, a row that cannot be read, or times that go back.
    """
    blocks = []
    for number, row in _rows(path, BLOCK_COLUMNS):
        try:
            blocks.append(TracedBlock(int(row["timestamp_s"]), int(row["base_fee_wei"])))
        except ValueError as exc:
            raise InvalidInput(f"row {number} of {path} is no block: {exc}") from exc
        if len(blocks) > 1 and blocks[-1].timestamp_s < blocks[-2].timestamp_s:
            raise InvalidInput(f"row {number} of {path} is a block that is older than the one before it")
    return blocks


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not set(columns) <= set(reader.fieldnames or ()):
                raise InvalidInput(f"{path} has not the columns {', '.join(columns)}")
            empty = True
            for number, row in enumerate(reader, 2):
                empty = False
                if any(row.get(name) is None for name in columns):
                    raise InvalidInput(f"row {number} of {path} is cut off")
                yield number, row
    except OSError as exc:
        raise InvalidInput(f"the trace {path} cannot be read: {exc.strerror}") from exc
    if empty:
        raise InvalidInput(f"{path} has no rows")
