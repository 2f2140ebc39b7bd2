"""The policy in force: the settings', or what was adopted over them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.adapters.sql.store import SqlStore
from headrace.core.cycle import BALANCED, SHARED, Policy
from headrace.core.errors import InvalidInput
from headrace.services.policies import Policies
from tests.fakes import FakeClock

CONFIGURED = Policy(name=BALANCED, lanes=SHARED)


async def test_policies__changed__outlive_a_restart_until_the_settings_change() -> None:
    clock = FakeClock()
    store = await SqlStore.open("sqlite://", clock)
    try:
        policies = Policies(store, clock, CONFIGURED)
        await policies.load()
        assert policies.current == CONFIGURED
        changed = await policies.change(bulk_max_wait_ms=5, fee_weight_milli=1)
        assert policies.current == changed == replace(CONFIGURED, bulk_max_wait_ms=5, fee_weight_milli=1)
        again = Policies(store, clock, CONFIGURED)
        await again.load()
        assert again.current == changed
        other = Policies(store, clock, replace(CONFIGURED, bulk_capacity=7))
        await other.load()
        assert other.current.bulk_max_wait_ms == CONFIGURED.bulk_max_wait_ms
        await other.change(bulk_capacity=8)
        await again.load()
        assert again.current == changed  # what it has; what was adopted since is over other settings
    finally:
        await store.close()


async def test_policies__number_that_none_may_have__is_refused_and_nothing_changes() -> None:
    clock = FakeClock()
    store = await SqlStore.open("sqlite://", clock)
    try:
        policies = Policies(store, clock, CONFIGURED)
        with pytest.raises(InvalidInput, match="bulk_max_wait_ms"):
            await policies.change(bulk_max_wait_ms=0)
        assert policies.current == CONFIGURED
    finally:
        await store.close()
