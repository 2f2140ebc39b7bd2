"""`headrace credit`: what the market owes an account: refunds, and what was deposited for later requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Literal

import typer

from headrace.cli import screens
from headrace.cli.amounts import parse_wei, show_wei
from headrace.cli.options import Json, address, receiver_address
from headrace.cli.session import Session, require_included, session_of
from headrace.core.calls import deposit_data, withdraw_data, withdraw_to_data
from headrace.core.errors import InvalidInput, Refused
from headrace.core.types import Address
from headrace.ports import Call, Chain, Signer

app = typer.Typer(help="See, take out or add to an account's credit in the market.", no_args_is_help=True)

Holder = Literal["requester", "owner", "relayer", "watcher"]
"""Whom the market may owe credit: for refunds, results and fees, and bounties."""

Account = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Whose [default: of the requester's key].")]


@app.command("show")
def show_credit(context: typer.Context, account: Account = None, as_json: Json = False) -> None:
    """Show an account's credit. With --account it needs no key."""
    session = session_of(context)
    whose = address(account) if account else session.signer("requester").address
    credit_wei = asyncio.run(_credit_wei(session, whose))
    if as_json:
        screens.show_json(session.console, {"account": whose, "credit_wei": str(credit_wei)})
    else:
        screens.show_rows(session.console, [("account", whose), ("credit", show_wei(credit_wei))])


@app.command("withdraw")
def withdraw_credit(
    context: typer.Context,
    amount: Annotated[str | None, typer.Argument(help="Such as 0.1ether [default: all].")] = None,
    to: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Pay own credit to this address.")] = None,
    account: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Pay this contract its own credit, whoever sends.")
    ] = None,
    key: Annotated[Holder, typer.Option(help="Whose key signs; without --account, whose credit it is.")] = "requester",
    as_json: Json = False,
) -> None:
    """Take credit out of the market. Only an account itself can, but of a contract's anybody may have it paid."""
    if to and account:
        raise InvalidInput("give either --to or --account: only an account itself can send its credit elsewhere")
    session = session_of(context)
    signer = session.signer(key)
    own = signer.address
    whose, receiver = address(account) if account else own, receiver_address(to) if to else None
    wanted_wei = None if amount is None else _positive_wei(amount)

    def call(chain: Chain, credit_wei: int) -> Call:
        amount_wei = credit_wei if wanted_wei is None else wanted_wei
        if amount_wei == 0:
            raise Refused(f"there is nothing to withdraw: the account {whose} has no credit")
        data = withdraw_to_data(receiver, amount_wei) if receiver else withdraw_data(whose, amount_wei)
        return Call(chain.market, data)

    remedy = "send it some for gas, from any account; its credit pays for no gas but that of `request new --gasless`"
    asyncio.run(_change(session, signer, whose, call, remedy, as_json=as_json))


@app.command("deposit")
def deposit_credit(
    context: typer.Context,
    amount: Annotated[str, typer.Argument(help="Such as 0.1ether.")],
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Add to an account's credit. Out of it the market takes what a request's transaction does not bring."""
    session = session_of(context)
    signer = session.signer("requester")
    whose = receiver_address(account) if account else signer.address
    amount_wei = _positive_wei(amount)

    def call(chain: Chain, _credit_wei: int) -> Call:
        return Call(chain.market, deposit_data(whose), amount_wei)

    asyncio.run(_change(session, signer, whose, call, "deposit less, or send it some", as_json=as_json))


def _positive_wei(amount: str) -> int:
    amount_wei = parse_wei(amount, "AMOUNT")
    if amount_wei == 0:
        raise InvalidInput("AMOUNT is 0, which moves nothing: give more")
    return amount_wei


async def _credit_wei(session: Session, account: Address) -> int:
    async with session.open_chain(session.settings) as opened:
        return await opened.chain.credit_wei(account)


async def _change(
    session: Session,
    signer: Signer,
    account: Address,
    call: Callable[[Chain, int], Call],
    remedy: str,
    *,
    as_json: bool,
) -> None:
    """Send a call that is made from the credit before, and show the credit after."""
    async with session.open_chain(session.settings) as opened:
        sender = session.sender(opened.chain, signer)
        before_wei = await opened.chain.credit_wei(account)
        transaction_hash = await sender.send(call(opened.chain, before_wei), remedy=remedy)
        await require_included(sender, transaction_hash, f"`headrace credit show --account {account}`")
        after_wei = await opened.chain.credit_wei(account)
    if as_json:
        answer = {"account": account, "credit_wei": str(after_wei), "transaction_hash": transaction_hash}
        screens.show_json(session.console, answer)
        return
    rows = [("account", account), ("before", show_wei(before_wei)), ("credit", show_wei(after_wei))]
    screens.show_rows(session.console, [*rows, ("changed in", transaction_hash)])
