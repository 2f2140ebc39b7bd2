"""The log filters in block headers: they tell which blocks cannot be without logs of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.core.keccak import keccak
from headrace.core.types import Address, Hash32

_KEPT = 4096


class HeaderBlooms:
    """The filters of headers that were read, newest kept.

    Source: Yellow Paper 4.3.1. A filter never misses, but may hit by chance: a hit is a reason to ask again.
    """

    def __init__(self, addresses: Iterable[Address], topics: Iterable[Hash32]) -> None:
        self._addresses = [_bits(bytes.fromhex(address[2:])) for address in addresses]
        self._topics = [_bits(bytes.fromhex(topic[2:])) for topic in topics]
        self._kept: dict[int, tuple[Hash32, bool]] = {}

    def remember(self, number: int, hash_: Hash32, bloom: str) -> None:
        """Keep what a header says."""
        bits = int(bloom, 16)
        may_have_logs = bits != 0 and _any_in(self._addresses, bits) and _any_in(self._topics, bits)
        self._kept.pop(number, None)
        self._kept[number] = (hash_, may_have_logs)
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

    def suspects(self, from_block: int, to_block: int, present: set[int]) -> Iterator[tuple[int, Hash32]]:
        """Blocks of a range, other than those `present`, that may have logs by their headers."""
        for number in range(from_block, to_block + 1):
            hash_, may_have_logs = self._kept.get(number, ("", False))
            if may_have_logs and number not in present:
                yield number, hash_


def _bits(item: bytes) -> int:
    digest = keccak(item)
    bits = 0
    for start in (0, 2, 4):
        bits |= 1 << (int.from_bytes(digest[start : start + 2], "big") & 2047)
    return bits


def _any_in(items: Iterable[int], bits: int) -> bool:
    return any(item & bits == item for item in items)
