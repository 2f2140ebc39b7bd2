from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.fees import Payout, charged_gas, charged_gas_price_wei, payout, reward_wei
from headrace.core.types import GasQuote, MarketTerms, Price, Request
from tests.core.strategies import quotes, requests, terms, uints


@dataclass(frozen=True)
class Case:
    terms: MarketTerms
    request: Request
    added: int
    reward: int
    charge: int
    nodes: int

    def payout(self) -> Payout:
        return payout(self.terms, self.request, self.added, self.reward, self.charge, self.nodes)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    request = draw(requests)
    nodes = draw(st.sampled_from((1, 1, 2, 3, 16)))
    reward = draw(st.integers(0, request.max_reward_wei // nodes))
    return Case(draw(terms), request, draw(uints(96)), reward, draw(st.integers(0, 2**82)), nodes)


def market_pay(case: Case) -> Payout:
    """`InferenceMarket._pay`, line by line."""
    max_reward, gas_budget, fee = (
        case.request.max_reward_wei,
        case.request.gas_budget_wei,
        case.request.priority_fee_wei,
    )
    fee += case.added
    gas_paid = min(gas_budget, case.charge)
    relayer_fee = fee * 2000 // 10_000
    relayer_paid = gas_paid + (gas_budget - gas_paid) * 1000 // 10_000 + relayer_fee
    node_paid = case.reward + (fee - relayer_fee) // case.nodes
    node_paid *= case.nodes
    refund = max_reward + gas_budget + fee - node_paid - relayer_paid
    return Payout(node_paid, relayer_paid, refund)


@given(cases())
def test_payout__is_what_the_market_pays(case: Case) -> None:
    assert case.payout() == market_pay(case)


@given(cases())
def test_payout__parts__add_up_to_the_escrow_and_none_is_negative(case: Case) -> None:
    parts = case.payout()
    assert parts.node_wei + parts.relayer_wei + parts.refund_wei == case.request.escrow_wei + case.added
    assert min(parts.node_wei, parts.relayer_wei, parts.refund_wei) >= 0


@given(cases(), st.integers(0, 2**80))
def test_payout__more_gas__never_pays_the_relayer_less_nor_touches_the_node(case: Case, more: int) -> None:
    parts, other = case.payout(), replace(case, charge=case.charge + more).payout()
    assert other.relayer_wei >= parts.relayer_wei
    assert other.refund_wei <= parts.refund_wei
    assert other.node_wei == parts.node_wei


@given(cases(), st.integers(0, 2**80))
def test_payout__more_reward__moves_it_from_the_refund_to_the_node(case: Case, more: int) -> None:
    more = min(more, case.request.max_reward_wei // case.nodes - case.reward)
    parts, other = case.payout(), replace(case, reward=case.reward + more).payout()
    moved = more * case.nodes
    assert other == Payout(parts.node_wei + moved, parts.relayer_wei, parts.refund_wei - moved)


@given(cases(), st.integers(0, 2**80))
def test_payout__a_raise__reaches_node_and_relayer_only(case: Case, more: int) -> None:
    parts, other = case.payout(), replace(case, added=case.added + more).payout()
    assert other.node_wei >= parts.node_wei
    assert other.relayer_wei >= parts.relayer_wei
    # Less than a wei a node does not divide, and is the requester's.
    assert abs(other.refund_wei - parts.refund_wei) < case.nodes


@given(cases())
def test_payout__a_quorum__pays_each_node_alike(case: Case) -> None:
    parts = case.payout()
    assert parts.node_wei % case.nodes == 0
    assert parts.node_wei // case.nodes >= case.reward


@given(terms, st.integers(1, 500), st.integers(0, 10_000))
def test_charged_gas__larger_batch__costs_each_item_less_and_covers_its_share(
    market: MarketTerms, size: int, result_bytes: int
) -> None:
    gas = charged_gas(market, size, result_bytes)
    assert gas == market.fixed_gas // size + market.item_gas + 40 * result_bytes
    assert charged_gas(market, size + 1, result_bytes) <= gas
    assert charged_gas(market, size, result_bytes + 1) == gas + 40
    assert charged_gas(market, size, result_bytes, 1, size) == gas


@given(terms, st.integers(1, 500), st.integers(2, 16), st.integers(1, 500))
def test_charged_gas__further_nodes__are_paid_once_a_set(
    market: MarketTerms, batch: int, nodes: int, set_size: int
) -> None:
    one = charged_gas(market, batch, 0)
    assert charged_gas(market, batch, 0, nodes, set_size) == one + market.node_gas * (nodes - 1) // set_size
    assert charged_gas(market, batch, 0, nodes, set_size + 1) <= charged_gas(market, batch, 0, nodes, set_size)


@given(terms, quotes)
def test_charged_price__is_the_lesser_of_what_is_paid_and_the_cap(market: MarketTerms, quote: GasQuote) -> None:
    price = charged_gas_price_wei(market, quote)
    assert price == min(quote.price_wei, quote.base_fee_wei + market.tip_cap_wei)


@pytest.mark.parametrize(
    ("prompt_bytes", "tokens", "expected"),
    [(0, 0, 0), (1, 1, 103), (1024, 1000, 103), (1025, 1001, 206), (2048, 1, 203), (1, 2001, 309 - 200)],
)
def test_reward__counts_started_units(prompt_bytes: int, tokens: int, expected: int) -> None:
    assert reward_wei(Price(100, 3), prompt_bytes, tokens) == expected


@given(uints(80), uints(80), st.integers(0, 2**32 - 2), st.integers(0, 2**24 - 2))
def test_reward__longer_prompt_or_answer__never_costs_less(
    kib: int, thousand: int, prompt_bytes: int, tokens: int
) -> None:
    reward = reward_wei(Price(kib, thousand), prompt_bytes, tokens)
    assert 0 <= reward <= reward_wei(Price(kib, thousand), prompt_bytes + 1, tokens)
    assert reward <= reward_wei(Price(kib, thousand), prompt_bytes, tokens + 1)
