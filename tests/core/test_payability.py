"""What the market would not pay, whoever would settle it, is known before a node gives its word."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.payability import Standing, why_unpaid
from headrace.core.self_settlement import SelfSettlementPolicy
from headrace.core.types import ZERO_ADDRESS, Address, Assignment, GasQuote, Mode, Pending, Request
from tests.fakes import GWEI, NODE, RELAYER, START_S, TERMS, make_request

DAY_S = TERMS.probation_duration_s
CAP_WEI = TERMS.probation_max_reward_wei
OWNER: Address = "0x" + "0d" * 20
STANDING = Standing(OWNER, START_S - DAY_S, TERMS.probation_settled_count, True, GasQuote(GWEI, GWEI), START_S)
REQUEST = make_request(max_reward_wei=10 * CAP_WEI)
DEADLINE_S = REQUEST.deadline_s
WORD = Assignment("0x" + "12" * 32, RELAYER, NODE, 3, CAP_WEI, DEADLINE_S)
POLICY = SelfSettlementPolicy()


def why(
    standing: Standing = STANDING,
    *,
    word: Assignment = WORD,
    request: Request = REQUEST,
    pending: Pending | None = None,
    policy: SelfSettlementPolicy | None = POLICY,
) -> str:
    return why_unpaid(TERMS, policy, word, request, standing, pending or Pending(0, DEADLINE_S), 0)


def test_why_unpaid__all_is_well__nothing() -> None:
    assert why() == ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"payee": ZERO_ADDRESS}, "not in the market"),
        ({"relayer_is_bonded": False}, f"the relayer {RELAYER} has no bond"),
    ],
)
def test_why_unpaid__node_or_relayer_out__says_who(changes: dict[str, object], says: str) -> None:
    assert says in why(replace(STANDING, **changes))  # type: ignore[arg-type]


def test_why_unpaid__cancelled_since__its_end_counts() -> None:
    assert "cancelled" in why(pending=Pending(0, DEADLINE_S - 1))
    assert why(pending=Pending(0, DEADLINE_S)) == ""


@given(
    settled=st.integers(0, 2 * TERMS.probation_settled_count),
    age_s=st.integers(0, 2 * DAY_S) | st.sampled_from([DAY_S - 1, DAY_S]),
    reward_wei=st.sampled_from([CAP_WEI - 1, CAP_WEI, CAP_WEI + 1, 2 * CAP_WEI]),
)
def test_why_unpaid__probation__as_the_market_caps_it(settled: int, age_s: int, reward_wei: int) -> None:
    """`Results._contextOf`: either bar alone keeps a node on probation."""
    standing = replace(STANDING, settled_count=settled, joined_at_s=START_S - age_s)
    is_capped = settled < TERMS.probation_settled_count or age_s < DAY_S
    found = why(standing, word=replace(WORD, reward_wei=reward_wei))
    assert ("on probation" in found) is (is_capped and reward_wei > CAP_WEI)


# Alone

POOR = make_request(gas_budget_wei=0, priority_fee_wei=0)
DEAR = replace(STANDING, gas=GasQuote(100 * GWEI, GWEI))


def test_why_unpaid__relayer_gone_would_cost_more_than_it_brings__refused_unless_the_operator_takes_it() -> None:
    assert "without the relayer would bring in 1000000000000000 wei" in why(DEAR, request=POOR)
    assert why(DEAR, request=POOR, policy=SelfSettlementPolicy(min_return_bps=0)) == ""
    assert why(DEAR, request=POOR, policy=None) == ""


def test_why_unpaid__just_what_it_costs__is_enough() -> None:
    cost_wei = TERMS.assigned_gas * STANDING.gas.price_wei
    for short_wei, is_paid in ((0, True), (1, False)):
        word = replace(WORD, reward_wei=cost_wei - short_wei)
        assert (why(word=word, request=POOR) == "") is is_paid


def test_why_unpaid__raises_of_the_fee__count() -> None:
    cost_wei = TERMS.assigned_gas * STANDING.gas.price_wei
    word = replace(WORD, reward_wei=1)
    assert why(word=word, request=POOR, pending=Pending(cost_wei - 1, DEADLINE_S)) == ""
    assert why(word=word, request=POOR, pending=Pending(cost_wei - 2, DEADLINE_S)) != ""


@pytest.mark.parametrize("changes", [{"mode": Mode.QUORUM, "k": 2, "n": 3}, {"relayer": ZERO_ADDRESS}])
def test_why_unpaid__nothing_that_a_node_settles_alone__the_relayers_cost(changes: dict[str, object]) -> None:
    assert why(DEAR, request=replace(POOR, **changes)) == ""  # type: ignore[arg-type]


def test_why_unpaid__callback_and_its_bytes__cost_gas_too() -> None:
    """Both are paid for by the gas budget, as far as it goes."""
    calls = replace(POOR, inline_result=True, callback_gas=1_000_000)
    word = replace(WORD, reward_wei=TERMS.assigned_gas * STANDING.gas.price_wei)
    assert why(word=word, request=calls) != ""
    assert why(word=word, request=replace(calls, gas_budget_wei=1_200_000 * STANDING.gas.price_wei)) == ""
