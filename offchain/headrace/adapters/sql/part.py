"""What the parts of the store have in common."""

from __future__ import annotations

from headrace.adapters.sql.database import Database
from headrace.ports import Clock


class StorePart:
    """A part of the store. The clock dates what is learnt from the chain, whose calls carry no time."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
