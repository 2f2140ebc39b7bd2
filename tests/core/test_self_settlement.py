"""Settling by the node itself: in its window only, for what brings in its gas, and never under two nonces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.self_settlement import (
    SelfSettlementPolicy,
    Settlement,
    SettlementState,
    Step,
    free_nonce,
    is_miss_provable,
    is_worth,
    next_step,
    pay_wei,
    payloads_to_try,
    why_never,
)
from headrace.core.types import ZERO_ADDRESS, GasQuote, MarketTerms, Mode, Pending, Request, Status
from tests.core.strategies import quotes, requests, terms, uints
from tests.fakes import RELAYER, TERMS, make_request

GRACE_S = 300
DEADLINE_S = 1_000_000
POLICY = SelfSettlementPolicy()
WATCHED = Settlement("0x" + "11" * 32, SettlementState.WATCHED, DEADLINE_S, "", 0, "", -1, b"", 0, ())
OPEN = replace(WATCHED, state=SettlementState.OPEN, payer="0x" + "aa" * 20, nonce=4, data=b"\x01", gas_limit=10**6)

times = st.integers(DEADLINE_S - 90_000, DEADLINE_S + 90_000)
settlements = st.sampled_from([WATCHED, OPEN])


def step(settlement: Settlement, status: Status, effective_s: int | None, now_s: int) -> Step:
    pending = None if effective_s is None else Pending(0, effective_s)
    return next_step(POLICY, GRACE_S, settlement, status, pending, now_s).step


@given(settlements, times, times)
def test_next_step__pending__settles_between_patience_and_the_end_of_the_grace_and_never_else(
    settlement: Settlement, effective_s: int, now_s: int
) -> None:
    late_s = now_s - effective_s
    expected = Step.WAIT if late_s <= POLICY.patience_s else Step.SETTLE if late_s <= GRACE_S else Step.END
    assert step(settlement, Status.PENDING, effective_s, now_s) is expected


@given(settlements, times)
def test_next_step__cancelled_before_its_deadline__counts_from_the_cancel(settlement: Settlement, now_s: int) -> None:
    """The market's effective deadline rules, not the one that was assigned."""
    cancelled_at_s = now_s - POLICY.patience_s - 1
    assert step(settlement, Status.PENDING, cancelled_at_s, now_s) is Step.SETTLE


@given(settlements, times)
def test_next_step__unknown_request__is_waited_for_until_its_own_grace_is_over(
    settlement: Settlement, now_s: int
) -> None:
    """A reorg may have taken its block, or the chain's node may be behind."""
    expected = Step.WAIT if now_s <= DEADLINE_S + GRACE_S else Step.END
    assert step(settlement, Status.NONE, None, now_s) is expected
    # Its status and the rest of its word may be of two blocks.
    assert step(settlement, Status.PENDING, None, now_s) is expected


@given(settlements, times, st.sampled_from([Status.FULFILLED, Status.FULFILLED_CALLBACK_FAILED]))
def test_next_step__settled__ends_whatever_the_time(settlement: Settlement, now_s: int, status: Status) -> None:
    verdict = next_step(POLICY, GRACE_S, settlement, status, None, now_s)
    assert (verdict.step, verdict.state) == (Step.END, SettlementState.SETTLED)


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.EXPIRED])
def test_next_step__given_back__ends_with_the_reason(status: Status) -> None:
    verdict = next_step(POLICY, GRACE_S, WATCHED, status, None, DEADLINE_S)
    assert (verdict.step, verdict.state) == (Step.END, SettlementState.GIVEN_UP)
    assert status.name.lower() in verdict.detail


@pytest.mark.parametrize(
    ("settlement", "says"),
    [
        (WATCHED, "it was not settled by the end of the grace"),
        (replace(WATCHED, detail="gas was dear"), "gas was dear by the end of the grace"),
        (replace(OPEN, detail="gas was dear"), "no transaction of it was in a block by the end"),
    ],
)
def test_next_step__grace_over__says_why_it_was_not_settled(settlement: Settlement, says: str) -> None:
    now_s = DEADLINE_S + GRACE_S + 1
    verdict = next_step(POLICY, GRACE_S, settlement, Status.PENDING, Pending(0, DEADLINE_S), now_s)
    assert verdict.state is SettlementState.GIVEN_UP
    assert says in verdict.detail


def test_next_step__reverted_too_often__burns_no_more_gas() -> None:
    now_s = DEADLINE_S + POLICY.patience_s + 1
    tried = replace(WATCHED, reverts=POLICY.max_reverts, detail="transaction 0x12 reverted")
    assert step(replace(tried, reverts=POLICY.max_reverts - 1), Status.PENDING, DEADLINE_S, now_s) is Step.SETTLE
    verdict = next_step(POLICY, GRACE_S, tried, Status.PENDING, Pending(0, DEADLINE_S), now_s)
    assert (verdict.step, verdict.state) == (Step.END, SettlementState.GIVEN_UP)
    assert "3 transactions of it reverted: transaction 0x12" in verdict.detail


@given(requests)
def test_payloads_to_try__bytes_only_for_who_asked__and_always_for_a_callback_that_did(request: Request) -> None:
    tried = payloads_to_try(request, b"answer")
    assert (b"answer" in tried) is request.inline_result
    assert (b"" in tried) is not (request.inline_result and request.callback_gas > 0)
    assert tried


def test_why_never__a_quorum__is_its_relayers() -> None:
    assert [why_never(make_request(mode=mode)) is None for mode in (Mode.SIGNATURE, Mode.VERIFIER)] == [True, True]
    assert "quorum" in (why_never(make_request(mode=Mode.QUORUM, k=2, n=3)) or "")


# Money


@given(terms, requests, uints(60), st.integers(0, 5_000), st.integers(0, 500_000), quotes)
def test_pay__is_all_that_is_not_refunded__and_at_most_the_escrow(
    of_market: MarketTerms,
    request: Request,
    added: int,
    result_bytes: int,
    gas_used: int,
    quote: GasQuote,
) -> None:
    reward = request.max_reward_wei // 2
    paid = pay_wei(of_market, request, added, reward, result_bytes, gas_used, quote)
    fee = request.priority_fee_wei + added
    price = quote.base_fee_wei + min(quote.tip_wei, of_market.tip_cap_wei)
    gas = of_market.assigned_gas + 40 * result_bytes
    if request.callback_gas or request.mode is Mode.VERIFIER:
        gas = max(gas, gas_used)
    charged = min(gas * price, request.gas_budget_wei)
    saving = (request.gas_budget_wei - charged) // 10
    # The whole priority fee: 80 % as the node, 20 % as who settles.
    assert paid == reward + fee + charged + saving
    assert paid <= request.escrow_wei + added


def test_pay__a_callbacks_gas__is_paid_for_from_the_budget() -> None:
    quote = GasQuote(10**9, 10**9)
    plain, calls = make_request(), make_request(callback_gas=200_000)
    dear, cheap = (
        [pay_wei(TERMS, request, 0, 1, 0, gas_used, quote) for request in (plain, calls)]
        for gas_used in (TERMS.assigned_gas + 160_000, TERMS.assigned_gas)
    )
    assert dear[0] == cheap[0]
    assert dear[1] - cheap[1] == 160_000 * 2 * 10**9 * 9 // 10


@given(st.integers(0, 10**18), st.integers(0, 10**18), st.integers(0, 100_000))
def test_is_worth__asks_for_the_return_that_is_set(pay: int, cost: int, bps: int) -> None:
    assert is_worth(SelfSettlementPolicy(min_return_bps=bps), pay, cost) is (pay * 10_000 >= cost * bps)


def test_is_worth__a_slash_that_is_spared__counts_as_pay() -> None:
    assert is_worth(POLICY, 60, 100, spared_wei=40)
    assert not is_worth(POLICY, 60, 100, spared_wei=39)


NAMED = make_request(deadline_s=DEADLINE_S)


@pytest.mark.parametrize(
    ("request_", "relayer", "effective_s", "recorded_at_s", "it_is"),
    [
        (NAMED, RELAYER, DEADLINE_S, DEADLINE_S, True),
        (NAMED, RELAYER, DEADLINE_S, DEADLINE_S + 1, False),
        (NAMED, RELAYER, DEADLINE_S, 0, False),
        (NAMED, RELAYER, DEADLINE_S - 1, DEADLINE_S - 5, False),
        (NAMED, "0x" + "b2" * 20, DEADLINE_S, DEADLINE_S, False),
        (replace(NAMED, relayer=ZERO_ADDRESS), RELAYER, DEADLINE_S, DEADLINE_S, False),
        (replace(NAMED, mode=Mode.VERIFIER), RELAYER, DEADLINE_S, DEADLINE_S, False),
        (replace(NAMED, mode=Mode.QUORUM, k=2, n=2), RELAYER, DEADLINE_S, DEADLINE_S, False),
    ],
    ids=["provable", "recorded late", "not recorded", "cancelled", "another", "open race", "verifier", "quorum"],
)
def test_is_miss_provable__as_the_faults_contract_has_it(
    request_: Request, relayer: str, effective_s: int, recorded_at_s: int, it_is: bool
) -> None:
    assert is_miss_provable(request_, relayer, Pending(0, effective_s), recorded_at_s) is it_is


def test_is_worth__by_default__covers_its_gas() -> None:
    assert is_worth(POLICY, 100, 100)
    assert not is_worth(POLICY, 99, 100)


# Nonces


@given(st.integers(0, 50), st.sets(st.integers(0, 60)))
def test_free_nonce__is_the_lowest_that_nobody_has(mined: int, taken: set[int]) -> None:
    nonce = free_nonce(mined, taken)
    assert nonce >= mined
    assert nonce not in taken
    assert set(range(mined, nonce)) <= taken
