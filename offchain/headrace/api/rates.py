"""How often one client may call what writes or costs much.

Each address has an allowance that refills evenly (the generic cell rate algorithm, ITU-T I.371): one number an address
and kind, and no timer. Why no library does it: docs/decisions/0020-rates-and-operators.md.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from starlette.requests import Request

from headrace.core.errors import Refused
from headrace.ports import Clock, Metrics

_MINUTE_MS = 60_000
# Beyond it the addresses that called longest ago are forgotten, and begin anew.
_MOST_ADDRESSES = 20_000
# Who has an IPv6 address has all of its /64.
_IPV6_PREFIX = 64
_F = TypeVar("_F", bound=Callable[..., Any])


class Cost(Enum):
    """What a call costs: it writes or signs, or it reads much."""

    WRITE = "write"
    HEAVY_READ = "heavy_read"


class RateLimited(Refused):
    """An address calls too often."""

    code = "RATE_LIMITED"
    http_status = 429

    def __init__(self, per_minute: int, retry_after_s: int) -> None:
        super().__init__(f"from one address, {per_minute} such calls are taken a minute: wait {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class RateLimits:
    """How many calls a minute one address has, 0 = any number; and how many proxies name the caller."""

    writes_per_minute: int = 0
    heavy_reads_per_minute: int = 0
    trusted_proxies: int = 0


def costs(cost: Cost) -> Callable[[_F], _F]:
    """Mark a route's function with what a call of it costs."""

    def mark(function: _F) -> _F:
        function.__dict__["headrace_cost"] = cost
        return function

    return mark


def cost_of(function: Callable[..., Any]) -> Cost | None:
    """What a call of a route's function costs; None: next to nothing."""
    return getattr(function, "headrace_cost", None)


class Allowance:
    """The calls that each of many callers has left."""

    def __init__(self, per_minute: int, most_callers: int = _MOST_ADDRESSES) -> None:
        self._gap_ms = _MINUTE_MS / per_minute
        self._most_callers = most_callers
        self._used_up_to_ms: OrderedDict[str, float] = OrderedDict()

    def wait_ms(self, caller: str, now_ms: int) -> float:
        """Take one call: 0, or for how long there is none. A minute's worth may come at once."""
        used_ms = max(self._used_up_to_ms.get(caller, 0.0), now_ms) + self._gap_ms
        if (wait_ms := used_ms - now_ms - _MINUTE_MS) > 1e-3:
            return wait_ms
        self._used_up_to_ms[caller] = used_ms
        self._used_up_to_ms.move_to_end(caller)
        if len(self._used_up_to_ms) > self._most_callers:
            self._used_up_to_ms.popitem(last=False)
        return 0.0


class Rates:
    """The allowances of all callers of one API."""

    def __init__(self, limits: RateLimits, clock: Clock, metrics: Metrics | None) -> None:
        per_minute = {Cost.WRITE: limits.writes_per_minute, Cost.HEAVY_READ: limits.heavy_reads_per_minute}
        self._per_minute: Mapping[Cost, int] = {cost: number for cost, number in per_minute.items() if number}
        self._allowances = {cost: Allowance(number) for cost, number in self._per_minute.items()}
        self._trusted_proxies = limits.trusted_proxies
        self._clock = clock
        self._metrics = metrics

    def take(self, cost: Cost, request: Request) -> None:
        """Let a call pass.

        Raises:
            RateLimited: its caller has none left.
        """
        allowance = self._allowances.get(cost)
        if allowance is None:
            return
        wait_ms = allowance.wait_ms(client_of(request, self._trusted_proxies), self._clock.now_ms())
        if wait_ms:
            if self._metrics is not None:
                self._metrics.count("headrace_http_rate_limited_total", cost=cost.value)
            raise RateLimited(self._per_minute[cost], math.ceil(wait_ms / 1000))


def client_of(request: Request, trusted_proxies: int) -> str:
    """Who calls, as an address; of IPv6 its network.

    Each proxy appends the address that it was called from, so of `trusted_proxies` the first one's word is that many
    from the right. What is further left is the caller's own invention.
    """
    peer = request.client.host if request.client else ""
    forwarded = [part.strip() for line in request.headers.getlist("x-forwarded-for") for part in line.split(",")]
    if not 0 < trusted_proxies <= len(forwarded):
        return _network(peer) or "unknown"
    return _network(forwarded[-trusted_proxies]) or _network(peer) or "unknown"


def _network(text: str) -> str:
    """An address as a key; empty when it is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), _IPV6_PREFIX), strict=False))
    return str(address)
