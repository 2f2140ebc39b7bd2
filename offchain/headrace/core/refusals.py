"""Contracts' custom errors, as the Chain port decodes them, put into words: `Name(field=value, …)` → a clause."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from headrace.core.callbacks import why_callback_failed
from headrace.core.types import Status

_ERROR = re.compile(r"(\w+)\((.*)\)")
_TIMES = frozenset({"deadline", "earliest", "latest", "blockTimestamp", "validUntil", "withdrawableAt", "acceptableAt"})


def name_of(error: str) -> str:
    """The name of a decoded custom error; empty when it is none."""
    match = _ERROR.fullmatch(error)
    return match[1] if match else ""


def worded(error: str, words: Mapping[str, str]) -> str | None:
    """A decoded custom error as a clause.

    Args:
        error: as the Chain port gives it.
        words: a clause for each error's name, with its fields in braces.

    Returns:
        None when the table has no words for it, or it has other fields than they need.
    """
    match = _ERROR.fullmatch(error)
    if match is None or match[1] not in words:
        return None
    given = dict(pair.partition("=")[::2] for pair in match[2].split(", ") if pair)
    try:
        return words[match[1]].format_map({name: _shown(name, value) for name, value in given.items()})
    except (KeyError, ValueError):
        return None


def moment(at_s: int) -> str:
    """A time as people read it, to the second."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _shown(name: str, value: str) -> str:
    if name in _TIMES:
        return moment(int(value))
    if name == "status":
        return Status(int(value)).name.lower().replace("none", "unknown")
    if name == "reason":
        return why_callback_failed(value)
    return value
