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
        "/v1/policy",
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


async def test_openapi__every_error__has_the_one_shape_and_a_true_example(relayer: Relayer) -> None:
    for path, methods in (await document(relayer))["paths"].items():
        for method, operation in methods.items():
            refusals = {code: each for code, each in operation["responses"].items() if not code.startswith("2")}
            assert "413" in refusals
            assert "422" not in refusals
            for code, response in refusals.items():
                if (path, code) == ("/readyz", "503"):
                    continue
                content = response["content"]["application/json"]
                assert content["schema"] == {"$ref": "#/components/schemas/Error"}, (method, path, code)
                schemas.Error.model_validate(content["example"])
                assert ("Retry-After" in response.get("headers", {})) == (code in ("429", "503"))


async def test_openapi__what_needs_a_signature_or_the_token__says_so(relayer: Relayer) -> None:
    whole = await document(relayer)
    assert {name: each["scheme"] for name, each in whole["components"]["securitySchemes"].items()} == {
        "SignedAccess": "Headrace",
        "OperatorToken": "bearer",
    }
    secured = {
        f"{method.upper()} {path}": [*operation["security"][0]]
        for path, methods in whole["paths"].items()
        for method, operation in methods.items()
        if "security" in operation
    }
    assert secured == {
        "POST /v1/requests/{request_id}/release": ["SignedAccess"],
        "GET /v1/payloads/{payload_hash}": ["SignedAccess"],
        "GET /readyz": ["OperatorToken"],
        "GET /metrics": ["OperatorToken"],
        "PATCH /v1/policy": ["OperatorToken"],
    }
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            is_refused = f"{method.upper()} {path}" in secured and path != "/readyz"
            assert ("401" in operation["responses"]) == is_refused


async def test_openapi__nothing_of_another_shape__is_left_over(relayer: Relayer) -> None:
    assert not [name for name in (await document(relayer))["components"]["schemas"] if "Validation" in name]
