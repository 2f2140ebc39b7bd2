"""The scheduling policy in force, and changes of it while the relayer runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from headrace.core.cycle import Policy
from headrace.core.snapshot import policy_hash
from headrace.ports import Clock, Store

log = structlog.get_logger(__name__)


class Policies:
    """What the settings say, or what was adopted in its place.

    What was adopted outlives a restart, as long as the settings are those that it was adopted over: who changes the
    settings means them.
    """

    def __init__(self, store: Store, clock: Clock, configured: Policy) -> None:
        """
        Args:
            store: keeps what is adopted.
            clock: dates it.
            configured: the settings' policy.
        """
        self._store = store
        self._clock = clock
        self._configured = configured
        self._current = configured
        self._followers: list[Callable[[Policy], None]] = []

    @property
    def current(self) -> Policy:
        """The policy of the next cycle."""
        return self._current

    async def load(self) -> None:
        """Take up what was adopted before."""
        adopted = await self._store.adopted_policy(policy_hash(self._configured))
        if adopted is not None:
            self._current = adopted
            log.info("policy_adopted_before", policy_hash=policy_hash(adopted))

    def tell(self, follower: Callable[[Policy], None]) -> None:
        """Have somebody told of each change."""
        self._followers.append(follower)

    async def change(self, **changes: Any) -> Policy:
        """Adopt the current policy with some of its numbers changed. The round that is open ends with the old one.

        Raises:
            InvalidInput: a number is not one that a policy may have.
        """
        changed = replace(self._current, **changes)
        if changed == self._current:
            return changed
        await self._store.adopt_policy(policy_hash(self._configured), changed, self._clock.now_ms())
        log.info("policy_changed_by_operator", before=policy_hash(self._current), now=policy_hash(changed), **changes)
        self._current = changed
        for follower in self._followers:
            follower(changed)
        return changed
