"""Metrics for commands, which end before anybody could read them."""

from __future__ import annotations


class Unmeasured:
    """The `Metrics` port over nothing."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Nothing."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Nothing."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Nothing."""
