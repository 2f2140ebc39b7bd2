"""How a check of a task says no."""

from __future__ import annotations

from headrace.core.tasks import RefusalReason


class TaskRefused(Exception):
    """A task is refused; nothing went wrong."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
