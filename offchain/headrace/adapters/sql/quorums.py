"""Where quorums stand, by what is stored of them."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.tables import assignments, results
from headrace.core.quorum import Member, Standing, Vote, standing_of
from headrace.core.types import Hash32


async def standing_in(connection: AsyncConnection, request_id: Hash32, k: int) -> Standing:
    """Where the quorum of a request stands."""
    tried = select(assignments.c.node, assignments.c.round, assignments.c.state).where(
        assignments.c.request_id == request_id
    )
    voted = select(results.c.node, results.c.round, results.c.result_hash).where(results.c.request_id == request_id)
    members = [Member(*row) for row in await connection.execute(tried)]
    votes = [Vote(*row) for row in await connection.execute(voted)]
    return standing_of(k, members, votes)
