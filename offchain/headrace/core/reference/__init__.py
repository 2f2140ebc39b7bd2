"""The `reference` policy: scheduling exactly as in the documents that the project grew from.

It is kept to be compared with, not to be recommended: `tests/vectors/reference/README.md` lists its
faults. Numbers are IEEE doubles, computed in the order of operations of the original JavaScript.
"""

from headrace.core.reference.lanes import StrictLanes
from headrace.core.reference.priority import score_e9, score_of
from headrace.core.reference.route_cost import find_route
from headrace.core.reference.schedule import plan_cycle
from headrace.core.reference.types import (
    ReferenceAssignment,
    ReferenceNode,
    ReferenceRequest,
    ReferenceRoute,
    ReferenceSchedule,
)

__all__ = [
    "ReferenceAssignment",
    "ReferenceNode",
    "ReferenceRequest",
    "ReferenceRoute",
    "ReferenceSchedule",
    "StrictLanes",
    "find_route",
    "plan_cycle",
    "score_e9",
    "score_of",
]
