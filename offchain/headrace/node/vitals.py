"""What the machine says of itself: free memory and load."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_STEP_MB = 64  # what comes and goes below this is noise


@dataclass(frozen=True, slots=True)
class Vitals:
    """Free memory, and the load of the last minute per core."""

    free_memory_mb: int
    load_milli: int


def read_vitals() -> Vitals:
    """Ask the operating system."""
    return Vitals(_free_memory_mb() // _STEP_MB * _STEP_MB, _load_milli())


def _free_memory_mb() -> int:
    try:
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) // 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (OSError, ValueError):
        return 0


def _load_milli() -> int:
    try:
        return round(os.getloadavg()[0] * 1000 / (os.cpu_count() or 1))
    except OSError:
        return 0
