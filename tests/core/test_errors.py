"""Messages as sentences."""

from __future__ import annotations

import pytest

from headrace.core.errors import sentence


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("the key is missing", "The key is missing."),
        ("Set it.", "Set it."),
        ("--store needs --relayer", "--store needs --relayer."),
        ("max_output_tokens may be at most 5", "max_output_tokens may be at most 5."),
        ("http://127.0.0.1:1 cannot be reached", "http://127.0.0.1:1 cannot be reached."),
        ("0x12 is no id", "0x12 is no id."),
        ("nobody", "Nobody."),
        (" run `ape run deploy` ", "Run `ape run deploy`"),
    ],
)
def test_sentence__begins_large_and_ends(text: str, written: str) -> None:
    assert sentence(text) == written
