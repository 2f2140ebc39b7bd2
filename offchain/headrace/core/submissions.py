"""What the calldata of settlements says: the results that nodes signed, and the assignment of a self-settlement. Pure.

Whoever submits writes the calldata, so it is read as bytes of a stranger: what points beyond them reads as zeros, as
the market reads it, and counts are bounded. Signatures are as they stand there, unchecked. Source: the Solidity ABI
specification.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core import typed_data
from headrace.core.calls import selectors
from headrace.core.errors import InvalidInput
from headrace.core.faults import SignedAssignment, SignedResult
from headrace.core.keccak import keccak
from headrace.core.types import Address, Assignment, Hash32, Result

MAX_NODES = 16
MAX_ITEMS = 10_000
_WORD = 32
_SIGNATURE_BYTES = 65
_REQUEST_WORDS = 7
_ITEM_WORDS = _REQUEST_WORDS + 2
_ASSIGNMENT_WORDS = 6


@dataclass(frozen=True, slots=True)
class SubmittedSet:
    """A set of results. `signed[i]` are the words of its nodes, in their order, on its item `i`."""

    relayer: Address
    round: int
    nodes: tuple[Address, ...]
    signed: tuple[tuple[SignedResult, ...], ...]


@dataclass(frozen=True, slots=True)
class Submission:
    """What a settling transaction says."""

    sets: tuple[SubmittedSet, ...]
    assignment: SignedAssignment | None  # of a self-settlement


def decode_submission(data: bytes, chain_id: int, market: Address) -> Submission | None:
    """Read the calldata of a call of the market; None when it settles nothing.

    Raises:
        InvalidInput: it has more items or nodes than any transaction could settle.
    """
    known = selectors()
    reader = _Reader(data[4:], chain_id, market)
    if data[:4] == known["submitAssigned"]:
        return reader.self_settlement()
    if data[:4] in (known["submitResults"], known["submitResultsFor"]):
        return reader.batch()
    return None


class _Reader:
    def __init__(self, data: bytes, chain_id: int, market: Address) -> None:
        self._data = data
        self._domain = chain_id.to_bytes(_WORD, "big") + bytes.fromhex(market[2:]).rjust(_WORD, b"\0")
        self._items_left = MAX_ITEMS

    def batch(self) -> Submission:
        relayer, sets = self._address(0), self._uint(_WORD)
        count = self._count(sets, MAX_ITEMS)
        heads = sets + _WORD
        starts = [heads + self._uint(heads + _WORD * index) for index in range(count)]
        return Submission(tuple(self._set(relayer, start) for start in starts), None)

    def self_settlement(self) -> Submission:
        head = _WORD * _ASSIGNMENT_WORDS
        assignment = Assignment(
            request_id=self._hash(0),
            relayer=self._address(_WORD),
            node=self._address(2 * _WORD),
            round=self._uint(3 * _WORD),
            reward_wei=self._uint(4 * _WORD),
            deadline_s=self._uint(5 * _WORD),
        )
        signature = self._signature(self._uint(head))
        settled = self._set(assignment.relayer, self._uint(head + _WORD))
        return Submission((settled,), SignedAssignment(assignment, signature))

    def _set(self, relayer: Address, start: int) -> SubmittedSet:
        round_ = self._uint(start)
        nodes_at, signatures_at, items_at = (start + self._uint(start + _WORD * field) for field in (1, 2, 3))
        nodes = [self._address(nodes_at + _WORD * (1 + index)) for index in range(self._count(nodes_at, MAX_NODES))]
        count = self._count(items_at, self._items_left)
        self._items_left -= count
        results = [
            self._result(items_at + _WORD * (1 + _ITEM_WORDS * index), relayer, round_) for index in range(count)
        ]
        signatures = self._signatures(signatures_at, len(nodes) * max(count, 1))
        # As many signatures as nodes and items sign the results one by one, else each node signs the set.
        is_single = len(signatures) == len(nodes) * count
        hashes = () if is_single else tuple(typed_data.hash_result(result) for result in results)
        signed = tuple(
            tuple(
                SignedResult(node, result, _at(signatures, (index * len(nodes) if is_single else 0) + i), hashes)
                for i, node in enumerate(nodes)
            )
            for index, result in enumerate(results)
        )
        return SubmittedSet(relayer, round_, tuple(nodes), signed)

    def _result(self, at: int, relayer: Address, round_: int) -> Result:
        request_words = self._bytes(at, _WORD * _REQUEST_WORDS)
        reward = self._uint(at + _WORD * _REQUEST_WORDS)
        return Result(
            request_id="0x" + keccak(self._domain + request_words).hex(),
            result_hash=self._hash(at + _WORD * (_REQUEST_WORDS + 1)),
            reward_wei=reward & ((1 << 96) - 1),
            relayer=relayer,
            round=round_ & ((1 << 64) - 1),
        )

    def _signatures(self, at: int, most: int) -> list[bytes]:
        heads = at + _WORD
        return [self._signature(heads + self._uint(heads + _WORD * index)) for index in range(self._count(at, most))]

    def _signature(self, at: int) -> bytes:
        """The bytes of a signature; none when they cannot be one."""
        return self._bytes(at + _WORD, _SIGNATURE_BYTES) if self._uint(at) == _SIGNATURE_BYTES else b""

    def _count(self, at: int, most: int) -> int:
        count = self._uint(at)
        if count > most:
            raise InvalidInput(f"the calldata has a list of {count} entries, where at most {most} can be")
        return count

    def _address(self, at: int) -> Address:
        return "0x" + self._bytes(at + _WORD - 20, 20).hex()

    def _hash(self, at: int) -> Hash32:
        return "0x" + self._bytes(at, _WORD).hex()

    def _uint(self, at: int) -> int:
        return int.from_bytes(self._bytes(at, _WORD), "big")

    def _bytes(self, at: int, length: int) -> bytes:
        return self._data[at : at + length].ljust(length, b"\0")


def _at(signatures: list[bytes], index: int) -> bytes:
    return signatures[index] if index < len(signatures) else b""
