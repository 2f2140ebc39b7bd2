"""What a stack that was killed left running in its folder is ended, before another starts there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

PROGRAMS = ("anvil", "headrace")


def end_leftovers(folder: Path) -> list[str]:
    """End the processes that a killed stack left in a folder, by the process ids that it noted; return their names."""
    ended = []
    for note in sorted(folder.glob("*.pid")):
        with contextlib.suppress(ValueError, OSError):
            pid = int(note.read_text(encoding="utf-8"))
            # The system may have given the number to another program since.
            if _is_ours(pid):
                os.killpg(pid, signal.SIGKILL)  # each is the first of its own group, with what it started
                ended.append(note.stem)
    return ended


def _is_ours(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return any(program in shown.stdout for program in PROGRAMS)
