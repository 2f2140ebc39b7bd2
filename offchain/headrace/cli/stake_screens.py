"""What `headrace stake` shows of a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from headrace.cli.amounts import show_wei
from headrace.cli.screens import show_json, show_rows
from headrace.core.refusals import moment
from headrace.core.types import Address, Price
from headrace.ports import Membership, NodeKey, NodeStake, PostedPrice, StakeTerms


def show_node(
    console: Console,
    key: Address,
    stake: NodeStake,
    prices: Sequence[PostedPrice],
    terms: StakeTerms,
    *,
    as_json: bool,
) -> None:
    """A node as its owner sees it.

    Args:
        console: where.
        key: the key of the node that was asked about.
        stake: the node.
        prices: of the models that it offers.
        terms: the stake manager's.
        as_json: one JSON document instead of rows.
    """
    if as_json:
        show_json(console, _document(stake, prices))
    else:
        show_rows(console, [*_key_rows(key, stake), *_stake_rows(stake, terms), *_price_rows(prices)])


def price_text(price: Price) -> str:
    """A price, in wei so that two can be compared at sight."""
    return f"{price.per_prompt_kib_wei:,} wei/KiB, {price.per_thousand_tokens_wei:,} wei/1,000 tokens"


def _key_rows(key: Address, stake: NodeStake) -> Iterator[tuple[str, str]]:
    yield "key", stake.signing_key
    yield "owner", stake.owner
    for membership in stake.keys[-1].memberships:
        yield "market", _membership_text(membership)
        yield "paid to", membership.payee
    if not stake.keys[-1].memberships:
        yield "market", f"none: `headrace stake join {stake.signing_key}`"
    for each in stake.keys[:-1]:
        mark = " (asked about)" if each.address == key else ""
        yield "earlier key", f"{each.address}{mark}, rotated away {moment(each.retired_at_s)}"
        yield from (("", _paid_still(each, membership)) for membership in each.memberships)


def _membership_text(membership: Membership) -> str:
    leaving = f", leaves {moment(membership.leaves_at_s)}" if membership.leaves_at_s else ""
    return f"{membership.market}, joined {moment(membership.joined_at_s)}{leaving}"


def _paid_still(key: NodeKey, membership: Membership) -> str:
    if membership.leaves_at_s:
        return f"  is paid by {membership.market} until {moment(membership.leaves_at_s)}"
    return f"  is still in {membership.market}: `headrace stake leave {key.address} --market {membership.market}`"


def _stake_rows(stake: NodeStake, terms: StakeTerms) -> Iterator[tuple[str, str]]:
    yield "stake", show_wei(stake.stake_wei)
    if stake.unbonding_wei:
        yield "unbonding", f"{show_wei(stake.unbonding_wei)}, to be withdrawn from {moment(stake.withdrawable_at_s)}"
    yield "active", "yes" if stake.is_active else f"no: {show_wei(terms.min_stake_wei)} must stay"
    yield "misses", str(stake.misses)
    yield "faults", str(stake.faults)


def _price_rows(prices: Sequence[PostedPrice]) -> Iterator[tuple[str, str]]:
    for each in prices:
        yield "offers", f"{each.offer.model_name} at {price_text(each.offer.price)}"
        if each.raised:
            yield "", f"  from {moment(each.raised_at_s)} at {price_text(each.raised)}"


def _document(stake: NodeStake, prices: Sequence[PostedPrice]) -> dict[str, Any]:
    return {
        "key": stake.signing_key,
        "owner": stake.owner,
        "stake_wei": str(stake.stake_wei),
        "unbonding_wei": str(stake.unbonding_wei),
        "withdrawable_at_s": stake.withdrawable_at_s or None,
        "active": stake.is_active,
        "misses": stake.misses,
        "faults": stake.faults,
        "keys": [_key_document(each) for each in stake.keys],
        "prices": [price_document(each) for each in prices],
    }


def _key_document(key: NodeKey) -> dict[str, Any]:
    memberships = [
        {
            "market": each.market,
            "payee": each.payee,
            "joined_at_s": each.joined_at_s,
            "leaves_at_s": each.leaves_at_s or None,
        }
        for each in key.memberships
    ]
    return {"key": key.address, "retired_at_s": key.retired_at_s or None, "memberships": memberships}


def price_document(posted: PostedPrice) -> dict[str, Any]:
    """A price for a program."""
    offer, raised = posted.offer, posted.raised
    return {
        "model": offer.model_name,
        "model_id": offer.model_id,
        "per_prompt_kib_wei": str(offer.price.per_prompt_kib_wei),
        "per_thousand_tokens_wei": str(offer.price.per_thousand_tokens_wei),
        "raise": {
            "per_prompt_kib_wei": str(raised.per_prompt_kib_wei),
            "per_thousand_tokens_wei": str(raised.per_thousand_tokens_wei),
            "effective_at_s": posted.raised_at_s,
        }
        if raised
        else None,
    }
