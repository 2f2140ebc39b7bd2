"""A bell between loops: many rings before a wait are one."""

from __future__ import annotations

import asyncio


class Wake:
    """Wakes one waiting loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake the loop now, or at its next wait."""
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a ring, at most `timeout_s`. Returns whether there was one."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
