"""What a failed callback's four bytes mean."""

from __future__ import annotations

import pytest
from eth_utils.crypto import keccak

from headrace.core.callbacks import why_callback_failed


@pytest.mark.parametrize(
    ("signature", "words"),
    [("Error(string)", "reverted with a text"), ("Panic(uint256)", "panicked"), ("Broke(uint8)", "error of its own")],
)
def test_why_callback_failed__selector__is_told_in_words(signature: str, words: str) -> None:
    assert words in why_callback_failed("0x" + keccak(text=signature)[:4].hex())


def test_why_callback_failed__nothing_was_said__tells_of_the_gas_too() -> None:
    assert "gas ran out" in why_callback_failed("0x00000000")


def test_why_callback_failed__own_error__has_the_selector() -> None:
    assert "0xdeadbeef" in why_callback_failed("0xdeadbeef")
