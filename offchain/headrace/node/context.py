"""Whether a prompt and its answer fit a model's context, found out before the node gives its word.

What does not fit is refused or cut short by the model server, when the node has signed that it will answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from headrace.core.chat_bodies import Prompt
from headrace.core.errors import BackendUnavailable, InvalidInput
from headrace.core.tasks import RefusalReason
from headrace.node.refusing import TaskRefused
from headrace.ports import Backend

log = structlog.get_logger(__name__)

# What a chat template adds: 30 tokens and 5 a message in the packaged model, a few hundred where it brings a system
# prompt of its own. Only what is in doubt is counted, so too much of an allowance costs a count and nothing else.
TEMPLATE_TOKENS = 512
MESSAGE_TOKENS = 32


class ContextCheck:
    """Compares prompts with the context of their models.

    Args:
        backend: counts, and tells the context, if it can.
        set_tokens: contexts that the operator set, by model name; the smaller of the two counts.
        timeout_s: for a count.
    """

    def __init__(self, backend: Backend, set_tokens: Mapping[str, int], timeout_s: float) -> None:
        self._backend = backend
        self._set_tokens = set_tokens
        self._timeout_s = timeout_s
        self._warned: set[str] = set()

    async def require_fit(self, model_name: str, prompt: Prompt) -> None:
        """Refuse a prompt that leaves too little of the context for its answer.

        Raises:
            TaskRefused: it does, or the model server would not take it or did not tell.
        """
        contexts = (self._backend.context_tokens(model_name), self._set_tokens.get(model_name))
        context_tokens = min((each for each in contexts if each is not None), default=None)
        if context_tokens is None:
            self._warn(model_name)
            return
        most_tokens = most_prompt_tokens(prompt.body["messages"])
        fits_surely = most_tokens + prompt.max_output_tokens <= context_tokens
        if fits_surely and takes_turns(prompt.body["messages"]):
            return
        counted = await self._count(model_name, prompt)
        if counted is None and model_name not in self._set_tokens and not fits_surely:
            self._warn(model_name)
            return
        tokens = most_tokens if counted is None else counted
        if tokens + prompt.max_output_tokens > context_tokens:
            may = "may have" if counted is None else "has"
            raise TaskRefused(
                RefusalReason.PROMPT_TOO_LONG,
                f"the prompt {may} {tokens} tokens and its answer {prompt.max_output_tokens}, and the context of "
                f"{model_name} is {context_tokens} for both",
            )

    async def _count(self, model_name: str, prompt: Prompt) -> int | None:
        """How many tokens it has. Whatever goes wrong is this prompt's: it says nothing of the server."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._backend.count_prompt_tokens(model_name, prompt.body)
        except TimeoutError:
            problem = f"the model server did not count the prompt's tokens within {self._timeout_s:g} s"
            raise TaskRefused(RefusalReason.BACKEND_UNAVAILABLE, problem) from None
        except BackendUnavailable as exc:
            raise TaskRefused(RefusalReason.BACKEND_UNAVAILABLE, str(exc)) from None
        except InvalidInput as exc:
            raise TaskRefused(RefusalReason.BACKEND_FAILED, str(exc)) from None

    def _warn(self, model_name: str) -> None:
        if model_name not in self._warned:
            self._warned.add(model_name)
            log.warning(
                "context_unknown",
                model=model_name,
                hint="the model server does not tell whether a prompt fits, and a prompt that does not may cost stake: "
                f"set HEADRACE_NODE__CONTEXT_TOKENS='{{\"{model_name}\": …}}' to the tokens of one request",
            )


def most_prompt_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """The most tokens that messages can have once rendered: a tokenizer makes no more of a text than it has bytes."""
    return TEMPLATE_TOKENS + sum(MESSAGE_TOKENS + len(message["content"].encode()) for message in messages)


def takes_turns(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a user and the assistant take turns, as every chat template allows. Some refuse all else, a system's
    message too; only the server can tell."""
    roles = [message["role"] for message in messages]
    return len(roles) % 2 == 1 and roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
