"""What benches give."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured figure. Without a target it is there to be compared with."""

    measure: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        """Whether it is what it should be."""
        if self.target is None:
            return True
        return self.value <= self.target if self.at_most else self.value >= self.target
