"""Leaves, root and proofs of a round's decisions, as `contracts/libraries/DecisionLib.sol` has them.

Leaves are sorted by (request id, node), hashed twice, padded with zero leaves to a power of two and proven by index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.core.errors import InvalidInput
from headrace.core.keccak import keccak
from headrace.core.types import ZERO_HASH, Decision, Hash32
from headrace.core.words import encode_words

_ZERO = bytes(32)


def sort_decisions(decisions: Iterable[Decision]) -> list[Decision]:
    """In the order of their leaves."""
    return sorted(decisions, key=lambda decision: (decision.request_id, decision.node))


def leaf_of(decision: Decision) -> bytes:
    """The 32-byte leaf of a decision."""
    return keccak(
        keccak(
            encode_words(
                ("bytes32", "address", "uint8", "uint8", "uint96", "uint64"),
                (
                    bytes.fromhex(decision.request_id[2:]),
                    decision.node,
                    decision.kind,
                    decision.reason,
                    decision.reward_wei,
                    decision.supersedes_round,
                ),
            )
        )
    )


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
        levels.append([keccak(below[i] + below[i + 1]) for i in range(0, len(below), 2)])
    return levels
