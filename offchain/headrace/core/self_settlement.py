"""Settling by the node itself: which answers are due, whether one is worth its gas, and what a transaction bids.

The market takes an answer from its node, with the relayer's signed assignment and without a recorded round, from the
request's effective deadline until grace after it (`submitAssigned`). The relayer has its time first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from headrace.core.fees import BPS, charged_gas_price_wei, payout
from headrace.core.types import ZERO_ADDRESS, Address, GasQuote, Hash32, MarketTerms, Mode, Pending, Request, Status


class SettlementState(StrEnum):
    """Where the settling of an answer stands at its node."""

    WATCHED = "watched"  # nothing of it is on its way
    OPEN = "open"  # a transaction may be on its way, or in a block that may go again
    SETTLED = "settled"
    GIVEN_UP = "given_up"


ENDED = frozenset({SettlementState.SETTLED, SettlementState.GIVEN_UP})


@dataclass(frozen=True, slots=True)
class SettlementAttempt:
    """A signed `submitAssigned`, written down before it is sent."""

    transaction_hash: Hash32
    raw: bytes
    max_fee_wei: int
    tip_wei: int
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """The settling of one answer, as the node's journal has it. What follows `reverts` is the open intent's."""

    request_id: Hash32
    state: SettlementState
    deadline_s: int  # the assignment's
    detail: str  # why it ended, or why it was not settled at the last try
    reverts: int  # transactions that were in a block and did nothing
    payer: Address  # whose transaction it is; empty = nothing is on its way
    nonce: int  # of the payer; -1 likewise
    data: bytes
    gas_limit: int
    attempts: tuple[SettlementAttempt, ...]  # under this nonce, oldest first


@dataclass(frozen=True, slots=True)
class SelfSettlementPolicy:
    """When a node settles by itself. `min_return_bps`: what it must bring in for the gas it costs, 10,000 = as much."""

    patience_s: int = 30  # after the effective deadline, for a relayer that is only late
    min_return_bps: int = BPS
    max_reverts: int = 3
    replace_after_ms: int = 45_000  # then a transaction that is in no block bids more
    max_attempts: int = 6


class Step(StrEnum):
    """What to do about an answer now."""

    WAIT = "wait"
    SETTLE = "settle"
    END = "end"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about an answer now; `state` and `detail` say how it ends."""

    step: Step
    state: SettlementState = SettlementState.WATCHED
    detail: str = ""


_WAIT = Verdict(Step.WAIT)
_SETTLE = Verdict(Step.SETTLE)


def next_step(
    policy: SelfSettlementPolicy,
    grace_s: int,
    settlement: Settlement,
    status: Status,
    pending: Pending | None,
    now_s: int,
) -> Verdict:
    """Decide about an answer that has not ended.

    Args:
        policy: the node's.
        grace_s: the market's.
        settlement: what the journal has of it.
        status: what the market says of its request.
        pending: the rest of what it says, while the request is pending.
        now_s: time of the newest block: the market's clock.
    """
    if status in (Status.FULFILLED, Status.FULFILLED_CALLBACK_FAILED):
        return Verdict(Step.END, SettlementState.SETTLED)
    if status in (Status.CANCELLED, Status.EXPIRED):
        return _given_up(f"the request is {status.name.lower()}, and its escrow went back")
    # The block with the request may be gone, or not yet there for the chain's node: its own deadline bounds the wait.
    deadline_s = pending.effective_deadline_s if pending is not None else settlement.deadline_s
    if now_s > deadline_s + grace_s:
        why = "no transaction of it was in a block" if settlement.state is SettlementState.OPEN else settlement.detail
        return _given_up(f"{why or 'it was not settled'} by the end of the grace after its deadline")
    if pending is None or status is not Status.PENDING or now_s <= deadline_s + policy.patience_s:
        return _WAIT
    if settlement.reverts >= policy.max_reverts:
        return _given_up(f"{settlement.reverts} transactions of it reverted: {settlement.detail}")
    return _SETTLE


def _given_up(detail: str) -> Verdict:
    return Verdict(Step.END, SettlementState.GIVEN_UP, detail)


def why_never(request: Request) -> str | None:
    """Why the market takes no answer of a request from its node, or None."""
    if request.mode is Mode.QUORUM:
        return "a quorum's answers are settled together, by their relayer only"
    if request.relayer == ZERO_ADDRESS:
        return "in an open race only relayers settle"
    return None


def payloads_to_try(request: Request, payload: bytes) -> tuple[bytes, ...]:
    """What to deliver inline, best first; b"" is: by hash. A callback that asks for bytes is not made without."""
    if not request.inline_result:
        return (b"",)
    return (payload,) if request.callback_gas else (payload, b"")


def pay_wei(
    terms: MarketTerms,
    request: Request,
    fee_added_wei: int,
    reward_wei: int,
    result_bytes: int,
    gas_used: int,
    quote: GasQuote,
) -> int:
    """What the market pays a node that settles by itself: its own part and the relayer's.

    Args:
        terms: the market's numbers.
        request: whose answer it is.
        fee_added_wei: what raises added to its priority fee.
        reward_wei: the assignment's.
        result_bytes: bytes delivered inline.
        gas_used: what a simulation used. A callback's gas and a verifier's are metered, so they are taken from it.
        quote: what the transaction pays.
    """
    gas = terms.assigned_gas + terms.gas_per_result_byte * result_bytes
    if request.callback_gas or request.mode is Mode.VERIFIER:
        gas = max(gas, gas_used)
    paid = payout(terms, request, fee_added_wei, reward_wei, gas * charged_gas_price_wei(terms, quote))
    return paid.node_wei + paid.relayer_wei


def is_miss_provable(request: Request, relayer: Address, pending: Pending, recorded_at_s: int) -> bool:
    """Whether the request's expiry could be proven a miss of the node that accepted it, as `Faults.proveMissed` has it.

    Args:
        request: what was accepted.
        relayer: whose assignment it was.
        pending: what the market keeps of the request.
        recorded_at_s: when the assignment's round was recorded, 0 = it was not.
    """
    is_named = request.mode is Mode.SIGNATURE and request.relayer == relayer
    is_cancelled = pending.effective_deadline_s != request.deadline_s
    return is_named and not is_cancelled and 0 < recorded_at_s <= request.deadline_s


def is_worth(policy: SelfSettlementPolicy, pay: int, cost_wei: int, spared_wei: int = 0) -> bool:
    """Whether a transaction brings in what the policy asks for.

    Args:
        policy: the node's.
        pay: what the market pays.
        cost_wei: what its gas costs.
        spared_wei: of the node's stake, what it would be slashed if nobody settled.
    """
    return (pay + spared_wei) * BPS >= cost_wei * policy.min_return_bps


def free_nonce(mined: int, taken: Collection[int]) -> int:
    """The first nonce from `mined` on that no open intent has: a gap that one left behind would hold up the others."""
    nonce = mined
    while nonce in taken:
        nonce += 1
    return nonce
