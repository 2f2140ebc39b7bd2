"""The scheduling engine: plans cycles one after the other, and reads again only what changed between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.cycle import POLICIES, REFERENCE, CycleInputs, CyclePlan
from headrace.core.errors import InvalidInput
from headrace.core.scheduling.reference import plan_reference
from headrace.core.types import Address, Hash32

if TYPE_CHECKING:
    from headrace.core.routing.asked import RequestTable
    from headrace.core.routing.table import NodeTable

MOST_WITNESSES = 100_000


class Engine:
    """Plans cycles. What it keeps between them makes it faster, and no plan different."""

    def __init__(self) -> None:
        self._tables: tuple[RequestTable, NodeTable] | None = None
        self._witnesses: dict[Hash32, Address] = {}

    def plan(self, inputs: CycleInputs) -> CyclePlan:
        """Decide on every waiting request.

        Returns:
            What is new, in the order in which it was decided: each assignment (k for a quorum that is placed), each
            request that is too late, and each that is skipped for another reason than the last time.

        Raises:
            InvalidInput: the policy is none that this version has. A replay must not take another for it.
        """
        named = (inputs.policy.name, inputs.policy.lanes)
        if named not in POLICIES:
            raise InvalidInput(f"there is no policy {named[0]} with lanes {named[1]} in this version")
        if inputs.policy.name == REFERENCE:
            return plan_reference(inputs)
        # Here, since NumPy would cost every command of the command line a tenth of a second.
        from headrace.core.routing.asked import RequestTable
        from headrace.core.routing.table import NodeTable
        from headrace.core.scheduling.balanced import plan_balanced

        if self._tables is None:
            self._tables = RequestTable(), NodeTable()
        asked, nodes = self._tables
        self._tables = None  # if it fails half-way, the tables are of neither cycle
        asked.update(inputs.requests)
        nodes.update(inputs.nodes)
        self._tables = asked, nodes
        if len(self._witnesses) > MOST_WITNESSES:
            self._witnesses.clear()
        return plan_balanced(inputs, asked, nodes, self._witnesses)


def plan_cycle(inputs: CycleInputs) -> CyclePlan:
    """Decide on every waiting request of a single cycle, see `Engine.plan`."""
    return Engine().plan(inputs)
