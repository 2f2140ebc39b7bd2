from __future__ import annotations

import ape
import pytest
from eth_utils import keccak

from tests.contracts import builders
from tests.contracts.builders import GRACE, GWEI, ZERO, Item, ItemStatus, Status, item
from tests.contracts.conftest import OTHER_NODE_KEY, UNBOND_DELAY
from tests.contracts.world import GasTerms

OK = ItemStatus.OK
SECP256K1_N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def status_of_one(world, an_item, round_, **fields):
    ((status,),) = world.statuses(world.submit(world.set_of([an_item], round_, **fields)))
    return status


# WHAT IS PAID


def test_submit_results__one_result__pays_by_formula_and_logs_it(world):
    posted = world.post()
    answer = item(posted)
    receipt = world.submit(world.set_of([answer], world.record_round()))
    shares = world.shares_in(receipt, answer)
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    assert (event.requestId, event.resultHash) == (posted.id, answer.result_hash)
    assert (event.nodePaid, event.relayerPaid, event.refund) == (shares.node, shares.relayer, shares.refund)
    assert event.nodePaid + event.relayerPaid + event.refund == posted.escrow
    (batch,) = receipt.decode_logs(world.market.BatchSettled)
    assert (batch.relayer, batch.round, batch.nodes) == (world.relayer.address, 1, [world.node])
    assert world.status_of(posted) == Status.FULFILLED
    assert world.credit(world.node_owner) == shares.node
    assert world.credit(world.relayer) == shares.relayer
    assert world.credit(world.requester) == shares.refund
    assert world.settled_count(world.node_owner) == 1


@pytest.mark.parametrize("single", [False, True], ids=["one signature", "a signature per result"])
def test_submit_results__several__each_is_paid_its_share_of_the_batch(world, single):
    many = world.post_many(3)
    items = [item(p, reward=i * 10**14) for i, p in enumerate(many)]
    receipt = world.submit(world.set_of(items, world.record_round(), single=single))
    assert world.statuses(receipt) == [[OK, OK, OK]]
    shares = [world.shares_in(receipt, i, total=3) for i in items]
    assert world.credit(world.node_owner) == sum(s.node for s in shares)
    assert world.credit(world.relayer) == sum(s.relayer for s in shares)
    assert world.credit(world.requester) == sum(s.refund for s in shares)
    assert world.settled_count(world.node_owner) == 3


def test_submit_results__by_a_stranger__not_submitter(world):
    """Lifted from the mempool, a batch is worth nothing."""
    result_set = world.set_of([item(world.post())], world.record_round())
    with ape.reverts(world.market.NotSubmitter, caller=world.stranger.address, relayer=world.relayer.address):
        world.submit(result_set, sender=world.stranger)


def test_submit_results__node_that_nobody_assigned__cannot_bring_its_own_result_in(world, other_node):
    """It is staked and joined, and the round is recorded: the relayer's word is what it lacks."""
    result_set = world.set_of([item(world.post())], world.record_round(), key=OTHER_NODE_KEY)
    with ape.reverts(world.market.NotSubmitter, caller=world.node_owner.address, relayer=world.relayer.address):
        world.submit(result_set, sender=world.node_owner)


def test_submit_results__split_by_hand__is_what_the_formula_says(world):
    """The numbers of one settlement, written out, so that formula and helper cannot be wrong together."""
    world.next_block_base_fee(GWEI)
    posted = world.post(maxReward=1_000_000, gasBudget=10**15, priorityFee=101)
    round_ = world.record_round()
    world.next_block_base_fee(GWEI)
    receipt = world.submit(
        world.set_of([item(posted, reward=900_000)], round_), max_fee=5 * GWEI, max_priority_fee=GWEI
    )
    gas = (90_000 + 16_000) * 2 * GWEI
    saving = (10**15 - gas) // 10
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    assert event.nodePaid == 900_000 + 81  # four fifths of the fee; the relayer's fifth is rounded down
    assert event.relayerPaid == gas + saving + 20
    assert event.refund == 100_000 + 10**15 - gas - saving


@pytest.mark.parametrize(
    ("tip", "paid_for"), [(0, 10 * GWEI), (GWEI, 11 * GWEI), (2 * GWEI, 12 * GWEI), (9 * GWEI, 12 * GWEI)]
)
def test_submit_results__tip__is_paid_up_to_the_cap(world, tip, paid_for):
    posted = world.post(gasBudget=10**16)
    round_ = world.record_round()
    world.next_block_base_fee(10 * GWEI)
    receipt = world.submit(world.set_of([item(posted)], round_), max_fee=30 * GWEI, max_priority_fee=tip)
    expected = builders.shares(posted, item(posted).reward, world.gas_terms.per_item(1), paid_for)
    assert receipt.gas_price == 10 * GWEI + tip
    assert world.credit(world.relayer) == expected.relayer


def test_submit_results__gas_budget_is_used_up__pays_no_more_than_it(world):
    posted = world.post(gasBudget=1_000, priorityFee=0)
    receipt = world.settle(posted)
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    assert event.relayerPaid == 1_000
    assert event.refund == posted.params["maxReward"] - event.nodePaid


def test_submit_results__gas_price_is_zero__pays_the_saving_share_only(world):
    posted = world.post(gasBudget=1_009, priorityFee=0)
    round_ = world.record_round()
    world.next_block_base_fee(0)
    receipt = world.submit(world.set_of([item(posted)], round_), max_fee=0, max_priority_fee=0)
    assert receipt.decode_logs(world.market.ResultFulfilled)[0].relayerPaid == 100


def test_submit_results__free_request__pays_nothing(world):
    posted = world.post(maxReward=0, gasBudget=0, priorityFee=0)
    receipt = world.submit(world.set_of([item(posted, reward=0)], world.record_round()))
    assert world.statuses(receipt) == [[OK]]
    assert world.market.balance == 0
    assert world.settled_count(world.node_owner) == 1


def test_submit_results__whole_reward__leaves_the_requester_the_unused_gas(world):
    posted = world.post(priorityFee=0)
    answer = item(posted, reward=posted.params["maxReward"])
    receipt = world.submit(world.set_of([answer], world.record_round()))
    assert world.credit(world.node_owner) == posted.params["maxReward"]
    assert world.credit(world.requester) == world.shares_in(receipt, answer).refund


def test_submit_results__many_requesters__each_gets_its_refund(world, accounts):
    owners = [accounts[6], accounts[7], accounts[6], accounts[8]]
    many = [world.post(requester) for requester in owners]
    items = [item(p) for p in many]
    receipt = world.submit(world.set_of(items, world.record_round()))
    shares = [world.shares_in(receipt, i, total=4) for i in items]
    assert world.credit(accounts[6]) == shares[0].refund + shares[2].refund
    assert world.credit(accounts[7]) == shares[1].refund
    assert world.credit(accounts[8]) == shares[3].refund


def test_submit_results__one_account_in_every_role__is_credited_for_all(world, stakes, bonded_other_relayer):
    everyone = bonded_other_relayer
    stakes.setPayee(world.node, world.market, everyone, sender=world.node_owner)
    world.holders.add(everyone.address)
    posted = world.post(everyone, relayer=everyone.address)
    world.log.recordRound(everyone, builders.record(1), b"", sender=everyone)
    result_set = world.set_of([item(posted)], 1, relayer=everyone.address)
    world.submit(result_set, relayer=everyone, sender=everyone)
    assert world.credit(everyone) == posted.escrow


def test_submit_results__payee_was_set__is_credited_instead_of_the_owner(world, stakes):
    stakes.setPayee(world.node, world.market, world.stranger, sender=world.node_owner)
    receipt = world.settle(world.post())
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    assert world.credit(world.stranger) == event.nodePaid
    assert world.settled_count(world.stranger) == 1
    assert world.credit(world.node_owner) == 0


def test_submit_results__two_sets__share_the_fixed_gas_and_pay_both_nodes(world, other_node):
    many = world.post_many(5)
    first, second = [item(p) for p in many[:2]], [item(p) for p in many[2:]]
    round_ = world.record_round()
    receipt = world.submit(world.set_of(first, round_), world.set_of(second, round_, key=OTHER_NODE_KEY))
    assert world.statuses(receipt) == [[OK] * 2, [OK] * 3]
    nodes = [event.nodes for event in receipt.decode_logs(world.market.BatchSettled)]
    assert nodes == [[world.node], [other_node]]
    shares = [world.shares_in(receipt, i, total=5) for i in first + second]
    assert world.credit(world.relayer) == sum(s.relayer for s in shares)
    assert world.credit(world.node_owner) == sum(s.node for s in shares)  # the owner of both nodes
    assert world.settled_count(world.node_owner) == 5


def test_submit_results__sets_of_two_rounds__are_both_paid(world):
    first, second = world.post(), world.post()
    rounds = [world.record_round(), world.record_round()]
    receipt = world.submit(world.set_of([item(first)], rounds[0]), world.set_of([item(second)], rounds[1]))
    assert world.statuses(receipt) == [[OK], [OK]]
    assert [e.round for e in receipt.decode_logs(world.market.BatchSettled)] == rounds


def test_submit_results__open_race__any_relayers_round_is_paid(world, bonded_other_relayer):
    world.holders.add(bonded_other_relayer.address)
    posted = world.post(relayer=ZERO)
    world.log.recordRound(bonded_other_relayer, builders.record(1), b"", sender=bonded_other_relayer)
    result_set = world.set_of([item(posted)], 1, relayer=bonded_other_relayer.address)
    receipt = world.submit(result_set, relayer=bonded_other_relayer, sender=bonded_other_relayer)
    assert world.statuses(receipt) == [[OK]]
    assert world.credit(bonded_other_relayer) == world.shares_in(receipt, item(posted)).relayer


# INLINE RESULTS


def test_submit_results__inline_result__is_delivered_and_paid_by_the_byte(world):
    answer = bytes(range(256)) * 2
    posted = world.post(inlineResult=True)
    inline = item(posted, result=answer, inline=True)
    receipt = world.submit(world.set_of([inline], world.record_round()))
    (event,) = receipt.decode_logs(world.market.ResultDelivered)
    assert (event.requestId, event.result) == (posted.id, answer)
    assert world.credit(world.relayer) == world.shares_in(receipt, inline, result_bytes=len(answer)).relayer


def test_submit_results__some_inline_some_by_hash__delivers_what_is_there(world):
    many = world.post_many(3, inlineResult=True)
    items = [item(many[0]), item(many[1], result=b"x" * 33, inline=True), item(many[2])]
    receipt = world.submit(world.set_of(items, world.record_round()))
    assert world.statuses(receipt) == [[OK] * 3]
    assert [e.requestId for e in receipt.decode_logs(world.market.ResultDelivered)] == [many[1].id]
    shares = [world.shares_in(receipt, i, total=3, result_bytes=len(i.result)) for i in items]
    assert world.credit(world.relayer) == sum(s.relayer for s in shares)


def test_submit_results__inline_was_not_asked_for__bad_result(world):
    posted = world.post(inlineResult=False)
    assert status_of_one(world, item(posted, inline=True), world.record_round()) == ItemStatus.BAD_RESULT
    assert world.status_of(posted) == Status.PENDING


def test_submit_results__bytes_are_not_what_was_signed__bad_result(world):
    posted = world.post(inlineResult=True)
    other = item(posted, inline=True).with_(result=b"something else")
    assert status_of_one(world, other, world.record_round()) == ItemStatus.BAD_RESULT


# THE OTHER STATUSES


def test_submit_results__never_posted__unknown(world):
    assert status_of_one(world, item(world.prepare()), world.record_round()) == ItemStatus.UNKNOWN


@pytest.mark.parametrize(
    ("word", "bits"),
    [("amounts", 1), ("amounts", 1 << 255), ("terms", 1 << 217), ("terms", 1 << 255)],
    ids=["amount", "dirty amount", "flag", "dirty terms"],
)
def test_submit_results__request_was_tampered_with__unknown(world, word, bits):
    posted = world.post()
    forged = posted.request | {word: posted.request[word] ^ bits}
    forged_id = builders.request_id(forged, world.market.address)
    tampered = item(posted).with_(request=forged, request_id=forged_id)
    assert status_of_one(world, tampered, world.record_round()) == ItemStatus.UNKNOWN


@pytest.mark.parametrize("name", ["requester", "relayer", "verifier"])
def test_submit_results__dirty_bits_above_an_address__unknown_and_the_others_are_paid(world, name):
    good, bad = world.post(), world.post()
    word = {
        "requester": builders._address_word(world.requester.address),
        "relayer": builders._address_word(world.relayer.address),
        "verifier": bytes(32),
    }[name]
    position = list(bad.request).index(name) * 32
    clean = _encoded_request(bad.request)
    dirty = clean[:position] + b"\x80" + word[1:] + clean[position + 32 :]
    forged_id = keccak(builders.CHAIN_ID.to_bytes(32, "big") + _market_word(world) + dirty)
    items = [item(bad).with_(request_id=forged_id), item(good)]
    built = world.set_of(items, world.record_round()).build()
    calldata = world.encode_submit(built)
    assert calldata.count(clean) == 1
    receipt = world.send_raw(calldata.replace(clean, dirty))
    assert world.statuses(receipt) == [[ItemStatus.UNKNOWN, OK]]
    assert world.status_of(bad) == Status.PENDING


def _encoded_request(request: dict) -> bytes:
    words = []
    for value in request.values():
        if isinstance(value, str):
            words.append(builders._address_word(value))
        else:
            words.append(value if isinstance(value, bytes) else value.to_bytes(32, "big"))
    return b"".join(words)


def _market_word(world) -> bytes:
    return builders._address_word(world.market.address)


def test_submit_results__settled_before__already_done_and_paid_once(world):
    posted = world.post()
    round_ = world.record_round()
    result_set = world.set_of([item(posted)], round_)
    world.submit(result_set)
    paid = world.credit(world.node_owner)
    assert world.statuses(world.submit(result_set)) == [[ItemStatus.ALREADY_DONE]]
    assert world.credit(world.node_owner) == paid
    assert world.settled_count(world.node_owner) == 1


def test_submit_results__settled_before_with_another_result__already_done(world):
    posted = world.post()
    round_ = world.record_round()
    world.submit(world.set_of([item(posted)], round_))
    assert status_of_one(world, item(posted, result=b"other"), round_) == ItemStatus.ALREADY_DONE


def test_submit_results__same_item_twice_in_a_set__is_paid_once(world):
    posted = world.post()
    receipt = world.submit(world.set_of([item(posted)] * 3, world.record_round()))
    assert world.statuses(receipt) == [[OK, ItemStatus.ALREADY_DONE, ItemStatus.ALREADY_DONE]]
    assert world.credit(world.node_owner) == world.shares_in(receipt, item(posted), total=3).node


def test_submit_results__same_item_in_two_sets__is_paid_once(world, other_node):
    posted = world.post()
    round_ = world.record_round()
    receipt = world.submit(
        world.set_of([item(posted)], round_), world.set_of([item(posted)], round_, key=OTHER_NODE_KEY)
    )
    assert world.statuses(receipt) == [[OK], [ItemStatus.ALREADY_DONE]]


def test_submit_results__request_expired__already_done(world):
    posted = world.post()
    round_ = world.record_round()
    world.next_block_at(posted.deadline + GRACE + 1)
    world.market.expire([posted.request], sender=world.stranger)
    assert status_of_one(world, item(posted), round_) == ItemStatus.ALREADY_DONE


def test_submit_results__last_second_of_grace__is_paid(world):
    posted = world.post()
    round_ = world.record_round()
    world.next_block_at(posted.deadline + GRACE)
    assert status_of_one(world, item(posted), round_) == OK


def test_submit_results__a_second_after_grace__late(world):
    posted = world.post()
    round_ = world.record_round()
    world.next_block_at(posted.deadline + GRACE + 1)
    assert status_of_one(world, item(posted), round_) == ItemStatus.LATE
    assert world.status_of(posted) == Status.PENDING


def test_submit_results__round_was_recorded_at_the_deadline__is_paid(world):
    posted = world.post()
    world.next_block_at(posted.deadline)
    assert status_of_one(world, item(posted), world.record_round()) == OK


def test_submit_results__round_was_recorded_a_second_after_the_deadline__no_round(world):
    posted = world.post()
    world.next_block_at(posted.deadline + 1)
    assert status_of_one(world, item(posted), world.record_round()) == ItemStatus.NO_ROUND


@pytest.mark.parametrize("round_", [0, 2, 2**64 - 1])
def test_submit_results__round_is_not_recorded__no_round(world, round_):
    posted = world.post()
    world.record_round()
    assert status_of_one(world, item(posted), round_) == ItemStatus.NO_ROUND


def test_submit_results__another_relayers_round__wrong_relayer(world, bonded_other_relayer):
    posted = world.post()
    world.log.recordRound(bonded_other_relayer, builders.record(1), b"", sender=bonded_other_relayer)
    result_set = world.set_of([item(posted)], 1, relayer=bonded_other_relayer.address)
    receipt = world.submit(result_set, relayer=bonded_other_relayer, sender=bonded_other_relayer)
    assert world.statuses(receipt) == [[ItemStatus.WRONG_RELAYER]]
    assert world.credit(bonded_other_relayer) == 0


def test_submit_results__reward_above_the_maximum__reward_too_high(world):
    posted = world.post()
    answer = item(posted, reward=posted.params["maxReward"] + 1)
    assert status_of_one(world, answer, world.record_round()) == ItemStatus.REWARD_TOO_HIGH


def test_submit_results__reward_hides_above_80_bits__reward_too_high(world):
    posted = world.post()
    assert status_of_one(world, item(posted, reward=1 << 80), world.record_round()) == ItemStatus.REWARD_TOO_HIGH


def test_submit_results__node_has_not_joined__node_not_joined(world, register_node):
    register_node(OTHER_NODE_KEY)
    posted = world.post()
    status = status_of_one(world, item(posted), world.record_round(), key=OTHER_NODE_KEY)
    assert status == ItemStatus.NODE_NOT_JOINED


def test_submit_results__node_was_never_registered__node_not_joined(world):
    status = status_of_one(world, item(world.post()), world.record_round(), key="0x" + "cc" * 32)
    assert status == ItemStatus.NODE_NOT_JOINED


def test_submit_results__node_is_leaving__is_paid_until_it_has_left(world, stakes):
    left = stakes.leaveMarket(world.node, world.market, sender=world.node_owner)
    leaves_at = left.timestamp + UNBOND_DELAY
    world.mine_at(leaves_at - 10)
    last, late = world.post_many(2)
    round_ = world.record_round()
    world.next_block_at(leaves_at - 1)
    assert status_of_one(world, item(last), round_) == OK
    world.next_block_at(leaves_at)
    assert status_of_one(world, item(late), round_) == ItemStatus.NODE_NOT_JOINED


# SIGNATURES


def test_submit_results__one_bad_signature_of_several__only_that_one_is_refused(world):
    many = world.post_many(3)
    items = [item(p) for p in many]
    built = world.set_of(items, world.record_round(), single=True).build()
    built["signatures"][1] = built["signatures"][0]
    receipt = world.submit(built)
    assert world.statuses(receipt) == [[OK, ItemStatus.BAD_SIGNATURE, OK]]
    assert world.credit(world.node_owner) == sum(
        world.shares_in(receipt, i, total=3).node for i in (items[0], items[2])
    )


def test_submit_results__bad_set_signature__refuses_all_items(world):
    many = world.post_many(2)
    round_ = world.record_round()
    forged = builders.sign_set(
        OTHER_NODE_KEY, world.market.address, [item(p) for p in many], world.relayer.address, round_
    )
    built = world.set_of([item(p) for p in many], round_, changes={"signatures": [forged]})
    assert world.statuses(world.submit(built)) == [[ItemStatus.BAD_SIGNATURE] * 2]


def test_submit_results__set_signature_over_other_items__refuses_all(world):
    many = world.post_many(3)
    round_ = world.record_round()
    signed = world.set_of([item(p) for p in many], round_).build()
    part = world.set_of([item(p) for p in many[:2]], round_, changes={"signatures": signed["signatures"]})
    assert world.statuses(world.submit(part)) == [[ItemStatus.BAD_SIGNATURE] * 2]


def test_submit_results__set_signature_in_another_order__refuses_all(world):
    many = world.post_many(2)
    round_ = world.record_round()
    signed = world.set_of([item(p) for p in many], round_).build()
    swapped = world.set_of([item(p) for p in reversed(many)], round_, changes={"signatures": signed["signatures"]})
    assert world.statuses(world.submit(swapped)) == [[ItemStatus.BAD_SIGNATURE] * 2]


def test_submit_results__lone_item_signed_as_a_set__bad_signature(world):
    posted = world.post()
    round_ = world.record_round()
    as_set = builders.sign_set(world.node_key, world.market.address, [item(posted)], world.relayer.address, round_)
    assert status_of_one(world, item(posted), round_, changes={"signatures": [as_set]}) == ItemStatus.BAD_SIGNATURE


@pytest.mark.parametrize("change", ["reward", "result", "round", "relayer", "market", "request"])
def test_submit_results__signed_for_something_else__bad_signature(world, change, deploy_market):
    posted, other = world.post(), world.post()
    round_ = world.record_round()
    world.record_round()
    signed = {
        "reward": lambda: _sign(world, item(posted, reward=1), round_),
        "result": lambda: _sign(world, item(posted, result=b"other"), round_),
        "round": lambda: _sign(world, item(posted), round_ + 1),
        "relayer": lambda: _sign(world, item(posted), round_, relayer=world.stranger.address),
        "market": lambda: _sign(world, item(posted), round_, market=deploy_market().address),
        "request": lambda: _sign(world, item(other, result=b"an answer to " + posted.id), round_),
    }[change]()
    status = status_of_one(world, item(posted), round_, changes={"signatures": [signed]})
    assert status == ItemStatus.BAD_SIGNATURE


def _sign(world, answer: Item, round_: int, relayer=None, market=None) -> bytes:
    relayer = relayer or world.relayer.address
    return builders.sign_result(world.node_key, market or world.market.address, answer, relayer, round_)


@pytest.mark.parametrize("mangle", ["empty", "short", "long", "high s", "v", "zero"])
def test_submit_results__mangled_signature__bad_signature(world, mangle):
    posted = world.post()
    round_ = world.record_round()
    good = _sign(world, item(posted), round_)
    high_s = (SECP256K1_N - int.from_bytes(good[32:64], "big")).to_bytes(32, "big")
    mangled = {
        "empty": b"",
        "short": good[:64],
        "long": good + b"\0",
        "high s": good[:32] + high_s + bytes([55 - good[64]]),
        "v": good[:64] + b"\x01",
        "zero": bytes(65),
    }[mangle]
    status = status_of_one(world, item(posted), round_, changes={"signatures": [mangled]})
    assert status == ItemStatus.BAD_SIGNATURE


def test_submit_results__node_is_the_zero_address__is_never_paid(world):
    posted = world.post()
    changes = {"nodes": [ZERO], "signatures": [bytes(65)]}
    status = status_of_one(world, item(posted), world.record_round(), changes=changes)
    assert status == ItemStatus.NODE_NOT_JOINED


def test_submit_results__retried_after_a_refusal__is_paid(world):
    posted = world.post()
    round_ = world.record_round()
    bad = world.set_of([item(posted)], round_, changes={"signatures": [b""]})
    assert world.statuses(world.submit(bad)) == [[ItemStatus.BAD_SIGNATURE]]
    assert status_of_one(world, item(posted), round_) == OK


# BAD ITEMS AMONG GOOD ONES


def test_submit_results__bad_items_among_good_ones__good_ones_are_paid(world):
    good, replayed, greedy, last = world.post_many(4)
    unknown = world.prepare()
    round_ = world.record_round()
    world.submit(world.set_of([item(replayed)], round_))
    before = world.credit(world.node_owner)
    items = [
        item(good),
        item(replayed),
        item(unknown),
        item(greedy, reward=greedy.params["maxReward"] + 1),
        item(last),
    ]
    receipt = world.submit(world.set_of(items, round_))
    assert world.statuses(receipt) == [
        [OK, ItemStatus.ALREADY_DONE, ItemStatus.UNKNOWN, ItemStatus.REWARD_TOO_HIGH, OK]
    ]
    paid = sum(world.shares_in(receipt, i, total=5).node for i in (items[0], items[4]))
    assert world.credit(world.node_owner) == before + paid


def test_submit_results__nothing_is_good__emits_statuses_and_pays_nobody(world):
    receipt = world.submit(world.set_of([item(world.prepare()), item(world.prepare())], world.record_round()))
    assert world.statuses(receipt) == [[ItemStatus.UNKNOWN] * 2]
    assert len(receipt.logs) == 1
    assert world.settled_count(world.node_owner) == 0


# THE SUBMITTER'S OWN FAULTS


def test_submit_results__no_sets__empty_batch(world):
    with ape.reverts(world.market.EmptyBatch):
        world.submit()


@pytest.mark.parametrize(
    "changes",
    [
        {"items": []},
        {"nodes": []},
        {"nodes": [ZERO, ZERO]},
        {"signatures": []},
        {"signatures": [b"", b"", b""]},
        {"results": [b""]},
        {"results": [b"", b"", b""]},
        {"proofs": [b""]},
    ],
    ids=lambda changes: next(f"{len(values)} {name}" for name, values in changes.items()),
)
def test_submit_results__lists_of_other_lengths__malformed_set(world, changes):
    many = world.post_many(2)
    bad = world.set_of([item(p) for p in many], world.record_round(), changes=changes)
    with ape.reverts(world.market.MalformedSet, setIndex=0):
        world.submit(bad)


def test_submit_results__second_set_is_malformed__names_it_and_pays_nothing(world):
    posted = world.post()
    round_ = world.record_round()
    good = world.set_of([item(posted)], round_)
    bad = world.set_of([item(posted)], round_, changes={"items": []})
    with ape.reverts(world.market.MalformedSet, setIndex=1):
        world.submit(good, bad)
    assert world.status_of(posted) == Status.PENDING


def test_submit_results__a_proof_per_item__is_ignored(world):
    posted = world.post()
    assert status_of_one(world, item(posted), world.record_round(), changes={"proofs": [b"x"]}) == OK


def test_submit_results__reward_with_dirty_bits__reverts(world):
    posted = world.post()
    built = world.set_of([item(posted, reward=12_345)], world.record_round()).build()
    clean = (12_345).to_bytes(32, "big")
    calldata = world.encode_submit(built)
    assert calldata.count(clean) == 1
    with ape.reverts():
        world.send_raw(calldata.replace(clean, b"\x80" + clean[1:]))


def test_submit_results__too_little_gas__reverts_as_a_whole(world):
    many = world.post_many(4)
    result_set = world.set_of([item(p) for p in many], world.record_round())
    # Where the gas runs out decides which of the two anvil reports.
    with pytest.raises((ape.exceptions.OutOfGasError, ape.exceptions.VirtualMachineError)):
        world.submit(result_set, gas_limit=120_000)
    assert {world.status_of(p) for p in many} == {Status.PENDING}


def test_submit_results__requests_are_paused__still_settles(world):
    posted = world.post()
    world.market.setRequestsPaused(True, sender=world.owner)
    assert world.statuses(world.settle(posted)) == [[OK]]


# PROBATION


@pytest.fixture
def strict(world, deploy_market, stakes):
    """A world whose market caps rewards at 100 wei until two results are settled and a day is over."""
    world.market = deploy_market(GasTerms(), (100, 2, 86_400))
    stakes.joinMarket(world.node, world.market, sender=world.node_owner)
    return world


def test_submit_results__new_node_within_the_cap__is_paid(strict):
    assert status_of_one(strict, item(strict.post(), reward=100), strict.record_round()) == OK


def test_submit_results__new_node_above_the_cap__probation(strict):
    posted = strict.post()
    status = status_of_one(strict, item(posted, reward=101), strict.record_round())
    assert status == ItemStatus.PROBATION
    assert strict.status_of(posted) == Status.PENDING


def test_submit_results__enough_settled_but_too_new__probation(strict):
    round_ = strict.record_round()
    strict.submit(strict.set_of([item(p, reward=1) for p in strict.post_many(2)], round_))
    assert status_of_one(strict, item(strict.post(), reward=101), round_) == ItemStatus.PROBATION


def test_submit_results__old_enough_but_too_few_settled__probation(strict, stakes):
    joined_at = stakes.membershipOf(strict.node, strict.market).joinedAt
    round_ = strict.record_round()
    strict.submit(strict.set_of([item(strict.post(), reward=1)], round_))
    strict.mine_at(joined_at + 86_400)
    assert status_of_one(strict, item(strict.post(), reward=101), round_) == ItemStatus.PROBATION


@pytest.mark.parametrize(("age", "status"), [(86_399, ItemStatus.PROBATION), (86_400, OK)])
def test_submit_results__enough_settled__probation_ends_with_the_last_second(strict, stakes, age, status):
    joined_at = stakes.membershipOf(strict.node, strict.market).joinedAt
    round_ = strict.record_round()
    strict.submit(strict.set_of([item(p, reward=1) for p in strict.post_many(2)], round_))
    posted = strict.post(deadline=joined_at + 86_400)
    strict.next_block_at(joined_at + age)
    assert status_of_one(strict, item(posted, reward=101), round_) == status


def test_submit_results__probation_ends_between_two_sets__second_set_is_paid_in_full(strict, stakes):
    joined_at = stakes.membershipOf(strict.node, strict.market).joinedAt
    round_ = strict.record_round()
    strict.mine_at(joined_at + 86_400)
    small, big = strict.post_many(2), strict.post()
    sets = [
        strict.set_of([item(p, reward=1) for p in small], round_),
        strict.set_of([item(big, reward=101)], round_),
    ]
    assert strict.statuses(strict.submit(*sets)) == [[OK, OK], [OK]]


def test_submit_results__node_left_and_came_back__is_new_again(strict, stakes):
    round_ = strict.record_round()
    strict.submit(strict.set_of([item(p, reward=1) for p in strict.post_many(2)], round_))
    left = stakes.leaveMarket(strict.node, strict.market, sender=strict.node_owner)
    strict.next_block_at(left.timestamp + 200_000)
    stakes.joinMarket(strict.node, strict.market, sender=strict.node_owner)
    assert status_of_one(strict, item(strict.post(), reward=101), round_) == ItemStatus.PROBATION
