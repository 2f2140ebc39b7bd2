"""For programs that ask: `async with connect() as headrace: answer = await headrace.ask("…")`.

It wires a client as the command line does, by the same settings: `HEADRACE_CHAIN__RPC_URL`,
`HEADRACE_REQUESTER__API_URL` and the requester's key.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import headrace.cli
from headrace.cli.requests import AFTER_DEADLINE_S
from headrace.cli.session import require_included
from headrace.client import Answer, ApiRefused, ChainSender, HeadraceClient, Untrue, WaitEnded, Wanted, fair_fee_wei
from headrace.client.callbacks import require_callable
from headrace.core.errors import HeadraceError, Refused
from headrace.ports import Chain, Clock
from headrace.settings import Settings, load_settings


class NotAnswered(Refused):
    """The request ended without an answer; its escrow, if there was one, is credited to the requester."""

    code = "NOT_ANSWERED"


@dataclass(frozen=True, slots=True)
class Connection:
    """A requester's account at a relayer and its chain."""

    client: HeadraceClient
    sender: ChainSender
    chain: Chain
    clock: Clock

    async def ask(self, wanted: str | Wanted, *, gasless: bool = False) -> Answer:
        """Escrow, wait for the answer, and check it against the chain.

        Args:
            wanted: a prompt at the drafted terms, or all terms; a model that is empty means one that is offered.
            gasless: only sign; the relayer posts it, and the account's credit in the market pays for escrow and gas.

        Raises:
            HeadraceError: nothing was sent; the message says what to do.
            NotAnswered: it was refunded, or never posted.
            WaitEnded: it is not closed yet, long after its deadline.
            Untrue: the relayer's draft or answer is not what was asked or settled.
        """
        wanted = Wanted(model="", prompt=wanted) if isinstance(wanted, str) else wanted
        if not wanted.model:
            wanted = replace(wanted, model=await self.client.offered_model())
        draft = await self.client.draft(wanted)
        await require_callable(self.chain, draft.request)
        if gasless:
            most_wei = fair_fee_wei(await self.chain.gas_quote(), draft)
            await self.client.submit(await self.client.gasless(draft, most_fee_wei=most_wei))
        else:
            transaction_hash = await self.client.send(draft, self.sender)
            await require_included(self.sender, transaction_hash, f"`headrace request show {draft.request_id}`")
        left_s = draft.request.deadline_s - self.clock.now_ms() / 1000
        view = await self.client.wait(draft.request_id, left_s + AFTER_DEADLINE_S)
        if view["state"] == "unposted":
            raise NotAnswered(f"the request {draft.request_id} was not posted. {view['posting']['reason']}")
        if view["state"] != "fulfilled":
            raise NotAnswered(f"the request {draft.request_id} ended {view['state']}; its escrow is credited")
        return await self.client.answer(draft.request_id, self.chain)


@contextlib.asynccontextmanager
async def connect(settings: Settings | None = None) -> AsyncIterator[Connection]:
    """A connection by the settings of the environment, or by those that are given.

    Raises:
        ConfigurationError: a setting or the requester's key is missing or wrong.
    """
    session = headrace.cli.make_session(load_settings() if settings is None else settings)
    signer = session.signer("requester")
    async with session.open_chain(session.settings) as opened, session.client(signer, opened.chain) as client:
        yield Connection(client, session.sender(opened.chain, signer), opened.chain, session.clock)


__all__ = [
    "Answer",
    "ApiRefused",
    "Connection",
    "HeadraceError",
    "NotAnswered",
    "Untrue",
    "WaitEnded",
    "Wanted",
    "connect",
]
