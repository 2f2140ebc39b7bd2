"""Blocks, and what the contracts logged in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.types import Address, Hash32


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block by all that tells it from another."""

    number: int
    hash: Hash32
    parent_hash: Hash32
    timestamp_s: int


@dataclass(frozen=True, slots=True)
class ChainEvent:
    """A decoded log.

    `args` has the ABI's names. Addresses and bytes are lower-case hex text, integers are integers, structs are mappings
    by component name, arrays are lists.
    """

    block_number: int
    block_hash: Hash32
    transaction_hash: Hash32
    log_index: int
    contract: Address
    name: str
    args: Mapping[str, Any]
