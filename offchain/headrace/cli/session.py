"""What a command is given: settings, and ways to open what it needs. `headrace.cli` fills it with adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from headrace.client import ChainSender, HeadraceClient
from headrace.client.http import API_URL
from headrace.core.errors import Refused
from headrace.core.types import Hash32
from headrace.ports import (
    AssignmentJournal,
    Chain,
    Clock,
    FaultChain,
    Holdings,
    Receipt,
    Signer,
    Store,
    StoreCopies,
    WatchStore,
)
from headrace.settings import Settings
from headrace.wiring import Role

RECEIPT_S = 60.0


@dataclass(frozen=True, slots=True)
class OpenChain:
    """A chain that answers, the block of its deployment, and what people hold on it."""

    chain: FaultChain
    first_block: int
    holdings: Holdings


@dataclass(frozen=True, slots=True)
class Session:
    """One run of the command line."""

    settings: Settings
    clock: Clock
    console: Console
    open_signer: Callable[[Settings, Role], Signer]
    open_chain: Callable[[Settings], AbstractAsyncContextManager[OpenChain]]
    open_store: Callable[[Path], AbstractAsyncContextManager[Store]]
    open_idle_store: Callable[[Path], AbstractAsyncContextManager[Store | None]]  # None: there is none
    open_keystore: Callable[[Path, Path | None], Signer]  # a file that is missing is made, with a new key
    open_watch_store: Callable[[Path], AbstractAsyncContextManager[WatchStore]]  # it is made when it is missing
    open_journal: Callable[[Path], AssignmentJournal]
    copies: StoreCopies
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def signer(self, role: Role) -> Signer:
        """The key of a role.

        Raises:
            ConfigurationError: there is none, or it cannot be used; the message names the settings.
        """
        return self.open_signer(self.settings, role)

    def client(self, signer: Signer | None, chain: Chain | None = None, url: str | None = None) -> HeadraceClient:
        """A client of the requester's relayer, or of the one at a URL, held to a chain when one is given."""
        return HeadraceClient(
            url or self.settings.requester.api_url,
            signer,
            self.clock,
            chain_id=chain.chain_id if chain else None,
            market=chain.market if chain else None,
            sleep=self.sleep,
            url_name="--relayer" if url else API_URL,
        )

    def sender(self, chain: Chain, signer: Signer) -> ChainSender:
        """Sends a signer's transactions."""
        return ChainSender(chain, signer, sleep=self.sleep)


async def require_included(
    sender: ChainSender, transaction_hash: Hash32, then: str, on_wait: Callable[[], None] = lambda: None
) -> Receipt:
    """Wait for a transaction's receipt.

    Args:
        sender: who sent it.
        transaction_hash: of the transaction.
        then: the command that shows later what became of it.
        on_wait: is called each time that it is in no block yet.

    Raises:
        Refused: it is in no block yet, or was reverted.
    """
    receipt = await sender.wait(transaction_hash, RECEIPT_S, on_wait)
    if receipt is None:
        raise Refused(
            f"the transaction {transaction_hash} is in no block after {RECEIPT_S:g} seconds; it may still come: {then}"
        )
    if not receipt.succeeded:
        raise Refused(f"the transaction {transaction_hash} was reverted: it changed nothing but cost its gas")
    return receipt


def session_of(context: typer.Context) -> Session:
    """The session of a command; settings are read now, so that `--help` needs none."""
    make: Callable[[], Session] = context.obj
    return make()
