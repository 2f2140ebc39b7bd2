"""The errors that owners meet, in words, against the compiled ABIs."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.adapters.abi_codec import load_abi
from headrace.client.owners_refusals import OWNERS_WORDS
from headrace.client.refusals import WORDS, in_words
from headrace.core.errors import sentence

# Who meets these: the faults contract; `ape run register_node`, `register_relayer` and `deploy`, which have their own
# words; nobody, since the command line gives lists of one length and short names.
OF_OTHERS = {
    "NotFaults",
    "StakeTooSmall",
    "BondTooSmall",
    "AlreadyRegistered",
    "ModelExists",
    "NameMissing",
    "UnknownModel",
    "LengthMismatch",
    "InvalidShortString",
    "StringTooLong",
}
OWNED = ("StakeManager", "ModelRegistry", "AttestedKeyVerifier")
ERRORS: dict[str, Any] = {
    entry["name"]: entry for name in OWNED for entry in load_abi(name) if entry["type"] == "error"
}
VALUES = {"address": "0x" + "c1" * 20, "bytes32": "0x" + "aa" * 32}


def test_words__are_for_every_error_that_an_owner_can_meet() -> None:
    assert set(OWNERS_WORDS) == set(ERRORS) - OF_OTHERS - set(WORDS)


@pytest.mark.parametrize("name", OWNERS_WORDS)
def test_in_words__every_error__is_a_clause_without_its_name(name: str) -> None:
    fields = ", ".join(f"{each['name']}={VALUES.get(each['type'], '4')}" for each in ERRORS[name]["inputs"])
    words = in_words(f"{name}({fields})")
    assert name not in words
    assert "{" not in words
    assert sentence(words) == words[0].upper() + words[1:] + ("" if words.endswith("`") else ".")


def test_in_words__times__are_in_it() -> None:
    words = in_words("StillUnbonding(withdrawableAt=1750000000, blockTimestamp=1749999999)")
    assert words == "it may be withdrawn from 2025-06-15 15:06:40 UTC, and it is 2025-06-15 15:06:39 UTC now: wait"
