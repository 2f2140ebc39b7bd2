"""Every route, called with what /openapi.json allows and with what it does not: the answers are what it promises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.schemas import APIOperation

from headrace.api import create_app
from headrace.core.envelope import hash_payload
from tests.api.test_rounds import SNAPSHOT_HASH, add_rounds
from tests.api.world import NODE_SIGNER, RELAYER_SIGNER, REQUESTER_SIGNER, Relayer, document_of, make_relayer
from tests.fakes import make_request

load_all_checks()
# The others guess what a refusal should be: a request that fits its schema may still name an unknown model.
PROMISES = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    ]
)
EXAMPLES = 30
ANSWER, PROMPT = b"because", b"Why?"
# Methods and paths, so that collecting the tests needs no document. A test below holds them to it.
OPERATIONS = [
    "GET /healthz",
    "GET /metrics",
    "GET /readyz",
    "GET /v1/models",
    "GET /v1/network",
    "GET /v1/nodes",
    "GET /v1/nodes/{key}",
    "GET /v1/payloads/{payload_hash}",
    "GET /v1/policy",
    "GET /v1/requests",
    "GET /v1/requests/{request_id}",
    "GET /v1/requests/{request_id}/result-proof",
    "GET /v1/rounds",
    "GET /v1/rounds/{round_number}",
    "GET /v1/rounds/{round_number}/accepts",
    "GET /v1/rounds/{round_number}/decisions",
    "GET /v1/snapshots/{snapshot_hash}",
    "PATCH /v1/policy",
    "POST /v1/requests",
    "POST /v1/requests/draft",
    "POST /v1/requests/{request_id}/release",
    "PUT /v1/payloads/{payload_hash}",
]


@dataclass(frozen=True, slots=True)
class World:
    """A relayer that has one of everything, its caller, and what its paths may name."""

    loop: asyncio.AbstractEventLoop
    client: httpx.AsyncClient
    known: Mapping[str, list[str]]
    headers: list[dict[str, str]]

    def call(self, case: Case) -> None:
        """Make a call, and hold the answer to the document."""
        asked = case.as_transport_kwargs()
        sent = {
            name: asked[name] for name in ("method", "url", "params", "headers", "cookies", "json") if name in asked
        }
        if isinstance(body := asked.get("data"), str | bytes):
            sent["content"] = body
        try:
            request = self.client.build_request(**sent)
        except (httpx.InvalidURL, ValueError, TypeError):
            return  # httpx has no form for it, so no client of its kind can send it
        case.validate_response(self.loop.run_until_complete(self.client.send(request)), checks=PROMISES)


@cache
def operations() -> Mapping[str, APIOperation]:
    async def document() -> dict[str, Any]:
        async with make_relayer() as relayer:
            return document_of(create_app(relayer.context))

    with closing(asyncio.new_event_loop()) as loop:
        schema = schemathesis.openapi.from_dict(loop.run_until_complete(document()))
    return {each.label: each for each in (found.ok() for found in schema.get_all_operations())}


@contextmanager
def world() -> Iterator[World]:
    # Not the current loop of the thread, which is that of the other tests.
    with closing(asyncio.new_event_loop()) as loop:
        making = make_relayer()
        relayer = loop.run_until_complete(making.__aenter__())
        try:
            yield World(loop, relayer.client, furnish(relayer), headers_of(relayer))
        finally:
            loop.run_until_complete(making.__aexit__(None, None, None))


def furnish(relayer: Relayer) -> Mapping[str, list[str]]:
    """One of everything, and what names it."""
    add_rounds(relayer)
    waiting = relayer.add_request()
    asked = make_request(
        requester=REQUESTER_SIGNER.address, relayer=RELAYER_SIGNER.address, prompt_hash=hash_payload(PROMPT), salt=2
    )
    answered = relayer.add_request(asked)
    relayer.answer_at_once(answered, ANSWER)
    relayer.settle(answered, hash_payload(ANSWER))
    hashes = [waiting.request_id, answered.request_id, hash_payload(ANSWER), hash_payload(PROMPT), SNAPSHOT_HASH]
    return {
        "request_id": hashes,
        "payload_hash": hashes,
        "snapshot_hash": hashes,
        "key": [NODE_SIGNER.address, REQUESTER_SIGNER.address],
        "round_number": ["1", "2"],
    }


def headers_of(relayer: Relayer) -> list[dict[str, str]]:
    return [
        dict(relayer.headers(REQUESTER_SIGNER)),
        dict(relayer.headers(NODE_SIGNER)),
        {"Authorization": "Headrace x"},
    ]


def test_contract__operations__are_those_of_the_document() -> None:
    assert sorted(operations()) == OPERATIONS


@pytest.mark.parametrize("label", OPERATIONS)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: f"{mode.value}")
def test_contract__any_call__is_answered_as_documented(label: str, mode: GenerationMode) -> None:
    operation = operations()[label]
    if mode is GenerationMode.NEGATIVE and not takes_input(operation):
        return
    with world() as made:
        run(operation.as_strategy(generation_mode=mode), made)


@pytest.mark.parametrize("label", [label for label in OPERATIONS if "{" in label])
def test_contract__call_that_names_what_there_is__is_answered_as_documented(label: str) -> None:
    operation = operations()[label]
    names = [parameter.name for parameter in operation.path_parameters]
    with world() as made:

        @st.composite
        def cases(draw: st.DrawFn) -> Case:
            path = {name: draw(st.sampled_from(made.known[name])) for name in names}
            case: Case = draw(operation.as_strategy(path_parameters=path))
            case.headers = {**(case.headers or {}), **draw(st.sampled_from(made.headers))}
            return case

        run(cases(), made)


def takes_input(operation: APIOperation) -> bool:
    return bool(list(operation.iter_parameters()) or operation.body)


def run(cases: st.SearchStrategy[Case], made: World) -> None:
    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def call(case: Case) -> None:
        made.call(case)

    call()
