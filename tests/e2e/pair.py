"""Traffic for a pair of relayer processes, and what became of it."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from headrace.adapters.clock import SystemClock
from headrace.adapters.keystore import LocalSigner
from headrace.adapters.web3_chain import Web3Chain
from headrace.client import ApiRefused, ChainSender, HeadraceClient, Wanted
from headrace.core.errors import HeadraceError
from headrace.core.types import Hash32
from scripts._stack import MODEL, REQUESTER, Stack, test_account

_LOOK_S = 0.02


async def until(is_so: Callable[[], Awaitable[bool]], timeout_s: float = 120) -> None:
    """Look until something is so. Processes ring no bell."""
    async with asyncio.timeout(timeout_s):
        while not await is_so():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)


@dataclass
class Traffic:
    """Requests in a row, each drafted by the process that leads. `ids` are those whose transaction was sent."""

    stack: Stack
    chain: Web3Chain
    ids: list[Hash32] = field(default_factory=list)

    async def post(self, count: int) -> None:
        """Post some, as fast as it goes."""
        signer = LocalSigner(bytes(test_account(REQUESTER).key))
        async with HeadraceClient(self.stack.api_url, signer, SystemClock()) as client:
            sender = ChainSender(self.chain, signer)
            for _ in range(count):
                prompt = f"What is {len(self.ids)}+1?"
                draft = await client.draft(Wanted(MODEL, prompt, max_output_tokens=8))
                await client.send(draft, sender)
                self.ids.append(draft.request_id)

    async def flow(self) -> None:
        """Post until cancelled, whoever leads, and whether anybody does."""
        while True:
            try:
                await self.post(1)
            except (HeadraceError, OSError):
                await asyncio.sleep(_LOOK_S)
            await asyncio.sleep(0.2)

    async def settled(self) -> None:
        """Wait until all that were sent are fulfilled, as the process that leads sees it."""
        async with HeadraceClient(self.stack.api_url, None, SystemClock()) as client:
            for id_ in self.ids:

                async def is_fulfilled(id_: Hash32 = id_) -> bool:
                    try:
                        return bool((await client.view(id_))["state"] == "fulfilled")
                    except ApiRefused:  # its block is not indexed yet
                        return False

                await until(is_fulfilled)

    async def reach(self, count: int) -> None:
        """Wait until so many were sent."""

        async def are_sent() -> bool:
            return len(self.ids) >= count

        await until(are_sent)


@asynccontextmanager
async def traffic(stack: Stack) -> AsyncIterator[Traffic]:
    """Traffic of the stack's requester."""
    chain = await Web3Chain.connect(stack.rpc_url, stack.deployments, timeout_s=10)
    try:
        yield Traffic(stack, chain)
    finally:
        await chain.close()


async def ready(port: int) -> None:
    """Wait until a relayer process leads and serves."""
    await until(partial(asyncio.to_thread, _is_ready, port))


def why_not_ready(port: int) -> str:
    """What a relayer process says of itself."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:
            return str(refused.read().decode())


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
