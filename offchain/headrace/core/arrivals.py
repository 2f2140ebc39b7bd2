"""How often results of each model become ready, estimated from those that did lately.

An exponentially weighted count: what arrived a half-life ago counts half. The estimate is of a rate, so it needs no
window that fills, and it forgets a surge within a few half-lives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.core.types import Hash32

HALF_LIFE_MS = 30_000
MOST_MODELS = 10_000
"""Beyond it the quietest are forgotten."""


@dataclass(frozen=True, slots=True)
class _Count:
    """How many arrived, discounted to a time."""

    weight: float
    at_ms: int


class Arrivals:
    """The rate of each model, and of all together."""

    def __init__(self, half_life_ms: int = HALF_LIFE_MS) -> None:
        self._decay_per_ms = math.log(2) / half_life_ms
        self._counts: dict[Hash32, _Count] = {}
        self._last_ms = 0

    def note(self, model_id: Hash32, at_ms: int) -> None:
        """A result became ready. Times may come a little out of order."""
        count = self._counts.get(model_id)
        at_ms = max(at_ms, count.at_ms) if count else at_ms
        self._counts[model_id] = _Count(self._weight(count, at_ms) + 1, at_ms)
        self._last_ms = max(self._last_ms, at_ms)
        if len(self._counts) > MOST_MODELS:
            quietest = min(self._counts, key=lambda each: self._weight(self._counts[each], at_ms))
            del self._counts[quietest]

    def per_s(self, now_ms: int, model_id: Hash32 | None = None) -> float:
        """Results a second: of a model, or of all."""
        counts = self._counts.values() if model_id is None else filter(None, [self._counts.get(model_id)])
        return 1000 * self._decay_per_ms * sum(self._weight(count, now_ms) for count in counts)

    def chance_of_another(self, now_ms: int, wait_ms: int) -> float:
        """The chance that one more becomes ready within a time, if they come independently of one another.

        It is asked because the last one came. That one says nothing of the rate: what an arrival finds is what any
        moment would (Wolff, "Poisson arrivals see time averages", 1982). So a lone result is not waited with.
        """
        last = _Count(1.0, self._last_ms)
        weight = sum(self._weight(count, now_ms) for count in self._counts.values()) - self._weight(last, now_ms)
        return -math.expm1(-self._decay_per_ms * max(0.0, weight) * max(0, wait_ms))

    def _weight(self, count: _Count | None, at_ms: int) -> float:
        return count.weight * math.exp(-self._decay_per_ms * max(0, at_ms - count.at_ms)) if count else 0.0
