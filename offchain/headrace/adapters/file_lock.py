"""Keeps a second process away from what one process must have alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

# Whoever has the same kernel has the same locks, in whatever container.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Held(Exception):
    """Another process has it. `pid` is its process id, if it could be read."""

    def __init__(self, pid: str) -> None:
        super().__init__(pid)
        self.pid = pid


def lock_path(path: Path) -> Path:
    """The lock beside a file or a folder."""
    return path.with_name(f"{path.name}.lock")


@contextlib.contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Hold a file or a folder, which need not exist, by a lock beside it that ends with the process however that ends.

    Raises:
        Held: another process holds it.
        OSError: the lock cannot be written.
    """
    descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT, 0o600)
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


class FileLock:
    """The `ProcessLock` beside a file.

    Args:
        path: the file, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.other = ""  # who had it when it could not be had: a process id
        self._path = path
        self._held = contextlib.ExitStack()
        self._is_held = False

    @property
    def machine(self) -> str:
        """The machine and the file by which it is held, while it is: two paths may lead to one database."""
        if not self._is_held:
            return ""
        found = lock_path(self._path).stat()
        return f"{_machine()}/{found.st_dev:x}:{found.st_ino:x}"

    def take(self) -> bool:
        """Raises OSError when it cannot be written."""
        if not self._is_held:
            try:
                self._held.enter_context(alone_with(self._path))
            except Held as exc:
                self.other = exc.pid
            else:
                self._is_held = True
        return self._is_held

    def free(self) -> None:
        """Let go of it."""
        self._held.close()
        self._is_held = False


def _machine() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename[:36]
