"""Traces: those that come with the project are read, and what is no trace is refused by its row."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from headrace.core.errors import InvalidInput
from headrace.sim.traces import Arrival, TracedBlock, read_blocks, read_requests

TRACES = Path(__file__).parent / "traces"


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_requests__azures__times_from_the_first_on() -> None:
    found = read_requests(TRACES / "azure_conversation_2023_part.csv")
    assert len(found) == 2_000
    assert found[0] == Arrival(0.0, 374, 44)
    assert found[1].at_s == pytest.approx(4.314579)
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)


def test_blocks__of_a_surge__in_their_order() -> None:
    found = read_blocks(TRACES / "base_fee_2022_05_luna_crash_part.csv")
    assert len(found) == 401
    assert found[0].base_fee_wei > 10**9
    assert all(later.timestamp_s >= earlier.timestamp_s for earlier, later in pairwise(found))


def test_requests__unsorted_and_with_further_columns__are_sorted(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens,x\n2024-01-01 00:00:02,5,6,a\n2024-01-01 00:00:00.5,7,8,b\n"
    assert read_requests(written(tmp_path, text)) == [Arrival(0.0, 7, 8), Arrival(1.5, 5, 6)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has not the columns"),
        ("TIMESTAMP,ContextTokens\n", "has not the columns"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no rows"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "row 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,1,1\n2024-01-01 00:00:00,x,1\n", "row 3"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,1\n", "cut off"),
    ],
)
def test_requests__no_trace__is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_requests(written(tmp_path, text))


def test_blocks__time_goes_back__is_refused(tmp_path: Path) -> None:
    text = "block_number,timestamp_s,base_fee_wei\n1,12,5\n2,11,5\n"
    with pytest.raises(InvalidInput, match="row 3"):
        read_blocks(written(tmp_path, text))
    assert read_blocks(written(tmp_path, text.replace("11", "24"))) == [TracedBlock(12, 5), TracedBlock(24, 5)]


def test_trace__is_not_there__says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_blocks(tmp_path / "none.csv")
