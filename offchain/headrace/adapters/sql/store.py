"""The `Store` port on a SQL database."""

from __future__ import annotations

from headrace.adapters.sql.blocks import BlockStore
from headrace.adapters.sql.database import Database
from headrace.adapters.sql.dead_letters import DeadLetterStore
from headrace.adapters.sql.faults import FaultStore
from headrace.adapters.sql.fence import Fence
from headrace.adapters.sql.intents import IntentStore
from headrace.adapters.sql.leases import SqlLease
from headrace.adapters.sql.payloads import PayloadStore
from headrace.adapters.sql.policies import PolicyStore
from headrace.adapters.sql.postings import PostingStore
from headrace.adapters.sql.recovery import RecoveryStore
from headrace.adapters.sql.requests import RequestStore
from headrace.adapters.sql.results import ResultStore
from headrace.adapters.sql.rounds import RoundStore
from headrace.ports import Clock


class SqlStore(
    BlockStore,
    RequestStore,
    RoundStore,
    PayloadStore,
    ResultStore,
    IntentStore,
    DeadLetterStore,
    FaultStore,
    PolicyStore,
    PostingStore,
    SqlLease,
    RecoveryStore,
):
    """What a relayer knows. Each call is one transaction."""

    @classmethod
    async def open(cls, url: str, clock: Clock, *, is_fenced: bool = False, migrate: bool = True) -> SqlStore:
        """Open a store and bring its tables up to date.

        Args:
            url: for SQLAlchemy's asyncio, such as `sqlite:///relayer.db`.
            clock: dates what is learnt from the chain.
            is_fenced: nothing is written until this store has the lease, and nothing after another took it.
            migrate: False = leave the tables as they are, since another process works with them.

        Raises:
            ConfigurationError: it cannot be opened, or was made by a newer Headrace; or by an older one, when its
                tables are to stay as they are.
        """
        return cls(await Database.open(url, Fence() if is_fenced else None, migrate=migrate), clock)

    async def close(self) -> None:
        await self._database.close()
