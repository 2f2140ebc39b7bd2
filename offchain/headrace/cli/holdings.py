"""What `headrace stake`, `bond` and `owner` share: a change that is sent and waited for, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.cli import screens
from headrace.cli.session import OpenChain, Session, require_included
from headrace.ports import Call, Receipt
from headrace.wiring import Role


async def change(session: Session, opened: OpenChain, role: Role, call: Call, then: str) -> Receipt:
    """Send a call with a role's key and wait until it is included.

    Args:
        session: of the command.
        opened: the chain.
        role: whose key signs.
        call: what to send.
        then: the command that shows later what became of it.

    Raises:
        Refused: it would be refused, was reverted, or is in no block yet; the message says which.
    """
    sender = session.sender(opened.chain, session.signer(role))
    return await require_included(sender, await sender.send(call), then)


def logged(receipt: Receipt, name: str) -> list[Mapping[str, Any]]:
    """The values of an included call's events of a name."""
    return [event.args for event in receipt.events if event.name == name]


def show_change(
    session: Session, receipt: Receipt, facts: Mapping[str, Any], rows: Sequence[tuple[str, str]], *, as_json: bool
) -> None:
    """What a change made of things, as a JSON document or as rows, with its transaction."""
    if as_json:
        screens.show_json(session.console, {**facts, "transaction_hash": receipt.transaction_hash})
    else:
        screens.show_rows(session.console, [*rows, ("changed in", receipt.transaction_hash)])
