"""Two stacks never share a folder, and a killed one leaves nothing running."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts._claim import FolderTaken, claimed, end_leftovers

HOLD = """
import sys
from pathlib import Path
from scripts._claim import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).parents[2]


def test_claimed__held_by_another_process__names_it(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderTaken) as refused, claimed(folder):
            pass
        assert refused.value.pid == str(holder.pid)
        holder.kill()
    with claimed(folder):
        pass


def test_end_leftovers__killed_stack__its_processes_are_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "headrace"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as left:
        (tmp_path / "relayer.pid").write_text(str(left.pid))
        assert end_leftovers(tmp_path) == ["relayer"]
        assert left.wait(10) == -9


def test_end_leftovers__number_given_to_another_program__leaves_it(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        (tmp_path / "relayer.pid").write_text(str(other.pid))
        (tmp_path / "anvil.pid").write_text("no number")
        assert end_leftovers(tmp_path) == []
        assert other.poll() is None
        os.kill(other.pid, 9)
