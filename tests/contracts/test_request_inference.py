from __future__ import annotations

import ape
import pytest
from eth_utils import keccak

from tests.contracts import builders
from tests.contracts.builders import (
    GRACE,
    MAX_CALLBACK_GAS,
    MAX_INLINE_PROMPT,
    MAX_QUORUM,
    MAX_TTL,
    MIN_TTL,
    ZERO,
    Mode,
    Status,
)


def post(world, posted, prompt=b"", value=None):
    value = posted.escrow if value is None else value
    return world.market.requestInference(posted.params, prompt, sender=world.requester, value=value)


def test_request_inference__exact_escrow__is_pending_and_logged_in_full(world):
    posted = world.prepare(salt=2**64 - 1, lane=1, batchable=True, inlineResult=True)
    receipt = post(world, posted)
    world.track(posted)
    (event,) = receipt.decode_logs(world.market.InferenceRequested)
    assert event.requestId == posted.id
    assert event.requester == world.requester
    assert event.relayer == world.relayer
    assert builders.request_id(dict(zip(posted.request, event.request, strict=True)), world.market.address) == posted.id
    assert event.prompt == b""
    assert world.status_of(posted) == Status.PENDING
    assert tuple(world.market.pendingOf(posted.id)) == (0, posted.deadline)
    assert world.market.balance == posted.escrow


def test_request_inference__id__is_known_before_sending(world):
    posted = world.prepare()
    assert world.market.requestIdOf(posted.request) == posted.id
    assert world.post(**posted.params).id == posted.id


def test_request_inference__same_content_again__request_exists(world):
    posted = world.post()
    with ape.reverts(world.market.RequestExists, requestId=posted.id):
        post(world, posted)


def test_request_inference__same_content_after_its_end__request_exists(world):
    posted = world.post()
    world.next_block_at(posted.deadline + GRACE + 1)
    world.market.expire([posted.request], sender=world.stranger)
    # The deadline is checked first, so the market must say so even where the request would be in time.
    with ape.reverts(world.market.DeadlineOutOfRange):
        post(world, posted)


def test_request_inference__same_content_after_release__request_exists(world):
    posted = world.post()
    signature = builders.sign_release(world.relayer_key, world.market.address, posted.id, world.now + 100)
    world.market.cancelWithRelease(posted.request, world.now + 100, signature, sender=world.requester)
    with ape.reverts(world.market.RequestExists, requestId=posted.id):
        post(world, posted)


def test_request_inference__other_salt__is_another_request(world):
    first = world.post()
    second = world.post(**(first.params | {"salt": first.params["salt"] ^ 1}))
    assert first.id != second.id


def test_request_inference__same_content_other_requester__is_another_request(world):
    first = world.post()
    second = world.post(world.stranger, **first.params)
    assert first.id != second.id


def test_request_inference__open_race__is_pending(world):
    assert world.status_of(world.post(relayer=builders.ZERO)) == Status.PENDING


@pytest.mark.parametrize("ttl", [MIN_TTL, MAX_TTL])
def test_request_inference__deadline_at_either_end__is_taken(world, ttl):
    at = world.now + 5
    posted = world.prepare(deadline=at + ttl)
    world.next_block_at(at)
    post(world, posted)
    assert world.status_of(world.track(posted)) == Status.PENDING


@pytest.mark.parametrize("ttl", [MIN_TTL - 1, MAX_TTL + 1])
def test_request_inference__deadline_beyond_either_end__deadline_out_of_range(world, ttl):
    at = world.now + 5
    posted = world.prepare(deadline=at + ttl)
    world.next_block_at(at)
    expected = {"deadline": at + ttl, "earliest": at + MIN_TTL, "latest": at + MAX_TTL}
    with ape.reverts(world.market.DeadlineOutOfRange, **expected):
        post(world, posted)


def test_request_inference__mode_of_a_later_version__unsupported_mode(world):
    with ape.reverts(world.market.UnsupportedMode, mode=Mode.OPTIMISTIC):
        post(world, world.prepare(mode=Mode.OPTIMISTIC))


@pytest.mark.parametrize(("k", "n"), [(2, 2), (2, 3), (2, MAX_QUORUM), (MAX_QUORUM, MAX_QUORUM)])
def test_request_inference__quorum__is_pending(world, k, n):
    assert world.status_of(world.post(mode=Mode.QUORUM, k=k, n=n)) == Status.PENDING


@pytest.mark.parametrize(("k", "n"), [(0, 0), (0, 2), (1, 1), (1, 3), (3, 2), (2, MAX_QUORUM + 1), (255, 255)])
def test_request_inference__quorum_of_too_few_or_too_many__invalid_quorum(world, k, n):
    with ape.reverts(world.market.InvalidQuorum, k=k, n=n):
        post(world, world.prepare(mode=Mode.QUORUM, k=k, n=n))


@pytest.mark.parametrize("fields", [{"k": 1}, {"n": 1}, {"k": 2, "n": 3}], ids=str)
@pytest.mark.parametrize("mode", [Mode.SIGNATURE, Mode.VERIFIER])
def test_request_inference__quorum_numbers_in_another_mode__invalid_quorum(world, mode, fields):
    verifier = world.log.address if mode == Mode.VERIFIER else ZERO
    with ape.reverts(world.market.InvalidQuorum, k=fields.get("k", 0), n=fields.get("n", 0)):
        post(world, world.prepare(mode=mode, verifier=verifier, **fields))


def test_request_inference__verifier__is_pending_and_logged(world):
    posted = world.prepare(mode=Mode.VERIFIER, verifier=world.log.address)
    receipt = post(world, posted)
    world.track(posted)
    assert world.status_of(posted) == Status.PENDING
    (event,) = receipt.decode_logs(world.market.InferenceRequested)
    assert event.request[6].lower() == world.log.address.lower()


@pytest.mark.parametrize("verifier", [ZERO, "0x" + "11" * 20], ids=["none", "no code"])
def test_request_inference__verifier_without_code__invalid_verifier(world, verifier):
    with ape.reverts(world.market.InvalidVerifier, verifier=verifier):
        post(world, world.prepare(mode=Mode.VERIFIER, verifier=verifier))


@pytest.mark.parametrize("fields", [{}, {"mode": Mode.QUORUM, "k": 2, "n": 2}], ids=["signature", "quorum"])
def test_request_inference__verifier_in_another_mode__invalid_verifier(world, fields):
    with ape.reverts(world.market.InvalidVerifier, verifier=world.log.address):
        post(world, world.prepare(verifier=world.log.address, **fields))


@pytest.mark.parametrize("gas", [1, MAX_CALLBACK_GAS])
def test_request_inference__callback__is_pending(world, gas):
    assert world.status_of(world.post(callbackGas=gas)) == Status.PENDING


@pytest.mark.parametrize("gas", [MAX_CALLBACK_GAS + 1, 2**24 - 1])
def test_request_inference__callback_gas_above_the_most__callback_gas_too_high(world, gas):
    with ape.reverts(world.market.CallbackGasTooHigh, callbackGas=gas, most=MAX_CALLBACK_GAS):
        post(world, world.prepare(callbackGas=gas))


@pytest.mark.parametrize(
    "fields",
    [
        {"lane": 2},
        {"lane": 255},
        {"maxOutputTokens": 0},
        {"promptBytes": 0},
    ],
    ids=lambda f: next(iter(f)),
)
def test_request_inference__terms_that_mean_nothing__invalid_terms(world, fields):
    with ape.reverts(world.market.InvalidTerms):
        post(world, world.prepare(**fields))


@pytest.mark.parametrize("size", [1, 1000, MAX_INLINE_PROMPT])
def test_request_inference__inline_prompt__is_logged(world, size):
    prompt = bytes(range(1, 256)) * 33
    prompt = prompt[:size]
    posted = world.prepare(promptHash=keccak(prompt), promptBytes=size)
    receipt = post(world, posted, prompt)
    world.track(posted)
    assert receipt.decode_logs(world.market.InferenceRequested)[0].prompt == prompt


def test_request_inference__inline_prompt_too_long__prompt_too_long(world):
    prompt = b"x" * (MAX_INLINE_PROMPT + 1)
    posted = world.prepare(promptHash=keccak(prompt), promptBytes=len(prompt))
    with ape.reverts(world.market.PromptTooLong, promptBytes=len(prompt), most=MAX_INLINE_PROMPT):
        post(world, posted, prompt)


@pytest.mark.parametrize(("size", "hashed"), [(6, b"prompt"), (7, b"other")], ids=["length", "hash"])
def test_request_inference__prompt_is_not_what_was_hashed__prompt_mismatch(world, size, hashed):
    prompt = b"prompt!"
    posted = world.prepare(promptHash=keccak(hashed), promptBytes=size)
    with ape.reverts(world.market.PromptMismatch, promptHash=keccak(hashed), promptBytes=len(prompt)):
        post(world, posted, prompt)


def test_request_inference__sent_more__is_credited(world):
    posted = world.prepare()
    post(world, posted, value=posted.escrow + 5)
    world.track(posted)
    assert world.credit(world.requester) == 5


def test_request_inference__sent_less__is_taken_from_credit(world):
    posted = world.prepare()
    world.market.deposit(world.requester, sender=world.stranger, value=posted.escrow)
    post(world, posted, value=3)
    world.track(posted)
    assert world.credit(world.requester) == 3


def test_request_inference__nothing_sent_and_credit_enough__costs_all_of_it(world):
    posted = world.prepare()
    world.market.deposit(world.requester, sender=world.requester, value=posted.escrow)
    post(world, posted, value=0)
    world.track(posted)
    assert world.credit(world.requester) == 0


def test_request_inference__one_wei_short__escrow_short(world):
    posted = world.prepare()
    world.market.deposit(world.requester, sender=world.requester, value=10)
    expected = {"required": posted.escrow, "available": posted.escrow - 1}
    with ape.reverts(world.market.EscrowShort, **expected):
        post(world, posted, value=posted.escrow - 11)


def test_request_inference__someone_elses_credit__escrow_short(world):
    posted = world.prepare()
    world.market.deposit(world.stranger, sender=world.stranger, value=posted.escrow)
    with ape.reverts(world.market.EscrowShort, required=posted.escrow, available=0):
        post(world, posted, value=0)


def test_request_inference__largest_amounts__are_kept_apart(world):
    top = 2**80 - 1
    posted = world.prepare(maxReward=top, gasBudget=1, priorityFee=0)
    assert world.market.escrowOf(posted.params) == top + 1
    world.provider.set_balance(world.requester.address, 2**90)
    post(world, posted)
    world.track(posted)
    world.next_block_at(posted.deadline + GRACE + 1)
    world.market.expire([posted.request], sender=world.stranger)
    assert world.credit(world.requester) == top + 1


def test_request_inference__free_request__is_pending(world):
    posted = world.post(maxReward=0, gasBudget=0, priorityFee=0)
    assert world.status_of(posted) == Status.PENDING


def test_request_inference__paused__requests_paused(world):
    world.market.setRequestsPaused(True, sender=world.owner)
    with ape.reverts(world.market.RequestsPaused):
        post(world, world.prepare())


@pytest.mark.parametrize(
    ("field", "width"),
    [
        ("salt", 64),
        ("deadline", 40),
        ("promptBytes", 32),
        ("maxOutputTokens", 24),
        ("callbackGas", 24),
        ("lane", 8),
        ("batchable", 1),
        ("inlineResult", 1),
        ("mode", 2),
        ("k", 8),
        ("n", 8),
        ("maxReward", 80),
        ("gasBudget", 80),
        ("priorityFee", 80),
    ],
)
@pytest.mark.parametrize("where", ["next", "top"])
def test_request_inference__bits_beyond_a_fields_width__invalid_terms(world, field, width, where):
    """Or they would run into the field that is packed next to it."""
    posted = world.prepare()
    bit = 1 << (width if where == "next" else 255)
    call = _with_word(world, posted, field, lambda word: word | bit)
    with ape.reverts(world.market.InvalidTerms):
        world.market(data=call, sender=world.requester, value=posted.escrow)


@pytest.mark.parametrize("field", ["relayer", "verifier"])
def test_request_inference__bits_above_an_address__reverts(world, field):
    posted = world.prepare()
    call = _with_word(world, posted, field, lambda word: word | 1 << 160)
    with ape.reverts():
        world.market(data=call, sender=world.requester, value=posted.escrow)


def _with_word(world, posted, field, change) -> bytes:
    """The call's data with one field's word changed: the parameters follow on the selector, a word each."""
    data = bytes(world.market.requestInference.encode_input(posted.params, b""))
    at = 4 + 32 * list(posted.params).index(field)
    word = change(int.from_bytes(data[at : at + 32], "big"))
    return data[:at] + word.to_bytes(32, "big") + data[at + 32 :]
