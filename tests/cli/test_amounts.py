"""Amounts: exact, in any of three units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.amounts import parse_wei, show_wei, with_ether
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("It has 5 wei.", "It has 5 wei."),
        ("It has 999999999 wei.", "It has 999,999,999 wei."),
        ("20gwei is 20000000000 wei", "20gwei is 0.00000002 ether (20,000,000,000 wei)"),
        ("0.02 ether (20,000,000,000,000,000 wei)", "0.02 ether (20,000,000,000,000,000 wei)"),
        ("`headrace credit deposit 1000000000wei`", "`headrace credit deposit 1000000000wei`"),
        ("request 0x1000000000 wei", "request 0x1000000000 wei"),
    ],
)
def test_with_ether__amounts_in_a_sentence__once(text: str, told: str) -> None:
    assert with_ether(text) == told
    assert with_ether(told) == told
