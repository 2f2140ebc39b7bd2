"""Signs many messages at once, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.core.typed_data import Domain
from headrace.ports import Signer

MAX_AT_ONCE = 32
"""Signatures that are asked for at the same time: enough to hide the way to a remote signer, and no flood."""


async def sign_all(signer: Signer, domain: Domain, struct_hashes: Sequence[bytes]) -> list[bytes]:
    """Signatures over typed data, in its order: all of them, or none.

    Raises:
        SignerUnavailable: one of them cannot be had now.
    """
    signatures = [b""] * len(struct_hashes)
    waiting = iter(enumerate(struct_hashes))

    async def work() -> None:
        # A key in this process never waits, so the first of these does it all, and none costs a task of its own.
        for place, struct_hash in waiting:
            signatures[place] = await signer.sign_typed(domain, struct_hash)

    tasks = [asyncio.create_task(work()) for _ in range(min(MAX_AT_ONCE, len(struct_hashes)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return signatures
