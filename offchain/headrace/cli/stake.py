"""`headrace stake`: what stands behind a node, its markets, prices and key, as its owner changes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from headrace.cli import stake_screens
from headrace.cli.amounts import parse_wei, show_wei
from headrace.cli.holdings import change, logged, show_change
from headrace.cli.options import Json, address
from headrace.cli.session import OpenChain, Session, session_of
from headrace.core.errors import Refused
from headrace.core.refusals import moment
from headrace.core.types import Address
from headrace.ports import Call, NodeStake, Receipt

app = typer.Typer(help="See and change what stands behind a node. Its owner's key signs.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="The address of a key of the node.")]
Market = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Which market [default: the deployment's].")]


@app.command("show")
def show_stake(context: typer.Context, key: Key, as_json: Json = False) -> None:
    """Show a node: its stake, keys, markets and prices. It needs no key."""
    asyncio.run(_show(session_of(context), address(key), as_json=as_json))


@app.command("add")
def add_stake(
    context: typer.Context,
    key: Key,
    amount: Annotated[str, typer.Argument(help="Such as 0.5ether.")],
    as_json: Json = False,
) -> None:
    """Add to a node's stake. Anyone may."""
    node, amount_wei = address(key), parse_wei(amount, "AMOUNT")

    async def work(session: Session, opened: OpenChain) -> None:
        call = opened.holdings.call("StakeManager", "addStake", node, value_wei=amount_wei)
        receipt = await _send(session, opened, node, call)
        (added,) = logged(receipt, "StakeAdded")
        facts = {"key": node, "added_wei": str(amount_wei), "stake_wei": str(added["stake"])}
        rows = [("key", node), ("added", show_wei(amount_wei)), ("stake", show_wei(added["stake"]))]
        show_change(session, receipt, facts, rows, as_json=as_json)

    _run(context, work)


@app.command("unbond")
def unbond_stake(
    context: typer.Context,
    key: Key,
    amount: Annotated[str | None, typer.Argument(help="Such as 0.5ether [default: all].")] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Let what is unbonding already wait anew, with what is added.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take stake out from behind a node. At once it counts no more; it may be withdrawn days later."""
    node = address(key)
    wanted_wei = None if amount is None else parse_wei(amount, "AMOUNT")

    async def work(session: Session, opened: OpenChain) -> None:
        stake = await opened.holdings.node_stake(node)
        if stake.unbonding_wei and not anew:
            raise Refused(
                f"{stake.unbonding_wei} wei are unbonding already and may be withdrawn from "
                f"{moment(stake.withdrawable_at_s)}; unbonding more makes all of it wait anew: withdraw them first, or "
                "give --anew"
            )
        amount_wei = stake.stake_wei - stake.unbonding_wei if wanted_wei is None else wanted_wei
        receipt = await _send(
            session, opened, node, opened.holdings.call("StakeManager", "beginUnbond", node, amount_wei)
        )
        await _show_unbonding(session, opened, node, receipt, as_json=as_json)

    _run(context, work)


@app.command("withdraw")
def withdraw_stake(context: typer.Context, key: Key, as_json: Json = False) -> None:
    """Pay out what has been unbonding long enough. It goes to the node's owner."""
    node = address(key)

    async def work(session: Session, opened: OpenChain) -> None:
        receipt = await _send(session, opened, node, opened.holdings.call("StakeManager", "withdrawStake", node))
        (paid,) = logged(receipt, "StakeWithdrawn")
        facts = {"key": node, "withdrawn_wei": str(paid["amount"]), "stake_wei": str(paid["stake"])}
        rows = [("key", node), ("withdrawn", show_wei(paid["amount"])), ("stake", show_wei(paid["stake"]))]
        show_change(session, receipt, facts, rows, as_json=as_json)

    _run(context, work)


@app.command("join")
def join_market(context: typer.Context, key: Key, market: Market = None, as_json: Json = False) -> None:
    """Let a market pay the node. Faults in it cost the node's stake from then on."""
    node, named = address(key), None if market is None else address(market)

    async def work(session: Session, opened: OpenChain) -> None:
        call = opened.holdings.call("StakeManager", "joinMarket", node, named or opened.chain.market)
        receipt = await _send(session, opened, node, call)
        (joined,) = logged(receipt, "MarketJoined")
        facts = {"key": node, "market": joined["market"], "payee": joined["payee"]}
        show_change(session, receipt, facts, list(facts.items()), as_json=as_json)

    _run(context, work)


@app.command("leave")
def leave_market(context: typer.Context, key: Key, market: Market = None, as_json: Json = False) -> None:
    """Leave a market, days later. What is assigned until then is still paid."""
    node, named = address(key), None if market is None else address(market)

    async def work(session: Session, opened: OpenChain) -> None:
        call = opened.holdings.call("StakeManager", "leaveMarket", node, named or opened.chain.market)
        receipt = await _send(session, opened, node, call)
        (left,) = logged(receipt, "MarketLeft")
        facts = {"key": node, "market": left["market"], "leaves_at_s": left["leavesAt"]}
        rows = [("key", node), ("market", left["market"]), ("leaves", moment(left["leavesAt"]))]
        show_change(session, receipt, facts, rows, as_json=as_json)

    _run(context, work)


@app.command("payee")
def set_payee(
    context: typer.Context,
    key: Key,
    payee: Annotated[str, typer.Argument(metavar="ADDRESS", help="Who is paid from now on.")],
    market: Market = None,
    as_json: Json = False,
) -> None:
    """Have another account paid for a node's work in a market."""
    node, receiver, named = address(key), address(payee), None if market is None else address(market)

    async def work(session: Session, opened: OpenChain) -> None:
        call = opened.holdings.call("StakeManager", "setPayee", node, named or opened.chain.market, receiver)
        receipt = await _send(session, opened, node, call)
        (changed,) = logged(receipt, "PayeeChanged")
        facts = {"key": node, "market": changed["market"], "payee": changed["payee"]}
        show_change(session, receipt, facts, list(facts.items()), as_json=as_json)

    _run(context, work)


async def _show(session: Session, key: Address, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        stake = await opened.holdings.node_stake(key)
        prices = await opened.holdings.posted_prices(key)
        terms = await opened.holdings.stake_terms()
    stake_screens.show_node(session.console, key, stake, prices, terms, as_json=as_json)


async def _send(session: Session, opened: OpenChain, node: Address, call: Call) -> Receipt:
    return await change(session, opened, "owner", call, f"`headrace stake show {node}`")


async def _show_unbonding(
    session: Session, opened: OpenChain, node: Address, receipt: Receipt, *, as_json: bool
) -> None:
    (begun,) = logged(receipt, "UnbondBegun")
    stake = await opened.holdings.node_stake(node)
    facts = {
        "key": node,
        "unbonding_wei": str(stake.unbonding_wei),
        "stays_wei": str(stake.stake_wei - stake.unbonding_wei),
        "withdrawable_at_s": begun["withdrawableAt"],
        "active": stake.is_active,
    }
    rows = [
        ("key", node),
        ("unbonding", f"{show_wei(stake.unbonding_wei)}, to be withdrawn from {moment(begun['withdrawableAt'])}"),
        ("stays", _stays(stake)),
    ]
    show_change(session, receipt, facts, rows, as_json=as_json)


def _stays(stake: NodeStake) -> str:
    text = show_wei(stake.stake_wei - stake.unbonding_wei)
    return text if stake.is_active else f"{text}: too little, so that no relayer assigns to the node any more"


def _run(context: typer.Context, work: Callable[[Session, OpenChain], Awaitable[None]]) -> None:
    """Do it with a session over an open chain."""
    session = session_of(context)

    async def run() -> None:
        async with session.open_chain(session.settings) as opened:
            await work(session, opened)

    asyncio.run(run())
