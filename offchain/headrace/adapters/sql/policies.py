"""Policies that an operator adopted over the settings'."""

from __future__ import annotations

from sqlalchemy import insert, select

from headrace.adapters.sql.part import StorePart
from headrace.adapters.sql.tables import policies
from headrace.core.cycle import Policy
from headrace.core.errors import InvalidInput
from headrace.core.fields import from_json, to_json
from headrace.core.types import Hash32


class PolicyStore(StorePart):
    """The newest counts."""

    async def adopted_policy(self, configured_hash: Hash32) -> Policy | None:
        query = select(policies.c.configured_hash, policies.c.policy).order_by(policies.c.entry_id.desc()).limit(1)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).mappings().first()
        if row is None or row["configured_hash"] != configured_hash:
            return None
        try:
            return from_json(Policy, row["policy"])
        except InvalidInput:
            return None  # of a version whose policies had other numbers

    async def adopt_policy(self, configured_hash: Hash32, policy: Policy, at_ms: int) -> None:
        values = {"configured_hash": configured_hash, "policy": to_json(policy), "adopted_at_ms": at_ms}
        async with self._database.write() as connection:
            await connection.execute(insert(policies).values(values))
