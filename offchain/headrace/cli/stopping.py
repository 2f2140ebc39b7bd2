"""How a service ends: when a signal says so, with time to drain."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any

INTERRUPTED = 130


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run work until it ends or a signal says so; then let it drain. A second signal does not wait."""
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work, name="service")
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if is_stopping:
            os._exit(INTERRUPTED)
        is_stopping = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not is_stopping:
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
