"""Fixtures of the node's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.world import World


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return World(tmp_path)
