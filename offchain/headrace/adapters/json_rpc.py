"""JSON-RPC over a web3.py provider: raw answers, and errors in the port's own words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from web3.exceptions import Web3Exception
from web3.providers import AsyncHTTPProvider
from web3.providers.async_base import AsyncJSONBaseProvider
from web3.types import RPCEndpoint

from headrace.core.errors import ChainUnavailable, HeadraceError

# Endpoints that limit ranges and sizes say so by one of these as often as by a JSON-RPC error.
_REFUSED_BY_HTTP = frozenset({400, 413})


class RpcError(Exception):
    """The node answered, with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class AnswerLost(ChainUnavailable):
    """The question went out; whether it was heard is not known."""


class JsonRpc:
    """Asks a node. Values stay as JSON-RPC has them: formatting thousands of logs would cost more than reading them."""

    def __init__(self, provider: AsyncJSONBaseProvider, endpoint: str, timeout_s: float = 10.0) -> None:
        """
        Args:
            provider: what carries the questions.
            endpoint: how messages name it.
            timeout_s: for one question.
        """
        self._provider = provider
        self._endpoint = endpoint
        self._timeout_s = timeout_s

    @property
    def endpoint(self) -> str:
        """How messages name the node."""
        return self._endpoint

    async def call(self, method: str, *params: Any) -> Any:
        """Ask, and return the result.

        Raises:
            RpcError: the node answered with an error.
            ChainUnavailable: it cannot be reached.
            AnswerLost: it was reached, but no answer came.
        """
        answer = await self._guarded(method, self._provider.make_request(RPCEndpoint(method), params))
        return self._result_of(method, answer)

    async def batch(self, method: str, many_params: Sequence[Sequence[Any]]) -> list[Any]:
        """Ask the same with several parameters, in one message."""
        if not many_params:
            return []
        requests = [(RPCEndpoint(method), params) for params in many_params]
        answers = await self._guarded(method, self._provider.make_batch_request(requests))
        if not isinstance(answers, list):
            self._result_of(method, answers)
            raise ChainUnavailable(f"{self._endpoint} answered a batch of {method} with a single result")
        return [self._result_of(method, answer) for answer in answers]

    async def close(self) -> None:
        """Close the connections."""
        await self._provider.disconnect()

    def _result_of(self, method: str, response: Any) -> Any:
        if not isinstance(response, dict):
            raise AnswerLost(f"{self._endpoint} answered {method} with something else than JSON-RPC")
        error = response.get("error")
        if error is None:
            return response.get("result")
        if not isinstance(error, dict):
            raise RpcError(0, str(error))
        code = error.get("code", 0)
        raise RpcError(code if isinstance(code, int) else 0, str(error.get("message", "")), error.get("data"))

    async def _guarded(self, method: str, question: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await question
        except HeadraceError:
            raise
        except aiohttp.ClientConnectorError as exc:
            raise ChainUnavailable(f"{self._endpoint} cannot be reached: {exc.strerror or exc}") from exc
        except aiohttp.ClientResponseError as exc:
            if exc.status in _REFUSED_BY_HTTP:
                raise RpcError(-exc.status, f"HTTP {exc.status} {exc.message}") from exc
            raise AnswerLost(f"{self._endpoint} answered {method} with HTTP {exc.status} {exc.message}") from exc
        except TimeoutError as exc:
            raise AnswerLost(f"{self._endpoint} did not answer {method} within {self._timeout_s:g} s") from exc
        # RecursionError: JSON that is nested too deeply. TypeError: JSON that is no answer to a batch.
        except (aiohttp.ClientError, OSError, ValueError, TypeError, RecursionError, Web3Exception) as exc:
            raise AnswerLost(f"{self._endpoint} did not answer {method}: {str(exc) or type(exc).__name__}") from exc


async def connect_http(url: str, timeout_s: float = 10.0) -> JsonRpc:
    """A node at a URL, over one session of kept-alive connections."""
    provider = _HttpProvider(
        url,
        request_kwargs={"timeout": aiohttp.ClientTimeout(total=timeout_s)},
        # Repeating is for the callers, who know what a lost answer means.
        exception_retry_configuration=None,
    )
    provider.use(aiohttp.ClientSession(raise_for_status=True))
    return JsonRpc(provider, name_of(url), timeout_s)


class _HttpProvider(AsyncHTTPProvider):
    """web3.py's, over one session that is looked up without its lock.

    web3.py takes a lock in a thread for each question. A question that is cancelled meanwhile, as by a timeout, leaves
    the lock taken for ever, and no later one is asked.
    """

    def use(self, session: aiohttp.ClientSession) -> None:
        """The session for all questions; `disconnect` closes it."""
        self._session = session
        self._request_session_manager.async_cache_and_return_session = self._own_session  # type: ignore[method-assign]

    async def disconnect(self) -> None:
        await self._session.close()

    async def _own_session(self, *_: Any, **__: Any) -> aiohttp.ClientSession:
        return self._session


def name_of(url: str) -> str:
    """A URL as it may be shown: keys hide in user names, paths and queries alike."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"
