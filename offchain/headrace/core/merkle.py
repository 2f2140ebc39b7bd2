"""Leaves, root and proofs of a round's decisions, as `contracts/libraries/DecisionLib.sol` has them.

Leaves are sorted by (request id, node), hashed twice, padded with zero leaves to a power of two and proven by index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from headrace.core.errors import InvalidInput
from headrace.core.keccak import keccak
from headrace.core.types import ZERO_HASH, Address, Decision, Hash32
from headrace.core.words import encode_words

_ZERO = bytes(32)


def sort_decisions(decisions: Iterable[Decision]) -> list[Decision]:
    """In the order of their leaves."""
    return sorted(decisions, key=lambda decision: (decision.request_id, decision.node))


def leaf_of(decision: Decision) -> bytes:
    """The 32-byte leaf of a decision.

    Raises:
        InvalidInput: a value is not one that its type has.
    """
    node, kind, reason = decision.node, decision.kind, decision.reason
    rest = _rest_of(node, kind, reason, decision.reward_wei, decision.supersedes_round)
    return keccak(keccak(_id_of(decision.request_id) + rest))


@lru_cache(maxsize=4096)
def _rest_of(node: Address, kind: int, reason: int, reward_wei: int, supersedes_round: int) -> bytes:
    """All words but the first: most decisions of a round differ in nothing else."""
    types = ("address", "uint8", "uint8", "uint96", "uint64")
    return encode_words(types, (node, kind, reason, reward_wei, supersedes_round))


def _id_of(request_id: Hash32) -> bytes:
    word = bytes.fromhex(request_id[2:])
    return word if len(word) == len(_ZERO) else encode_words(("bytes32",), (word,))


def root_of(leaves: Sequence[bytes]) -> Hash32:
    """The root over leaves in their order; the zero hash over none."""
    return "0x" + _levels(leaves)[-1][0].hex() if leaves else ZERO_HASH


def proof_of(leaves: Sequence[bytes], index: int) -> list[Hash32]:
    """The siblings of a leaf, bottom up.

    Raises:
        InvalidInput: there is no such leaf.
    """
    if not 0 <= index < len(leaves):
        raise InvalidInput(f"there is no leaf {index} among {len(leaves)}")
    return ["0x" + level[(index >> depth) ^ 1].hex() for depth, level in enumerate(_levels(leaves)[:-1])]


def is_proven(root: Hash32, leaf: bytes, index: int, count: int, proof: Sequence[Hash32]) -> bool:
    """Whether `leaf` is number `index` of the `count` leaves under `root`."""
    if not 0 <= index < count or len(proof) != (count - 1).bit_length():
        return False
    node = leaf
    for depth, sibling_hex in enumerate(proof):
        sibling = bytes.fromhex(sibling_hex[2:])
        node = keccak(sibling + node if (index >> depth) & 1 else node + sibling)
    return "0x" + node.hex() == root


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    width = 1 << (len(leaves) - 1).bit_length()
    levels = [[*leaves, *([_ZERO] * (width - len(leaves)))]]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([keccak(left + right) for left, right in zip(below[::2], below[1::2], strict=True)])
    return levels
