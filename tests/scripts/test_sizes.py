"""What `make check` says of the contracts' sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import _sizes
from scripts._deployments import CONTRACTS
from scripts._sizes import MAX_CODE_BYTES, MAX_CREATION_BYTES, ROOT, Size, own_contracts, sizes_in, table


def report(**code_bytes: int) -> str:
    """As forge prints it."""
    return json.dumps({name: {"runtime_size": size, "init_size": size + 300} for name, size in code_bytes.items()})


def test_own_contracts__are_those_that_can_be_deployed() -> None:
    found = own_contracts(ROOT / "contracts")
    assert set(CONTRACTS) <= set(found)
    assert not {"Wallet", "MarketBase", "WordLib", "IStakeManager", "InferenceConsumer"} & set(found)


def test_own_contracts__of_a_folder__leaves_out_what_is_never_deployed(tmp_path: Path) -> None:
    files = {
        "Market.sol": "contract Market is Base {}\nabstract contract Base {}\n// contract Comment {}\n",
        "verifiers/Key.sol": "contract Key {}",
        "test/Helper.sol": "contract Helper {}",
        "libraries/Lib.sol": "library Lib {}",
        "interfaces/IMarket.sol": "interface IMarket {}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    assert own_contracts(tmp_path) == ["Key", "Market"]


def test_table__largest_first__with_what_is_left() -> None:
    sizes = sizes_in(report(Small=1_000, Large=24_000, Helper=99), ["Small", "Large"])
    assert table(sizes) == [
        "contract   bytes   left  of 24,576",
        "Large     24,000    576   97.7%",
        "Small      1,000 23,576    4.1%",
    ]


def test_sizes_in__contract_that_forge_does_not_know__ends_the_check() -> None:
    with pytest.raises(SystemExit, match="no size of Other"):
        sizes_in(report(Market=1), ["Market", "Other"])


@pytest.mark.parametrize(
    ("size", "is_too_large"),
    [
        (Size("x", MAX_CODE_BYTES, MAX_CREATION_BYTES), False),
        (Size("x", MAX_CODE_BYTES + 1, MAX_CODE_BYTES + 300), True),
        (Size("x", 1, MAX_CREATION_BYTES + 1), True),
    ],
)
def test_size__above_either_limit__is_too_large(size: Size, is_too_large: bool) -> None:
    assert size.is_too_large == is_too_large


@pytest.mark.parametrize(("market", "code"), [(MAX_CODE_BYTES, 0), (MAX_CODE_BYTES + 1, 1)])
def test_main__a_contract_too_large__fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], market: int, code: int
) -> None:
    monkeypatch.setattr(_sizes, "own_contracts", lambda _: ["Market"])
    monkeypatch.setattr(_sizes, "_forge", lambda: report(Market=market, Helper=99_999))
    assert _sizes.main() == code
    assert ("too large to be deployed: Market" in capsys.readouterr().out) == bool(code)
