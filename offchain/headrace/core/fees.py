"""Who is paid what: the market's arithmetic, and the price of a request at a node.

Integers throughout, divisions rounded down, so that every part agrees with `InferenceMarket._pay` to the wei.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.types import GasQuote, MarketTerms, Price, Request

BPS = 10_000
KIB = 1024
THOUSAND_TOKENS = 1000


# Gas of `requestInferenceFor` with a key's signature, and of each byte of a prompt that is published. Bytes make the
# price of the calldata (EIP-7623) overtake that of the work. tests/adapters/test_posting_gas.py holds both to a chain.
_POSTING_GAS, _POSTING_GAS_PER_BYTE = 77_500, 26
_POSTING_FLOOR_GAS, _POSTING_FLOOR_GAS_PER_BYTE = 37_000, 40


@dataclass(frozen=True, slots=True)
class Payout:
    """How an escrow is split at settlement; the three parts add up to it. `node_wei` is of all paid nodes together."""

    node_wei: int
    relayer_wei: int
    refund_wei: int


def reward_wei(price: Price, prompt_bytes: int, max_output_tokens: int) -> int:
    """What a node asks for a request: started KiB of prompt and started thousands of output tokens, at its price."""
    kib = -(-prompt_bytes // KIB)
    thousands = -(-max_output_tokens // THOUSAND_TOKENS)
    return kib * price.per_prompt_kib_wei + thousands * price.per_thousand_tokens_wei


def is_on_probation(terms: MarketTerms, settled_count: int, joined_at_s: int, now_s: int) -> bool:
    """Whether the market caps a node's reward.

    Args:
        terms: the market's numbers.
        settled_count: results that were settled for the node's payee.
        joined_at_s: since when the node is in the market.
        now_s: time of the block that settles, or of an earlier one to be sure.
    """
    return settled_count < terms.probation_settled_count or now_s < joined_at_s + terms.probation_duration_s


def charged_gas(terms: MarketTerms, batch_size: int, result_bytes: int, nodes: int = 1, set_size: int = 1) -> int:
    """Gas that the market pays a relayer for one item of a batch of `batch_size`, as `Results._contextOf` counts it.

    Args:
        terms: the market's numbers.
        batch_size: items in the transaction, at least 1.
        result_bytes: bytes delivered inline, 0 for a result by hash.
        nodes: 1, or the nodes of a quorum.
        set_size: items of the same nodes in the transaction, who share what further nodes cost; at least 1.
    """
    further = terms.node_gas * (nodes - 1) // set_size
    return terms.fixed_gas // batch_size + terms.item_gas + further + terms.gas_per_result_byte * result_bytes


def charged_gas_price_wei(terms: MarketTerms, quote: GasQuote) -> int:
    """Wei a gas that the market pays: what the transaction pays, at most `tip_cap` above the base fee."""
    return quote.base_fee_wei + min(quote.tip_wei, terms.tip_cap_wei)


def posting_gas(published_bytes: int) -> int:
    """Gas of posting a request for its requester.

    Args:
        published_bytes: of a prompt that is published on-chain, else 0.
    """
    work = _POSTING_GAS + _POSTING_GAS_PER_BYTE * published_bytes
    return max(work, _POSTING_FLOOR_GAS + _POSTING_FLOOR_GAS_PER_BYTE * published_bytes)


def payout(
    terms: MarketTerms,
    request: Request,
    priority_fee_added_wei: int,
    reward: int,
    gas_charge_wei: int,
    nodes: int = 1,
) -> Payout:
    """Split the escrow of a settled request. What does not divide by the nodes of a quorum is the requester's.

    Args:
        terms: the market's numbers.
        request: the settled request.
        priority_fee_added_wei: what raises added to its priority fee.
        reward: wei promised to each node, together at most the request's maximum.
        gas_charge_wei: gas by formula times price, before the cap of the gas budget.
        nodes: 1, or the nodes of a quorum.
    """
    fee = request.priority_fee_wei + priority_fee_added_wei
    gas = min(request.gas_budget_wei, gas_charge_wei)
    saving = (request.gas_budget_wei - gas) * terms.relayer_saving_share_bps // BPS
    relayer_fee = fee * terms.relayer_fee_share_bps // BPS
    node = (reward + (fee - relayer_fee) // nodes) * nodes
    relayer = gas + saving + relayer_fee
    return Payout(node, relayer, request.escrow_wei + priority_fee_added_wei - node - relayer)
