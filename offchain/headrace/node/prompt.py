"""From a model server's answer to the bytes of a result."""

from __future__ import annotations

from bisect import bisect_right

from headrace.core.canonical import canonical_json
from headrace.core.chat_bodies import Prompt
from headrace.ports import Generation


def result_content(prompt: Prompt, generation: Generation, most_bytes: int) -> bytes:
    """The bytes of an answer: its text, or a canonical chat completion for a chat body.

    A node that has given its word must not be left without an answer, whatever the prompt made the model say: an answer
    without text is a line break, and one that is too long ends early, as one that ran out of tokens does.

    Args:
        prompt: what was asked.
        generation: what the model said.
        most_bytes: how long it may be. 512 are enough for a chat completion without text.
    """
    # Content never starts with an envelope's first byte, and is UTF-8 whatever the server sent.
    text = generation.text.encode("utf-8", "replace").decode()
    if not prompt.is_chat:
        text = text.lstrip("\x00\x01") or "\n"
    content = _content(prompt, generation, text, generation.finish_reason)
    if len(content) <= most_bytes:
        return content
    # The most characters that fit.
    fitting = bisect_right(
        range(len(text)), most_bytes, key=lambda count: len(_content(prompt, generation, text[:count], "length"))
    )
    return _content(prompt, generation, text[: max(0, fitting - 1)], "length")


def _content(prompt: Prompt, generation: Generation, text: str, finish_reason: str) -> bytes:
    if not prompt.is_chat:
        return text.encode()
    return canonical_json(
        {
            "choices": [
                {"finish_reason": finish_reason, "index": 0, "message": {"content": text, "role": "assistant"}}
            ],
            "usage": {"completion_tokens": generation.output_tokens, "prompt_tokens": generation.prompt_tokens},
        }
    )
