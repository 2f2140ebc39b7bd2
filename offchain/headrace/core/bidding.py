"""What a transaction bids for its place in a block, when it bids more, and when it gives its nonce up.

A replacement must raise the maximum fee and the tip of the attempt before it by a tenth at least, or no pool takes it
(geth, `core/txpool/legacypool`); an eighth leaves room for rounding. It is reckoned from that attempt and not from the
market, which may have fallen since.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.fees import BPS
from headrace.core.types import GasQuote

REPLACEMENT_BPS = 11_250
"""An attempt's fees, of those of the attempt that it replaces."""


@dataclass(frozen=True, slots=True)
class Bid:
    """Fees of a transaction, wei per gas (EIP-1559)."""

    max_fee_wei: int
    tip_wei: int


@dataclass(frozen=True, slots=True)
class BidPolicy:
    """When a transaction that is in no block bids more, and how much at most.

    Args:
        least_pause_ms: between two attempts, however near the end is.
        longest_pause_ms: between two attempts, however far it is.
        attempts_left: how many more a transaction should have until its end: the pause is the time left over this.
        max_attempts: beyond which something else than the price must be wrong.
        market_multiple_bps: no attempt has a maximum fee above this part of what the market asks now.
        cancel_multiple_bps: the same for an attempt that only gives the nonce up, which others wait behind.
    """

    least_pause_ms: int = 6_000
    longest_pause_ms: int = 45_000
    attempts_left: int = 6
    max_attempts: int = 20
    market_multiple_bps: int = 50_000
    cancel_multiple_bps: int = 100_000


class Move(StrEnum):
    """What to do about a transaction that is in no block."""

    WAIT = "wait"
    REPLACE = "replace"
    CANCEL = "cancel"  # take its nonce with a transaction that does nothing
    HOLD = "hold"  # it should bid more, and the ceiling does not let it
    ALARM = "alarm"  # it bids what the market asks, often, and is not taken


@dataclass(frozen=True, slots=True)
class Verdict:
    """A move, with the bid for it if it needs one."""

    move: Move
    bid: Bid | None = None


def market_bid(quote: GasQuote) -> Bid:
    """What a first attempt bids. Twice the base fee survives six full blocks in a row (EIP-1559: +12.5 % each)."""
    return Bid(2 * quote.base_fee_wei + quote.tip_wei, quote.tip_wei)


def higher_bid(last: Bid, quote: GasQuote) -> Bid:
    """What an attempt bids that replaces another: an eighth more of both at least, and no less than the market asks."""
    market = market_bid(quote)
    tip_wei = max(market.tip_wei, _raised(last.tip_wei))
    return Bid(max(market.max_fee_wei, _raised(last.max_fee_wei), tip_wei), tip_wei)


def next_move(
    policy: BidPolicy,
    quote: GasQuote,
    last: Bid,
    attempts: int,
    waited_ms: int,
    left_ms: int | None,
    *,
    is_cancelling: bool,
    most_fee_wei: int | None,
) -> Verdict:
    """Decide about a transaction that is in no block.

    Args:
        policy: the sender's.
        quote: what the chain asks now.
        last: what its last attempt bid.
        attempts: how many it had.
        waited_ms: since the last one.
        left_ms: until it is of no use any more, by the chain's clock; None = always of use.
        is_cancelling: whether its last attempt was one that does nothing.
        most_fee_wei: maximum fee at which it costs no more than what it is for; None = whatever it costs.
    """
    is_over = is_cancelling or (left_ms is not None and left_ms <= 0)
    if waited_ms < (policy.least_pause_ms if is_over else _pause_ms(policy, left_ms)):
        return Verdict(Move.WAIT)
    bid, market = higher_bid(last, quote), market_bid(quote)
    if is_over:
        within = bid.max_fee_wei <= market.max_fee_wei * policy.cancel_multiple_bps // BPS
        return Verdict(Move.CANCEL, bid) if within else Verdict(Move.HOLD)
    if attempts >= policy.max_attempts:
        return Verdict(Move.ALARM)
    ceiling_wei = market.max_fee_wei * policy.market_multiple_bps // BPS
    if most_fee_wei is not None:
        ceiling_wei = min(ceiling_wei, most_fee_wei)
    return Verdict(Move.REPLACE, bid) if bid.max_fee_wei <= ceiling_wei else Verdict(Move.HOLD)


def _pause_ms(policy: BidPolicy, left_ms: int | None) -> int:
    if left_ms is None:
        return policy.longest_pause_ms
    return max(policy.least_pause_ms, min(policy.longest_pause_ms, left_ms // policy.attempts_left))


def _raised(fee_wei: int) -> int:
    return -(-fee_wei * REPLACEMENT_BPS // BPS)
