"""What gas will cost: base fees to come, data on rollups, blocks to come, results to come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.arrivals import HALF_LIFE_MS, MOST_MODELS, Arrivals
from headrace.core.base_fee import bounds_wei, next_base_fee_wei
from headrace.core.block_clock import BlockClock
from headrace.core.gas_model import Arbitrum, Ethereum, OpStack

GWEI = 10**9
FEES = st.integers(0, 10**13)
LIMITS = st.integers(10_000, 10**9)


# Base fees


@pytest.mark.parametrize(
    ("base_fee", "used", "limit", "expected"),
    [
        # go-ethereum, consensus/misc/eip1559: TestCalcBaseFee
        (10**9, 10_000_000, 20_000_000, 10**9),
        (10**9, 9_000_000, 20_000_000, 987_500_000),
        (10**9, 11_000_000, 20_000_000, 1_012_500_000),
        (7, 20_000_000, 20_000_000, 8),
        (0, 20_000_000, 20_000_000, 1),
    ],
)
def test_next_base_fee__is_geths(base_fee: int, used: int, limit: int, expected: int) -> None:
    assert next_base_fee_wei(base_fee, used, limit) == expected


@given(FEES, LIMITS, st.lists(st.floats(0, 1), max_size=6))
def test_bounds__hold_for_any_blocks(base_fee: int, limit: int, shares: list[float]) -> None:
    fee = base_fee
    for number, share in enumerate(shares, 1):
        limit -= limit % 2
        fee = next_base_fee_wei(fee, int(limit * share), limit)
        least, most = bounds_wei(base_fee, number)
        assert least <= fee <= most


@given(FEES, st.integers(0, 4))
def test_bounds__are_met_by_empty_and_by_full_blocks(base_fee: int, blocks: int) -> None:
    least = most = base_fee
    for _ in range(blocks):
        least, most = next_base_fee_wei(least, 0, 30_000_000), next_base_fee_wei(most, 30_000_000, 30_000_000)
    assert bounds_wei(base_fee, blocks) == (least, most)


# Data of rollups


def test_data__ethereum__has_no_fee_of_its_own() -> None:
    assert (Ethereum().data_fee_wei(b"\1" * 1000), Ethereum().byte_fee_wei()) == (0, 0)


def test_data__op_stack__is_at_least_what_the_chain_takes_and_grows_with_the_size() -> None:
    """The numbers are of the specification's formula: size · (16 · scalar · base + scalar · blob) / 10¹²."""
    model = OpStack(10 * GWEI, 2 * GWEI, 5_227, 1_014_213)
    weighted = 16 * 5_227 * 10 * GWEI + 1_014_213 * 2 * GWEI
    assert model.data_fee_wei(b"") == -(-100 * 10**6 * weighted // 10**12)
    size = 1000 + 1000 // 255 + 16
    assert model.data_fee_wei(b"\1" * 1000) == -(-(836_500 * size - 42_585_600) * weighted // 10**12)
    assert model.byte_fee_wei() == -(-836_500 * weighted // 10**12)
    assert model.ecotone_fee_wei(b"\1" * 10 + b"\0" * 8) == -(-(160 + 32) * weighted // (16 * 10**6))


def test_data__arbitrum__is_by_byte_and_by_transaction() -> None:
    assert Arbitrum(7, 1_000).data_fee_wei(b"\0" * 100) == 1_700
    assert Arbitrum(7, 1_000).byte_fee_wei() == 7


# Blocks


def clock_of(*blocks: tuple[int, int]) -> BlockClock:
    clock = BlockClock()
    for number, timestamp_s in blocks:
        clock.note(number, timestamp_s)
    return clock


def test_block_clock__slots_of_twelve_seconds_one_of_them_empty() -> None:
    clock = clock_of((1, 0), (2, 12), (3, 36), (4, 48), (5, 60))
    assert (clock.interval_ms, clock.last_block_ms) == (12_000, 60_000)


def test_block_clock__blocks_that_were_not_seen__are_counted() -> None:
    assert clock_of((1, 0), (4, 36), (5, 48), (9, 96)).interval_ms == 12_000


def test_block_clock__few_or_as_transactions_come__tells_nothing() -> None:
    assert BlockClock().interval_ms == 0
    assert clock_of((1, 0), (2, 12), (3, 24)).interval_ms == 0
    assert clock_of((1, 0), (2, 5), (3, 12), (4, 40), (5, 41), (6, 44)).interval_ms == 0
    assert clock_of((1, 0), (2, 5), (3, 12), (4, 40), (5, 46)).interval_ms == 0
    assert clock_of(*((number, 7) for number in range(9))).interval_ms == 0


def test_block_clock__the_same_block_again_or_a_reorg() -> None:
    clock = clock_of((1, 0), (2, 12), (2, 12), (3, 24), (4, 36))
    assert clock.interval_ms == 12_000
    clock.note(2, 13)
    assert (clock.interval_ms, clock.last_block_ms) == (0, 13_000)


# Arrivals


def test_arrivals__a_steady_stream__is_found_within_a_few_half_lives() -> None:
    arrivals = Arrivals()
    for second in range(300):
        arrivals.note("a", second * 1000)
        if second % 2:
            arrivals.note("b", second * 1000)
    now_ms = 300_000
    assert arrivals.per_s(now_ms, "a") == pytest.approx(1.0, abs=0.03)
    assert arrivals.per_s(now_ms, "b") == pytest.approx(0.5, abs=0.03)
    assert arrivals.per_s(now_ms) == pytest.approx(1.5, abs=0.05)
    assert arrivals.per_s(now_ms, "unknown") == 0.0
    assert arrivals.chance_of_another(now_ms, 1_000) == pytest.approx(0.777, abs=0.02)


def test_arrivals__a_lone_one__says_nothing_of_another() -> None:
    arrivals = Arrivals()
    assert arrivals.chance_of_another(0, 10_000) == 0.0
    arrivals.note("a", 10_000)
    assert arrivals.chance_of_another(10_000, 36_000) == 0.0
    arrivals.note("b", 12_000)
    assert arrivals.chance_of_another(12_000, 36_000) > 0.3


def test_arrivals__a_stream_ends__is_forgotten_by_half_lives() -> None:
    arrivals = Arrivals()
    for second in range(300):
        arrivals.note("a", second * 1000)
    now = arrivals.per_s(300_000)
    assert arrivals.per_s(300_000 + HALF_LIFE_MS) == pytest.approx(now / 2)
    assert arrivals.chance_of_another(10**9, 10_000) == pytest.approx(0.0, abs=1e-9)


def test_arrivals__time_goes_back__counts_still() -> None:
    arrivals = Arrivals()
    arrivals.note("a", 10_000)
    arrivals.note("a", 5_000)
    assert arrivals.per_s(10_000) == pytest.approx(2 * arrivals.per_s(10_000 + HALF_LIFE_MS))


def test_arrivals__too_many_models__the_quietest_is_forgotten() -> None:
    arrivals = Arrivals()
    arrivals.note("old", 0)
    for number in range(MOST_MODELS):
        arrivals.note(f"model {number}", 1_000)
    assert arrivals.per_s(1_000, "old") == 0.0
    assert arrivals.per_s(1_000, "model 0") > 0.0
