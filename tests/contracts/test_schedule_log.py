from __future__ import annotations

import ape
import pytest
from eth_utils import keccak

from tests.contracts import builders
from tests.contracts.builders import Tree, decision, head_after, record
from tests.contracts.conftest import UNBOND_DELAY


def record_round(world, a_record, signature=b"", sender=None, relayer=None):
    relayer = relayer or world.relayer
    return world.log.recordRound(relayer, a_record, signature, sender=sender or world.relayer)


# RECORDS


def test_record_round__first__is_recorded_and_logged(world):
    receipt = record_round(world, record(1))
    head = head_after(bytes(32), world.relayer.address, record(1))
    (event,) = receipt.decode_logs(world.log.RoundRecorded)
    assert (event.relayer, event.round, event.head) == (world.relayer, 1, head)
    assert list(event.record) == list(record(1).values())
    assert world.log.recordedAt(world.relayer, 1) == receipt.timestamp
    assert world.log.headOf(world.relayer, 1) == head


def test_record_round__several__heads_form_a_chain(world):
    head = bytes(32)
    for round_ in (1, 2, 3):
        record_round(world, record(round_))
        head = head_after(head, world.relayer.address, record(round_))
        assert world.log.headOf(world.relayer, round_) == head


def test_record_round__another_first_record__changes_every_head_after(world, chain):
    heads = []
    for assigned in (1, 2):
        with chain.isolate():
            record_round(world, record(1, assigned=assigned))
            record_round(world, record(2))
            heads.append(world.log.headOf(world.relayer, 2))
    assert heads[0] != heads[1]


@pytest.mark.parametrize("round_", [0, 2, 3, 2**64 - 1])
def test_record_round__does_not_follow__round_out_of_order(world, round_):
    with ape.reverts(world.log.RoundOutOfOrder, relayer=world.relayer.address, round=round_):
        record_round(world, record(1) | {"round": round_})


def test_record_round__again__round_already_recorded(world):
    record_round(world, record(1))
    with ape.reverts(world.log.RoundAlreadyRecorded, relayer=world.relayer.address, round=1):
        record_round(world, record(1, assigned=2))


def test_record_round__nothing_assigned__nothing_assigned(world):
    with ape.reverts(world.log.NothingAssigned, round=1):
        record_round(world, record(1, assigned=0, skipped=5))


def test_record_round__two_relayers__number_their_own(world, bonded_other_relayer):
    record_round(world, record(1))
    record_round(world, record(2))
    record_round(world, record(1), sender=bonded_other_relayer, relayer=bonded_other_relayer)
    head = head_after(bytes(32), bonded_other_relayer.address, record(1))
    assert world.log.headOf(bonded_other_relayer, 1) == head
    assert world.log.recordedAt(bonded_other_relayer, 2) == 0


def test_record_round__again_after_a_reorg__gives_the_same_heads(world, chain):
    def both_rounds():
        record_round(world, record(1))
        record_round(world, record(2))
        heads = [world.log.headOf(world.relayer, r) for r in (1, 2)]
        return heads, world.log.recordedAt(world.relayer, 2)

    before = chain.snapshot()
    heads, recorded_at = both_rounds()
    chain.restore(before)
    assert world.log.nextRound(world.relayer) == 1
    world.mine_at(world.now + 1_000)
    heads_again, recorded_again = both_rounds()
    assert heads_again == heads
    assert recorded_again > recorded_at


def test_record_round__orphaned_by_a_reorg__is_recorded_again_by_its_signature(world):
    """As `anvil_reorg` does it: the block is replaced, and the chain goes on without the record."""
    signature = builders.sign_record(world.relayer_key, world.log.address, record(1))
    record_round(world, record(1), signature, sender=world.stranger)
    head = world.log.headOf(world.relayer, 1)
    world.provider.make_request("anvil_reorg", [1, []])
    assert world.log.recordedAt(world.relayer, 1) == 0
    record_round(world, record(1), signature, sender=world.owner)
    assert world.log.headOf(world.relayer, 1) == head


# WHO RECORDS


def test_record_round__signed_and_sent_by_another__is_recorded(world):
    signature = builders.sign_record(world.relayer_key, world.log.address, record(1))
    record_round(world, record(1), signature, sender=world.stranger)
    assert world.log.recordedAt(world.relayer, 1) == world.now


def test_record_round__signed_and_sent_by_itself__is_recorded(world):
    signature = builders.sign_record(world.relayer_key, world.log.address, record(1))
    record_round(world, record(1), signature)
    assert world.log.recordedAt(world.relayer, 1) == world.now


def test_record_round__sent_by_another_unsigned__invalid_signature(world):
    with ape.reverts(world.log.InvalidSignature, relayer=world.relayer.address):
        record_round(world, record(1), sender=world.stranger)


@pytest.mark.parametrize("field", list(record(1)))
def test_record_round__any_field_was_changed__invalid_signature(world, field):
    signature = builders.sign_record(world.relayer_key, world.log.address, record(1))
    value = record(1)[field]
    other = keccak(value) if isinstance(value, bytes) else value + 1
    with ape.reverts(world.log.InvalidSignature, relayer=world.relayer.address):
        record_round(world, record(1) | {field: other}, signature, sender=world.stranger)


def test_record_round__signed_by_another_relayer__invalid_signature(world, bonded_other_relayer):
    signature = builders.sign_record(bonded_other_relayer.private_key, world.log.address, record(1))
    with ape.reverts(world.log.InvalidSignature, relayer=world.relayer.address):
        record_round(world, record(1), signature, sender=world.stranger)


def test_record_round__relayer_sends_a_bad_signature__invalid_signature(world):
    with ape.reverts(world.log.InvalidSignature, relayer=world.relayer.address):
        record_round(world, record(1), b"\x01" * 65)


def test_record_round__not_registered__not_bonded(world):
    with ape.reverts(world.log.NotBonded, relayer=world.stranger.address):
        record_round(world, record(1), sender=world.stranger, relayer=world.stranger)


def test_record_round__zero_address_and_no_signature__not_bonded(world):
    with ape.reverts(world.log.NotBonded, relayer=builders.ZERO):
        record_round(world, record(1), sender=world.stranger, relayer=builders.ZERO)


def test_record_round__unbonding__not_bonded(world):
    world.stakes.beginUnbondRelayer(sender=world.relayer)
    with ape.reverts(world.log.NotBonded, relayer=world.relayer.address):
        record_round(world, record(1))


def test_record_round__bonded_again__goes_on_where_it_stopped(world):
    record_round(world, record(1))
    world.stakes.beginUnbondRelayer(sender=world.relayer)
    world.next_block_at(world.now + UNBOND_DELAY)
    world.stakes.withdrawBond(sender=world.relayer)
    world.stakes.registerRelayer("", sender=world.relayer, value=2 * builders.ETHER)
    record_round(world, record(2))
    assert world.log.nextRound(world.relayer) == 3


# READING


def test_next_round__any_number_of_rounds__is_the_first_that_is_missing(world):
    for round_ in range(1, 19):
        assert world.log.nextRound(world.relayer) == round_
        record_round(world, record(round_))


def test_recorded_at__not_recorded__is_zero(world):
    assert world.log.recordedAt(world.relayer, 1) == 0
    assert world.log.headOf(world.relayer, 1) == bytes(32)


# DECISIONS


def tree_of(world, count: int) -> Tree:
    return Tree([decision(keccak(text=f"request {i}"), world.node, reward=i) for i in range(count)])


def verify(world, a_record, a_decision, index, proof, relayer=None):
    return world.log.verifyDecision(relayer or world.relayer, a_record, a_decision, index, proof)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_verify_decision__every_leaf__is_proven_at_its_index_only(world, count):
    tree = tree_of(world, count)
    recorded = record(1, tree)
    record_round(world, recorded)
    for index, leaf in enumerate(tree.decisions):
        proof = tree.proof(index)
        proven = [verify(world, recorded, leaf, at, proof) for at in range(count + 1)]
        assert proven == [at == index for at in range(count + 1)]


def test_verify_decision__second_round__is_proven(world):
    record_round(world, record(1))
    tree = tree_of(world, 3)
    record_round(world, record(2, tree))
    assert verify(world, record(2, tree), tree.decisions[1], 1, tree.proof(1))


def test_verify_decision__kinds_are_counted_together__index_runs_over_all(world):
    tree = tree_of(world, 3)
    recorded = record(1, tree, assigned=1, skipped=1, tooLate=1)
    record_round(world, recorded)
    assert verify(world, recorded, tree.decisions[2], 2, tree.proof(2))


@pytest.mark.parametrize("field", ["requestId", "node", "kind", "reason", "reward", "supersedesRound"])
def test_verify_decision__any_field_was_changed__is_not(world, field):
    tree = tree_of(world, 4)
    record_round(world, record(1, tree))
    honest = tree.decisions[1]
    other = {"requestId": keccak(text="x"), "node": world.stranger.address}.get(field, 77)
    assert not verify(world, record(1, tree), honest | {field: other}, 1, tree.proof(1))


def test_verify_decision__proof_of_another_depth__is_not(world):
    tree = tree_of(world, 4)
    record_round(world, record(1, tree))
    proof = tree.proof(1)
    assert not verify(world, record(1, tree), tree.decisions[1], 1, proof[:1])
    assert not verify(world, record(1, tree), tree.decisions[1], 1, [*proof, bytes(32)])
    assert not verify(world, record(1, tree), tree.decisions[1], 1, [])


def test_verify_decision__leaf_in_the_padding__is_not(world):
    """A relayer that hides a decision where only padding may be cannot prove it later."""
    tree = tree_of(world, 4)
    recorded = record(1, tree, assigned=3)
    record_round(world, recorded)
    assert verify(world, recorded, tree.decisions[2], 2, tree.proof(2))
    assert not verify(world, recorded, tree.decisions[3], 3, tree.proof(3))


@pytest.mark.parametrize("index", [4, 5, 2**32, 2**255, 2**256 - 3])
def test_verify_decision__index_with_the_right_low_bits__is_not(world, index):
    tree = tree_of(world, 4)
    record_round(world, record(1, tree))
    for leaf in range(4):
        assert not verify(world, record(1, tree), tree.decisions[leaf], index, tree.proof(leaf))


def test_verify_decision__record_that_was_not_recorded__is_not(world):
    tree = tree_of(world, 2)
    assert not verify(world, record(1, tree), tree.decisions[0], 0, tree.proof(0))
    record_round(world, record(1))
    assert not verify(world, record(1, tree), tree.decisions[0], 0, tree.proof(0))
    assert not verify(world, record(0, tree), tree.decisions[0], 0, tree.proof(0))
    assert not verify(world, record(2, tree), tree.decisions[0], 0, tree.proof(0))


@pytest.mark.parametrize("field", list(record(1)))
def test_verify_decision__any_field_of_the_record_was_changed__is_not(world, field):
    tree = tree_of(world, 3)
    recorded = record(1, tree)
    record_round(world, recorded)
    value = recorded[field]
    other = keccak(value) if isinstance(value, bytes) else value + 1
    assert not verify(world, recorded | {field: other}, tree.decisions[0], 0, tree.proof(0))


def test_verify_decision__another_relayers_record__is_not(world, bonded_other_relayer):
    tree = tree_of(world, 2)
    record_round(world, record(1, tree))
    leaf, proof = tree.decisions[0], tree.proof(0)
    assert not verify(world, record(1, tree), leaf, 0, proof, relayer=bonded_other_relayer)
