from __future__ import annotations

from dataclasses import replace

import pytest
from eth_abi import encode
from eth_utils import keccak
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.merkle import is_proven, leaf_of, proof_of, root_of, sort_decisions
from headrace.core.types import ZERO_HASH, Decision, DecisionKind, Reason
from tests.core.strategies import address_number, decision_lists, decisions, hash_number

leaf_lists = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=20, unique=True)


def root_by_hand(leaves: list[bytes]) -> bytes:
    """Top down: the root over a power of two is the pair of the roots over its halves."""
    width = 1
    while width < len(leaves):
        width *= 2
    return _root(leaves + [bytes(32)] * (width - len(leaves)))


def _root(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    middle = len(leaves) // 2
    return keccak(_root(leaves[:middle]) + _root(leaves[middle:]))


def flipped(hash_: str, bit: int) -> str:
    return f"0x{int(hash_, 16) ^ (1 << bit):064x}"


@given(decisions)
def test_leaf__is_twice_the_keccak_of_six_words(decision: Decision) -> None:
    words = [int(decision.request_id, 16), int(decision.node, 16), decision.kind, decision.reason]
    words += [decision.reward_wei, decision.supersedes_round]
    assert leaf_of(decision) == keccak(keccak(encode(["uint256"] * 6, [int(word) for word in words])))


@given(decisions, st.data())
def test_leaf__any_other_field__is_another(decision: Decision, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["request_id", "node", "kind", "reason", "reward_wei", "supersedes_round"]))
    other = data.draw(decisions.filter(lambda drawn: getattr(drawn, name) != getattr(decision, name)))
    assert leaf_of(replace(decision, **{name: getattr(other, name)})) != leaf_of(decision)


@given(leaf_lists)
def test_root__is_the_root_by_hand(leaves: list[bytes]) -> None:
    assert root_of(leaves) == "0x" + root_by_hand(leaves).hex()


def test_root__no_leaves__is_zero() -> None:
    assert root_of([]) == ZERO_HASH


@given(leaf_lists)
def test_proof__of_each_leaf__verifies(leaves: list[bytes]) -> None:
    root = root_of(leaves)
    for index, leaf in enumerate(leaves):
        assert is_proven(root, leaf, index, len(leaves), proof_of(leaves, index))


@given(leaf_lists, st.data())
def test_proof__anything_changed__fails(leaves: list[bytes], data: st.DataObject) -> None:
    count, root = len(leaves), root_of(leaves)
    index = data.draw(st.integers(0, count - 1))
    proof, leaf = proof_of(leaves, index), leaves[index]
    bit = data.draw(st.integers(0, 255))
    assert not is_proven(flipped(root, bit), leaf, index, count, proof)
    assert not is_proven(root, bytes.fromhex(flipped(leaf.hex(), bit)[2:]), index, count, proof)
    for other in {*range(-2, 40)} - {index}:
        assert not is_proven(root, leaf, other, count, proof)
    assert not is_proven(root, leaf, index, count, [*proof, ZERO_HASH])
    if proof:
        assert not is_proven(root, leaf, index, count, proof[:-1])
        depth = data.draw(st.integers(0, len(proof) - 1))
        changed = [*proof[:depth], flipped(proof[depth], bit), *proof[depth + 1 :]]
        assert not is_proven(root, leaf, index, count, changed)


@given(leaf_lists)
def test_proof__count_of_another_depth_or_up_to_the_index__fails(leaves: list[bytes]) -> None:
    index = len(leaves) - 1
    proof, root = proof_of(leaves, index), root_of(leaves)
    for count in range(-1, 70):
        same_depth = count >= 1 and (1 << len(proof)) >= count > ((1 << len(proof)) >> 1)
        assert is_proven(root, leaves[index], index, count, proof) is (same_depth and index < count)


@pytest.mark.parametrize("count", [3, 5, 17])
def test_proof__of_the_padding__fails(count: int) -> None:
    leaves = [keccak(bytes([number])) for number in range(count)]
    padded = leaves + [bytes(32)] * ((1 << (count - 1).bit_length()) - count)
    assert root_of(padded) == root_of(leaves)
    assert not is_proven(root_of(leaves), bytes(32), count, count, proof_of(padded, count))


def test_proof__inner_node_as_a_leaf__fails() -> None:
    leaves = [keccak(bytes([number])) for number in range(4)]
    inner, sibling = keccak(leaves[0] + leaves[1]), "0x" + keccak(leaves[2] + leaves[3]).hex()
    assert not is_proven(root_of(leaves), inner, 0, 4, [sibling])


@pytest.mark.parametrize(("count", "index"), [(0, 0), (1, 1), (3, 3), (3, -1)])
def test_proof__no_such_leaf__is_refused(count: int, index: int) -> None:
    with pytest.raises(InvalidInput, match=f"no leaf {index} among {count}"):
        proof_of([bytes([number]) * 32 for number in range(count)], index)


@given(decision_lists, st.randoms(use_true_random=False))
def test_sort__any_order_given__is_by_request_and_node(given_: list[Decision], rng: object) -> None:
    expected = sort_decisions(given_)
    rng.shuffle(given_)  # type: ignore[attr-defined]
    assert sort_decisions(given_) == expected
    keys = [(int(decision.request_id, 16), int(decision.node, 16)) for decision in expected]
    assert keys == sorted(keys)


@given(st.sets(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 31))
def test_absence__is_proven_by_neighbours_exactly_when_absent(numbers: set[int], wanted: int) -> None:
    ordered = sort_decisions(
        Decision(hash_number(n), address_number(1), DecisionKind.ASSIGNED, Reason.LOWEST_COST, 1, 0) for n in numbers
    )
    leaves = [leaf_of(decision) for decision in ordered]
    root, count, target = root_of(leaves), len(leaves), hash_number(wanted)
    before = [index for index, decision in enumerate(ordered) if decision.request_id < target]
    after = [index for index, decision in enumerate(ordered) if decision.request_id > target]
    # Ends prove with one neighbour, the middle with two whose indexes follow each other.
    left, right = max(before, default=-1), min(after, default=count)
    assert (right == left + 1) is (wanted not in numbers)
    for index in {left, right} - {-1, count}:
        assert is_proven(root, leaves[index], index, count, proof_of(leaves, index))
