"""What a key may spend on transactions within an hour, whatever asks it to.

Each transaction counts with the most that it can cost, when it is signed: its gas limit at its maximum fee, and its
value. One that replaces another has the same nonce, so only one of them is ever paid: it counts with what it can cost
beyond the dearest before it. The window rolls: what was signed an hour ago counts no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.core.errors import ExpiredContext

WINDOW_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Signed:
    """A transaction that was signed: of which intent, when, and what it can cost at most."""

    intent_id: int
    at_ms: int
    worst_wei: int


def worst_wei(gas_limit: int, max_fee_wei: int, value_wei: int) -> int:
    """The most that a transaction can cost its sender."""
    return gas_limit * max_fee_wei + value_wei


class Spending:
    """What was signed within the window. Times are a host's clock, which may be set back: what then lies ahead of it
    counts as signed now.

    Args:
        limit_wei: within the window; 0 = any amount.
        window_ms: how long something counts.
    """

    def __init__(self, limit_wei: int, window_ms: int = WINDOW_MS) -> None:
        self.limit_wei = limit_wei
        self._window_ms = window_ms
        self._entries: deque[tuple[int, int]] = deque()  # when, and how much; the oldest first
        self._spent_wei = 0
        self._dearest: dict[int, int] = {}  # intent → what its dearest transaction can cost

    def restore(self, signed: Iterable[Signed], now_ms: int) -> None:
        """Take on what was signed before a restart, of each intent all or nothing."""
        for each in sorted(signed, key=lambda one: (one.at_ms, one.worst_wei)):
            self._add(each)
        self._forget(now_ms)

    def spent_wei(self, now_ms: int) -> int:
        """What counts now."""
        self._forget(now_ms)
        return self._spent_wei

    def require(self, wei: int, now_ms: int) -> None:
        """Check that so much more may be spent.

        Raises:
            ExpiredContext: not now, or never, when it is above the limit by itself.
        """
        spent_wei = self.spent_wei(now_ms)
        if not self.limit_wei or spent_wei + wei <= self.limit_wei or wei <= 0:
            return
        if wei > self.limit_wei:
            raise ExpiredContext(
                f"{wei} wei at once are above the spending limit of {self.limit_wei} wei an hour: raise it, or wait "
                "for cheaper gas"
            )
        raise ExpiredContext(
            f"{spent_wei} wei of the spending limit of {self.limit_wei} wei an hour are taken, and {wei} more are "
            f"asked for: it goes on by itself in {self._wait_s(wei, now_ms)} s, or raise the limit"
        )

    def beyond_wei(self, intent_id: int, wei: int) -> int:
        """What a transaction of an intent that can cost `wei` adds to what counts."""
        return max(0, wei - self._dearest.get(intent_id, 0))

    def add(self, signed: Signed) -> None:
        """A transaction was signed."""
        self._forget(signed.at_ms)
        self._add(signed)

    def forget(self, intent_id: int) -> None:
        """An intent has ended. What it took still counts."""
        self._dearest.pop(intent_id, None)

    def _add(self, signed: Signed) -> None:
        wei = self.beyond_wei(signed.intent_id, signed.worst_wei)
        if wei:
            self._dearest[signed.intent_id] = signed.worst_wei
            self._entries.append((signed.at_ms, wei))
            self._spent_wei += wei

    def _forget(self, now_ms: int) -> None:
        if self._entries and self._entries[-1][0] > now_ms:
            self._entries = deque((min(at_ms, now_ms), wei) for at_ms, wei in self._entries)
        while self._entries and self._entries[0][0] <= now_ms - self._window_ms:
            self._spent_wei -= self._entries.popleft()[1]

    def _wait_s(self, wei: int, now_ms: int) -> int:
        """Until enough of what counts is out of the window."""
        over_wei = self._spent_wei + wei - self.limit_wei
        for at_ms, freed_wei in self._entries:
            over_wei -= freed_wei
            if over_wei <= 0:
                return -(-(at_ms + self._window_ms - now_ms) // 1000)
        return self._window_ms // 1000
