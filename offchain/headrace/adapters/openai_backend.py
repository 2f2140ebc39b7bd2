"""A backend that is any server with OpenAI's chat API: llama.cpp, vLLM, SGLang, Ollama, a hosted one.

OpenAI's API tells neither a model's context nor the tokens of a prompt. llama.cpp and vLLM do, each in its own way.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from headrace.core.errors import BackendUnavailable, ConfigurationError, InvalidInput
from headrace.core.nesting import read_json
from headrace.ports import Generation

API_KEY_VARIABLE = "HEADRACE_NODE__OPENAI_API_KEY"
_MAX_ANSWER_BYTES = 8 * 1024 * 1024
_MAX_QUOTED_CHARS = 300
# These say something about the body; every other error says something about the server.
_BODY_ERRORS = (400, 413, 415, 422)
_NO_SUCH_PATH = (404, 405, 501)


class OpenAiBackend:
    """Answers over `/v1/chat/completions`.

    Args:
        url: the server's, with or without `/v1`.
        models: registry name → the server's name of the model.
        api_key: sent as a bearer token, if given.
        timeout_s: for a whole answer. A task's own deadline is usually shorter.
        connect_timeout_s: to reach the server, and for a check.
        defaults: fields to add to each body that a prompt may not set (a server's own switches).
    """

    def __init__(
        self,
        url: str,
        models: Mapping[str, str],
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 5.0,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ConfigurationError(f"the model server's address {url} must start with http:// or https://")
        if not models:
            raise ConfigurationError("the model server needs at least one model to serve")
        base = url.rstrip("/")
        self._base = base if base.endswith("/v1") else base + "/v1"
        self._root = self._base.removesuffix("/v1")
        self._models = dict(models)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s)
        self._check_timeout = aiohttp.ClientTimeout(total=connect_timeout_s)
        self._defaults = dict(defaults or {})
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, int] = {}  # by the server's name of the model
        self._counters = [self._count_as_llama_cpp, self._count_as_vllm]

    def __repr__(self) -> str:
        return f"OpenAiBackend({self._base}, {sorted(self._models)})"

    @property
    def model_names(self) -> Sequence[str]:
        return tuple(self._models)

    def context_tokens(self, model_name: str) -> int | None:
        return self._contexts.get(self._models.get(model_name, ""))

    async def count_prompt_tokens(self, model_name: str, body: Mapping[str, Any]) -> int | None:
        asked = {**self._defaults, "model": self._models[model_name], "messages": body["messages"]}
        for count in tuple(self._counters):
            tokens = await count(asked)
            if tokens is not None:
                return tokens
            # It is another kind of server.
            self._counters = [each for each in self._counters if each != count]
        return None

    async def generate(self, model_name: str, body: Mapping[str, Any], max_output_tokens: int) -> Generation:
        if model_name not in self._models:
            raise InvalidInput(f"the model server is not set up for the model {model_name}")
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        asked = {
            **self._defaults,
            **body,
            "model": self._models[model_name],
            "max_tokens": max_output_tokens,
            "stream": False,
        }
        answer = await self._ask("POST", "/chat/completions", self._timeout, asked)
        return self._generation(answer, math.ceil((loop.time() - started_s) * 1000))

    async def check(self) -> None:
        answer = await self._ask("GET", "/models", self._check_timeout)
        listed = answer.get("data")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        names = {entry.get("id") for entry in entries}
        missing = sorted(set(self._models.values()) - names)
        if missing:
            there = ", ".join(sorted(str(name) for name in names))[:_MAX_QUOTED_CHARS] or "none"
            raise BackendUnavailable(
                f"the model server at {self._base} does not have {', '.join(missing)} (it has: {there}); load it, or "
                "name another"
            )
        self._contexts = {str(entry["id"]): tokens for entry in entries if (tokens := _context_in(entry)) is not None}
        if not self._contexts and any(entry.get("owned_by") == "llamacpp" for entry in entries):
            props = await self._told("GET", "/props")
            settings = props.get("default_generation_settings") if props is not None else None
            tokens = _context_in({"meta": settings})
            self._contexts = dict.fromkeys(self._models.values(), tokens) if tokens is not None else {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(
        self, method: str, path: str, limits: aiohttp.ClientTimeout, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        status, content = await self._exchange(method, self._base + path, limits, body)
        if status != 200:
            raise self._error(status, content)
        document = _json(content)
        if not isinstance(document, dict):
            raise BackendUnavailable(f"the model server at {self._base} answers something else than OpenAI's API")
        return document

    async def _exchange(
        self, method: str, url: str, limits: aiohttp.ClientTimeout, body: Mapping[str, Any] | None
    ) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers)
        try:
            async with self._session.request(method, url, json=body, timeout=limits, allow_redirects=False) as response:
                return response.status, await _read(response)
        except TimeoutError:
            raise BackendUnavailable(f"the model server at {self._base} did not answer in time") from None
        except (aiohttp.ClientError, OSError) as exc:
            reason = str(exc) or type(exc).__name__
            raise BackendUnavailable(
                f"the model server at {self._base} does not answer ({reason}); start it, or set another address"
            ) from None

    async def _count_as_llama_cpp(self, asked: Mapping[str, Any]) -> int | None:
        rendered = await self._told("POST", "/apply-template", asked)
        if rendered is None or not isinstance(text := rendered.get("prompt"), str):
            return None
        told = await self._told("POST", "/tokenize", {"content": text, "add_special": True, "parse_special": True})
        tokens = told.get("tokens") if told is not None else None
        return len(tokens) if isinstance(tokens, list) else None

    async def _count_as_vllm(self, asked: Mapping[str, Any]) -> int | None:
        told = await self._told("POST", "/tokenize", asked)
        return _positive(told.get("count")) if told is not None else None

    async def _told(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """What the server says beside OpenAI's API; None when it has no such path."""
        status, content = await self._exchange(method, self._root + path, self._check_timeout, body)
        if status in _NO_SUCH_PATH:
            return None
        # A chat template that refuses the messages is an error of the server's own to some.
        if status in (*_BODY_ERRORS, 500):
            raise InvalidInput(f"the model server refuses the prompt: {_error_message(content)}")
        if status != 200:
            raise self._error(status, content)
        document = _json(content)
        return document if isinstance(document, dict) else None

    def _error(self, status: int, content: bytes) -> Exception:
        said = _error_message(content)
        if status in _BODY_ERRORS:
            return InvalidInput(f"the model server refuses the prompt: {said}")
        if status in (401, 403):
            return BackendUnavailable(
                f"the model server at {self._base} refuses the API key ({status}); set {API_KEY_VARIABLE}"
            )
        return BackendUnavailable(f"the model server at {self._base} answers with status {status}: {said}")

    def _generation(self, answer: dict[str, Any], compute_ms: int) -> Generation:
        try:
            choice, usage = answer["choices"][0], answer["usage"]
            text, finish = choice["message"]["content"], choice["finish_reason"]
            prompt_tokens, output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        except (KeyError, IndexError, TypeError):
            text = finish = prompt_tokens = output_tokens = None
        if not (
            isinstance(text, str)
            and isinstance(finish, str)
            and isinstance(prompt_tokens, int)
            and isinstance(output_tokens, int)
            and min(prompt_tokens, output_tokens) >= 0
        ):
            raise BackendUnavailable(f"the model server at {self._base} gives answers that are not OpenAI's")
        return Generation(text, "length" if finish == "length" else "stop", prompt_tokens, output_tokens, compute_ms)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        content += chunk
        if len(content) > _MAX_ANSWER_BYTES:
            response.close()
            raise aiohttp.ClientPayloadError(f"an answer longer than {_MAX_ANSWER_BYTES} bytes")
    return bytes(content)


def _json(content: bytes) -> Any:
    try:
        return read_json(content)
    except ValueError:
        return None


def _context_in(entry: Mapping[str, Any]) -> int | None:
    """Tokens of one request, in what a server lists of a model: vLLM's way, and llama.cpp's, which is of one slot."""
    meta = entry.get("meta")
    return _positive(entry.get("max_model_len")) or _positive(meta.get("n_ctx") if isinstance(meta, dict) else None)


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _error_message(content: bytes) -> str:
    """What a server says is wrong, in one line."""
    document = _json(content)
    error = document.get("error") if isinstance(document, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    text = said if isinstance(said, str) else content[:_MAX_QUOTED_CHARS].decode("utf-8", "replace")
    return " ".join(text.split())[:_MAX_QUOTED_CHARS] or "nothing more"
