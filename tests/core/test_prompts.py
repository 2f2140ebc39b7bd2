"""What a prompt may be."""

from __future__ import annotations

import pytest

from headrace.core.errors import InvalidInput
from headrace.core.prompts import prompt_content, prompt_text


@pytest.mark.parametrize("prompt", ["", "  \n\t", "\x01like an envelope", "\ud800"])
def test_prompt_content__no_prompt__is_refused(prompt: str) -> None:
    with pytest.raises(InvalidInput):
        prompt_content(prompt, None, {})


def test_prompt_content__whole_number_as_float__is_the_same_bytes() -> None:
    assert prompt_content("Hi", None, {"temperature": 0.0}) == prompt_content("Hi", None, {"temperature": 0})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"Why?", "Why?"),
        (b'{"messages":[{"role":"system","content":"Be terse."},{"role":"user","content":"Why?"}]}', "Why?"),
        (b'{"messages":[]}', '{"messages":[]}'),
        (b'{"messages":[{"content":1}]}', '{"messages":[{"content":1}]}'),
        (b"[1]", "[1]"),
        (b"\xff", "\ufffd"),
    ],
)
def test_prompt_text__what_was_asked(content: bytes, text: str) -> None:
    assert prompt_text(content) == text
