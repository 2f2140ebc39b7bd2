"""A relayer, from its keys, doors and store to its end: alone, or standing by until it leads."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import structlog

from headrace.adapters.clock import SystemClock
from headrace.adapters.file_lock import FileLock
from headrace.adapters.prometheus import PrometheusMetrics
from headrace.adapters.sql.holding import patiently
from headrace.adapters.sql.store import SqlStore
from headrace.adapters.web3_chain import Web3Chain
from headrace.api.app import create_app
from headrace.api.context import ApiContext
from headrace.api.server import Front, bind, serve
from headrace.bootstrap.relayer_loops import serve_relayer
from headrace.bootstrap.relayer_wiring import Given, Relayer, wire_relayer
from headrace.core.errors import ConfigurationError
from headrace.core.types import Address
from headrace.ports import Signer, Store
from headrace.services.leading import Leading
from headrace.settings import RelayerSettings, Settings
from headrace.wiring import (
    open_chain,
    open_further_submitters,
    open_signer,
    open_submitter,
    reached,
)

log = structlog.get_logger(__name__)

_STANDING_BY = "standby: another process leads this relayer, and this one takes over when it is gone."


async def run_relayer(settings: Settings) -> None:
    """Run a relayer until cancelled; then stop assigning, let what is in flight finish, and close.

    Raises:
        ConfigurationError: a key, a bond, a balance, a port or the deployment is missing or wrong.
        ChainUnavailable: the chain does not answer at the start.
        NotLeader: another process leads, or has taken over from this one.
    """
    signer, submitter = open_signer(settings, "relayer"), open_submitter(settings)
    further = open_further_submitters(settings)
    async with AsyncExitStack() as stack:
        listener = bind(settings.relayer.api_host, settings.relayer.api_port)
        stack.callback(listener.close)
        # Nodes are refused until this process leads, and so try the next of their relayers.
        door = bind(
            settings.relayer.link_host, settings.relayer.link_port, "HEADRACE_RELAYER__LINK_PORT", listens=False
        )
        stack.callback(door.close)
        chain = await stack.enter_async_context(open_chain(settings))
        await _require_fit(chain, signer, submitter, settings.relayer.min_balance_wei, further)
        settings.relayer.database.parent.mkdir(parents=True, exist_ok=True)
        metrics = PrometheusMetrics()
        await stack.enter_async_context(reached(signer, submitter, *further, metrics=metrics))
        store, leading = await _open_store(stack, settings.relayer, metrics)
        await require_own(store, signer.address, settings.relayer.database)
        store.hold.on_change = lambda problem: metrics.gauge("headrace_store_held", int(bool(problem)))
        named = {"submitter": submitter.address} if submitter else {}

        given = Given(settings, chain, store, signer, submitter, metrics, tuple(further))

        async def wire() -> Relayer:
            return await wire_relayer(given, door)

        async with asyncio.TaskGroup() as group:
            front = await _stand_by(group, settings.relayer, leading, wire, listener)
            lead = group.create_task(patiently(leading.run()), name="lead")
            try:
                relayer = await wire()
                front.show(relayer.api)
                log.info("relayer_started", relayer=signer.address, chain=chain.chain_id, market=chain.market, **named)
                await serve_relayer(relayer, leading)
            finally:
                lead.cancel()
                front.close()


class _Front:
    """The API's port, from when there is something to show: of a relayer that stands by, then of one that leads."""

    def __init__(self, group: asyncio.TaskGroup, listener: socket.socket) -> None:
        self._group = group
        self._listener = listener
        self._front: Front | None = None
        self._serving: asyncio.Task[None] | None = None

    def show(self, context: ApiContext) -> None:
        """Serve this from now on."""
        app = create_app(context)
        if self._front is not None:
            self._front.app = app
            return
        self._front = Front(app)
        self._serving = self._group.create_task(serve(self._front, self._listener), name="api")

    def close(self) -> None:
        """Let calls that are running finish, and take no more."""
        if self._serving is not None:
            self._serving.cancel()


async def _open_store(
    stack: AsyncExitStack, settings: RelayerSettings, metrics: PrometheusMetrics
) -> tuple[SqlStore, Leading]:
    """The relayer's store, which takes no write before this process leads."""
    lock = FileLock(settings.database)
    stack.callback(lock.free)
    has_lock = _take_lock(lock, settings)
    url = f"sqlite:///{settings.database}"
    store = await SqlStore.open(url, SystemClock(), is_fenced=True, migrate=has_lock)
    stack.push_async_callback(store.close)
    leading = Leading(store, lock, f"process {os.getpid()} on {socket.gethostname()}", metrics)
    stack.push_async_callback(leading.give_back)
    return store, leading


async def require_own(store: Store, relayer: Address, database: Path) -> None:
    """Raises ConfigurationError when a store is another relayer's: under a new key it would take part in its rounds."""
    whose = await store.relayer()
    if whose not in (None, relayer):
        raise ConfigurationError(
            f"{database} is the store of the relayer {whose}, and the key is of {relayer}: a new key is a new relayer, "
            "so give it its own HEADRACE_RELAYER__DATABASE, and let the old key finish what it owes"
        )


def _take_lock(lock: FileLock, settings: RelayerSettings) -> bool:
    try:
        has_lock = lock.take()
    except OSError as exc:
        raise ConfigurationError(
            f"nothing can be written beside {settings.database} ({exc.strerror}): correct HEADRACE_RELAYER__DATABASE"
        ) from exc
    if not has_lock and not settings.standby:
        raise ConfigurationError(
            f"another relayer (process {lock.other}) works with {settings.database}: stop it, start this one with "
            "--standby to follow it, or give this one its own HEADRACE_RELAYER__DATABASE and key"
        )
    return has_lock


async def _stand_by(
    group: asyncio.TaskGroup,
    settings: RelayerSettings,
    leading: Leading,
    wire: Callable[[], Awaitable[Relayer]],
    listener: socket.socket,
) -> _Front:
    """Wait until this process leads; one that is to stand by shows what is in the store meanwhile.

    Raises:
        NotLeader: another process leads, and this one is not to stand by.
    """
    front = _Front(group, listener)
    if not settings.standby:
        await leading.take_unless_led()
    elif not await leading.take():
        try:
            front.show(replace((await wire()).api, readiness=lambda: [_STANDING_BY]))
            log.info("standing_by", database=str(settings.database))
            await patiently(leading.wait())
        except BaseException:
            front.close()
            raise
    return front


async def _require_fit(
    chain: Web3Chain,
    signer: Signer,
    submitter: Signer | None,
    min_balance_wei: int,
    further: Sequence[Signer] = (),
) -> None:
    """Raises ConfigurationError unless the relayer is registered, and it or a submitter of it can pay for gas. One
    whose bond does not count any more starts, to settle what it owes."""
    if not (await chain.bond(signer.address)).registered_at_s:
        raise ConfigurationError(
            f"the relayer {signer.address} has no bond on chain {chain.chain_id}: run `ape run register_relayer`"
        )
    payer, role = (submitter, "submitter") if submitter else (signer, "relayer")
    balance_wei = await chain.balance_wei(payer.address)
    others_wei = [await chain.balance_wei(each.address) for each in further]
    for address, wei in zip((each.address for each in (payer, *further)), (balance_wei, *others_wei), strict=True):
        if further and wei < min_balance_wei:
            log.warning("submitter_unfunded", submitter=address, balance_wei=str(wei), hint="the others send meanwhile")
    if max(balance_wei, *others_wei, 0) < min_balance_wei:
        raise ConfigurationError(
            f"the {role} {payer.address} has {balance_wei} wei, and needs {min_balance_wei} to pay for gas: "
            "send it ether, or lower HEADRACE_RELAYER__MIN_BALANCE_WEI"
        )
