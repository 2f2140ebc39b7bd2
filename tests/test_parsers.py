"""Whatever comes from outside is read, or refused with the error that is documented for it.

| what | from whom | test |
|---|---|---|
| JSON as such, its depth | all | `tests/core/test_nesting.py` |
| link messages | nodes, relayers | `tests/core/test_link_messages.py`, `tests/adapters/test_link_server.py` |
| prompts | requesters | `tests/node/test_prompt.py`, here |
| envelopes | requesters, nodes | `tests/core/test_envelope.py`, here |
| HTTP bodies, paths, queries | anybody | `tests/api/test_contract.py` |
| Authorization, X-Forwarded-For, Content-Length | anybody | here, `tests/api/test_rates.py` |
| calldata of settlements | whoever submits | `tests/core/test_submissions.py` |
| ABI-encoded values | contracts | `tests/adapters/test_abi_codec.py` |
| events, errors | the chain's node | here |
| JSON-RPC answers | the chain's node | here |
| snapshots, heartbeats in them | a relayer, to its auditor | `tests/core/test_snapshot.py`, here |
| proofs and leaves | a relayer, to its auditor | `tests/core/test_merkle.py`, here |
| answers of the API, Retry-After | a relayer, to its clients | here |
| answers of a model server | the node's own server | here |
| keystores, deployment files | the operator's disk | here |
| signatures | anybody | `tests/core/test_typed_data.py` |
"""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from web3.providers.async_base import AsyncJSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from headrace.adapters.abi_codec import CONTRACTS, ErrorDecoder, EventDecoder, load_abi
from headrace.adapters.abi_reader import MalformedData
from headrace.adapters.deployment import load_deployment
from headrace.adapters.json_rpc import JsonRpc, RpcError
from headrace.adapters.keystore import open_keystore
from headrace.adapters.openai_backend import OpenAiBackend
from headrace.api.auth import account_of
from headrace.client.answers import _text_of
from headrace.client.audits import decision_of
from headrace.client.errors import ApiRefused
from headrace.client.http import ApiCalls, Backoff
from headrace.core.chat_bodies import read_prompt
from headrace.core.envelope import content_of
from headrace.core.errors import (
    BackendUnavailable,
    ChainUnavailable,
    ConfigurationError,
    InvalidInput,
    NotAllowed,
    SignatureMismatch,
    Unavailable,
)
from headrace.core.fields import from_json
from headrace.core.prompts import prompt_text, why_not_deterministic
from headrace.core.snapshot import decode_snapshot, encode_snapshot
from headrace.core.tasks import Heartbeat
from tests.api.world import make_relayer
from tests.core.audit_world import World
from tests.core.test_link_messages import JSON

DEEP = ["[" * 100_000, '{"a":' * 100_000, '{"messages":' + "[" * 100_000, '[{"":' * 50_000]
TEXTS = st.text(max_size=80) | JSON.map(json.dumps) | st.sampled_from(DEEP)
HEX = st.binary(max_size=300).map(lambda data: "0x" + data.hex())
fuzz = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def changed(document: Any, data: st.DataObject) -> Any:
    """A document with something in it put in place of another thing, or taken out."""
    if isinstance(document, dict) and document and data.draw(st.integers(0, 3)):
        name = data.draw(st.sampled_from(sorted(document)))
        return {**document, name: changed(document[name], data)}
    if isinstance(document, list) and document and data.draw(st.integers(0, 3)):
        return [changed(document[0], data), *document[1:]]
    return data.draw(JSON)


# Prompts and answers


@fuzz
@given(TEXTS | st.binary(max_size=80).map(lambda data: data.decode("latin-1")))
def test_prompts__any_bytes__are_read_or_refused(text: str) -> None:
    for data in (text.encode("utf-8", "surrogatepass"), text.encode("utf-16", "surrogatepass")):
        assert isinstance(prompt_text(data), str)
        assert isinstance(_text_of(data), str)
        with contextlib.suppress(InvalidInput):
            read_prompt(data, 100)
        with contextlib.suppress(InvalidInput):
            content_of(data)
        with contextlib.suppress(UnicodeDecodeError):
            data.decode()
            assert isinstance(why_not_deterministic(data), str)


# Headers


@fuzz
@given(
    st.text(max_size=200)
    | st.from_regex(r"Headrace 0x[0-9a-fA-F]{40}:\d{1,12}:0x[0-9a-fA-F]{130}", fullmatch=True)
    | st.binary(min_size=65, max_size=65).map(lambda data: f"Headrace 0x{'00' * 20}:1750000300:0x{data.hex()}")
)
async def test_authorization__any_text__is_an_account_or_refused(header: str) -> None:
    async with make_relayer() as relayer:
        with contextlib.suppress(NotAllowed, SignatureMismatch):
            account_of(relayer.context, header)


@pytest.mark.parametrize("declared", ["9" * 5_000, "-1", "1e9", "٣", "²", "", "0x10", "1,1"])
async def test_content_length__odd__is_refused_or_counted(declared: str) -> None:
    async with make_relayer() as relayer:
        request = relayer.client.build_request("POST", "/v1/requests/draft", content=b"{}")
        request.headers = httpx.Headers([("Content-Length", declared.encode()), ("Content-Type", "application/json")])
        assert (await relayer.client.send(request)).status_code in (400, 413)


# The chain's node


class Answering(AsyncJSONBaseProvider):
    """A provider that has one answer."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    async def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        return self.decode_rpc_response(self.answer)

    async def make_batch_request(self, requests: Any) -> Any:
        return self.decode_rpc_response(self.answer)


@fuzz
@given(TEXTS.filter(lambda text: text not in DEEP) | JSON.map(lambda error: json.dumps({"error": error})))
async def test_json_rpc__any_answer__is_a_result_or_a_known_error(text: str) -> None:
    rpc = JsonRpc(Answering(text.encode("utf-8", "surrogatepass")), "http://rpc")
    with contextlib.suppress(RpcError, ChainUnavailable):
        await rpc.call("eth_chainId")
    with contextlib.suppress(RpcError, ChainUnavailable):
        await rpc.batch("eth_call", [[1], [2]])


async def test_json_rpc__nested_too_deeply_for_its_reader__is_unavailable() -> None:
    rpc = JsonRpc(Answering(b"[" * 5_000), "http://rpc")
    with pytest.raises(ChainUnavailable):
        await rpc.call("eth_chainId")


EVENTS = EventDecoder({name: f"0x{index + 1:040x}" for index, name in enumerate(CONTRACTS)})


@fuzz
@given(st.sampled_from(sorted(EVENTS._events)), st.lists(st.binary(min_size=32, max_size=32), max_size=4), HEX)
def test_events__any_data_and_topics__are_decoded_or_refused(
    event: tuple[str, str], more: list[bytes], data: str
) -> None:
    address, topic = event
    log = {"address": address, "topics": [topic, *("0x" + each.hex() for each in more)], "data": data}
    with contextlib.suppress(MalformedData):
        EVENTS.decode(log)


@fuzz
@given(st.binary(max_size=200), st.sampled_from(sorted(ErrorDecoder()._errors)) | st.binary(max_size=4))
def test_errors__any_data__are_worded(data: bytes, selector: bytes) -> None:
    assert ErrorDecoder().decode(selector + data)


def test_abis__have_what_is_decoded() -> None:
    assert all(load_abi(name) for name in CONTRACTS)


# A relayer, to its auditor and its clients


@fuzz
@given(TEXTS, st.data())
def test_snapshots__any_bytes__are_read_or_refused(text: str, data: st.DataObject) -> None:
    true = json.loads(encode_snapshot(World().inputs()))
    for given_ in (text, json.dumps(changed(true, data))):
        with contextlib.suppress(InvalidInput):
            decode_snapshot(given_.encode("utf-8", "surrogatepass"))


@fuzz
@given(JSON)
def test_heartbeats__any_json__are_read_or_refused(document: Any) -> None:
    with contextlib.suppress(InvalidInput):
        from_json(Heartbeat, document)


LEAF = {
    "request_id": "0x" + "01" * 32,
    "node": "0x" + "02" * 20,
    "kind": "assigned",
    "reason": "LOWEST_COST",
    "reward_wei": "1",
    "supersedes_round": 0,
}


@fuzz
@given(st.data())
def test_leaves__any_json__are_read_or_refused_as_the_auditor_expects(data: st.DataObject) -> None:
    # What `ApiRounds.leaves` takes for "cannot be had".
    with contextlib.suppress(LookupError, TypeError, ValueError, InvalidInput):
        decision_of(changed(LEAF, data))


@fuzz
@given(
    TEXTS,
    st.sampled_from([200, 204, 301, 400, 429, 500, 503]),
    st.text("0123456789.-e ٣", max_size=12) | st.just("9" * 5_000),
)
async def test_api_answers__any__are_json_or_a_known_error(text: str, status: int, retry_after: str) -> None:
    async def handler(_: web.Request) -> web.Response:
        body = text.encode("utf-8", "surrogatepass")
        headers = {"Retry-After": retry_after, "Content-Type": "application/json"}
        return web.Response(body=body, status=status, headers=headers)

    async def no_sleep(seconds: float) -> None:
        assert 0 <= seconds <= 70

    async with served(handler) as url, aiohttp.ClientSession() as session:
        backoff, rng = Backoff(attempts=2), random.Random(1)
        calls = ApiCalls(url, session, backoff=backoff, rng=rng, sleep=no_sleep)
        with contextlib.suppress(ApiRefused, Unavailable):
            await calls.json("GET", "/v1/network")
        with contextlib.suppress(ApiRefused, Unavailable):
            await calls.bytes("/v1/snapshots/0x")


# The node's model server

ANSWER = {
    "choices": [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Paris."}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2},
}
MODELS = {"data": [{"id": "smol", "owned_by": "llamacpp", "max_model_len": 9, "meta": {"n_ctx": 9}}]}


@fuzz
@given(TEXTS, st.sampled_from([200, 400, 404, 500]), st.data())
async def test_model_server__any_answer__is_taken_or_a_known_error(text: str, status: int, data: st.DataObject) -> None:
    bodies = [text, json.dumps(changed(ANSWER, data)), json.dumps(changed(MODELS, data))]

    async def handler(request: web.Request) -> web.Response:
        body = bodies[len(request.path) % len(bodies)].encode("utf-8", "surrogatepass")
        return web.Response(body=body, status=status, content_type="application/json")

    async with served(handler) as url:
        backend = OpenAiBackend(url, {"smol": "smol"})
        body = {"messages": [{"role": "user", "content": "x"}]}
        for call in (backend.check(), backend.generate("smol", body, 5), backend.count_prompt_tokens("smol", body)):
            with contextlib.suppress(BackendUnavailable, InvalidInput):
                await call
        await backend.close()


@contextlib.asynccontextmanager
async def served(handler: Any) -> Any:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# The operator's disk

# The test vector of the Web3 Secret Storage definition, but for its cost.
KEYSTORE = {
    "address": "008aeeda4d805471df9b2a5b0f38a0c3bcba786b",
    "crypto": {
        "cipher": "aes-128-ctr",
        "cipherparams": {"iv": "83dbcc02d8ccb40e466191a123791e0e"},
        "ciphertext": "d172bf743a674da9cdad04534d56926ef8358534d458fffccd4e6ad2fbde479c",
        "kdf": "scrypt",
        "kdfparams": {"dklen": 32, "n": 2, "p": 1, "r": 1, "salt": "ab0c7876052600dd703518d6fc3fe8984592145b591fc8fb"},
        "mac": "2103ac29920d71da29f15d75b4a16dbe95cfd7ff8faea1056c33131d846e3097",
    },
    "id": "3198bc9c-6672-5ab3-d995-4942343ae5b6",
    "version": 3,
}


@fuzz
@given(TEXTS, st.data())
def test_keystores__any_file__are_opened_or_a_configuration_error(
    tmp_path: Path, text: str, data: st.DataObject
) -> None:
    path = tmp_path / "key.json"
    for content in (text, json.dumps(changed(KEYSTORE, data))):
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(ConfigurationError):
            open_keystore(path, "password")


DEPLOYMENT = {
    "schema": 1,
    "chain_id": 5,
    "contracts": {name: {"address": "0x" + "01" * 20, "block": 7, "code_hash": "0xab"} for name in CONTRACTS},
    "models": [{"name": "tiny", "model_id": "0x01"}],
}


@fuzz
@given(TEXTS, st.data())
def test_deployment_files__any_file__are_read_or_a_configuration_error(
    tmp_path: Path, text: str, data: st.DataObject
) -> None:
    path = tmp_path / "5.json"
    for content in (text, json.dumps(changed(DEPLOYMENT, data))):
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(ConfigurationError):
            load_deployment(tmp_path, 5)
