from __future__ import annotations

import json

import pytest

from tests.contracts.gas.measure import GAS_TERMS, SNAPSHOT, TARGETS, GasBench, gas_terms

SNAPSHOT_TOLERANCE = 0.01  # a seeded run differs by the zero bytes of times and addresses only
SIZES = (1, 8, 32, 50)


@pytest.fixture(scope="module")
def bench(project, chain, accounts):
    return GasBench(project, chain, accounts)


@pytest.fixture(scope="module")
def rows(bench):
    return bench.rows()


@pytest.fixture(scope="module")
def spent(bench):
    """What a relayer spends on batches of some sizes, their rounds' records included."""
    return {size: bench.settle_with_record(size) for size in SIZES}


@pytest.mark.parametrize("row", TARGETS)
def test_gas__each_row__is_within_its_target(rows, row):
    assert rows[row].gas_per_item <= TARGETS[row]


def test_gas__snapshot__has_all_rows_and_these_targets():
    snapshot = json.loads(SNAPSHOT.read_text())
    assert {name: row["target"] for name, row in snapshot.items()} == TARGETS


@pytest.mark.parametrize("row", TARGETS)
def test_gas__each_row__is_what_the_snapshot_says(rows, row):
    """When it is not, and should not be: `ape run bench_gas --update`."""
    snapshot = json.loads(SNAPSHOT.read_text())[row]
    assert rows[row].gas_per_item == pytest.approx(snapshot["gas_per_item"], rel=SNAPSHOT_TOLERANCE)
    assert rows[row].gas_total == pytest.approx(snapshot["gas_total"], rel=SNAPSHOT_TOLERANCE)


@pytest.mark.parametrize("size", SIZES)
def test_gas_terms__batch_and_its_record__pay_what_was_spent(spent, size):
    """Else relayers lose on a batch, or earn by padding it. The terms are in scripts/_gas_terms.json."""
    terms, tolerance = gas_terms(), json.loads(GAS_TERMS.read_text())["tolerance"]
    assert terms.fixed + size * terms.item == pytest.approx(spent[size], rel=tolerance)


@pytest.mark.parametrize("size", SIZES)
def test_gas_terms__quorum_of_two_and_its_record__pay_what_was_spent(bench, size):
    terms, tolerance = gas_terms(), json.loads(GAS_TERMS.read_text())["tolerance"]
    spent = bench.settle_with_record(size, quorum=True)
    assert terms.fixed + terms.node + size * terms.item == pytest.approx(spent, rel=tolerance)


def test_gas_terms__self_settlement__pays_what_was_spent(bench):
    terms, tolerance = gas_terms(), json.loads(GAS_TERMS.read_text())["tolerance"]
    assert terms.assigned == pytest.approx(bench.settle_assigned(), rel=tolerance)


@pytest.mark.parametrize("size", [8, 50])
def test_gas_terms__callback__pays_what_it_costs(bench, size):
    """Its consumer's own gas is measured, so only what is beside it has to be right."""
    cost = (bench.callbacks(size) - bench.callbacks(size, called=False)) / size
    assert bench.paid_for_callback(size) == pytest.approx(cost, rel=0.05)


def test_gas__larger_batches__cost_less_an_item(spent):
    per_item = [spent[size] / size for size in SIZES]
    assert per_item == sorted(per_item, reverse=True)


def test_gas__an_item_more__costs_the_same_in_any_batch(bench):
    """Nothing an item does may grow with the batch."""
    totals = {size: bench.settle(size) for size in (10, 20, 90, 100)}
    small, large = totals[20] - totals[10], totals[100] - totals[90]
    assert large == pytest.approx(small, rel=0.01)


def test_gas__batch_of_400__fits_a_transaction_and_costs_less_still(bench):
    """EIP-7825 holds a transaction to 16,777,216 gas."""
    posted = [p for _ in range(8) for p in bench._post(50)[0]]
    round_, _ = bench._record(400)
    gas = bench._submit([bench._item(p) for p in posted], round_)
    assert gas < 2**24
    assert gas / 400 < 14_100
