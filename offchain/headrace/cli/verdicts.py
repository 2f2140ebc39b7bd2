"""Exit codes of the commands that judge, such as `headrace audit`: no error looks like a verdict.

0   it holds, or nothing was found
1   it differs, or faults were found
2   data is withheld, or not what was recorded
3   nothing was judged: something that is needed is missing, or does not answer
64  nothing was judged: the command was typed wrongly
"""

from __future__ import annotations

from collections.abc import Sequence

COMMANDS = frozenset({"audit", "watch", "reconcile"})
FOUND = 1
WITHHELD = 2
NOT_JUDGED = 3
MISTYPED = 64  # EX_USAGE of sysexits.h; the 2 of other commands is a verdict here


class Verdict(Exception):
    """A command has judged, and ends with the exit code that says how."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def is_judging(arguments: Sequence[str]) -> bool:
    """Whether the command that was typed is one of those that judge."""
    rest = iter(arguments)
    for each in rest:
        if each == "--config":
            next(rest, None)
        elif not each.startswith("-"):
            return each in COMMANDS
    return False
