"""One stack per folder: who has it is locked out of the way, and what a killed one left running is ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("anvil", "headrace")


class FolderTaken(Exception):
    """Another process has the folder. `pid` is its process id, if it could be read."""

    def __init__(self, pid: str) -> None:
        super().__init__(pid)
        self.pid = pid


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder, which need not exist, for this process alone.

    The lock lies beside the folder, so that the folder can be emptied, and ends with the process however that ends.

    Raises:
        FolderTaken: another process holds it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderTaken(os.pread(descriptor, 32, 0).decode().strip() or "unknown") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


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
