"""A killed stack leaves nothing running."""

import os
import subprocess
import sys
from pathlib import Path

from scripts._leftovers import end_leftovers


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
