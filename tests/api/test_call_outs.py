"""Requests whose answer goes to a contract, at the API: what they cost, who can serve them, what became of the call."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.fees import charged_gas
from headrace.core.gas import ATTESTED_VERIFIER_GAS, answer_bytes, call_out_gas
from headrace.core.requests import unpack
from headrace.core.types import Mode
from tests.api.test_drafts import DRAFT, draft, packed_of
from tests.api.world import Relayer, error_of, linked_node
from tests.fakes import VERIFIER

FOREIGN = "0x" + "5e" * 20


def budget_wei(relayer: Relayer, gas: int) -> int:
    """What a draft sets aside for so much gas: half as much again."""
    return gas * relayer.chain.gas.price_wei * 150 // 100


async def refusal(relayer: Relayer, status: int, **changes: Any) -> dict[str, str]:
    return error_of(await relayer.client.post("/v1/requests/draft", json={**DRAFT, **changes}), status)


async def test_draft__callback__pays_for_its_gas(relayer: Relayer) -> None:
    body = await draft(relayer, callback_gas=300_000)
    request = unpack(packed_of(body))
    gas = charged_gas(relayer.chain.terms, 1, 0) + call_out_gas(300_000, 0)
    assert (request.callback_gas, request.gas_budget_wei) == (300_000, budget_wei(relayer, gas))
    assert body["obstacles"] == []


async def test_draft__public_callback__pays_for_the_longest_answer(relayer: Relayer) -> None:
    request = unpack(packed_of(await draft(relayer, callback_gas=300_000, public=True, max_output_tokens=100)))
    gas = charged_gas(relayer.chain.terms, 1, answer_bytes(100)) + call_out_gas(300_000, 0)
    assert request.gas_budget_wei == budget_wei(relayer, gas)


async def test_draft__gas_budget_without_the_callback__is_an_obstacle(relayer: Relayer) -> None:
    plain = charged_gas(relayer.chain.terms, 1, 0) * relayer.chain.gas.price_wei * 2
    body = await draft(relayer, callback_gas=1_000_000, gas_budget_wei=str(plain))
    assert len(body["obstacles"]) == 1
    assert "gas budget" in body["obstacles"][0]


@pytest.mark.parametrize(
    ("verifier", "gas"),
    [(VERIFIER, ATTESTED_VERIFIER_GAS), (FOREIGN, 400_000)],
)
async def test_draft__verifier__is_paid_for_by_what_it_may_use(relayer: Relayer, verifier: str, gas: int) -> None:
    relayer.link.nodes = [linked_node(verifiers=(VERIFIER, FOREIGN))]
    body = await draft(relayer, verifier=verifier)
    request = unpack(packed_of(body))
    assert (request.mode, request.verifier) == (Mode.VERIFIER, verifier)
    assert request.gas_budget_wei == budget_wei(relayer, charged_gas(relayer.chain.terms, 1, 0) + gas)
    assert body["params"]["mode"] == "verifier"


async def test_draft__verifier_that_no_node_can_satisfy__is_refused(relayer: Relayer) -> None:
    error = await refusal(relayer, 409, verifier=VERIFIER)
    assert error["code"] == "NO_NODE_FOR_MODEL"
    assert f"can prove its answers to the verifier {VERIFIER}" in error["message"]


async def test_draft__callback_dearer_than_the_market_allows__is_refused(relayer: Relayer) -> None:
    error = await refusal(relayer, 400, callback_gas=2_000_001)
    assert "at most 2000000" in error["message"]


async def test_draft__answer_that_its_callback_could_not_be_given__is_refused(relayer: Relayer) -> None:
    error = await refusal(relayer, 400, callback_gas=1, public=True, max_output_tokens=20_000)
    assert "too long for a transaction" in error["message"]
    await draft(relayer, callback_gas=1, public=False, max_output_tokens=20_000)


async def test_get_request__callback_made__says_so(relayer: Relayer) -> None:
    stored = relayer.add_request()
    settled = relayer.settle(stored, "0x" + "77" * 32)
    assert settled.closed is not None
    where = {"transaction_hash": "0x" + "7b" * 32, "block_number": 2}
    settled.closed["callback"] = {"made": True, "reason": None, **where}  # type: ignore[index]
    body = (await relayer.client.get(f"/v1/requests/{stored.request_id}")).json()
    assert body["settlement"]["callback"] == {"made": True, "reason": None, **where}
    assert stage_of(body, "settled")["note"] == "fulfilled"


async def test_get_request__callback_failed__is_fulfilled_all_the_same(relayer: Relayer) -> None:
    stored = relayer.add_request()
    settled = relayer.settle(stored, "0x" + "77" * 32)
    assert settled.closed is not None
    where = {"transaction_hash": "0x" + "7b" * 32, "block_number": 2}
    settled.closed["callback"] = {"made": False, "reason": "0x08c379a0", **where}  # type: ignore[index]
    body = (await relayer.client.get(f"/v1/requests/{stored.request_id}")).json()
    assert (body["state"], body["settlement"]["outcome"]) == ("fulfilled", "fulfilled")
    assert body["settlement"]["callback"]["reason"] == "0x08c379a0"
    assert stage_of(body, "settled")["note"] == "fulfilled, callback failed"


async def test_get_request__no_callback_asked_for__has_none(relayer: Relayer) -> None:
    stored = relayer.add_request()
    relayer.settle(stored, "0x" + "77" * 32)
    body = (await relayer.client.get(f"/v1/requests/{stored.request_id}")).json()
    assert body["settlement"]["callback"] is None


async def test_network__tells_the_bounds_of_call_outs(relayer: Relayer) -> None:
    terms = (await relayer.client.get("/v1/network")).json()["terms"]
    assert (terms["max_callback_gas"], terms["verifier_gas"]) == (2_000_000, 400_000)


def stage_of(body: dict[str, Any], name: str) -> dict[str, Any]:
    stage: dict[str, Any] = next(each for each in body["stages"] if each["stage"] == name)
    return stage
