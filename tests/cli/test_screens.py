"""JSON on a screen and in a pipe."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from headrace.cli.options import address
from headrace.cli.screens import StageLines, show_json, with_checksums
from headrace.core.errors import InvalidInput


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


def test_with_checksums__addresses_only__as_eip_55_writes_them() -> None:
    hash_ = "0x" + "ab" * 32
    text = f"{hash_} of 0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed (0x5aaeb605)"
    assert with_checksums(text) == f"{hash_} of 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed (0x5aaeb605)"


@pytest.mark.parametrize(
    "text", ["0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x5AAEB6053F3E94C9B9A09F33669435E7EF1BEAED"]
)
def test_address__any_case__is_taken_in_lower(text: str) -> None:
    assert address(text) == "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed"


def test_address__one_wrong_character_in_a_checksummed_one__is_refused() -> None:
    with pytest.raises(InvalidInput, match="a character that is wrong"):
        address("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAee")
