"""JSON on a screen and in a pipe."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from headrace.cli.screens import StageLines, show_json


@pytest.mark.parametrize(("is_terminal", "lines"), [(True, 3), (False, 1)])
def test_show_json__indented_for_a_terminal_only(is_terminal: bool, lines: int) -> None:
    out = io.StringIO()
    show_json(Console(file=out, force_terminal=is_terminal), {"text": "[red]é[/red]" + "x" * 200})
    assert out.getvalue().count("\n") == lines
    assert json.loads(out.getvalue()) == {"text": "[red]é[/red]" + "x" * 200}


def test_stage_lines__wherever_the_reader_is__times_are_utc_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        out = io.StringIO()
        StageLines(Console(file=out, width=200), 1_750_000_000_250).sent("0x" + "ab" * 32)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "15:06:40.250Z" in out.getvalue()
