"""The forge that make uses: that it failed must be seen."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scripts._stack import ROOT


def forge(*arguments: str) -> int:
    return subprocess.run([ROOT / "scripts/_bin/forge", *arguments], capture_output=True, check=False).returncode


def test_forge__what_does_not_compile__fails(tmp_path: Path) -> None:
    """npm's wrapper of it ends with 0 here."""
    (tmp_path / "contract.sol").write_text("contract Broken {", encoding="utf-8")
    assert forge("fmt", "--check", str(tmp_path / "contract.sol")) != 0
    assert forge("--version") == 0
