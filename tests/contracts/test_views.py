from __future__ import annotations

import ape
import pytest
from eth_utils import keccak, to_checksum_address

from tests.contracts import builders
from tests.contracts.builders import GAS_PER_RESULT_BYTE, GRACE, GWEI, MAX_QUORUM, ItemStatus, Mode, Status, item


def ref_of(world, posted, **changes) -> dict:
    """The reference of a request that was settled in the latest block."""
    values = {
        "resultHash": item(posted).result_hash,
        "relayer": world.relayer.address,
        "round": 1,
        "nodes": [world.node],
        "settledAt": world.now,
    }
    return values | changes


# IDENTITY


def test_pack_request__every_field_at_its_largest__agrees_with_the_layout(world):
    largest = {
        "salt": 2**64 - 1,
        "deadline": 2**40 - 1,
        "promptBytes": 2**32 - 1,
        "maxOutputTokens": 2**24 - 1,
        "callbackGas": 2**24 - 1,
        "lane": 255,
        "batchable": True,
        "inlineResult": True,
        "mode": Mode.VERIFIER,
        "k": 255,
        "n": 255,
        "verifier": to_checksum_address("0x" + "ff" * 20),
        "maxReward": 2**80 - 1,
        "gasBudget": 2**80 - 1,
        "priorityFee": 2**80 - 1,
    }
    for name, value in largest.items():
        alone = builders.params(salt=0, deadline=0, promptBytes=0, maxOutputTokens=0, batchable=False)
        alone |= {"maxReward": 0, "gasBudget": 0, "priorityFee": 0, name: value}
        packed = world.market.packRequest(alone, world.requester)
        assert dict(packed.items()) == builders.pack(alone, world.requester.address), name


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_pack_request__flags__are_bits_of_the_terms(world, flags):
    params = builders.params(batchable=flags[0], inlineResult=flags[1])
    packed = world.market.packRequest(params, world.requester)
    assert packed.terms >> 216 == flags[0] + 2 * flags[1]


def test_request_id_of__any_field_changed__is_another(world):
    request = world.prepare().request
    ids = {world.market.requestIdOf(request)}
    for name, value in request.items():
        other = world.stranger.address if isinstance(value, str) else keccak(text=name)
        other = int.from_bytes(other, "big") if isinstance(value, int) else other
        changed = request | {name: other}
        requested = world.market.requestIdOf(changed)
        assert requested == builders.request_id(changed, world.market.address)
        ids.add(requested)
    assert len(ids) == 1 + len(request)


def test_request_id_of__another_market__is_another(world, deploy_market):
    request = world.prepare().request
    assert deploy_market().requestIdOf(request) != world.market.requestIdOf(request)


def test_escrow_of__amounts__is_their_sum(world):
    params = builders.params(maxReward=1, gasBudget=20, priorityFee=300)
    assert world.market.escrowOf(params) == 321


# STATE


def test_status_of__each_state__is_told(world):
    none, pending, fulfilled = world.prepare(), world.post(deadline=world.now + 5_000), world.post()
    expired, cancelled = world.post(), world.post()
    world.settle(fulfilled)
    valid_until = world.now + 60
    release = builders.sign_release(world.relayer_key, world.market.address, cancelled.id, valid_until)
    world.market.cancelWithRelease(cancelled.request, valid_until, release, sender=world.requester)
    world.next_block_at(expired.deadline + GRACE + 1)
    world.market.expire([expired.request], sender=world.stranger)
    states = world.market.statusOf([p.id for p in (none, pending, fulfilled, expired, cancelled)])
    assert list(states) == [
        Status.NONE,
        Status.PENDING,
        Status.FULFILLED,
        Status.EXPIRED,
        Status.CANCELLED,
    ]


def test_status_of__nothing__is_empty(world):
    assert list(world.market.statusOf([])) == []


def test_pending_of__not_pending__is_zero(world):
    posted = world.post()
    world.settle(posted)
    assert tuple(world.market.pendingOf(posted.id)) == (0, 0)
    assert tuple(world.market.pendingOf(b"\x01" * 32)) == (0, 0)


def test_account_of__nobody__is_zero(world):
    assert tuple(world.market.accountOf(builders.ZERO)) == (0, 0)


# RESULTS


def test_verify_result__settled__is_final_with_and_without_its_bytes(world):
    posted = world.post()
    world.settle(posted)
    ref = ref_of(world, posted)
    assert world.market.verifyResult(posted.id, ref, b"")
    assert world.market.verifyResult(posted.id, ref, b"an answer to " + posted.id)
    assert not world.market.verifyResult(posted.id, ref, b"another answer")


@pytest.mark.parametrize("name", ["resultHash", "relayer", "round", "nodes", "settledAt"])
def test_verify_result__another_reference__is_not(world, name):
    posted = world.post()
    world.settle(posted)
    other = {
        "resultHash": keccak(text="other"),
        "relayer": world.stranger.address,
        "round": 2,
        "nodes": [world.node, world.node],
        "settledAt": world.now - 1,
    }
    assert not world.market.verifyResult(posted.id, ref_of(world, posted, **{name: other[name]}), b"")


def test_verify_result__another_requests_reference__is_not(world):
    first, second = world.post_many(2)
    world.settle(first, second)
    assert not world.market.verifyResult(second.id, ref_of(world, first), b"")


@pytest.mark.parametrize("state", ["none", "pending", "expired"])
def test_verify_result__not_fulfilled__is_not(world, state):
    posted = world.prepare() if state == "none" else world.post()
    if state == "expired":
        world.next_block_at(posted.deadline + GRACE + 1)
        world.market.expire([posted.request], sender=world.stranger)
    assert not world.market.verifyResult(posted.id, ref_of(world, posted), b"")


def test_verify_result__result_hash_is_what_the_market_stores__is_paid_once(world):
    """A word that is a commitment while pending and the result's hash when done could be made to stay the same."""
    posted = world.post()
    word = world.word_of(posted.id)
    assert word >> 248 == Status.PENDING
    round_ = world.record_round()
    trap = item(posted).with_(result_hash=word.to_bytes(32, "big"))
    settled_at = world.submit(world.set_of([trap], round_)).timestamp
    paid = world.credit(world.node_owner)
    done = world.word_of(posted.id)
    assert done >> 248 == Status.FULFILLED
    for result_hash in (word, done):
        again = item(posted).with_(result_hash=result_hash.to_bytes(32, "big"))
        assert world.statuses(world.submit(world.set_of([again], round_))) == [[ItemStatus.ALREADY_DONE]]
    assert world.credit(world.node_owner) == paid
    ref = ref_of(world, posted, resultHash=trap.result_hash, settledAt=settled_at)
    assert world.market.verifyResult(posted.id, ref, b"")


# PRICES AND IDENTITY OF THE CONTRACT


@pytest.mark.parametrize(("size", "batch"), [(0, 1), (32, 1), (0, 50), (1_000, 7)])
def test_gas_charge_of__batch_and_bytes__is_the_formula(world, size, batch):
    world.next_block_base_fee(7 * GWEI)
    world.chain.mine()
    charge = world.market.gasChargeOf(1, size, batch, gas_price=8 * GWEI, sender=world.requester)
    gas = world.gas_terms.fixed // batch + world.gas_terms.item + GAS_PER_RESULT_BYTE * size
    assert charge == gas * 8 * GWEI


def test_gas_charge_of__price_above_the_cap__is_capped(world):
    world.next_block_base_fee(7 * GWEI)
    world.chain.mine()
    charge = world.market.gasChargeOf(1, 0, 1, gas_price=100 * GWEI, sender=world.requester)
    assert charge == world.gas_terms.per_item(1) * 9 * GWEI


def test_gas_charge_of__empty_batch__empty_batch(world):
    with ape.reverts(world.market.EmptyBatch):
        world.market.gasChargeOf(1, 0, 0)


@pytest.mark.parametrize(("nodes", "batch"), [(2, 1), (3, 50), (MAX_QUORUM, 7)])
def test_gas_charge_of__quorum__each_further_node_is_shared_by_the_batch(world, nodes, batch):
    world.next_block_base_fee(7 * GWEI)
    world.chain.mine()
    charge = world.market.gasChargeOf(nodes, 0, batch, gas_price=8 * GWEI, sender=world.requester)
    terms = world.gas_terms
    assert charge == ((terms.fixed + terms.node * (nodes - 1)) // batch + terms.item) * 8 * GWEI


@pytest.mark.parametrize("nodes", [0, MAX_QUORUM + 1])
def test_gas_charge_of__no_nodes_or_too_many__invalid_quorum(world, nodes):
    with ape.reverts(world.market.InvalidQuorum, k=nodes, n=nodes):
        world.market.gasChargeOf(nodes, 0, 1)


def test_supports_interface__erc165_and_the_market__only(world, project):
    market_id = 0
    for method in project.IInferenceMarket.contract_type.methods:
        market_id ^= int.from_bytes(keccak(text=method.selector)[:4], "big")
    assert world.market.supportsInterface(market_id.to_bytes(4, "big"))
    assert world.market.supportsInterface("0x01ffc9a7")
    assert not world.market.supportsInterface("0xffffffff")
    assert not world.market.supportsInterface("0x00000000")


def test_constants__are_the_protocols(world):
    market = world.market
    assert (market.GRACE(), market.MIN_TTL(), market.MAX_TTL()) == (300, 10, 86_400)
    assert (market.MAX_INLINE_PROMPT(), market.GAS_PER_RESULT_BYTE()) == (8_192, 40)
    assert (market.RELAYER_FEE_SHARE_BPS(), market.RELAYER_SAVING_SHARE_BPS()) == (2_000, 1_000)
    terms = world.gas_terms
    assert (market.TIP_CAP(), market.FIXED_GAS(), market.ITEM_GAS()) == (terms.tip_cap, terms.fixed, terms.item)
    assert (market.NODE_GAS(), market.ASSIGNED_GAS()) == (terms.node, terms.assigned)
    assert (market.MAX_QUORUM(), market.MAX_CALLBACK_GAS(), market.MAX_PAUSE()) == (16, 2_000_000, 7 * 86_400)
    assert (market.VERIFIER_GAS(), market.WALLET_SIGNATURE_GAS()) == (400_000, 400_000)
