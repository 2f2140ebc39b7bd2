"""`headrace bond`: what stands behind a relayer, as the relayer's own key changes it."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from headrace.cli import screens
from headrace.cli.amounts import parse_wei, show_wei
from headrace.cli.holdings import change, logged, show_change
from headrace.cli.options import Json, address
from headrace.cli.session import OpenChain, Session, session_of
from headrace.core.errors import NotFound, Refused
from headrace.core.lifecycle import TERMINAL, RequestState
from headrace.core.refusals import moment
from headrace.core.types import ZERO_ADDRESS, Address
from headrace.ports import Bond, Call, Receipt

THEN = "`headrace bond show`"

app = typer.Typer(help="See and change a relayer's bond: the relayer's key signs.", no_args_is_help=True)


@app.command("show")
def show_bond(
    context: typer.Context,
    relayer: Annotated[
        str | None, typer.Argument(metavar="ADDRESS", help="Whose [default: of the relayer's key].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a relayer's bond. With an address it needs no key."""
    session = session_of(context)
    whose = address(relayer) if relayer else session.signer("relayer").address
    bond, least_wei = asyncio.run(_read(session, whose))
    if as_json:
        facts = {
            "relayer": whose,
            "bond_wei": str(bond.bond_wei),
            "bonded": bond.is_bonded,
            "withdrawable_at_s": bond.withdrawable_at_s or None,
            "faults": bond.faults,
        }
        screens.show_json(session.console, facts)
        return
    rows = [("relayer", whose), ("bond", show_wei(bond.bond_wei)), ("bonded", _standing(bond, least_wei))]
    screens.show_rows(session.console, [*rows, ("faults", str(bond.faults))])


@app.command("add")
def add_bond(
    context: typer.Context,
    amount: Annotated[str, typer.Argument(help="Such as 0.5ether.")],
    as_json: Json = False,
) -> None:
    """Add to the bond of the relayer's key."""
    asyncio.run(_add(session_of(context), parse_wei(amount, "AMOUNT"), as_json=as_json))


@app.command("unbond")
def unbond(
    context: typer.Context,
    force: Annotated[bool, typer.Option("--force", help="Also when requests are open.")] = False,
    as_json: Json = False,
) -> None:
    """Stop being a relayer, at once and for good. No round can be recorded any more; the bond comes back days later."""
    asyncio.run(_unbond(session_of(context), force=force, as_json=as_json))


@app.command("withdraw")
def withdraw_bond(context: typer.Context, as_json: Json = False) -> None:
    """Pay out the bond once it has been unbonding long enough. Then the address may register anew."""
    asyncio.run(_withdraw(session_of(context), as_json=as_json))


async def _read(session: Session, relayer: Address) -> tuple[Bond, int]:
    async with session.open_chain(session.settings) as opened:
        bond = await opened.holdings.bond(relayer)
        if not bond.registered_at_s and not bond.faults:
            raise NotFound(f"{relayer} is no registered relayer on chain {opened.chain.chain_id}: check the address")
        return bond, (await opened.holdings.stake_terms()).min_bond_wei


def _standing(bond: Bond, least_wei: int) -> str:
    if bond.withdrawable_at_s:
        return f"no: it is unbonding, and may be withdrawn from {moment(bond.withdrawable_at_s)}"
    if not bond.registered_at_s:
        return "no: it is withdrawn"
    return "yes" if bond.is_bonded else f"no: it must be at least {show_wei(least_wei)}"


async def _add(session: Session, amount_wei: int, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        receipt = await _send(session, opened, opened.holdings.call("StakeManager", "addBond", value_wei=amount_wei))
    (added,) = logged(receipt, "BondAdded")
    facts = {"relayer": added["relayer"], "added_wei": str(amount_wei), "bond_wei": str(added["bond"])}
    rows = [("relayer", added["relayer"]), ("added", show_wei(amount_wei)), ("bond", show_wei(added["bond"]))]
    show_change(session, receipt, facts, rows, as_json=as_json)


async def _unbond(session: Session, *, force: bool, as_json: bool) -> None:
    relayer = session.signer("relayer").address
    async with session.open_chain(session.settings) as opened:
        if at_s := (await opened.holdings.bond(relayer)).withdrawable_at_s:
            raise Refused(f"the bond is unbonding already, and may be withdrawn from {moment(at_s)}")
        if not force:
            await _require_idle(session, relayer)
        receipt = await _send(session, opened, opened.holdings.call("StakeManager", "beginUnbondRelayer"))
    (begun,) = logged(receipt, "RelayerUnbondBegun")
    facts = {"relayer": relayer, "withdrawable_at_s": begun["withdrawableAt"]}
    rows = [("relayer", relayer), ("unbonding", f"to be withdrawn from {moment(begun['withdrawableAt'])}")]
    show_change(session, receipt, facts, rows, as_json=as_json)


async def _require_idle(session: Session, relayer: Address) -> None:
    """Results of rounds that are not recorded are never paid, so nothing may be open.

    Raises:
        Refused: a relayer runs on this database, requests in it are open, or it is missing.
    """
    states = [state for state in RequestState if state not in TERMINAL and state is not RequestState.WITHDRAWN]
    async with session.open_idle_store(session.settings.relayer.database) as store:
        if store is None:
            raise Refused(
                f"there is no database {session.settings.relayer.database} that would say whether requests of the "
                "relayer are open: set HEADRACE_RELAYER__DATABASE to the relayer's, or give --force"
            )
        found = await store.requests(states=states)
    if waiting := [each for each in found if each.request.relayer in (relayer, ZERO_ADDRESS)]:
        raise Refused(
            f"{len(waiting)} requests of this relayer are open, such as {waiting[0].request_id}: once it is unbonding, "
            "those that wait are only refunded, and results of rounds that are not recorded are never paid; let the "
            "relayer finish them, or give --force"
        )


async def _withdraw(session: Session, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        receipt = await _send(session, opened, opened.holdings.call("StakeManager", "withdrawBond"))
    (paid,) = logged(receipt, "BondWithdrawn")
    facts = {"relayer": paid["relayer"], "withdrawn_wei": str(paid["amount"])}
    rows = [("relayer", paid["relayer"]), ("withdrawn", show_wei(paid["amount"]))]
    show_change(session, receipt, facts, rows, as_json=as_json)


async def _send(session: Session, opened: OpenChain, call: Call) -> Receipt:
    return await change(session, opened, "relayer", call, THEN)
