"""What a relayer has seen of its nodes lately: how fast they answer, and how often they do not.

Only what was seen here counts, of the last so many assignments, so that a node that got better is not held to what it
was. It is the relayer's word: it stands in each snapshot for all to compare with what they saw.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from headrace.core.types import Address, Hash32

LAST_OUTCOMES = 100
LAST_PACES = 64
_LEAST_PACES = 3


class Performance:
    """The outcomes of the last assignments of each node, and the paces of its last answers by model."""

    def __init__(self) -> None:
        self._outcomes: dict[Address, deque[bool]] = {}
        self._paces: dict[tuple[Address, Hash32], deque[int]] = {}

    def answered(self, node: Address, model_id: Hash32, asked_tokens: int, took_ms: int) -> None:
        """A node answered.

        Args:
            node: which.
            model_id: of the request.
            asked_tokens: that the answer might have. How many it has is the node's word: one that says it wrote more
                would look faster.
            took_ms: from the assignment to the answer.
        """
        self._note(node, has_answered=True)
        pace = max(1, max(0, took_ms) * 1000 // max(1, asked_tokens))
        self._paces.setdefault((node, model_id), deque(maxlen=LAST_PACES)).append(pace)

    def missed(self, node: Address) -> None:
        """A node took a request and did not answer it."""
        self._note(node, has_answered=False)

    def tally(self, node: Address) -> tuple[int, int]:
        """How many of its last assignments a node answered, and missed."""
        outcomes = self._outcomes.get(node, ())
        answered = sum(outcomes)
        return answered, len(outcomes) - answered

    def us_per_token(self, node: Address, model_id: Hash32) -> int:
        """The median pace of a node with a model, in microseconds; 0 as long as too few answers were seen."""
        paces = self._paces.get((node, model_id), ())
        return int(median(paces)) if len(paces) >= _LEAST_PACES else 0

    def _note(self, node: Address, *, has_answered: bool) -> None:
        self._outcomes.setdefault(node, deque(maxlen=LAST_OUTCOMES)).append(has_answered)
