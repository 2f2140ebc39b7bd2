"""A store in memory, a chain in memory, and the simplest thing that brings one to the other."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.adapters.sql.store import SqlStore
from tests.fakes import FakeChain, FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def chain() -> FakeChain:
    return FakeChain()


@pytest.fixture
async def store(clock: FakeClock) -> AsyncIterator[SqlStore]:
    opened = await SqlStore.open("sqlite://", clock)
    yield opened
    await opened.close()
