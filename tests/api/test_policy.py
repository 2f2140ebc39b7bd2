"""The policy: read by everybody, changed by the operator."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from headrace.api import create_app
from headrace.api.context import OperatorDoor
from headrace.core.cycle import Policy
from headrace.core.fields import to_json
from headrace.core.snapshot import policy_hash
from tests.api.world import Relayer, error_of


async def test_policy__is_shown_whole_with_its_hash(relayer: Relayer) -> None:
    shown = (await relayer.client.get("/v1/policy")).json()
    assert shown["policy"] == to_json(relayer.context.policy)
    assert shown["policy_hash"] == policy_hash(relayer.context.policy)


async def test_policy__is_changed__counts_at_once_and_is_kept(relayer: Relayer) -> None:
    told: list[Policy] = []
    relayer.context.policies.tell(told.append)
    before = relayer.context.policy
    change = {"bulk_max_wait_ms": 60_000, "realtime_fee_floor_wei": "7", "fee_weight_milli": 0}
    answer = await relayer.client.patch("/v1/policy", json=change)
    expected = replace(before, bulk_max_wait_ms=60_000, realtime_fee_floor_wei=7, fee_weight_milli=0)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"policy_hash": policy_hash(expected), "policy": to_json(expected)}
    assert relayer.context.policy == expected
    assert told == [expected]
    assert relayer.store.adopted == (policy_hash(before), expected)
    network = (await relayer.client.get("/v1/network")).json()
    assert network["policy"]["policy_hash"] == policy_hash(expected)


async def test_policy__nothing_changes__nothing_is_told(relayer: Relayer) -> None:
    told: list[Policy] = []
    relayer.context.policies.tell(told.append)
    for change in ({}, {"bulk_capacity": relayer.context.policy.bulk_capacity}):
        assert (await relayer.client.patch("/v1/policy", json=change)).status_code == 200
    assert told == []
    assert relayer.store.adopted is None


@pytest.mark.parametrize(
    "change",
    [
        {"bulk_capacity": 0},
        {"fee_weight_milli": 1_001},
        {"realtime_fee_floor_wei": "-1"},
        {"name": "reference"},
        {"heartbeat_timeout_ms": 1},
        {"max_assignments": 5},
        [],
    ],
)
async def test_policy__bad_change__is_refused(relayer: Relayer, change: object) -> None:
    before = relayer.context.policy
    error_of(await relayer.client.patch("/v1/policy", json=change), 400)
    assert relayer.context.policy == before


async def test_policy__not_the_operator__may_read_and_not_change(relayer: Relayer) -> None:
    app = create_app(replace(relayer.context, operator=OperatorDoor("a-token-of-the-operator")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relayer") as client:
        assert (await client.get("/v1/policy")).status_code == 200
        assert error_of(await client.patch("/v1/policy", json={"bulk_capacity": 9}), 401)["code"] == "OPERATOR_ONLY"
