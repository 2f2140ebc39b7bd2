"""One process at a time works with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.adapters.file_lock import alone_with
from headrace.core.errors import ConfigurationError


def test_alone_with__held_already__names_the_holder(tmp_path: Path) -> None:
    file = tmp_path / "relayer.db"
    with (
        alone_with(file),
        pytest.raises(ConfigurationError, match=r"another relayer \(process \d+\)"),
        alone_with(file),
    ):
        pass
    with alone_with(file):
        assert not file.exists()


def test_alone_with__folder_that_is_not_there__says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written"), alone_with(tmp_path / "no" / "relayer.db"):
        pass
