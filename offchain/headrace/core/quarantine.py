"""Keeps what spoils its company out of it: tried again alone after a pause, and given up after a few times.

One failure proves little, since the chain's node may be ill; so failures count only when time has passed between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.core.types import Hash32


@dataclass(frozen=True, slots=True)
class QuarantinePolicy:
    """How often something may fail, and how long it waits after each time; the pause doubles."""

    most_failures: int = 3
    first_pause_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class _Suspect:
    failures: int
    free_at_ms: int


class Quarantine:
    """Who is suspected, by request id."""

    def __init__(self, policy: QuarantinePolicy | None = None) -> None:
        self._policy = policy or QuarantinePolicy()
        self._suspects: dict[Hash32, _Suspect] = {}

    def __len__(self) -> int:
        return len(self._suspects)

    def is_in(self, request_id: Hash32, now_ms: int) -> bool:
        """Whether it waits, and is not to be tried now."""
        suspect = self._suspects.get(request_id)
        return suspect is not None and now_ms < suspect.free_at_ms

    def failed(self, request_id: Hash32, now_ms: int) -> bool:
        """It spoilt what it was in. Returns whether that was once too often; then it is forgotten here."""
        failures = self._suspects[request_id].failures + 1 if request_id in self._suspects else 1
        if failures >= self._policy.most_failures:
            del self._suspects[request_id]
            return True
        pause_ms = self._policy.first_pause_ms * 2 ** (failures - 1)
        self._suspects[request_id] = _Suspect(failures, now_ms + pause_ms)
        return False

    def passed(self, request_ids: Iterable[Hash32]) -> None:
        """They spoil nothing any more."""
        for request_id in request_ids:
            self._suspects.pop(request_id, None)
