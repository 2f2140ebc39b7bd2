"""How deep JSON is nested, found without following it.

Python's reader follows brackets on the C stack. What bounds it is the interpreter's recursion limit, which any library
may raise: then 100,000 brackets end the whole process. So text from outside is looked at before it is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

MAX_DEPTH = 256

# Everything but brackets: strings, closed or not, and what stands between.
_FLAT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^\[\]{}"]+', re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


class TooDeep(ValueError):
    """The JSON is nested deeper than `MAX_DEPTH`."""


def depth_of(text: str) -> int:
    """The most brackets that are open at once in a text. A reader that stops at an error has met no more than that."""
    return max(accumulate(map(_STEPS.__getitem__, _FLAT.sub("", text)), initial=0))


def is_too_deep(text: str) -> bool:
    """Whether reading a text as JSON would follow more than `MAX_DEPTH` brackets."""
    # Most texts have not even as many brackets.
    return text.count("[") + text.count("{") > MAX_DEPTH and depth_of(text) > MAX_DEPTH


def text_of(data: bytes) -> str:
    """Bytes in one of JSON's encodings as `json.loads` takes them.

    Raises:
        ValueError: they are in none.
    """
    return data.decode(json.detect_encoding(data), "surrogatepass")


def read_json(data: str | bytes, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """`json.loads` of data from outside, whose only errors are ValueErrors.

    Args:
        data: text, or its bytes in one of JSON's encodings.
        parse_constant: what becomes of NaN and Infinity, as for `json.loads`.

    Raises:
        TooDeep: it is nested too deeply.
        ValueError: it is no JSON.
    """
    text = data if isinstance(data, str) else text_of(data)
    if is_too_deep(text):
        raise TooDeep(f"it is nested more than {MAX_DEPTH} deep")
    try:
        return json.loads(text, parse_constant=parse_constant)
    except RecursionError:  # pragma: no cover - the caller itself is deep in the stack
        raise TooDeep("it is nested too deeply") from None
