"""Blocks, and what the contracts logged in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.requests import PackedRequest, unpack
from headrace.core.types import Address, Hash32, Request


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


def request_from_event(args: Mapping[str, Any]) -> Request:
    """The request in the arguments of an `InferenceRequested` event.

    Raises:
        InvalidInput: its words hold bits that no field owns.
    """
    struct = args["request"]
    return unpack(
        PackedRequest(
            requester=struct["requester"],
            relayer=struct["relayer"],
            model_id=bytes.fromhex(struct["modelId"][2:]),
            prompt_hash=bytes.fromhex(struct["promptHash"][2:]),
            amounts=int(struct["amounts"]),
            terms=int(struct["terms"]),
            verifier=struct["verifier"],
        )
    )
