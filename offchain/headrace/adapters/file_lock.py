"""Keeps a second process away from what one process must have alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class Held(Exception):
    """Another process has it. `pid` is its process id, if it could be read."""

    def __init__(self, pid: str) -> None:
        super().__init__(pid)
        self.pid = pid


@contextlib.contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Hold a file or a folder, which need not exist, by a lock beside it that ends with the process however that ends.

    Raises:
        Held: another process holds it.
        OSError: the lock cannot be written.
    """
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held(os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
