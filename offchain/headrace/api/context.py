"""What the API is given: ports and values, nothing that it makes itself."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from headrace.api.rates import RateLimits
from headrace.core import typed_data
from headrace.core.cycle import Policy
from headrace.core.errors import ChainUnavailable
from headrace.core.types import Address, Hash32
from headrace.ports import Chain, Clock, Metrics, NodeLink, Signer, Store
from headrace.services.intake import Intake
from headrace.services.policies import Policies

_T = TypeVar("_T")

HoldRequest: TypeAlias = Callable[[Hash32, int], Awaitable[bool]]
"""Keep a request from being assigned until a time in milliseconds; False when it is assigned already. From when it
returns True no cycle, running or later, may assign the request before that time, also not after a restart."""


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Bounds of what a caller may ask for."""

    payload_bytes: int = 256 * 1024
    body_bytes: int = 1024 * 1024
    max_output_tokens: int = 32_768
    page: int = 500
    access_s: int = 3_600  # how far ahead a sign-in may be valid
    release_s: int = 60  # how long a release counts
    chain_timeout_s: float = 3.0
    lag_blocks: int = 30
    min_balance_wei: int = 10**16


@dataclass(frozen=True, slots=True)
class OperatorDoor:
    """Who passes for the operator.

    Args:
        token: whoever has it; empty = nobody by a token.
        is_private: whether nobody else reaches the API, so that every caller passes when there is no token.
    """

    token: str = field(default="", repr=False)
    is_private: bool = True

    def lets_in(self, authorization: str | None) -> bool:
        """Whether a caller passes, by its Authorization header."""
        if not self.token:
            return self.is_private
        given = (authorization or "").encode("utf-8", "replace")
        return hmac.compare_digest(given, f"Bearer {self.token}".encode())


@dataclass(frozen=True, slots=True)
class Contracts:
    """Where the contracts are. The market, the schedule log and the stake manager are known to the Chain port."""

    model_registry: Address


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Everything that the routes use.

    Args:
        store: of this relayer.
        chain: for reads; each is bounded in time again here.
        link: the nodes that are linked.
        clock: the time.
        signer: the relayer's key, for releases only.
        policies: the scheduling policy, and changes of it.
        confirmations: blocks until a request is eligible and a settlement final.
        contracts: addresses that the Chain port does not tell.
        link_url: where nodes open their links, as a node on another machine sees it; empty = not published.
        metrics_text: the Prometheus exposition.
        metrics: counts calls; None = they are not counted.
        hold: keeps a request from being assigned while its release counts; None = no releases.
        intake: takes requests that their requesters only sign; None = none are taken.
        has_bond: whether the relayer's bond counts; without it nothing new is drafted.
        readiness: further reasons why the relayer is not ready, one sentence each.
        cors_origins: web pages that may call the API.
        room: makes room for a prompt of so many bytes, or raises NoRoom.
        limits: bounds.
        rates: how often one address may call.
        operator: who sees the metrics, and why the relayer is not ready.
    """

    store: Store
    chain: Chain
    link: NodeLink
    clock: Clock
    signer: Signer
    policies: Policies
    confirmations: int
    contracts: Contracts
    link_url: str = ""
    metrics_text: Callable[[], str] = str
    metrics: Metrics | None = None
    hold: HoldRequest | None = None
    intake: Intake | None = None
    has_bond: Callable[[], bool] = lambda: True
    readiness: Callable[[], Sequence[str]] = tuple
    cors_origins: tuple[str, ...] = ()
    room: Callable[[int], None] = lambda _: None
    limits: ApiLimits = field(default_factory=ApiLimits)
    rates: RateLimits = field(default_factory=RateLimits)
    operator: OperatorDoor = field(default_factory=OperatorDoor)

    @property
    def policy(self) -> Policy:
        """The scheduling policy in force."""
        return self.policies.current

    @property
    def relayer(self) -> Address:
        """Whose API this is."""
        return self.signer.address

    @property
    def gasless(self) -> Intake | None:
        """The intake, if it takes anything."""
        return self.intake if self.intake is not None and self.intake.settings.max_open else None

    @property
    def domain(self) -> typed_data.Domain:
        """The market's domain."""
        return typed_data.Domain(self.chain.chain_id, self.chain.market)

    async def from_chain(self, read: Awaitable[_T]) -> _T:
        """A read of the chain, bounded in time.

        Raises:
            ChainUnavailable: it did not answer in time.
        """
        try:
            async with asyncio.timeout(self.limits.chain_timeout_s):
                return await read
        except TimeoutError as exc:
            raise ChainUnavailable("the chain did not answer in time") from exc
