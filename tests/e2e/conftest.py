"""One running stack for all end-to-end tests: real chain, real contracts, real processes, a real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts._stack import Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("stack") / "run"
    with Stack(folder, report=lambda _: None) as running:
        yield running
