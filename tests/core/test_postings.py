"""Gasless requests: what a relayer takes, and what it says of those that it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.adapters.abi_codec import load_abi
from headrace.core import typed_data
from headrace.core.chat_bodies import PromptNotServed
from headrace.core.envelope import hash_payload
from headrace.core.errors import InvalidInput, SignatureMismatch, Unavailable, sentence
from headrace.core.fees import posting_gas
from headrace.core.postings import (
    WORDS,
    CreditShort,
    DeadlineOutOfRange,
    FeeTooLow,
    PromptMismatch,
    RequestExists,
    RequestsPaused,
    SignatureLapsed,
    SignedRequest,
    fee_floor_wei,
    is_signed_by_key,
    refusal_of,
    require_credit,
    require_fee,
    require_in_time,
    require_prompt,
    why_never,
)
from headrace.core.refusals import name_of, worded
from headrace.core.types import GasQuote, Mode
from tests.fakes import MARKET, REQUESTER, TERMS, FakeSigner, make_request

NOW_S = 1_750_000_000
DOMAIN = typed_data.Domain(31337, MARKET)
KEY = FakeSigner(7)
REQUEST = make_request(requester=KEY.address)


def signed(**changes: object) -> SignedRequest:
    struct_hash = typed_data.hash_request_for(REQUEST, 5, NOW_S)
    signature = KEY.sign_digest(typed_data.digest(DOMAIN, struct_hash))
    return replace(SignedRequest(REQUEST, 5, NOW_S, signature), **changes)


# The fee


@pytest.mark.parametrize(
    ("margin_bps", "floor"), [(0, 0), (1, 1), (10_000, 3 * 1001), (10_001, 3 * 1001 + 1), (12_000, 3604)]
)
def test_fee_floor__is_the_gas_with_its_margin_rounded_up(margin_bps: int, floor: int) -> None:
    assert fee_floor_wei(GasQuote(base_fee_wei=2, tip_wei=1), 1001, margin_bps) == floor


def test_posting_gas__published_bytes__never_make_it_cheaper() -> None:
    gas = [posting_gas(size) for size in range(8193)]
    assert gas == sorted(gas)
    assert gas[0] < gas[1]
    # EIP-7623: 40 gas for each byte of calldata that is not zero.
    assert gas[8192] - gas[8191] == 40


def test_require_fee__below_the_floor__says_what_would_do() -> None:
    require_fee(signed(relayer_fee_wei=7), 7)
    with pytest.raises(FeeTooLow, match=r"is 6 wei.*at least 7"):
        require_fee(signed(relayer_fee_wei=6), 7)


# Time, credit, prompt, signature


@pytest.mark.parametrize(
    ("deadline_s", "valid_until_s", "refusal"),
    [
        (NOW_S + 15, NOW_S + 5, None),
        (NOW_S + 86_395, NOW_S + 86_400, None),
        (NOW_S + 14, NOW_S + 5, DeadlineOutOfRange),
        (NOW_S + 86_396, NOW_S + 5, DeadlineOutOfRange),
        (NOW_S + 600, NOW_S + 4, SignatureLapsed),
    ],
)
def test_require_in_time__leaves_time_to_be_posted(
    deadline_s: int, valid_until_s: int, refusal: type[Exception] | None
) -> None:
    if refusal is None:
        require_in_time(deadline_s, valid_until_s, TERMS, NOW_S)
        return
    with pytest.raises(refusal):
        require_in_time(deadline_s, valid_until_s, TERMS, NOW_S)


def test_require_credit__short__says_how_much_is_missing() -> None:
    require_credit(REQUESTER, 10, 4, 6)
    with pytest.raises(CreditShort, match=r"10 wei of credit.*of which 5 wei are for.*deposit 1 wei more"):
        require_credit(REQUESTER, 10, 5, 6)
    with pytest.raises(CreditShort, match=r"has 0 wei of credit in the market: deposit 6 wei more"):
        require_credit(REQUESTER, 0, 0, 6)


def test_require_prompt__other_bytes__are_refused() -> None:
    require_prompt(REQUEST, b"Why is the sky blue?")
    with pytest.raises(PromptMismatch, match="the bytes have the hash 0x"):
        require_prompt(REQUEST, b"Why is the sky red?")
    with pytest.raises(PromptMismatch, match="has 20 bytes, and the request names 21"):
        require_prompt(replace(REQUEST, prompt_bytes=21), b"Why is the sky blue?")
    with pytest.raises(InvalidInput, match="empty"):
        require_prompt(REQUEST, b"")


@pytest.mark.parametrize(
    ("payload", "changes", "says"),
    [
        (b'{"messages": [{"role": "user", "content": 7}]}', {}, "must be text"),
        (b'{"messages": [{"role": "user", "content": "Hi"}], "seed": -1}', {}, "at least 0"),
        (b'{"messages": [{"role": "user", "content": "Hi"}]}', {"mode": Mode.QUORUM, "k": 2, "n": 3}, "cannot agree"),
    ],
)
def test_require_prompt__no_node_would_take_it__is_refused(payload: bytes, changes: dict[str, Any], says: str) -> None:
    request = replace(REQUEST, prompt_hash=hash_payload(payload), prompt_bytes=len(payload), **changes)
    with pytest.raises(PromptNotServed, match=says):
        require_prompt(request, payload)


@pytest.mark.parametrize(
    "changes",
    [
        {"relayer_fee_wei": 6},
        {"valid_until_s": NOW_S + 1},
        {"request": replace(REQUEST, salt=2)},
        {"request": replace(REQUEST, max_reward_wei=1)},
        {"request": replace(REQUEST, requester=REQUESTER)},
        {"signature": b""},
        {"signature": bytes(65)},
        {"signature": b"\x01" * 200},
    ],
)
def test_is_signed_by_key__anything_else__is_not(changes: dict[str, object]) -> None:
    assert is_signed_by_key(signed(), DOMAIN)
    assert not is_signed_by_key(signed(**changes), DOMAIN)
    assert not is_signed_by_key(signed(), replace(DOMAIN, chain_id=1))


def test_signed_request__costs_escrow_and_fee() -> None:
    assert signed().cost_wei == REQUEST.escrow_wei + 5


# The market's words


@pytest.mark.parametrize(
    ("error", "refusal", "words"),
    [
        ("RequestExists(requestId=0xab)", RequestExists, "the request 0xab was posted before"),
        ("EscrowShort(required=9, available=3)", CreditShort, "are 9 wei, and the account's credit in the market is 3"),
        (f"InvalidSignature(signer={REQUESTER})", SignatureMismatch, f"the contract of {REQUESTER}"),
        ("RequestsPaused()", RequestsPaused, "its owner paused them"),
        ("SignatureExpired(validUntil=1750000000, blockTimestamp=1750000001)", SignatureLapsed, "15:06:40 UTC"),
        ("InvalidQuorum(k=3, n=2)", InvalidInput, "no quorum of 3 of 2"),
        ("out of gas", Unavailable, "could not be simulated: out of gas"),
        ("Panic(code=17)", Unavailable, "could not be simulated"),
        ("EscrowShort(wanted=9)", Unavailable, "could not be simulated"),
    ],
)
def test_refusal_of__has_the_markets_values(error: str, refusal: type[Exception], words: str) -> None:
    answer = refusal_of(error)
    assert type(answer) is refusal
    assert words in str(answer)


@pytest.mark.parametrize("error", ["RequestsPaused()", "header not found", "0x12345678", "Panic(code=17)", ""])
def test_why_never__what_may_pass__is_no_reason_to_give_up(error: str) -> None:
    assert why_never(error) is None


def test_why_never__credit_spent__tells_a_person_what_to_do() -> None:
    assert "deposit more, and hand the request in again" in str(why_never("EscrowShort(required=9, available=3)"))


@pytest.mark.parametrize("name", WORDS)
def test_words__of_an_error_of_the_market__have_its_fields(name: str) -> None:
    errors = [each for each in load_abi("InferenceMarket") if each["type"] == "error"]
    (entry,) = (each for each in errors if each["name"] == name)
    fields = ", ".join(f"{each['name']}=4" for each in entry["inputs"])
    words = worded(f"{name}({fields})", WORDS)
    assert words is not None
    assert "{" not in words and name not in words
    assert sentence(words)[1:-1] == words[1:]


def test_worded__no_error__has_no_name() -> None:
    assert (name_of("out of gas"), name_of("Name(a=1)")) == ("", "Name")
    assert (
        worded("Name(deadline=4, status=4)", {"Name": "{deadline}: {status}"}) == "1970-01-01 00:00:04 UTC: fulfilled"
    )
