"""The requests of a cycle as columns: what order, filters and scorers look at all at once. Kept as the nodes are."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.cycle import WaitingRequest
from headrace.core.routing.columns import Columns, Ints

_FIELDS = (
    "priority_fee_wei",
    "included_at_s",
    "deadline_s",
    "lane",
    "work",
    "prompt_bytes",
    "max_output_tokens",
    "required_memory_mb",
    "complexity_milli",
)


def _node_max_reward_wei(request: WaitingRequest) -> int:
    """Of a quorum, what each of its nodes may ask."""
    return request.max_reward_wei // request.k if request.k else request.max_reward_wei


class RequestTable:
    """The requests of a cycle, in ascending order of their ids. `update` takes over those of the next."""

    def __init__(self, requests: Sequence[WaitingRequest] = ()) -> None:
        self._columns: Columns[WaitingRequest] = Columns(
            "request_id", _FIELDS, {"node_max_reward_wei": _node_max_reward_wei}
        )
        self.update(requests)

    def update(self, requests: Sequence[WaitingRequest]) -> None:
        """Take over the requests of now."""
        self._columns.update(requests)

    @property
    def requests(self) -> Sequence[WaitingRequest]:
        """The requests, by row."""
        return self._columns.rows

    def __getitem__(self, name: str) -> Ints:
        """A column by its name."""
        return self._columns.arrays[name]
