"""The machine's clock."""

from __future__ import annotations

import time


class SystemClock:
    """Wall-clock time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
