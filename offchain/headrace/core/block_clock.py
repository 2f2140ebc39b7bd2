"""When the next block is to be expected, from the times of those that came."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

_BLOCKS = 16
_LEAST_GAPS = 3


class BlockClock:
    """Learns how far apart a chain's blocks are. A chain that makes one for each transaction has no such time."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=_BLOCKS)  # (number, timestamp)

    def note(self, number: int, timestamp_s: int) -> None:
        """A block was seen at the head. After a reorg to a lower one all is learned anew."""
        if self._seen and number < self._seen[-1][0]:
            self._seen.clear()
        if not self._seen or number > self._seen[-1][0]:
            self._seen.append((number, timestamp_s))

    @property
    def last_block_ms(self) -> int:
        """The time of the last block; 0 before any was seen."""
        return self._seen[-1][1] * 1000 if self._seen else 0

    @property
    def interval_ms(self) -> int:
        """Between blocks; 0 when they are too few or too irregular to tell.

        Few slots are empty where there are slots: three gaps of four are as long as the shortest one.
        """
        seen = list(self._seen)
        gaps = [(later[1] - earlier[1]) // (later[0] - earlier[0]) for earlier, later in pairwise(seen)]
        shortest = min(gaps, default=0)
        is_regular = len(gaps) >= _LEAST_GAPS and shortest > 0 and 4 * gaps.count(shortest) >= 3 * len(gaps)
        return shortest * 1000 if is_regular else 0
