"""What a watcher that is no relayer needs: a relayer's leaves and accepts by its API, and proofs sent one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from headrace.client.audits import LEAVES_PAGE, decision_of
from headrace.client.errors import ApiRefused
from headrace.client.http import ApiCalls
from headrace.client.sender import TransactionSender
from headrace.core.errors import Unavailable
from headrace.core.faults import SignedAccept
from headrace.core.types import Address, Decision, Hash32
from headrace.ports import Chain, Clock, StoredFault

MAX_ACCEPTS = 100_000
RECEIPT_S = 60.0
PATIENCE_MS = 600_000
_T = TypeVar("_T")


class ApiWords:
    """Leaves and accepts from a relayer's API."""

    def __init__(self, calls: ApiCalls, relayer: Address) -> None:
        self._calls = calls
        self._relayer = relayer

    async def leaves(self, round_: int, count: int) -> list[Decision] | None:
        """See RoundWords."""
        return await self._pages(f"/v1/rounds/{round_}/decisions", "leaves", decision_of, count)

    async def accepts(self, round_: int) -> list[SignedAccept] | None:
        """See RoundWords."""

        def accept_of(given: Any) -> SignedAccept:
            return SignedAccept(
                request_id=str(given["request_id"]),
                node=str(given["node"]),
                relayer=self._relayer,
                round=round_,
                deadline_s=int(given["deadline_s"]),
                signature=bytes.fromhex(str(given["signature"]).removeprefix("0x")),
            )

        return await self._pages(f"/v1/rounds/{round_}/accepts", "accepts", accept_of, MAX_ACCEPTS)

    async def _pages(self, path: str, field: str, read: Callable[[Any], _T], most: int) -> list[_T] | None:
        """All entries of a list that comes in pages; None when it cannot be had, or is longer than it can be."""
        found: list[_T] = []
        offset: int | None = 0
        while offset is not None and len(found) <= most:
            query = {"limit": str(LEAVES_PAGE), "offset": str(offset)}
            try:
                page = await self._calls.json("GET", path, query=query)
                entries = [read(each) for each in page[field]]
                offset = page["next_offset"] if entries else None
            except (ApiRefused, Unavailable, LookupError, TypeError, ValueError):
                return None
            found += entries
        return found if len(found) <= most else None


class SingleProofs:
    """Proofs as transactions of an account of its own, each waited for."""

    def __init__(self, chain: Chain, sender: TransactionSender, clock: Clock) -> None:
        self._chain = chain
        self._sender = sender
        self._clock = clock
        self._sent_at_ms: dict[Hash32, int] = {}

    @property
    def address(self) -> Address:
        """Whom the bounties go to."""
        return self._sender.address

    async def is_under_way(self, fault: StoredFault) -> bool:
        """Whether the last transaction of a fault may still be included: it was sent not long ago and has no receipt.
        One that comes later than that costs gas, and proves nothing twice."""
        sent_at_ms = self._sent_at_ms.get(fault.transaction_hash)
        if sent_at_ms is None or self._clock.now_ms() - sent_at_ms > PATIENCE_MS:
            return False
        return await self._chain.receipt(fault.transaction_hash) is None

    async def send(self, fault: StoredFault, gas_used: int) -> Hash32:
        """Send the call that proves a fault, and wait a while for its receipt."""
        transaction_hash = await self._sender.send(fault.call)
        now_ms = self._clock.now_ms()
        self._sent_at_ms = {hash_: at for hash_, at in self._sent_at_ms.items() if now_ms - at <= PATIENCE_MS}
        self._sent_at_ms[transaction_hash] = now_ms
        await self._sender.wait(transaction_hash, RECEIPT_S)
        return transaction_hash
