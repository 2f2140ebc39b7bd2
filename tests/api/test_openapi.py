"""The OpenAPI document: complete, and its examples are what the models take."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.api import schemas
from tests.api.world import Relayer

RESOURCES = [each for each in vars(schemas).values() if isinstance(each, type) and issubclass(each, schemas.Resource)]


async def document(relayer: Relayer) -> dict[str, Any]:
    answer: dict[str, Any] = (await relayer.client.get("/openapi.json")).json()
    return answer


async def test_openapi__every_operation__is_described(relayer: Relayer) -> None:
    names = []
    for methods in (await document(relayer))["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
            assert operation["description"]
            names.append(operation["operationId"])
    assert len(names) == len(set(names))


async def test_openapi__resource_names__are_the_frozen_ones(relayer: Relayer) -> None:
    paths = set((await document(relayer))["paths"])
    assert paths == {
        "/v1/network",
        "/v1/models",
        "/v1/requests/draft",
        "/v1/requests",
        "/v1/requests/{request_id}",
        "/v1/requests/{request_id}/result-proof",
        "/v1/requests/{request_id}/release",
        "/v1/payloads/{payload_hash}",
        "/v1/nodes",
        "/v1/nodes/{key}",
        "/v1/rounds",
        "/v1/rounds/{round_number}",
        "/v1/rounds/{round_number}/decisions",
        "/v1/rounds/{round_number}/accepts",
        "/v1/snapshots/{snapshot_hash}",
        "/healthz",
        "/readyz",
        "/metrics",
    }


async def test_openapi__draft_examples__are_valid(relayer: Relayer) -> None:
    examples = (await document(relayer))["components"]["schemas"]["DraftRequest"]["examples"]
    assert len(examples) == 2
    for example in examples:
        schemas.DraftRequest.model_validate(example)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.__name__)
def test_openapi__field_examples__are_valid(resource: type[schemas.Resource]) -> None:
    for name, field in resource.model_fields.items():
        for example in field.examples or []:
            resource.__pydantic_validator__.validate_assignment(resource.model_construct(), name, example)
