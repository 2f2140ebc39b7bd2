"""Prompts: plain text and chat bodies, and nothing that a server would read otherwise than it was meant."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.chat_bodies import Prompt, read_prompt
from headrace.core.envelope import seal
from headrace.core.errors import InvalidInput
from headrace.node.prompt import result_content
from headrace.ports import Generation

HELLO = [{"role": "user", "content": "Hello"}]


def read(document: Any) -> Prompt:
    return read_prompt(json.dumps(document).encode(), 100)


@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: seal(text, b"s" * 16)], ids=["bare", "sealed"])
@pytest.mark.parametrize("text", ["Why?", '{"a": 1}', "{not json", "[1]", '"messages"', "ä€🙂"])
def test_plain_text_is_one_user_message(text: str, wrap: Any) -> None:
    prompt = read_prompt(wrap(text.encode()), 100)
    assert not prompt.is_chat
    assert prompt.body == {"messages": [{"role": "user", "content": text}], "temperature": 0, "seed": 0}


def test_a_chat_body_keeps_what_it_asks_for() -> None:
    asked = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "frequency_penalty": -1, "stop": "END"}
    prompt = read({"messages": HELLO, "model": "gpt", "user": "me", "max_tokens": 20, **asked})
    assert prompt.is_chat
    assert prompt.body == {"messages": HELLO, **asked, "stop": ["END"]}
    assert prompt.max_output_tokens == 20


def test_an_answer_repeats_unless_the_prompt_says_otherwise() -> None:
    for document in ({"messages": HELLO}, {"messages": HELLO, "temperature": None, "seed": None, "stop": None}):
        assert read(document).body == {"messages": HELLO, "temperature": 0, "seed": 0}


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_more_tokens_than_are_paid_for_are_not_given(key: str) -> None:
    assert read({"messages": HELLO, key: 10**6}).max_output_tokens == 100


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"messages": HELLO, "tools": [], "stream": True}, "stream, tools, which is not served"),
        ({"messages": []}, "1 to 256"),
        ({"messages": "Hello"}, "1 to 256"),
        ({"messages": HELLO * 257}, "1 to 256"),
        ({"messages": ["Hello"]}, "role and content"),
        ({"messages": [{"role": "user"}]}, "role and content"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "role and content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "must be one of"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "must be one of"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must be text"),
        ({"messages": HELLO, "temperature": 3}, "between 0 and 2"),
        ({"messages": HELLO, "temperature": "0"}, "must be a number"),
        ({"messages": HELLO, "temperature": True}, "must be a number"),
        ({"messages": HELLO, "seed": 1.5}, "whole number"),
        ({"messages": HELLO, "seed": -1}, "whole number"),
        ({"messages": HELLO, "seed": 2**60}, "whole number"),
        ({"messages": HELLO, "max_tokens": 0}, "whole number"),
        ({"messages": HELLO, "stop": ["a"] * 5}, "at most 4"),
        ({"messages": HELLO, "stop": [""]}, "1 to 256"),
        ({"messages": HELLO, "stop": {"a": 1}}, "at most 4"),
    ],
)
def test_what_is_not_served_is_refused(document: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        read(document)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b" \n",
        b"\xff\xfe",
        b"\x01short",
        b"\x01" + bytes(16),
        b'{"messages": [], "seed": NaN}',
        b'{"messages": ' + b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_prompt_are_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_prompt(payload, 100)


@given(st.binary(max_size=300) | st.text().map(str.encode))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    try:
        prompt = read_prompt(payload, 100)
    except InvalidInput:
        return
    assert json.loads(json.dumps(prompt.body)) == prompt.body


def test_a_plain_answer_is_its_text() -> None:
    prompt = read_prompt(b"Why?", 100)
    assert result_content(prompt, Generation("Because ä.", "stop", 3, 2, 9), 99) == "Because ä.".encode()
    assert result_content(prompt, Generation("\x01\x01Because", "stop", 3, 2, 9), 99) == b"Because"
    assert result_content(prompt, Generation("half \ud800", "stop", 3, 2, 9), 99) == b"half ?"


@pytest.mark.parametrize("nothing", ["", "\x01"])
def test_a_plain_answer_without_text_is_a_line_break(nothing: str) -> None:
    """No bytes could not be delivered to a contract, and a node that gave its word must answer."""
    assert result_content(read_prompt(b"Why?", 100), Generation(nothing, "stop", 3, 0, 9), 99) == b"\n"


@given(st.text(min_size=1), st.integers(150, 600), st.booleans())
def test_an_answer_that_is_too_long_ends_as_late_as_it_can(text: str, most: int, is_chat: bool) -> None:
    prompt = read({"messages": HELLO}) if is_chat else read_prompt(b"Why?", 100)
    generation = Generation(text.encode("utf-8", "replace").decode() * 300, "stop", 3, 2, 9)
    whole = result_content(prompt, generation, 10**6)
    content = result_content(prompt, generation, most)
    assert len(content) <= most
    if len(whole) <= most:
        assert content == whole
        return
    # A character has at most 6 bytes as JSON says it.
    assert len(content) > most - 12
    if is_chat:
        choice = json.loads(content)["choices"][0]
        assert choice["finish_reason"] == "length"
        assert json.loads(whole)["choices"][0]["message"]["content"].startswith(choice["message"]["content"])
    else:
        assert whole.decode().startswith(content.decode())


def test_a_chat_answer_is_canonical() -> None:
    content = result_content(read({"messages": HELLO}), Generation('Hi "ä"', "length", 3, 2, 9), 999)
    assert content.decode() == (
        '{"choices":[{"finish_reason":"length","index":0,"message":{"content":"Hi \\"ä\\"","role":"assistant"}}],'
        '"usage":{"completion_tokens":2,"prompt_tokens":3}}'
    )
