"""Keeps a second process away from files that one process must have alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from headrace.core.errors import ConfigurationError


@contextlib.contextmanager
def alone_with(file: Path) -> Iterator[None]:
    """Hold a file, by a lock beside it that ends with the process however that ends.

    Raises:
        ConfigurationError: another process holds it; the message has its process id.
    """
    path = file.with_name(f"{file.name}.lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be written ({exc.strerror}): two relayers may not share it") from exc
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ConfigurationError(
                f"another relayer (process {holder}) works with {file}: stop it, or give this one its own "
                "HEADRACE_RELAYER__DATABASE and key"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
