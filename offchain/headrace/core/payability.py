"""Whether a node that answers would be paid, by what the chain says before it gives its word.

The market pays its members, within probation's cap, for requests that are pending. A relayer needs a bond to record the
round of an answer. Should it vanish, the node settles by itself, which must bring in what it costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.fees import is_on_probation
from headrace.core.gas import call_out_gas, required_answer_bytes
from headrace.core.self_settlement import SelfSettlementPolicy, is_worth, pay_wei, why_never
from headrace.core.types import ZERO_ADDRESS, Address, Assignment, GasQuote, MarketTerms, Pending, Request


@dataclass(frozen=True, slots=True)
class Standing:
    """What the chain says of a node and its relayer; it changes slowly."""

    payee: Address  # zero = the node is not in the market
    joined_at_s: int
    settled_count: int  # of the payee
    relayer_is_bonded: bool
    gas: GasQuote
    block_time_s: int  # of the newest block: what is settled is settled later


def why_unpaid(
    terms: MarketTerms,
    policy: SelfSettlementPolicy | None,
    word: Assignment,
    request: Request,
    standing: Standing,
    pending: Pending,
    verifier_gas: int,
) -> str:
    """Why an answer would not be paid, as a clause; empty when it would.

    Args:
        terms: the market's numbers.
        policy: for what the node settles by itself; None = it never does.
        word: the assignment.
        request: what is assigned.
        standing: of the node and its relayer.
        pending: what the market keeps of the request.
        verifier_gas: what the request's verifier is counted with.
    """
    if standing.payee == ZERO_ADDRESS:
        return f"the node {word.node} is not in the market, which pays only its members: join it"
    if not standing.relayer_is_bonded:
        return f"the relayer {word.relayer} has no bond (any more), so it can record no round"
    if pending.effective_deadline_s < word.deadline_s:
        return f"the request was cancelled, and ends at {pending.effective_deadline_s}, before the assignment does"
    on_probation = is_on_probation(terms, standing.settled_count, standing.joined_at_s, standing.block_time_s)
    if on_probation and word.reward_wei > terms.probation_max_reward_wei:
        return (
            f"the reward is {word.reward_wei} wei, and a node on probation is paid {terms.probation_max_reward_wei} "
            "at most"
        )
    return _why_not_alone(terms, policy, word, request, standing, pending, verifier_gas)


def _why_not_alone(
    terms: MarketTerms,
    policy: SelfSettlementPolicy | None,
    word: Assignment,
    request: Request,
    standing: Standing,
    pending: Pending,
    verifier_gas: int,
) -> str:
    """Why it would not pay to settle without the relayer, by the gas that the market itself reckons with."""
    if policy is None or why_never(request) is not None:
        return ""
    result_bytes = required_answer_bytes(request)
    gas = terms.assigned_gas + terms.gas_per_result_byte * result_bytes
    gas += call_out_gas(request.callback_gas, verifier_gas)
    added_wei = pending.priority_fee_added_wei
    paid_wei = pay_wei(terms, request, added_wei, word.reward_wei, result_bytes, gas, standing.gas)
    cost_wei = gas * standing.gas.price_wei
    if is_worth(policy, paid_wei, cost_wei):
        return ""
    return f"settling it without the relayer would bring in {paid_wei} wei, and cost {cost_wei} wei of gas"
