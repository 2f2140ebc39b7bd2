"""JSON on a screen and in a pipe."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from headrace.cli.screens import show_json


@pytest.mark.parametrize(("is_terminal", "lines"), [(True, 3), (False, 1)])
def test_show_json__indented_for_a_terminal_only(is_terminal: bool, lines: int) -> None:
    out = io.StringIO()
    show_json(Console(file=out, force_terminal=is_terminal), {"text": "[red]é[/red]" + "x" * 200})
    assert out.getvalue().count("\n") == lines
    assert json.loads(out.getvalue()) == {"text": "[red]é[/red]" + "x" * 200}
