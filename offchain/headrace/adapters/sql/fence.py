"""Keeps a process that does not lead from writing, in the very transaction in which it would."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.tables import leases
from headrace.core.lease import require_token

LEADER = "leader"
# A database with several writers at once must hold the row until the commit; SQLite, which has one, leaves it out.
_CURRENT = select(leases.c.token, leases.c.holder).where(leases.c.name == LEADER).with_for_update(read=True)


class Fence:
    """What a store's writes are held against. `token` is that of its process; 0 while it does not lead."""

    def __init__(self) -> None:
        self.token = 0

    async def require(self, connection: AsyncConnection) -> None:
        """Raises NotLeader unless the lease has this token."""
        row = (await connection.execute(_CURRENT)).first() if self.token else None
        require_token(row.token if row else None, self.token, row.holder if row else "")
