"""A relayer's process: its services wired on a store, a chain and a link. A kill drops it; a start makes it anew."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from headrace.adapters.sql.store import SqlStore
from headrace.core import typed_data
from headrace.core.batching import BatchPolicy
from headrace.core.errors import ChainUnavailable, ExpiredContext, InvalidInput
from headrace.core.guard import GuardPolicy
from headrace.core.scheduling import Policy
from headrace.core.types import Hash32
from headrace.ports import Chain, Clock
from headrace.services.aggregator import Aggregator
from headrace.services.bonding import Bonding
from headrace.services.dispatcher import Dispatcher
from headrace.services.indexer import Indexer
from headrace.services.reaper import Reaper
from headrace.services.scheduler import Scheduler, SchedulerSettings
from headrace.services.sender import Sender
from headrace.services.settler import Settler
from headrace.services.wake import Wake
from tests.fakes import MARKET, MODEL_ID, SCHEDULE_LOG, FakeMetrics, FakeSigner
from tests.services.world import LEASE_MS, MODEL, AnySelector
from tests.simulation.chain import Rpc
from tests.simulation.faults import Weather
from tests.simulation.nodes import SimLink

# What the loops of the services take as "later", as their `run` does; anything else ends the process.
POSTPONED: dict[str, tuple[type[Exception], ...]] = {
    "indexer": (ChainUnavailable, InvalidInput),
    "scheduler": (ChainUnavailable,),
    "settler": (ChainUnavailable, ExpiredContext),
    "reaper": (ChainUnavailable, ExpiredContext),
    "bonding": (ChainUnavailable,),
}


class MortalSigner(FakeSigner):
    """A key of a process that may end around a signature."""

    def __init__(self, number: int, weather: Weather) -> None:
        super().__init__(number)
        self._weather = weather

    async def sign_transaction(self, transaction: Mapping[str, Any]) -> tuple[bytes, Hash32]:
        self._weather.hazard()
        signed = await super().sign_transaction(transaction)
        self._weather.hazard()
        return signed


class Relayer:
    """One life of the process."""

    def __init__(
        self,
        rpc: Rpc,
        store: SqlStore,
        link: SimLink,
        clock: Clock,
        signer: FakeSigner,
        first_round: int,
        policy: Policy,
    ) -> None:
        chain, metrics, terms = cast(Chain, rpc), FakeMetrics(), rpc.terms
        rounds, wake = asyncio.Lock(), Wake()
        guard = GuardPolicy({MARKET: AnySelector(), SCHEDULE_LOG: AnySelector()}, 10**13)
        domain = typed_data.Domain(chain.chain_id, chain.market)
        self.store = store
        self.sender = Sender(chain, store, clock, signer, metrics, guard)
        # One at a time: tasks that run together and draw from one source would not repeat if a set held them.
        self.dispatcher = Dispatcher(
            store, link, clock, metrics, domain, {MODEL_ID: "gpt-2"}, wake.ring, max_concurrent=1
        )
        self.bonding = Bonding(chain, metrics, signer.address, wake.ring)
        self.scheduler = Scheduler(
            chain,
            store,
            link,
            self.dispatcher,
            clock,
            signer,
            metrics,
            terms,
            [MODEL],
            policy,
            first_round,
            rounds,
            SchedulerSettings(lease_ms=LEASE_MS),
            wake,
            has_bond=self.bonding.holds,
        )
        self.settler = Settler(
            chain,
            store,
            link,
            self.sender,
            clock,
            signer,
            metrics,
            terms,
            BatchPolicy(),
            rounds,
            wake.ring,
            has_bond=self.bonding.holds,
        )
        self.aggregator = Aggregator(chain, store, clock, metrics, terms, wake.ring, self.settler.wake.ring)
        self.reaper = Reaper(chain, store, self.sender, signer, metrics, terms)
        self.indexer = Indexer(chain, store, clock, metrics, signer.address, 1, wake.ring)

    async def step(self, name: str, group: asyncio.TaskGroup) -> None:
        """One pass of a loop. What the loop would try again is not an error."""
        if name not in ("indexer", "bonding") and not self.indexer.caught_up.is_set():
            return
        service = getattr(self, name)
        try:
            await (service.step(group) if name == "scheduler" else service.step())
        except POSTPONED[name]:
            return
