"""From the bytes of a prompt to the chat body that a model server takes. Nodes read prompts so, and a relayer's doors
refuse what no node would take.

A prompt is plain text, or an OpenAI chat body. What changes the answer is decided here and not by a server's defaults:
unless the prompt says otherwise the temperature is 0 and the seed 0, so that the same prompt has the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.core.canonical import MAX_SAFE_INTEGER
from headrace.core.envelope import content_of
from headrace.core.errors import InvalidInput
from headrace.core.nesting import TooDeep, read_json
from headrace.core.prompts import MAX_MESSAGES, MAX_STOP_CHARS, MAX_STOPS

_ROLES = ("system", "user", "assistant")
_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}
# Bodies made for another server name its model; which one answers is the request's own term.
_IGNORED = ("model", "user")
_OTHER_KEYS = ("messages", "seed", "stop", "max_tokens", "max_completion_tokens")


class PromptNotServed(InvalidInput):
    """A prompt that every node refuses."""

    code = "PROMPT_NOT_SERVED"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that was read."""

    body: Mapping[str, Any]
    is_chat: bool  # it was a chat body, so its answer has that form too
    max_output_tokens: int


def read_prompt(payload: bytes, max_output_tokens: int) -> Prompt:
    """Read a prompt's payload.

    Args:
        payload: its bytes, envelope included.
        max_output_tokens: what the request pays for; the prompt's own limit counts if it is lower.

    Raises:
        PromptNotServed: it is not UTF-8, empty, or a chat body that asks for what is not served.
        InvalidInput: its envelope is broken.
    """
    try:
        text = content_of(payload).decode()
    except UnicodeDecodeError:
        raise PromptNotServed("the prompt is not UTF-8 text") from None
    if not text.strip():
        raise PromptNotServed("the prompt is empty")
    document = _chat_document(text)
    if document is None:
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "seed": 0}
        return Prompt(body, is_chat=False, max_output_tokens=max_output_tokens)
    limits = [_integer(document, key, 1) for key in ("max_tokens", "max_completion_tokens") if key in document]
    return Prompt(_chat_body(document), is_chat=True, max_output_tokens=min([max_output_tokens, *limits]))


def _chat_document(text: str) -> dict[str, Any] | None:
    """The chat body, or None when the text is not one."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        document = read_json(text, parse_constant=_refuse_constant)
    except TooDeep:
        raise PromptNotServed("the prompt is JSON that is nested too deeply") from None
    except ValueError:
        return None
    return document if isinstance(document, dict) and "messages" in document else None


def _refuse_constant(name: str) -> NoReturn:
    raise PromptNotServed(f"the prompt holds {name}, which is no JSON")


def _chat_body(document: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(document) - {*_RANGES, *_OTHER_KEYS, *_IGNORED})
    if unknown:
        raise PromptNotServed(f"the prompt asks for {', '.join(unknown)[:200]}, which is not served")
    body: dict[str, Any] = {"messages": _messages(document["messages"]), "temperature": 0, "seed": 0}
    for key, (low, high) in _RANGES.items():
        if document.get(key) is not None:
            body[key] = _number(document, key, low, high)
    if document.get("seed") is not None:
        body["seed"] = _integer(document, "seed", 0)
    if document.get("stop") is not None:
        body["stop"] = _stops(document["stop"])
    return body


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise PromptNotServed(f"messages must be a list of 1 to {MAX_MESSAGES}")
    messages = []
    for index, message in enumerate(value):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise PromptNotServed(f"messages[{index}] must have role and content, and nothing else")
        if message["role"] not in _ROLES:
            raise PromptNotServed(f"messages[{index}].role must be one of {', '.join(_ROLES)}")
        if not isinstance(message["content"], str):
            raise PromptNotServed(f"messages[{index}].content must be text")
        messages.append({"role": message["role"], "content": _clean(message["content"])})
    return messages


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise PromptNotServed(f"stop must be text, or a list of at most {MAX_STOPS}")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise PromptNotServed(f"each stop must be text of 1 to {MAX_STOP_CHARS} characters")
    return [_clean(stop) for stop in stops]


def _number(document: dict[str, Any], key: str, low: float, high: float) -> float:
    value = document[key]
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise PromptNotServed(f"{key} must be a number")
    if not low <= value <= high:
        raise PromptNotServed(f"{key} must be between {low:g} and {high:g}")
    return value


def _integer(document: dict[str, Any], key: str, low: int) -> int:
    value = document[key]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_SAFE_INTEGER:
        raise PromptNotServed(f"{key} must be a whole number of at least {low}")
    return value


def _clean(text: str) -> str:
    """JSON can name half a character (a lone surrogate), which is no text."""
    return text.encode("utf-8", "replace").decode()
