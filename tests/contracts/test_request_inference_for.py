from __future__ import annotations

import ape
import pytest
from eth_account import Account
from eth_utils import keccak

from tests.contracts import builders
from tests.contracts.builders import ETHER, ZERO, Mode, Status

KEY = "0x" + "c3" * 32
SIGNER = Account.from_key(KEY).address
FEE = 10**14
SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


class Person:
    """A requester that never sends a transaction: what `World.prepare` needs of an account."""

    def __init__(self, address: str) -> None:
        self.address = address


@pytest.fixture
def funded(world):
    """The signer, with credit and no wei of its own."""
    world.holders.add(SIGNER)
    world.market.deposit(SIGNER, sender=world.stranger, value=ETHER)
    return Person(SIGNER)


@pytest.fixture
def wallet(project, world):
    wallet = world.stranger.deploy(project.SignerWallet, SIGNER)
    world.holders.add(wallet.address)
    world.market.deposit(wallet, sender=world.stranger, value=ETHER)
    return wallet


def signature_of(world, posted, key=KEY, fee=FEE, valid_until=None, requester=None, **domain) -> bytes:
    requester = requester or posted.request["requester"]
    valid_until = posted.deadline if valid_until is None else valid_until
    message = builders.request_for(posted.params, requester, fee, valid_until)
    return builders.sign(key, domain.pop("contract", world.market.address), "RequestFor", message, **domain)


def post_for(world, posted, signature=None, fee=FEE, valid_until=None, prompt=b"", requester=None, sender=None):
    requester = requester or posted.request["requester"]
    valid_until = posted.deadline if valid_until is None else valid_until
    signature = signature_of(world, posted, fee=fee, valid_until=valid_until) if signature is None else signature
    return world.market.requestInferenceFor(
        posted.params, prompt, requester, fee, valid_until, signature, sender=sender or world.relayer
    )


def test_request_inference_for__signed__is_escrowed_from_credit_and_pays_the_relayer(world, funded):
    posted = world.prepare(funded)
    receipt = post_for(world, posted)
    world.track(posted)
    assert world.status_of(posted) == Status.PENDING
    assert world.credit(SIGNER) == ETHER - posted.escrow - FEE
    assert world.credit(world.relayer) == FEE
    (event,) = receipt.decode_logs(world.market.InferenceRequested)
    assert (event.requestId, event.requester, event.relayer) == (posted.id, SIGNER, world.relayer.address)
    (paid,) = receipt.decode_logs(world.market.RelayerFeePaid)
    assert (paid.requestId, paid.relayer, paid.fee) == (posted.id, world.relayer.address, FEE)


def test_request_inference_for__by_a_stranger__the_fee_is_still_the_relayers(world, funded):
    """Lifted from the mempool it does what it would have done."""
    posted = world.prepare(funded)
    before = world.credit(world.stranger)
    post_for(world, posted, sender=world.stranger)
    world.track(posted)
    assert world.credit(world.relayer) == FEE
    assert world.credit(world.stranger) == before


def test_request_inference_for__no_fee__none_is_paid(world, funded):
    posted = world.prepare(funded)
    receipt = post_for(world, posted, fee=0)
    world.track(posted)
    assert world.credit(SIGNER) == ETHER - posted.escrow
    assert receipt.decode_logs(world.market.RelayerFeePaid) == []


def test_request_inference_for__open_race__takes_no_fee(world, funded):
    world.track(free := world.prepare(funded, relayer=ZERO))
    post_for(world, free, fee=0)
    with ape.reverts(world.market.InvalidTerms):
        post_for(world, world.prepare(funded, relayer=ZERO), fee=1)


def test_request_inference_for__inline_prompt__is_logged(world, funded):
    prompt = b"what is a headrace?"
    posted = world.prepare(funded, promptHash=keccak(prompt), promptBytes=len(prompt))
    receipt = post_for(world, posted, prompt=prompt)
    world.track(posted)
    assert receipt.decode_logs(world.market.InferenceRequested)[0].prompt == prompt


def test_request_inference_for__every_kind_of_term__is_what_was_signed(world, funded, project):
    verifier = world.stranger.deploy(project.TestVerifier)
    for fields in (
        {"mode": Mode.QUORUM, "k": 2, "n": 3, "batchable": False, "inlineResult": True, "lane": 1},
        {"mode": Mode.VERIFIER, "verifier": verifier.address, "callbackGas": 50_000},
    ):
        posted = world.prepare(funded, **fields)
        post_for(world, posted)
        world.track(posted)
        assert world.status_of(posted) == Status.PENDING


# REPLAY


def test_request_inference_for__again__request_exists(world, funded):
    posted = world.prepare(funded)
    signature = signature_of(world, posted)
    post_for(world, posted, signature)
    world.track(posted)
    with ape.reverts(world.market.RequestExists, requestId=posted.id):
        post_for(world, posted, signature)


@pytest.mark.parametrize("end", ["settled", "expired"])
def test_request_inference_for__again_after_its_end__request_exists(world, funded, end):
    posted = world.prepare(funded)
    valid_until = world.now + 100_000
    signature = signature_of(world, posted, valid_until=valid_until)
    post_for(world, posted, signature, valid_until=valid_until)
    world.track(posted)
    if end == "settled":
        world.settle(posted)
    else:
        world.next_block_at(posted.deadline + builders.GRACE + 1)
        world.market.expire([posted.request], sender=world.stranger)
    # Its deadline has passed or not: never is a second escrow taken.
    before = world.credit(SIGNER)
    with ape.reverts(world.market.RequestExists if end == "settled" else world.market.DeadlineOutOfRange):
        post_for(world, posted, signature, valid_until=valid_until)
    assert world.credit(SIGNER) == before


def test_request_inference_for__on_another_chain__is_not_the_signers(world, funded):
    posted = world.prepare(funded)
    with ape.reverts(world.market.InvalidSignature, signer=SIGNER):
        post_for(world, posted, signature_of(world, posted, chain_id=1))


def test_request_inference_for__for_another_contract__is_not_the_signers(world, funded, deploy_market):
    posted = world.prepare(funded)
    with ape.reverts(world.market.InvalidSignature, signer=SIGNER):
        post_for(world, posted, signature_of(world, posted, contract=deploy_market().address))


# WHAT IS SIGNED


@pytest.mark.parametrize(
    "change",
    [
        {"maxReward": 1},
        {"gasBudget": 1},
        {"priorityFee": 1},
        {"promptHash": keccak(b"other")},
        {"modelId": keccak(b"other")},
        {"deadline": 1},
        {"callbackGas": 1},
        {"lane": 1},
        {"batchable": False},
        {"inlineResult": True},
        {"maxOutputTokens": 1},
        {"promptBytes": 1},
        {"salt": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_request_inference_for__any_term_changed__is_not_the_signers(world, funded, change):
    signed = world.prepare(funded)
    if "deadline" in change:
        change = {"deadline": signed.deadline + 1}
    changed = world.prepare(funded, **(signed.params | change))
    with ape.reverts(world.market.InvalidSignature, signer=SIGNER):
        post_for(world, changed, signature_of(world, signed))


@pytest.mark.parametrize("change", [{"fee": FEE + 1}, {"valid_until": 2**39}], ids=lambda c: next(iter(c)))
def test_request_inference_for__fee_or_validity_changed__is_not_the_signers(world, funded, change):
    posted = world.prepare(funded)
    signature = signature_of(world, posted)
    with ape.reverts(world.market.InvalidSignature, signer=SIGNER):
        post_for(world, posted, signature, **change)


def test_request_inference_for__in_anothers_name__is_not_theirs(world, funded):
    world.market.deposit(world.requester, sender=world.stranger, value=ETHER)
    posted = world.prepare(world.requester)
    with ape.reverts(world.market.InvalidSignature, signer=world.requester.address):
        post_for(world, posted, signature_of(world, posted))


def test_request_inference_for__malleable_or_misshapen_signature__is_refused(world, funded):
    posted = world.prepare(funded)
    good = signature_of(world, posted)
    r, s, v = good[:32], int.from_bytes(good[32:64], "big"), good[64]
    high_s = r + (SECP256K1_ORDER - s).to_bytes(32, "big") + bytes([55 - v])
    for bad in (high_s, good[:64], good + b"\0", good[:64] + b"\x02", b"", bytes(65)):
        with ape.reverts(world.market.InvalidSignature, signer=SIGNER):
            post_for(world, posted, bad)


def test_request_inference_for__nobody__has_no_signature(world):
    """A signature that cannot be recovered is not the zero account's."""
    world.market.deposit(ZERO, sender=world.stranger, value=ETHER)
    world.holders.add(ZERO)
    posted = world.prepare(Person(ZERO))
    with ape.reverts(world.market.InvalidSignature, signer=ZERO):
        post_for(world, posted, bytes(65))


# TIME, MONEY, PAUSE


def test_request_inference_for__validity__counts_to_the_second(world, funded):
    until = world.now + 100
    first, second = world.prepare(funded), world.prepare(funded)
    signatures = [signature_of(world, posted, valid_until=until) for posted in (first, second)]
    world.next_block_at(until)
    post_for(world, first, signatures[0], valid_until=until)
    world.track(first)
    world.next_block_at(until + 1)
    with ape.reverts(world.market.SignatureExpired, validUntil=until, blockTimestamp=until + 1):
        post_for(world, second, signatures[1], valid_until=until)


def test_request_inference_for__credit_for_all_but_a_wei__escrow_short(world, funded, accounts):
    posted = world.prepare(funded)
    missing = ETHER - (posted.escrow + FEE - 1)
    world.provider.set_balance(SIGNER, ETHER)
    world.market.withdraw(SIGNER, missing, sender=accounts.impersonate_account(SIGNER))
    with ape.reverts(world.market.EscrowShort, required=posted.escrow + FEE, available=posted.escrow + FEE - 1):
        post_for(world, posted)
    world.market.deposit(SIGNER, sender=world.stranger, value=1)
    post_for(world, posted)
    world.track(posted)
    assert world.credit(SIGNER) == 0


def test_request_inference_for__paused__requests_paused(world, funded):
    posted = world.prepare(funded)
    world.market.setRequestsPaused(True, sender=world.owner)
    with ape.reverts(world.market.RequestsPaused):
        post_for(world, posted)


# CONTRACT ACCOUNTS


def test_request_inference_for__contract_account__its_owner_signs(world, wallet):
    posted = world.prepare(wallet)
    post_for(world, posted, signature_of(world, posted))
    world.track(posted)
    assert world.status_of(posted) == Status.PENDING
    assert world.credit(wallet) == ETHER - posted.escrow - FEE


def test_request_inference_for__contract_account_and_anothers_key__is_refused(world, wallet):
    posted = world.prepare(wallet)
    with ape.reverts(world.market.InvalidSignature, signer=wallet.address):
        post_for(world, posted, signature_of(world, posted, key="0x" + "d4" * 32))


@pytest.mark.parametrize("behaviour", [1, 2, 3, 4], ids=["wrong magic", "short answer", "reverts", "burns all gas"])
def test_request_inference_for__contract_account_that_misbehaves__is_refused(world, wallet, behaviour):
    wallet.set(behaviour, sender=world.stranger)
    posted = world.prepare(wallet)
    with ape.reverts(world.market.InvalidSignature, signer=wallet.address):
        post_for(world, posted, signature_of(world, posted))


def test_request_inference_for__contract_account_that_burns_gas__costs_the_cap_at_most(world, wallet):
    wallet.set(4, sender=world.stranger)
    posted = world.prepare(wallet)
    arguments = (posted.params, b"", wallet, FEE, world.now + 60, signature_of(world, posted))
    # Enough for the cap and the rest: the refusal is the market's, and not for want of gas.
    with ape.reverts(world.market.InvalidSignature, signer=wallet.address):
        world.market.requestInferenceFor(*arguments, sender=world.relayer, gas_limit=500_000)


def test_request_inference_for__contract_account_that_answers_much__costs_its_own_gas_only(world, wallet):
    """One word of the answer is copied."""
    wallet.set(5, sender=world.stranger)
    posted = world.prepare(wallet)
    receipt = post_for(world, posted, signature_of(world, posted))
    world.track(posted)
    assert receipt.gas_used < 400_000 + 150_000


def test_request_inference_for__delegated_account__its_own_key_signs(world, funded, project):
    """EIP-7702: an account with a key may have code as well."""
    implementation = world.stranger.deploy(project.SignerWallet, world.stranger)
    designator = "0xef0100" + implementation.address[2:]
    world.provider.make_request("anvil_setCode", [SIGNER, designator])
    posted = world.prepare(funded)
    post_for(world, posted)
    world.track(posted)
    assert world.status_of(posted) == Status.PENDING
