"""Facts of the chain that many calls need, each read at most once in a while and bounded in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.api.context import ApiContext
from headrace.core.cycle import Offer
from headrace.core.errors import UnknownModel
from headrace.core.types import Address, GasQuote, Hash32, MarketTerms
from headrace.ports import ModelFacts, NodeFacts

_T = TypeVar("_T")

GAS_AGE_MS = 1_000
NODE_AGE_MS = 5_000
MODELS_AGE_MS = 60_000
# The market's terms are immutable.
TERMS_AGE_MS = 1 << 62
MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class _Entry:
    value: Any
    read_at_ms: int


class ChainFacts:
    """A cache over the Chain port. Reads of one fact that coincide are one read."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._entries: dict[Hashable, _Entry] = {}
        self._locks: dict[Hashable, asyncio.Lock] = {}

    async def terms(self) -> MarketTerms:
        """The market's immutable numbers."""
        return await self._fact("terms", TERMS_AGE_MS, self._context.chain.market_terms)

    async def gas_quote(self) -> GasQuote:
        """Base fee and tip of the last block."""
        return await self._fact("gas", GAS_AGE_MS, self._context.chain.gas_quote)

    async def models(self, *, fresh: bool = False) -> list[ModelFacts]:
        """The registered models."""
        return await self._fact("models", 0 if fresh else MODELS_AGE_MS, self._context.chain.models)

    async def model(self, name_or_id: str) -> ModelFacts:
        """A registered model by its name or id. The registry grows, so a name that is not known is looked up anew.

        Raises:
            UnknownModel: there is none; the message lists those that there are.
        """
        models = await self.models()
        found = _find(models, name_or_id)
        if found is None:
            models = await self.models(fresh=self._is_older("models", GAS_AGE_MS))
            found = _find(models, name_or_id)
        if found is None:
            names = ", ".join(model.name for model in models[:20]) or "none"
            raise UnknownModel(f"no registered model is called {name_or_id[:80]!r}; there are: {names}")
        return found

    async def node(self, key: Address) -> NodeFacts:
        """What the chain knows of a node."""
        return await self._fact(("node", key), NODE_AGE_MS, lambda: self._context.chain.node_facts(key))

    async def offers(self, key: Address) -> list[Offer]:
        """What a node offers on-chain."""
        ids: list[Hash32] = [model.model_id for model in await self.models()]
        return await self._fact(("offers", key), NODE_AGE_MS, lambda: self._context.chain.offers(key, ids))

    def _is_older(self, key: Hashable, age_ms: int) -> bool:
        entry = self._entries.get(key)
        return entry is None or self._context.clock.now_ms() - entry.read_at_ms >= age_ms

    async def _fact(self, key: Hashable, age_ms: int, read: Callable[[], Awaitable[_T]]) -> _T:
        if len(self._locks) >= MAX_ENTRIES:
            # Anyone may ask for any key. Without its lock a read is at worst made twice.
            self._locks.clear()
            self._entries.clear()
        async with self._locks.setdefault(key, asyncio.Lock()):
            if self._is_older(key, age_ms):
                value = await self._context.from_chain(read())
                self._entries[key] = _Entry(value, self._context.clock.now_ms())
            fact: _T = self._entries[key].value
            return fact


def _find(models: list[ModelFacts], name_or_id: str) -> ModelFacts | None:
    wanted = name_or_id.lower()
    # Names may be registered again with another revision: the newest is meant.
    return next((model for model in reversed(models) if wanted in (model.name.lower(), model.model_id)), None)
