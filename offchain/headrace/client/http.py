"""Calls of a relayer's API: errors by their code, retries with full jitter that honour Retry-After.

Source for the jitter: "Exponential Backoff And Jitter", AWS Architecture Blog: sleep = random(0, min(cap, base × 2^n)).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from headrace.client.errors import ApiRefused
from headrace.core.errors import InvalidInput, Unavailable
from headrace.core.nesting import read_json

RETRIED = frozenset({429, 502, 503, 504})
API_URL = "HEADRACE_REQUESTER__API_URL"
MAX_ANSWER_BYTES = 4 * 1024 * 1024


def require_http(url: str, name: str) -> None:
    """Refuse what no API can be at, before it is asked again and again.

    Args:
        url: of an API.
        name: what it was given as.

    Raises:
        InvalidInput: it is not http or https with a host.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"{name} is {url!r}: write the URL of a relayer's API, such as https://relayer.example")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait between attempts."""

    base_s: float = 0.25
    cap_s: float = 5.0
    attempts: int = 5

    def delay_s(self, attempt: int, rng: random.Random, retry_after_s: float = 0.0) -> float:
        """Full jitter, on top of what the server asked for."""
        return retry_after_s + rng.uniform(0, min(self.cap_s, self.base_s * 2**attempt))


class ApiCalls:
    """One relayer's API."""

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        *,
        backoff: Backoff,
        rng: random.Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        timeout_s: float = 15.0,
        url_name: str = API_URL,
    ) -> None:
        self._url = url.rstrip("/")
        self._url_name = url_name
        self._session = session
        self._backoff = backoff
        self._rng = rng
        self._sleep = sleep
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def json(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Call, and read JSON."""
        return await self._call(method, path, _json, body, query, headers)

    async def bytes(self, path: str, *, headers: Mapping[str, str] | None = None) -> bytes:
        """Read bytes."""
        content: bytes = await self._call("GET", path, _bounded, None, None, headers)
        return content

    async def _call(
        self,
        method: str,
        path: str,
        read: Callable[[aiohttp.ClientResponse], Awaitable[Any]],
        body: Any,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
    ) -> Any:
        """Every call of this API may be repeated: a draft is not sent, a payload is the same under its hash, and a
        request that is handed in again is posted once."""
        failure: Unavailable | ApiRefused = Unavailable(f"the relayer's API at {self._url} was not asked")
        for attempt in range(self._backoff.attempts):
            retry_after_s = 0.0
            try:
                async with self._session.request(
                    method,
                    self._url + path,
                    json=body,
                    params=query,
                    headers=headers,
                    timeout=self._timeout,
                    # A relayer names no other place to send signed headers and prompts to.
                    allow_redirects=False,
                ) as response:
                    if response.status < 300:
                        return await read(response)
                    failure = await _refusal(response, self._url_name)
                    if response.status not in RETRIED:
                        raise failure
                    retry_after_s = _retry_after_s(response)
            except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
                failure = Unavailable(
                    f"the relayer's API at {self._url} does not answer ({type(exc).__name__}): "
                    f"check {self._url_name} and that the relayer runs"
                )
            if attempt + 1 < self._backoff.attempts:
                await self._sleep(self._backoff.delay_s(attempt, self._rng, retry_after_s))
        raise failure


async def _json(response: aiohttp.ClientResponse) -> Any:
    return await response.json(loads=read_json)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    content = await response.content.read(MAX_ANSWER_BYTES + 1)
    while len(content) <= MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES)):
        content += more
    if len(content) > MAX_ANSWER_BYTES:
        raise ValueError("the answer is too large")
    return content


async def _refusal(response: aiohttp.ClientResponse, url_name: str) -> ApiRefused:
    try:
        error = (await _json(response))["error"]
        return ApiRefused(str(error["code"]), str(error["message"]), str(error["hint"]), response.status)
    except (aiohttp.ClientError, ValueError, KeyError, TypeError):
        message = f"The API answered HTTP {response.status}, and not as a Headrace relayer does."
        return ApiRefused("HTTP_ERROR", message, f"Check {url_name}.", response.status)


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    text = response.headers.get("Retry-After", "")
    return min(float(text), 60.0) if text.isdecimal() else 0.0
