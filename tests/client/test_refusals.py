"""The market's errors in words, against its compiled ABI."""

from __future__ import annotations

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from headrace.adapters.abi_codec import ErrorDecoder, load_abi
from headrace.client.refusals import WORDS, in_words
from headrace.core.errors import sentence

# Nobody meets these by what a requester sends.
OF_OTHERS = {
    "AssignmentMismatch",
    "EmptyBatch",
    "ItemRefused",
    "LengthMismatch",
    "MalformedSet",
    "NotSubmitter",
    "ReentrancyGuardReentrantCall",
    "UnbondDelayTooShort",
    "InvalidShortString",
    "StringTooLong",
    "OwnableInvalidOwner",
    "OwnableUnauthorizedAccount",
    "OwnershipTimelocked",
}
ERRORS = {entry["name"]: entry for entry in load_abi("InferenceMarket") if entry["type"] == "error"}
VALUES = {"address": "0x" + "c1" * 20, "bytes32": "0x" + "aa" * 32}


def test_words__are_for_every_error_that_a_requester_can_meet() -> None:
    assert set(WORDS) == set(ERRORS) - OF_OTHERS


@pytest.mark.parametrize("name", WORDS)
def test_in_words__every_error__is_a_clause_without_its_name(name: str) -> None:
    fields = ", ".join(f"{each['name']}={VALUES.get(each['type'], '4')}" for each in ERRORS[name]["inputs"])
    words = in_words(f"{name}({fields})")
    assert name not in words
    assert "{" not in words
    assert sentence(words) == words[0].upper() + words[1:] + "."


def test_in_words__values_and_times__are_in_it() -> None:
    assert "the account 0xc1 has 3 wei of credit, and 5 wei" in in_words(
        "BalanceShort(account=0xc1, required=5, available=3)"
    )
    assert "2025-06-15 15:06:40 UTC" in in_words("DeadlinePassed(deadline=1750000000, blockTimestamp=1750000001)")
    assert "it is fulfilled" in in_words("NotPending(requestId=0x12, status=4)")


@pytest.mark.parametrize("error", ["out of gas", "Panic(code=17)", "NotPending(requestId=0x12)", "EscrowShort(a=)"])
def test_in_words__something_else__is_told_as_it_is(error: str) -> None:
    assert in_words(error) == f"the transaction would fail: {error}"


def test_in_words__what_the_adapter_decodes__is_understood() -> None:
    data = keccak(text="EscrowShort(uint256,uint256)")[:4] + encode(["uint256", "uint256"], [5, 3])
    assert in_words(ErrorDecoder().decode(data)).startswith("the escrow is 5 wei, and what was sent")
