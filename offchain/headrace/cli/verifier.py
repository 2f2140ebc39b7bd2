"""`headrace verifier`: whose answers the attested-key verifier takes: its owner, the registrar, vouches for keys."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from headrace.cli import screens
from headrace.cli.holdings import change, show_change
from headrace.cli.options import Json, address
from headrace.cli.session import OpenChain, Session, session_of
from headrace.core.errors import UnknownModel
from headrace.core.refusals import moment
from headrace.core.types import Address
from headrace.ports import Attestation, ModelFacts

DAY_S = 24 * 3600

app = typer.Typer(
    help="Vouch for keys that prove answers to AttestedKeyVerifier. Its owner's key signs.", no_args_is_help=True
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="The address of an attestation key.")]


@app.command("show")
def show_key(context: typer.Context, key: Key, as_json: Json = False) -> None:
    """Show for which model a key is vouched for, and until when. It needs no key of yours."""
    session = session_of(context)
    asyncio.run(_show(session, address(key), as_json=as_json))


@app.command("attest")
def attest_key(
    context: typer.Context,
    key: Key,
    model: Annotated[str, typer.Option(help="The one model that it speaks for: a name or an id.")],
    days: Annotated[float, typer.Option(min=0.001, max=3650, help="How long, from now.")] = 30,
    as_json: Json = False,
) -> None:
    """Vouch for a key. It signs what this model said and nothing else; again changes for what and how long."""
    asyncio.run(_attest(session_of(context), address(key), model, round(days * DAY_S), as_json=as_json))


@app.command("revoke")
def revoke_key(context: typer.Context, key: Key, as_json: Json = False) -> None:
    """End a key's standing at once. Results that are not settled yet are not paid on its word."""
    asyncio.run(_revoke(session_of(context), address(key), as_json=as_json))


async def _show(session: Session, key: Address, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        found = await opened.chain.attestation_of(opened.chain.attested_key_verifier, key)
        facts = await _facts(opened, found)
    if as_json:
        screens.show_json(session.console, facts)
    else:
        screens.show_rows(session.console, _rows(facts))


async def _attest(session: Session, key: Address, model: str, valid_for_s: int, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        registered = _model_of(await opened.chain.models(), model)
        # By the chain's clock, since the chain judges it.
        valid_until_s = (await opened.chain.head()).timestamp_s + valid_for_s
        values = (key, bytes.fromhex(registered.model_id[2:]), valid_until_s)
        call = opened.holdings.call("AttestedKeyVerifier", "attest", *values)
        receipt = await change(session, opened, "owner", call, f"`headrace verifier show {key}`")
        facts = await _facts(opened, Attestation(key, registered.model_id, valid_until_s))
    show_change(session, receipt, facts, _rows(facts), as_json=as_json)


async def _revoke(session: Session, key: Address, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        call = opened.holdings.call("AttestedKeyVerifier", "revoke", key)
        receipt = await change(session, opened, "owner", call, f"`headrace verifier show {key}`")
        facts = await _facts(opened, Attestation(key, "", 0))
    show_change(session, receipt, facts, _rows(facts), as_json=as_json)


def _model_of(models: list[ModelFacts], wanted: str) -> ModelFacts:
    for model in reversed(models):
        if wanted.lower() in (model.name.lower(), model.model_id):
            return model
    raise UnknownModel(
        f"no registered model is called {wanted!r}; there are: {', '.join(sorted({model.name for model in models}))}"
    )


async def _facts(opened: OpenChain, found: Attestation) -> dict[str, Any]:
    is_named = found.valid_until_s > 0
    names = {model.model_id: model.name for model in await opened.chain.models()} if is_named else {}
    head_s = (await opened.chain.head()).timestamp_s
    return {
        "verifier": opened.chain.attested_key_verifier,
        "key": found.key,
        "model_id": found.model_id if is_named else None,
        "model_name": names.get(found.model_id) if is_named else None,
        "valid_until_s": found.valid_until_s if is_named else None,
        "is_valid": found.valid_until_s >= head_s,
    }


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("verifier", facts["verifier"]), ("key", facts["key"])]
    if facts["valid_until_s"] is None:
        return [*rows, ("vouched for", "no: results are not paid on its word")]
    until = f"{'until' if facts['is_valid'] else 'no more, since'} {moment(facts['valid_until_s'])}"
    return [*rows, ("model", facts["model_name"] or facts["model_id"]), ("vouched for", until)]
