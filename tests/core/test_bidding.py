"""Bids: what pools take as a replacement, what is never exceeded, and when a nonce is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bidding import Bid, BidPolicy, Move, higher_bid, market_bid, next_move
from headrace.core.types import GasQuote

GWEI = 10**9
POLICY = BidPolicy()
QUOTE = GasQuote(base_fee_wei=10 * GWEI, tip_wei=GWEI)
MARKET = market_bid(QUOTE)

fees = st.integers(0, 10**15)
quotes = st.builds(GasQuote, base_fee_wei=fees, tip_wei=st.integers(1, 10**13))


@st.composite
def bids(draw: st.DrawFn) -> Bid:
    tip_wei = draw(st.integers(1, 10**13))
    return Bid(tip_wei + draw(fees), tip_wei)


def move(policy: BidPolicy = POLICY, **changes: object) -> tuple[Move, Bid | None]:
    facts = {
        "quote": QUOTE,
        "last": MARKET,
        "attempts": 1,
        "waited_ms": 10**9,
        "left_ms": None,
        "is_cancelling": False,
        "most_fee_wei": None,
    }
    verdict = next_move(policy, **{**facts, **changes})  # type: ignore[arg-type]
    return verdict.move, verdict.bid


def test_market_bid__six_full_blocks_in_a_row__still_pays() -> None:
    base_fee_wei = QUOTE.base_fee_wei
    for _ in range(5):
        base_fee_wei = base_fee_wei * 9 // 8
    assert MARKET.max_fee_wei - MARKET.tip_wei >= base_fee_wei


@given(bids(), quotes)
def test_higher_bid__any_market__is_what_every_pool_takes(last: Bid, quote: GasQuote) -> None:
    bid = higher_bid(last, quote)
    # geth wants a tenth more of both, rounded down; others an eighth.
    assert bid.max_fee_wei * 8 >= last.max_fee_wei * 9
    assert bid.tip_wei * 8 >= last.tip_wei * 9
    assert bid.max_fee_wei >= market_bid(quote).max_fee_wei
    assert bid.tip_wei >= quote.tip_wei
    assert bid.max_fee_wei >= bid.tip_wei
    assert bid.max_fee_wei >= quote.price_wei


@given(
    quotes,
    bids(),
    st.integers(1, 30),
    st.integers(0, 200_000),
    st.none() | st.integers(-1_000, 10**6),
    st.booleans(),
    st.none() | fees,
)
def test_next_move__anything__keeps_its_bounds(
    quote: GasQuote,
    last: Bid,
    attempts: int,
    waited_ms: int,
    left_ms: int | None,
    is_cancelling: bool,
    most_fee_wei: int | None,
) -> None:
    verdict = next_move(
        POLICY, quote, last, attempts, waited_ms, left_ms, is_cancelling=is_cancelling, most_fee_wei=most_fee_wei
    )
    assert (verdict.bid is not None) == (verdict.move in (Move.REPLACE, Move.CANCEL))
    if verdict.bid is None:
        return
    assert waited_ms >= POLICY.least_pause_ms
    is_over = is_cancelling or (left_ms is not None and left_ms <= 0)
    assert (verdict.move is Move.CANCEL) == is_over
    market = market_bid(quote).max_fee_wei
    if is_over:
        assert verdict.bid.max_fee_wei <= 10 * market
    else:
        assert verdict.bid.max_fee_wei <= 5 * market
        assert most_fee_wei is None or verdict.bid.max_fee_wei <= most_fee_wei
        assert attempts < POLICY.max_attempts


@pytest.mark.parametrize(
    ("left_ms", "pause_ms"),
    [(None, 45_000), (10**9, 45_000), (120_000, 20_000), (36_000, 6_000), (1, 6_000), (0, 6_000), (-5, 6_000)],
)
def test_next_move__waits__for_a_part_of_the_time_left(left_ms: int | None, pause_ms: int) -> None:
    assert move(waited_ms=pause_ms - 1, left_ms=left_ms)[0] is Move.WAIT
    assert move(waited_ms=pause_ms, left_ms=left_ms)[0] in (Move.REPLACE, Move.CANCEL)


def test_next_move__market_fell__holds_rather_than_pay_many_times_of_it() -> None:
    fallen = GasQuote(base_fee_wei=GWEI // 10, tip_wei=GWEI // 100)
    assert move(quote=fallen) == (Move.HOLD, None)
    # To give the nonce up, more is allowed: others wait behind it.
    assert move(quote=GasQuote(GWEI, GWEI // 10), left_ms=None)[0] is Move.HOLD
    assert move(quote=GasQuote(GWEI + GWEI // 3, GWEI // 10), left_ms=0)[0] is Move.CANCEL


def test_next_move__worth_less_than_the_gas__holds() -> None:
    bid = higher_bid(MARKET, QUOTE)
    assert move(most_fee_wei=bid.max_fee_wei) == (Move.REPLACE, bid)
    assert move(most_fee_wei=bid.max_fee_wei - 1) == (Move.HOLD, None)


def test_next_move__many_attempts_at_the_markets_price__raises_the_alarm() -> None:
    assert move(attempts=POLICY.max_attempts - 1)[0] is Move.REPLACE
    assert move(attempts=POLICY.max_attempts) == (Move.ALARM, None)
    assert move(attempts=POLICY.max_attempts, left_ms=0)[0] is Move.CANCEL


def test_next_move__began_to_cancel__does_not_go_back() -> None:
    assert move(is_cancelling=True, left_ms=10**6)[0] is Move.CANCEL
