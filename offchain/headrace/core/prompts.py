"""The content of a prompt as requesters make it: plain text, or an OpenAI chat body."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.errors import InvalidInput
from headrace.core.nesting import read_json

MAX_MESSAGES = 256
MAX_STOPS = 4
MAX_STOP_CHARS = 256


def prompt_content(
    prompt: str | None, messages: Sequence[Mapping[str, str]] | None, options: Mapping[str, Any]
) -> bytes:
    """The bytes of a prompt. Equal arguments give equal bytes, so that both ends can hash them.

    Args:
        prompt: plain text, or None.
        messages: of a chat, or None.
        options: temperature, top_p, seed, stop; they make a chat out of plain text.

    Raises:
        InvalidInput: it is empty, or text that has no UTF-8 form or starts as an envelope does.
    """
    given = {name: _plain(options[name]) for name in sorted(options) if options[name] is not None}
    chat = list(messages) if messages else [{"role": "user", "content": prompt}]
    try:
        if prompt is not None and not given:
            content = prompt.encode()
        else:
            body = {"messages": [dict(message) for message in chat], **given}
            content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput("the prompt holds characters that UTF-8 does not have") from exc
    if not content.strip() or content[:1] == b"\x01":
        raise InvalidInput("a prompt must not be empty or blank, or begin with the character U+0001")
    return content


def prompt_text(content: bytes) -> str:
    """What was asked, for a person: the text, or the last message of a chat."""
    text = content.decode(errors="replace")
    try:
        asked = read_json(text)["messages"][-1]["content"]
    except (ValueError, LookupError, TypeError):
        return text
    return asked if isinstance(asked, str) else text


def why_not_deterministic(content: bytes) -> str:
    """Why equal nodes may answer a prompt differently, as a clause; empty when they must not.

    Plain text is answered at temperature 0 with seed 0. A chat body must say both for itself: what it leaves out is
    for a node to choose.
    """
    try:
        document = read_json(content.decode())
    except ValueError:
        return ""
    if not isinstance(document, dict) or "messages" not in document:
        return ""
    temperature, seed = document.get("temperature"), document.get("seed")
    if isinstance(temperature, bool) or temperature != 0:
        return "its temperature is not 0"
    if isinstance(seed, bool) or not isinstance(seed, int):
        return "it has no seed"
    return ""


def _plain(value: Any) -> Any:
    """One text for one number: JSON readers disagree on whether 0 and 0.0 are the same."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
