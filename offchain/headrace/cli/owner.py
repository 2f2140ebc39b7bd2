"""`headrace owner`: what the owner of a contract can do: pause new requests, and hand the contract over."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated, Any

import typer

from headrace.cli import screens
from headrace.cli.holdings import change, logged, show_change
from headrace.cli.options import Json, address
from headrace.cli.session import Session, session_of
from headrace.core.errors import InvalidInput
from headrace.core.refusals import moment
from headrace.core.types import ZERO_ADDRESS, Address
from headrace.ports import Ownership

THEN = "`headrace owner show`"

app = typer.Typer(help="See and use what the contracts' owner can do: its key signs.", no_args_is_help=True)


class Owned(StrEnum):
    """A contract that has an owner."""

    MARKET = "market"
    REGISTRY = "registry"
    VERIFIER = "verifier"

    @property
    def contract(self) -> str:
        """Its name in the deployment."""
        return {"market": "InferenceMarket", "registry": "ModelRegistry", "verifier": "AttestedKeyVerifier"}[self.value]


Contract = Annotated[Owned, typer.Argument(metavar="market|registry|verifier", help="Which contract.")]


@app.command("show")
def show_owners(context: typer.Context, as_json: Json = False) -> None:
    """Show whose the contracts are, and whether requests are paused. It needs no key."""
    session = session_of(context)
    owned, paused_until_s = asyncio.run(_read(session))
    if as_json:
        document = {name: _document(each) for name, each in owned.items()}
        screens.show_json(session.console, {**document, "paused_until_s": paused_until_s or None})
        return
    rows = [row for name, each in owned.items() for row in _rows(name, each)]
    paused = f"paused until {moment(paused_until_s)}, unless resumed before" if paused_until_s else "taken"
    screens.show_rows(session.console, [*rows, ("requests", paused)])


@app.command("pause")
def pause(context: typer.Context, as_json: Json = False) -> None:
    """Stop the intake of new requests, for seven days at most. Nothing else can be stopped."""
    asyncio.run(_set_paused(session_of(context), True, as_json=as_json))


@app.command("resume")
def resume(context: typer.Context, as_json: Json = False) -> None:
    """Take new requests again."""
    asyncio.run(_set_paused(session_of(context), False, as_json=as_json))


@app.command("transfer")
def transfer(
    context: typer.Context,
    contract: Contract,
    new_owner: Annotated[str, typer.Argument(metavar="ADDRESS", help="Who may accept it, days later.")],
    as_json: Json = False,
) -> None:
    """Begin to hand a contract over. It stays yours until it is accepted; another transfer takes this one back."""
    asyncio.run(_transfer(session_of(context), contract, address(new_owner), as_json=as_json))


@app.command("accept")
def accept(context: typer.Context, contract: Contract, as_json: Json = False) -> None:
    """Take over a contract, once the delay is over. It is being handed to the key that signs."""
    asyncio.run(_take_over(session_of(context), contract, as_json=as_json))


@app.command("renounce")
def renounce(
    context: typer.Context,
    contract: Contract,
    for_ever: Annotated[bool, typer.Option("--for-ever", help="Yes: nobody will own it again.")] = False,
    as_json: Json = False,
) -> None:
    """Give a contract up: nobody owns it any more. A pause ends by itself; no model or key can be added again."""
    if not for_ever:
        raise InvalidInput(f"nobody could ever own the {contract} again: give --for-ever if that is what you want")
    asyncio.run(_renounce(session_of(context), contract, as_json=as_json))


async def _read(session: Session) -> tuple[dict[str, Ownership], int]:
    async with session.open_chain(session.settings) as opened:
        owned = {each.value: await opened.holdings.ownership(each.contract) for each in Owned}
        return owned, await opened.holdings.paused_until_s()


def _rows(name: str, owned: Ownership) -> list[tuple[str, str]]:
    rows = [(name, owned.address), ("  owner", "nobody, for ever" if owned.owner == ZERO_ADDRESS else owned.owner)]
    if owned.pending_owner != ZERO_ADDRESS:
        rows.append(("  handed to", f"{owned.pending_owner}, who may accept from {moment(owned.acceptable_at_s)}"))
    return rows


def _document(owned: Ownership) -> dict[str, Any]:
    is_pending = owned.pending_owner != ZERO_ADDRESS
    return {
        "address": owned.address,
        "owner": owned.owner,
        "pending_owner": owned.pending_owner if is_pending else None,
        "acceptable_at_s": owned.acceptable_at_s if is_pending else None,
    }


async def _set_paused(session: Session, is_paused: bool, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        call = opened.holdings.call("InferenceMarket", "setRequestsPaused", is_paused)
        receipt = await change(session, opened, "owner", call, THEN)
    (done,) = logged(receipt, "RequestsPausedSet")
    facts = {"paused": done["paused"], "paused_until_s": done["until"] or None}
    text = f"paused until {moment(done['until'])}, unless resumed before" if done["paused"] else "taken"
    show_change(session, receipt, facts, [("requests", text)], as_json=as_json)


async def _transfer(session: Session, owned: Owned, new_owner: Address, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        call = opened.holdings.call(owned.contract, "transferOwnership", new_owner)
        receipt = await change(session, opened, "owner", call, THEN)
    (timed,) = logged(receipt, "OwnershipTransferTimed")
    facts = {"contract": owned.value, "pending_owner": new_owner, "acceptable_at_s": timed["acceptableAt"]}
    text = f"{new_owner}, who may accept from {moment(timed['acceptableAt'])}: `headrace owner accept {owned.value}`"
    if new_owner == ZERO_ADDRESS:
        text = "nobody: what was begun before is taken back"
    show_change(session, receipt, facts, [("contract", owned.value), ("handed to", text)], as_json=as_json)


async def _take_over(session: Session, owned: Owned, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        receipt = await change(session, opened, "owner", opened.holdings.call(owned.contract, "acceptOwnership"), THEN)
    (transferred,) = logged(receipt, "OwnershipTransferred")
    facts = {"contract": owned.value, "owner": transferred["newOwner"]}
    show_change(session, receipt, facts, list(facts.items()), as_json=as_json)


async def _renounce(session: Session, owned: Owned, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        call = opened.holdings.call(owned.contract, "renounceOwnership")
        receipt = await change(session, opened, "owner", call, THEN)
    facts = {"contract": owned.value, "owner": None}
    show_change(session, receipt, facts, [("contract", owned.value), ("owner", "nobody, for ever")], as_json=as_json)
