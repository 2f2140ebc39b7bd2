"""`headrace request cancel` and `raise`: what a requester can do about a request that is posted."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from headrace.cli import screens
from headrace.cli.amounts import parse_wei, show_wei
from headrace.cli.options import Json, RequestId, request_id
from headrace.cli.session import OpenChain, Session, require_included, session_of
from headrace.client.posted import posted_request
from headrace.core.calls import cancel_data, raise_priority_fee_data
from headrace.core.errors import NotAllowed
from headrace.core.refusals import moment
from headrace.core.types import Hash32
from headrace.ports import Call, Receipt, Signer


def cancel_request(
    context: typer.Context,
    id_: RequestId,
    without_release: Annotated[
        bool, typer.Option("--without-release", help="Announce it on-chain without asking the relayer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Cancel a request. Refunded at once if its relayer releases it, else after the grace period."""
    work = _announce if without_release else _cancel
    asyncio.run(work(session_of(context), request_id(id_), as_json=as_json))


def raise_request(
    context: typer.Context,
    id_: RequestId,
    priority_fee: Annotated[str, typer.Option(help="How much to add, such as 20gwei.")],
    as_json: Json = False,
) -> None:
    """Add to a request's priority fee, to have it served sooner. It must be open; anyone may."""
    added_wei = parse_wei(priority_fee, "--priority-fee")
    asyncio.run(_raise(session_of(context), request_id(id_), added_wei, as_json=as_json))


async def _raise(session: Session, id_: Hash32, added_wei: int, *, as_json: bool) -> None:
    signer = session.signer("requester")
    async with session.open_chain(session.settings) as opened:
        sender = session.sender(opened.chain, signer)
        call = Call(opened.chain.market, raise_priority_fee_data(id_), added_wei)
        transaction_hash = await sender.send(call, remedy="send it some, or lower --priority-fee")
        await require_included(sender, transaction_hash, f"`headrace request show {id_}`")
    if as_json:
        answer = {"request_id": id_, "transaction_hash": transaction_hash, "added_wei": str(added_wei)}
        screens.show_json(session.console, answer)
        return
    session.console.print(f"Raised: {show_wei(added_wei)} more for being served sooner.", soft_wrap=True)
    screens.show_rows(session.console, [("raised in", transaction_hash)])


async def _cancel(session: Session, id_: Hash32, *, as_json: bool) -> None:
    signer = session.signer("requester")
    async with (
        session.open_chain(session.settings) as opened,
        session.client(signer, opened.chain) as client,
    ):
        sender = session.sender(opened.chain, signer)
        transaction_hash, is_released = await client.cancel(id_, sender)
        receipt = await require_included(sender, transaction_hash, f"`headrace request show {id_}`")
        if not is_released:
            await _show_announced(session, opened, id_, receipt, as_json=as_json)
            return
        escrow_wei = int((await client.view(id_))["escrow_wei"])
    if as_json:
        answer = {"request_id": id_, "transaction_hash": transaction_hash, "refunded": True}
        screens.show_json(session.console, answer)
        return
    session.console.print(f"Cancelled: {show_wei(escrow_wei)} are credited.", soft_wrap=True)
    screens.show_rows(session.console, [("cancelled in", transaction_hash)])


async def _announce(session: Session, id_: Hash32, *, as_json: bool) -> None:
    """The request is read from the chain, so that no relayer is needed."""
    signer = session.signer("requester")
    async with session.open_chain(session.settings) as opened:
        receipt = await _send_announcement(session, opened, signer, id_)
        await _show_announced(session, opened, id_, receipt, as_json=as_json)


async def _send_announcement(session: Session, opened: OpenChain, signer: Signer, id_: Hash32) -> Receipt:
    request = await posted_request(opened.chain, id_, opened.first_block)
    if request.requester != signer.address:
        raise NotAllowed(f"the request is of {request.requester}, and only its requester can cancel it")
    sender = session.sender(opened.chain, signer)
    transaction_hash = await sender.send(Call(opened.chain.market, cancel_data(request)))
    return await require_included(sender, transaction_hash, f"`headrace request show {id_}`")


async def _show_announced(session: Session, opened: OpenChain, id_: Hash32, receipt: Receipt, *, as_json: bool) -> None:
    block = await opened.chain.block(receipt.block_number)
    effective_s = block.timestamp_s if block else None
    if as_json:
        answer = {
            "request_id": id_,
            "transaction_hash": receipt.transaction_hash,
            "refunded": False,
            "cancel_announced_at_s": effective_s,
        }
        screens.show_json(session.console, answer)
        return
    since = f" It took effect at {moment(effective_s)}." if effective_s is not None else ""
    grace_s = (await opened.chain.market_terms()).grace_s
    session.console.print(
        f"The cancel is announced.{since} An answer of a round recorded by then is still paid; without one the "
        f"escrow comes back after {grace_s} seconds.",
        soft_wrap=True,
    )
    screens.show_rows(session.console, [("announced in", receipt.transaction_hash)])
