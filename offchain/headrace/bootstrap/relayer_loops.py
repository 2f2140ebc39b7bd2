"""The loops of a relayer: started in order, ended in order."""

from __future__ import annotations

import asyncio

import structlog

from headrace.adapters.sql.holding import patiently
from headrace.adapters.sql.store import SqlStore
from headrace.bootstrap.relayer_wiring import Relayer
from headrace.services.leading import Leading
from headrace.services.together import unending

log = structlog.get_logger(__name__)

DRAIN_TIMEOUT_S = 10.0
_DRAIN_POLL_S = 0.1
_BEGINNING = ("scheduler", "poster")


async def serve_relayer(relayer: Relayer, leading: Leading) -> None:
    """Run all loops. When cancelled, scheduling and posting stop first and settling last; when a loop broke, or the
    lead is lost, all at once. When the indexer halts, what acts ends, and the doors stay."""
    acting: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as group:
        doors = [
            group.create_task(patiently(relayer.indexer.run_or_halt(acting)), name="indexer"),
            group.create_task(relayer.link.run(relayer.aggregator), name="link"),
            group.create_task(unending("gauges", relayer.gauges.run()), name="gauges"),
            group.create_task(unending("bond", relayer.bonding.run()), name="bond"),
            group.create_task(unending("reconciler", patiently(relayer.reconciler.run())), name="reconciler"),
            group.create_task(unending("keeper", patiently(relayer.keeper.run())), name="keeper"),
        ]
        # What looks eligible before may long be settled.
        await relayer.indexer.caught_up.wait()
        await patiently(relayer.recovery.run_once())
        if not relayer.indexer.halted:
            acting += _start_acting(group, relayer)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            for task in acting:
                if task.get_name() in _BEGINNING:
                    task.cancel()
            settling = [task for task in acting if task.get_name() not in _BEGINNING]
            if leading.token and not any(task.done() for task in (*settling, *doors)):
                await _drain(relayer)
            for task in (*settling, *doors):
                task.cancel()
            raise


def _start_acting(group: asyncio.TaskGroup, relayer: Relayer) -> list[asyncio.Task[None]]:
    """Start the loops that act on what is stored."""
    loops = {
        "scheduler": relayer.scheduler.run,
        "poster": relayer.poster.run,
        "settler": relayer.settler.run,
        "reaper": relayer.reaper.run,
    }
    if relayer.watch is not None:
        loops["watch"] = relayer.watch.run
    return [group.create_task(unending(name, patiently(run())), name=name) for name, run in loops.items()]


async def _drain(relayer: Relayer) -> None:
    """Wait until nothing is computing, unsettled or unconfirmed; at most `DRAIN_TIMEOUT_S`. What is left is stored."""
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            # The store is what tells, and it has no bell.
            while await _is_busy(relayer.store):  # noqa: ASYNC110
                await asyncio.sleep(_DRAIN_POLL_S)
    except TimeoutError:
        log.warning("stopped_before_drained", seconds=DRAIN_TIMEOUT_S)


async def _is_busy(store: SqlStore) -> bool:
    return bool(await store.open_assignments() or await store.ready_results(1) or await store.open_intents())
