"""`headrace stake rotate-key`: another key signs for a node, with its stake, prices, markets and record."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.holdings import change
from headrace.cli.options import Json, address
from headrace.cli.screens import show_json, show_rows
from headrace.cli.session import OpenChain, Session, session_of
from headrace.core import typed_data
from headrace.core.errors import NotAllowed
from headrace.core.refusals import moment
from headrace.core.types import Address
from headrace.ports import NodeStake, Signer


def rotate_key(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The address of a key of the node.")],
    keystore: Annotated[
        Path, typer.Option(help="The new key's encrypted keystore; it is made when there is no such file.")
    ],
    password_file: Annotated[
        Path | None, typer.Option(help="Holds its password [env: HEADRACE_KEYSTORE_PASSWORD].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a new key sign for a node. It stays what it is: nothing is unbonded, and it stays in its markets."""
    asyncio.run(_rotate(session_of(context), address(key), keystore, password_file, as_json=as_json))


async def _rotate(session: Session, key: Address, keystore: Path, password_file: Path | None, *, as_json: bool) -> None:
    owner = session.signer("owner").address
    async with session.open_chain(session.settings) as opened:
        stake = await opened.holdings.node_stake(key)
        if stake.owner != owner:
            raise NotAllowed(
                f"the node is of {stake.owner}, and {owner} signs: set HEADRACE_OWNER__KEY__KEYSTORE to its owner's key"
            )
        # The key is on the disk before the chain knows it.
        new = session.open_keystore(keystore, password_file)
        if stake.signing_key == new.address:
            facts = await _facts(opened, new.address, None)
        else:
            facts = await _send(session, opened, stake, new)
    if as_json:
        show_json(session.console, {**facts, "keystore": str(keystore)})
        return
    _show(session, facts, keystore)


async def _send(session: Session, opened: OpenChain, stake: NodeStake, new: Signer) -> dict[str, Any]:
    """Rotate, and take all places in markets along."""
    old = stake.keys[-1]
    domain = typed_data.Domain(opened.chain.chain_id, opened.chain.stake_manager)
    consent = await new.sign_typed(domain, typed_data.hash_register_node(new.address, stake.owner))
    markets = [each.market for each in old.memberships]
    call = opened.holdings.call("StakeManager", "rotateKey", old.address, new.address, consent, markets)
    receipt = await change(session, opened, "owner", call, f"`headrace stake show {new.address}`")
    return await _facts(opened, new.address, receipt.transaction_hash)


async def _facts(opened: OpenChain, key: Address, transaction_hash: str | None) -> dict[str, Any]:
    stake = await opened.holdings.node_stake(key)
    old, new = stake.keys[-2:] if len(stake.keys) > 1 else (None, stake.keys[-1])
    places = old.memberships if old else ()
    return {
        "key": new.address,
        "old_key": old.address if old else None,
        "markets": [each.market for each in new.memberships],
        "old_key_paid_until_s": max((each.leaves_at_s for each in places), default=None),
        "transaction_hash": transaction_hash,
    }


def _show(session: Session, facts: dict[str, Any], keystore: Path) -> None:
    rows = [("key", facts["key"]), ("old key", facts["old_key"] or "none: the node has had no other")]
    rows += [("market", each) for each in facts["markets"]]
    if facts["old_key_paid_until_s"]:
        rows.append(("old key paid", f"until {moment(facts['old_key_paid_until_s'])}, for what was assigned to it"))
    rows.append(("changed in", facts["transaction_hash"] or "nothing: this key signs for the node already"))
    show_rows(session.console, rows)
    session.console.print(
        f"Now stop the node with Ctrl-C, which delivers what the old key accepted, and start it with "
        f"HEADRACE_NODE__KEY__KEYSTORE={keystore} and a journal of its own. The old key is assigned nothing any more; "
        "keep it safe all the same: what it signs can still cost the stake.",
        soft_wrap=True,
    )
