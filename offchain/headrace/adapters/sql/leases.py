"""The lease of who leads."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Update, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.fence import LEADER
from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.tables import leases
from headrace.core.lease import Lease, given_back, renewed, taken


class SqlLease(StorePart):
    """The `LeaseStore` of a fenced store."""

    async def lease(self) -> Lease | None:
        async with self._database.read() as connection:
            return await _lease(connection)

    async def take_lease(self, seen: Lease | None, holder: str, locked_on: str, lease_ms: int) -> Lease | None:
        async with self._database.write(is_fenced=False) as connection:
            if await _lease(connection) != seen:
                return None
            lease = taken(seen, holder, locked_on, lease_ms)
            row = {"name": LEADER, **asdict(lease)}
            await connection.execute(insert(leases).values(row) if seen is None else _change(lease))
        if self._database.fence is not None:
            self._database.fence.token = lease.token
        return lease

    async def renew_lease(self, token: int, locked_on: str) -> Lease:
        async with self._database.write(is_fenced=False) as connection:
            lease = renewed(await _lease(connection), token, locked_on)
            await connection.execute(_change(lease))
        return lease

    async def give_lease_back(self, token: int) -> None:
        async with self._database.write(is_fenced=False) as connection:
            await connection.execute(_change(given_back(await _lease(connection), token)))
        if self._database.fence is not None:
            self._database.fence.token = 0


def _change(lease: Lease) -> Update:
    return update(leases).where(leases.c.name == LEADER).values(asdict(lease))


async def _lease(connection: AsyncConnection) -> Lease | None:
    row = (await connection.execute(select(leases).where(leases.c.name == LEADER))).mappings().first()
    if row is None:
        return None
    return Lease(**{name: value for name, value in row.items() if name != "name"})
