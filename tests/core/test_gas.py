"""The laws of counting a settlement's gas; that the counts are bounds, `tests/adapters/test_gas_bounds.py` shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.gas import (
    ATTESTED_VERIFIER_GAS,
    MARKET_VERIFIER_GAS,
    MAX_BATCH_BYTES,
    MAX_BATCH_GAS,
    Load,
    batch_bytes,
    batch_gas,
    call_out_gas,
    counted_verifier_gas,
    fits_alone,
    fitting,
    required_answer_bytes,
    spare_gas,
)
from headrace.core.guard import MAX_TRANSACTION_GAS
from headrace.core.types import ZERO_ADDRESS
from tests.core.strategies import address_number
from tests.fakes import TERMS, make_request

loads = st.builds(
    Load,
    set_key=st.integers(0, 3),
    nodes=st.just(1),
    requester=st.integers(1, 5).map(address_number),
    result_bytes=st.sampled_from([0, 0, 1, 5_000, 60_000]),
    proof_bytes=st.sampled_from([0, 65]),
    callback_gas=st.sampled_from([0, 1, 100_000, 2_000_000]),
    verifier_gas=st.sampled_from([0, 25_000, 400_000]),
)
batches = st.lists(loads, max_size=60)


@given(batches, loads)
def test_batch__one_more_item__counts_for_all_that_it_may_use(batch: list[Load], load: Load) -> None:
    more = [*batch, load]
    used = load.callback_gas + load.verifier_gas + 40 * (load.result_bytes + load.proof_bytes)
    assert batch_gas(more) >= batch_gas(batch) + used
    assert batch_bytes(more) >= batch_bytes(batch) + load.result_bytes + load.proof_bytes


@given(batches)
def test_batch__in_any_order__counts_the_same(batch: list[Load]) -> None:
    assert batch_gas(batch) == batch_gas(batch[::-1])
    assert batch_bytes(batch) == batch_bytes(batch[::-1])


@given(batches)
def test_fitting__is_the_longest_beginning_that_fits(batch: list[Load]) -> None:
    count = fitting(batch)
    assert batch_gas(batch[:count]) <= MAX_BATCH_GAS or count == 0
    assert batch_bytes(batch[:count]) <= MAX_BATCH_BYTES
    if count < len(batch):
        longer = batch[: count + 1]
        assert batch_gas(longer) > MAX_BATCH_GAS or batch_bytes(longer) > MAX_BATCH_BYTES


@given(batches)
def test_fitting__first_item_fits_alone__is_at_least_that_one(batch: list[Load]) -> None:
    fitting_alone = [each for each in batch if fits_alone(each.callback_gas, each.verifier_gas, each.result_bytes)]
    assert fitting(fitting_alone) >= min(1, len(fitting_alone))


@given(batches)
def test_gas__before_each_call__is_what_the_market_wants(batch: list[Load]) -> None:
    """Whatever all others used, the gas of a call, the 1/63 of it and the overhead are left for it."""
    spare = spare_gas(batch)
    for load in batch:
        if load.callback_gas:
            assert spare >= load.callback_gas // 63 + 10_000
        if load.verifier_gas:
            assert spare >= MARKET_VERIFIER_GAS + MARKET_VERIFIER_GAS // 63 + 50_000


def test_fitting__plain_results__are_hundreds() -> None:
    plain = Load((1, "node"), 1, address_number(1))
    assert fitting([plain] * 500) >= 250
    assert fitting([replace(plain, requester=address_number(number)) for number in range(1, 500)]) >= 200


def test_limits__leave_room_below_those_of_the_chain() -> None:
    assert MAX_BATCH_GAS < MAX_TRANSACTION_GAS == 1 << 24
    assert MAX_BATCH_BYTES < 128 * 1024


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0),
        ({"inline_result": True}, 0),
        ({"callback_gas": 1}, 0),
        ({"inline_result": True, "callback_gas": 1}, 512 + 8 * 100),
    ],
)
def test_required_answer_bytes__only_a_callback_that_wants_bytes_needs_them(
    changes: dict[str, object], expected: int
) -> None:
    assert required_answer_bytes(make_request(**changes)) == expected


def test_call_out_gas__counts_the_overhead_of_a_callback_that_there_is() -> None:
    assert call_out_gas(0, 0) == 0
    assert call_out_gas(5, 0) == 10_005
    assert call_out_gas(0, 7) == 7


def test_counted_verifier_gas__a_foreign_verifier__may_use_all_that_it_gets() -> None:
    own, foreign = address_number(1), address_number(2)
    assert counted_verifier_gas(ZERO_ADDRESS, own, TERMS) == 0
    assert counted_verifier_gas(own, own, TERMS) == ATTESTED_VERIFIER_GAS
    assert counted_verifier_gas(foreign, own, TERMS) == TERMS.verifier_gas


def test_fits_alone__longest_callback_and_dearest_verifier__fit() -> None:
    assert fits_alone(TERMS.max_callback_gas, TERMS.verifier_gas, 0)
    assert not fits_alone(1, 0, MAX_BATCH_BYTES)
