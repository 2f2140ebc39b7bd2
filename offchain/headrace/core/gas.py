"""Gas of settlements: what a request's call-outs are counted with, and how much one transaction takes.

What is counted here are bounds, not averages: a batch that is cut by them has the gas that its callbacks and verifiers
are owed, whatever these do. `tests/adapters/test_gas_bounds.py` holds them to a real chain.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from headrace.core.guard import MAX_TRANSACTION_GAS
from headrace.core.types import ZERO_ADDRESS, Address, MarketTerms, Request

MAX_BATCH_GAS = MAX_TRANSACTION_GAS - 500_000
"""What a batch may be counted with; the rest is for what no count foresees."""
MAX_BATCH_BYTES = 128 * 1024 - 4_096
"""Nodes take no transaction of more than 128 KiB into their pools (go-ethereum's `txMaxSize`)."""
MAX_PROOF_BYTES = 4_096
"""Of a proof for a verifier."""
ANSWER_BYTES_PER_TOKEN = 8
ANSWER_OVERHEAD_BYTES = 512
"""An answer that must go on-chain has at most so many bytes a token and over all: English needs four or five, and the
frame of a chat completion 200."""
ATTESTED_VERIFIER_GAS = 25_000
"""Of a call of the deployment's own AttestedKeyVerifier."""

MARKET_VERIFIER_GAS = 400_000
"""`MarketBase.VERIFIER_GAS`: what every verifier is offered, whatever it is counted with."""

_CALLBACK_CHARGE_GAS = 10_000  # what settlement charges around a consumer's own gas
# `Callbacks.RESERVE_GAS`, and what `Results._isVerified` wants spare around a verifier's gas.
_CALLBACK_SPARE_GAS = 10_000
_VERIFIER_SPARE_GAS = 50_000
_TRANSACTION_GAS = 60_000  # 21,000, the relayer's credit, what surrounds the sets
_SET_GAS = 40_000
_NODE_GAS = 36_000  # membership, a first credit
_REQUESTER_GAS = 24_000  # a first credit
_ITEM_GAS = 18_000
_SIGNATURE_GAS = 7_000
_BYTE_GAS = 40  # of calldata by EIP-7623, which is more than copying, hashing and logging it costs
_CALLBACK_GAS = 16_000
_PROOF_GAS = 6_000
_WORD = 32


@dataclass(frozen=True, slots=True)
class Load:
    """What an item of a batch asks of its transaction.

    Args:
        set_key: items of equal keys share a set.
        nodes: how many nodes signed it.
        requester: who is refunded.
        result_bytes: of an answer that is delivered inline, else 0.
        proof_bytes: of a proof for a verifier.
        callback_gas: what the requester's contract may use.
        verifier_gas: what its verifier is counted with.
    """

    set_key: Hashable
    nodes: int
    requester: Address
    result_bytes: int = 0
    proof_bytes: int = 0
    callback_gas: int = 0
    verifier_gas: int = 0


def required_answer_bytes(request: Request) -> int:
    """Most bytes of an answer that must go on-chain, since a contract is called with them; 0 when none must."""
    return answer_bytes(request.max_output_tokens) if request.inline_result and request.callback_gas else 0


def answer_bytes(max_output_tokens: int) -> int:
    """Most bytes of an answer of so many tokens, where its length must be bounded."""
    return ANSWER_OVERHEAD_BYTES + max_output_tokens * ANSWER_BYTES_PER_TOKEN


def counted_verifier_gas(verifier: Address, attested_key_verifier: Address, terms: MarketTerms) -> int:
    """Gas that a request's verifier is counted with: a foreign one may use all that the market gives it."""
    if verifier == ZERO_ADDRESS:
        return 0
    return ATTESTED_VERIFIER_GAS if verifier == attested_key_verifier else terms.verifier_gas


def call_out_gas(callback_gas: int, verifier_gas: int) -> int:
    """Gas that settlement may charge for a request's callback and verifier, above the item's own."""
    return verifier_gas + (callback_gas + _CALLBACK_CHARGE_GAS if callback_gas else 0)


def fits_alone(callback_gas: int, verifier_gas: int, answer_bytes: int, nodes: int = 1) -> bool:
    """Whether a request of these terms can be settled in a transaction of its own, whatever is answered."""
    proof_bytes = MAX_PROOF_BYTES if verifier_gas else 0
    load = Load("", nodes, ZERO_ADDRESS, answer_bytes, proof_bytes, callback_gas, verifier_gas)
    return batch_gas([load]) <= MAX_BATCH_GAS and batch_bytes([load]) <= MAX_BATCH_BYTES


def batch_gas(loads: Sequence[Load]) -> int:
    """Gas limit with which a batch of these items has enough at every step."""
    sets = _sets_of(loads)
    gas = _TRANSACTION_GAS + sum(_SET_GAS + _NODE_GAS * nodes for nodes in sets.values())
    gas += _REQUESTER_GAS * len({(load.set_key, load.requester) for load in loads})
    return gas + sum(_item_gas(load) for load in loads) + spare_gas(loads)


def spare_gas(loads: Sequence[Load]) -> int:
    """Gas that must be left beyond what is used: the market wants a call's whole gas, and the 1/64 that the caller of a
    call keeps, before it makes the call."""
    callback = max((load.callback_gas for load in loads), default=0)
    spare = _kept_of(callback) + _CALLBACK_SPARE_GAS if callback else 0
    if any(load.verifier_gas for load in loads):
        # A verifier that is counted with little is offered as much as any.
        spare = max(spare, MARKET_VERIFIER_GAS + _kept_of(MARKET_VERIFIER_GAS) + _VERIFIER_SPARE_GAS)
    return spare


def unused_gas(loads: Sequence[Load]) -> int:
    """Gas that a batch's limit must have above what a simulation used: its call-outs may use more the next time."""
    return sum(load.callback_gas + load.verifier_gas for load in loads) + spare_gas(loads)


def retry_gas(callback_gas: int) -> int:
    """Gas that a `retryCallback` must have above what a simulation used: the market gives no less than at first."""
    return callback_gas + _kept_of(callback_gas) + _CALLBACK_SPARE_GAS


def result_bytes(nodes: int, answer_bytes: int) -> int:
    """Bytes of a batch's calldata that a result adds, by those that signed it and what of its answer goes on-chain."""
    return _WORD * (9 + 5 * nodes) + answer_bytes


def batch_bytes(loads: Sequence[Load]) -> int:
    """Bytes of a batch's calldata, with what its transaction has around it."""
    total = 512 + sum(512 + 2 * _WORD * nodes for nodes in _sets_of(loads).values())
    # A set in which one item has bytes has an entry for each of its items: an offset, a length, the bytes in words.
    with_results = {load.set_key for load in loads if load.result_bytes}
    with_proofs = {load.set_key for load in loads if load.proof_bytes}
    for load in loads:
        total += result_bytes(load.nodes, 0)
        total += 3 * _WORD + load.result_bytes if load.set_key in with_results else 0
        total += 3 * _WORD + load.proof_bytes if load.set_key in with_proofs else 0
    return total


def fitting(loads: Sequence[Load], max_gas: int = MAX_BATCH_GAS, max_bytes: int = MAX_BATCH_BYTES) -> int:
    """How many of these items, from the first on, fit into one transaction."""
    low, high = 0, len(loads)
    while low < high:
        middle = (low + high + 1) // 2
        fits = batch_gas(loads[:middle]) <= max_gas and batch_bytes(loads[:middle]) <= max_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _item_gas(load: Load) -> int:
    gas = _ITEM_GAS + _SIGNATURE_GAS * load.nodes + _BYTE_GAS * (load.result_bytes + load.proof_bytes)
    gas += load.callback_gas + _CALLBACK_GAS if load.callback_gas else 0
    return gas + (load.verifier_gas + _PROOF_GAS if load.verifier_gas else 0)


def _kept_of(gas: int) -> int:
    """What the caller keeps of a call with so much gas: 1/64 of what there is (EIP-150)."""
    return gas // 63


def _sets_of(loads: Sequence[Load]) -> Mapping[Hashable, int]:
    return {load.set_key: load.nodes for load in loads}
