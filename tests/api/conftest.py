"""A relayer's API over fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.world import Relayer, make_relayer


@pytest.fixture
async def relayer() -> AsyncIterator[Relayer]:
    async with make_relayer() as made:
        yield made
