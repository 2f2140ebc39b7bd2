"""Amounts: exact, in any of three units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.amounts import parse_wei, show_wei
from headrace.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "wei"),
    [("0", 0), ("1500", 1500), ("20gwei", 20 * 10**9), ("0.001ether", 10**15), (" 1.5 ETH ", 15 * 10**17)],
)
def test_parse_wei__each_unit(text: str, wei: int) -> None:
    assert parse_wei(text, "--x") == wei


@pytest.mark.parametrize("text", ["", "-1", "1e18", "0.5", "1 dollar", "0.0000000001gwei", "٣"])
def test_parse_wei__no_amount__names_the_option(text: str) -> None:
    with pytest.raises(InvalidInput, match="--x"):
        parse_wei(text, "--x")


@given(st.integers(0, 10**28))
def test_show_wei__ether_part__parses_back(wei: int) -> None:
    ether = show_wei(wei).split(" (")[0]
    assert parse_wei(ether, "--x") == wei
