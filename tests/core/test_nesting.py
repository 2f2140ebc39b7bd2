"""Depth is found without following it, and never as less than a reader would follow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.nesting import MAX_DEPTH, TooDeep, depth_of, is_too_deep, read_json
from tests.core.test_link_messages import JSON

BRACKETS = st.text('[]{}"\\ a:,', max_size=60)


def depth_by_hand(text: str) -> int:
    """The most brackets that are open at once, a character at a time."""
    depth = most = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            most = max(most, depth)
        elif character in "]}":
            depth -= 1
    return most


def depth_of_value(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of_value(item) for item in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth_of_value(item) for item in value), default=0)
    return 0


@given(BRACKETS)
def test_depth__any_text__is_that_by_hand(text: str) -> None:
    assert depth_of(text) == depth_by_hand(text)


@given(JSON, st.sampled_from([None, 2]))
def test_depth__of_json__is_that_of_the_value(value: Any, indent: int | None) -> None:
    assert depth_of(json.dumps(value, indent=indent)) == depth_of_value(value)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"":', '["]",'])
@pytest.mark.parametrize("count", [MAX_DEPTH + 1, 100_000])
def test_read_json__nested_too_deeply__is_refused(opening: str, count: int) -> None:
    with pytest.raises(TooDeep):
        read_json(opening * count)
    with pytest.raises(TooDeep):
        read_json((opening * count).encode("utf-16"))


def test_read_json__as_deep_as_may_be__is_read() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert not is_too_deep(text)
    assert read_json(text) == json.loads(text)


@given(st.binary(max_size=200) | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_read_json__any_bytes__are_read_as_json_does_or_refused(data: bytes) -> None:
    try:
        expected = json.loads(data)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - whatever it is that json.loads says
            read_json(data)
        return
    assert repr(read_json(data)) == repr(expected)


@pytest.mark.parametrize("text", ["9" * 5_000, '{"a": ' + "9" * 5_000 + "}"])
def test_read_json__number_of_thousands_of_digits__is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="digits"):
        read_json(text)
