"""The requests that one transaction works on. Every move of a request in the store is made here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.adapters.sql.database import chunks
from headrace.adapters.sql.quorums import standing_in
from headrace.adapters.sql.tables import assignments, intents, requests, results, timeline
from headrace.core.errors import NotFound
from headrace.core.lifecycle import Cause, RequestState, can_move, next_state
from headrace.core.types import Hash32

_CHANGING = (
    "state",
    "block_number",
    "block_hash",
    "transaction_hash",
    "included_at_s",
    "priority_fee_added_wei",
    "effective_deadline_s",
    "released_until_s",
    "closed",
)
_LOADED = tuple(requests.c[name] for name in ("request_id", "k", "deadline_s", "callback_gas", *_CHANGING))
_UPDATE = (
    update(requests)
    .where(requests.c.request_id == bindparam("key"))
    .values({name: bindparam(f"new_{name}", type_=requests.c[name].type) for name in _CHANGING})
)


class RequestBook:
    """Rows of requests, changed in memory and written by `flush` with what happened to them.

    A move goes through `core.lifecycle.next_state` and leaves an entry in the request's timeline: its stage is the
    cause, its detail names the new state. A refused move ends the transaction: nothing of it is written.
    """

    def __init__(self, connection: AsyncConnection, at_ms: int) -> None:
        """
        Args:
            connection: in a write transaction.
            at_ms: what the timeline's entries are dated.
        """
        self._connection = connection
        self.at_ms = at_ms
        self._rows: dict[Hash32, dict[str, Any]] = {}
        self._new: set[Hash32] = set()
        self._changed: set[Hash32] = set()
        self._entries: list[dict[str, Any]] = []

    async def load(self, request_ids: Iterable[Hash32]) -> None:
        """Read those requests that are in the store, as far as a book looks at them."""
        missing = [request_id for request_id in dict.fromkeys(request_ids) if request_id not in self._rows]
        for chunk in chunks(missing):
            rows = await self._connection.execute(select(*_LOADED).where(requests.c.request_id.in_(chunk)))
            for row in rows.mappings():
                self._rows[row["request_id"]] = {**row, "state": RequestState(row["state"])}

    def __contains__(self, request_id: Hash32) -> bool:
        return request_id in self._rows

    def row(self, request_id: Hash32) -> Mapping[str, Any]:
        """A loaded request.

        Raises:
            NotFound: there is no such request.
        """
        try:
            return self._rows[request_id]
        except KeyError:
            raise NotFound(f"the request {request_id} is not in the store") from None

    def state(self, request_id: Hash32) -> RequestState:
        """Where a loaded request stands."""
        state: RequestState = self.row(request_id)["state"]
        return state

    def insert(self, row: Mapping[str, Any], detail: Mapping[str, Any]) -> None:
        """Enter a request that was just included."""
        request_id = row["request_id"]
        self._rows[request_id] = {**row, "state": RequestState.INCLUDED, "closed": None}
        self._new.add(request_id)
        self.note(request_id, RequestState.INCLUDED, detail)

    def change(self, request_id: Hash32, **fields: Any) -> None:
        """Set fields of a request other than its state."""
        self.row(request_id)
        self._rows[request_id].update(fields)
        self._changed.add(request_id)

    def move(self, request_id: Hash32, cause: Cause, detail: Mapping[str, Any]) -> RequestState:
        """Move a request by a cause.

        Raises:
            IllegalTransition: it is in a state that this cause does not move.
            NotFound: there is no such request.
        """
        state = next_state(self.state(request_id), cause)
        self.change(request_id, state=state)
        self.note(request_id, cause, {**detail, "state": str(state)})
        return state

    def move_if_possible(self, request_id: Hash32, cause: Cause, detail: Mapping[str, Any]) -> bool:
        """Move a request if its state has that step."""
        if request_id not in self._rows or not can_move(self.state(request_id), cause):
            return False
        self.move(request_id, cause, detail)
        return True

    def note(self, request_id: Hash32, stage: str, detail: Mapping[str, Any]) -> None:
        """Add to a request's timeline."""
        self.row(request_id)
        entry = {"request_id": request_id, "at_ms": self.at_ms, "stage": str(stage), "detail": dict(detail)}
        self._entries.append(entry)

    async def advance(self, request_ids: Sequence[Hash32]) -> None:
        """Take requests that have just become eligible as far as what is known of them goes.

        A request comes back with a result, in a batch that is on its way, or with an assignment that still runs, when a
        reorg took away its block, or the one that closed it, and gave it back.
        """
        single = [request_id for request_id in request_ids if not self.row(request_id)["k"]]
        with_result, running = await self._having(single), await self._running(single)
        for request_id in set(request_ids) - set(single):
            standing = await standing_in(self._connection, request_id, self.row(request_id)["k"])
            if standing.agreed:
                with_result.add(request_id)
            elif not standing.is_broken:
                running |= await self._running([request_id])
        batched = await self._in_open_batches()
        for request_id in request_ids:
            if request_id in with_result:
                self.move(request_id, Cause.DELIVERED, {"again": True})
                if request_id in batched:
                    self.move(request_id, Cause.BATCHED, {"again": True, "intent": batched[request_id]})
            elif request_id in running:
                self.move(request_id, Cause.ASSIGNED, {"again": True})
                if running[request_id] == "accepted":
                    self.move(request_id, Cause.ACCEPTED, {"again": True})

    async def flush(self) -> None:
        """Write what was changed."""
        if self._new:
            rows = [{**self._rows[each], "state": str(self._rows[each]["state"])} for each in sorted(self._new)]
            await self._connection.execute(insert(requests), rows)
        if changed := sorted(self._changed - self._new):
            await self._connection.execute(_UPDATE, [_update_of(self._rows[each]) for each in changed])
        if self._entries:
            await self._connection.execute(insert(timeline), self._entries)
        self._new.clear()
        self._changed.clear()
        self._entries.clear()

    async def _having(self, request_ids: Sequence[Hash32]) -> set[Hash32]:
        found: set[Hash32] = set()
        for chunk in chunks(request_ids):
            query = select(results.c.request_id).where(results.c.request_id.in_(chunk))
            found.update((await self._connection.execute(query)).scalars())
        return found

    async def _in_open_batches(self) -> dict[Hash32, int]:
        query = select(intents.c.intent_id, intents.c.detail).where(
            intents.c.state == "open", intents.c.kind == "submit_results"
        )
        rows = (await self._connection.execute(query)).all()
        return {request_id: row.intent_id for row in rows for request_id in row.detail["request_ids"]}

    async def _running(self, request_ids: Sequence[Hash32]) -> dict[Hash32, str]:
        states: dict[Hash32, str] = {}
        for chunk in chunks(request_ids):
            query = select(assignments.c.request_id, assignments.c.state).where(
                assignments.c.request_id.in_(chunk), assignments.c.state.in_(("open", "accepted"))
            )
            # Of a quorum's several the furthest counts: "accepted" comes before "open" in the alphabet.
            query = query.order_by(assignments.c.state.desc())
            states.update({row.request_id: row.state for row in await self._connection.execute(query)})
        return states


def _update_of(row: Mapping[str, Any]) -> dict[str, Any]:
    fields = {f"new_{name}": row[name] for name in _CHANGING}
    return {**fields, "new_state": str(row["state"]), "key": row["request_id"]}
