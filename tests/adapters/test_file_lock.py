"""One process at a time has a file or a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.adapters.file_lock import Held, alone_with

HOLD = """
import sys
from pathlib import Path
from headrace.adapters.file_lock import alone_with
with alone_with(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_alone_with__held_by_another_process__names_it_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "relayer.db"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Held) as refused, alone_with(path):
            pass
        assert refused.value.pid == str(holder.pid)
        holder.kill()
    with alone_with(path):
        assert not path.exists()


def test_alone_with__folder_that_is_not_there__is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), alone_with(tmp_path / "no" / "relayer.db"):
        pass
