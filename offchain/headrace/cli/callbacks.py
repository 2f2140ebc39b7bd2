"""`headrace request retry-callback`: call a requester's contract again that could not take its answer."""

from __future__ import annotations

import asyncio

import typer

from headrace.cli import screens
from headrace.cli.options import Json, RequestId, request_id
from headrace.cli.session import Session, require_included, session_of
from headrace.core.types import Hash32


def retry_callback(context: typer.Context, id_: RequestId, as_json: Json = False) -> None:
    """Call a requester's contract again that failed. It did when its answer was settled; anyone may call."""
    asyncio.run(_retry(session_of(context), request_id(id_), as_json=as_json))


async def _retry(session: Session, id_: Hash32, *, as_json: bool) -> None:
    signer = session.signer("requester")
    async with session.open_chain(session.settings) as opened, session.client(signer, opened.chain) as client:
        sender = session.sender(opened.chain, signer)
        transaction_hash = await client.retry_callback(id_, opened.chain, sender, opened.first_block)
        receipt = await require_included(sender, transaction_hash, f"`headrace request show {id_}`")
    if as_json:
        answer = {"request_id": id_, "transaction_hash": transaction_hash, "gas_used": receipt.gas_used}
        screens.show_json(session.console, answer)
        return
    session.console.print("The contract was called, and took the answer.", soft_wrap=True)
    screens.show_rows(session.console, [("called in", transaction_hash), ("", f"{receipt.gas_used:,} gas")])
