"""What the scripts take for amounts and addresses of APIs, before any chain is asked."""

from __future__ import annotations

import click
import pytest

from scripts._chain import PRICE, STAKE, Amount, HttpUrl

ETHER = 10**18


@pytest.mark.parametrize(
    ("kind", "text", "wei"),
    [
        (STAKE, "1", ETHER),
        (STAKE, "0.5", ETHER // 2),
        (STAKE, "1.5eth", ETHER * 3 // 2),
        (STAKE, "1000000000 gwei", ETHER),
        (STAKE, "1000000000000000000wei", ETHER),
        (PRICE, "1500", 1500),
        (PRICE, "20000gwei", 2 * 10**13),
        (PRICE, "0.00002ether", 2 * 10**13),
    ],
)
def test_amount__bare_or_with_a_unit__is_in_wei(kind: Amount, text: str, wei: int) -> None:
    assert kind.convert(text, None, None) == wei


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (STAKE, "1000000000000000000", "without a unit it is in eth"),
        (STAKE, "1e18", "no amount"),
        (STAKE, "-1", "no amount"),
        (STAKE, "NaN", "no amount"),
        (STAKE, "", "no amount"),
        (STAKE, "0.0000000000000000001", "no amount of whole wei"),
        (PRICE, "0.00002", "such as 20000gwei"),
        (PRICE, "2000000ether", "more than it can be: write"),
    ],
)
def test_amount__not_meant_so__says_what_to_write(kind: Amount, text: str, words: str) -> None:
    with pytest.raises(click.BadParameter) as refusal:
        kind.convert(text, None, None)
    assert words in refusal.value.message


@pytest.mark.parametrize("url", ["http://127.0.0.1:8480", "https://relayer.example", "https://relayer.example/api"])
def test_http_url__of_an_api__is_taken(url: str) -> None:
    assert HttpUrl().convert(url, None, None) == url


@pytest.mark.parametrize(
    "url",
    ["", "foo", "relayer.example", "ftp://relayer.example", "http://", "http:///x", "https://a:port", "https://a b",
     "https://a?b=c", "https://[::1"],
)  # fmt: skip
def test_http_url__anything_else__says_what_is_expected(url: str) -> None:
    with pytest.raises(click.BadParameter) as refusal:
        HttpUrl().convert(url, None, None)
    assert "such as https://relayer.example" in refusal.value.message
