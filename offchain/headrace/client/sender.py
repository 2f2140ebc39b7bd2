"""Sends a requester's transactions: simulated first, so that a refusal costs nothing and has a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from headrace.client.refusals import in_words
from headrace.core.errors import Refused, Unknown
from headrace.core.guard import MAX_TRANSACTION_GAS
from headrace.core.types import Address, Hash32
from headrace.ports import Call, Chain, Receipt, Signer

# What clears storage is charged a fifth less in the end (EIP-3529), which it must have until then; and a fifth more is
# for what may have changed.
GAS_HEADROOM_PERCENT = 150
# The base fee at most doubles in six full blocks; later the transaction waits for it to fall.
BASE_FEE_HEADROOM = 2
REMEDY = "send it some"
# How long another transaction of the same account is waited for.
NONCE_S = 30.0
# What nodes say when another transaction of the account has the nonce.
_NONCE_TAKEN = ("nonce too low", "nonce is too low", "replacement transaction underpriced", "replacement underpriced")


class TransactionSender(Protocol):
    """Signs and sends transactions of one account."""

    @property
    def address(self) -> Address:
        """Whose transactions."""
        ...

    async def send(self, call: Call, *, call_out_gas: int = 0, remedy: str = REMEDY) -> Hash32:
        """Sign and send; the hash is known even when the node's answer was lost.

        Args:
            call: what to send.
            call_out_gas: what contracts that it calls may use beyond what a simulation shows.
            remedy: what its sender can do who cannot pay for it.

        Raises:
            Refused: it would revert, or the account cannot pay for it; nothing was sent.
        """
        ...

    async def wait(self, transaction_hash: Hash32, timeout_s: float) -> Receipt | None:
        """Its receipt, or None when it is in no block yet."""
        ...


class ChainSender:
    """A `TransactionSender` over the Chain port and a key."""

    def __init__(
        self,
        chain: Chain,
        signer: Signer,
        *,
        poll_s: float = 0.25,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._chain = chain
        self._signer = signer
        self._poll_s = poll_s
        self._sleep = sleep
        self._sending = asyncio.Lock()

    @property
    def address(self) -> Address:
        """Whose transactions."""
        return self._signer.address

    async def send(self, call: Call, *, call_out_gas: int = 0, remedy: str = REMEDY) -> Hash32:
        """Sign and send a call; see `TransactionSender`."""
        async with self._sending:
            fields = await self._fields(call, call_out_gas, remedy)
            try:
                return await self._sign_and_send(fields)
            except Refused as exc:
                if not _is_nonce_taken(exc):
                    raise
                fresh = await self._fresh_nonce(fields["nonce"])
            try:
                return await self._sign_and_send({**fields, "nonce": fresh})
            except Refused as exc:
                raise (self._nonce_taken() if _is_nonce_taken(exc) else exc) from exc

    async def _fields(self, call: Call, call_out_gas: int, remedy: str) -> dict[str, Any]:
        (outcome,) = await self._chain.simulate(self.address, [call])
        if not outcome.succeeded:
            raise Refused(in_words(outcome.error))
        gas = await self._chain.gas_quote()
        gas_limit = min(outcome.gas_used * GAS_HEADROOM_PERCENT // 100 + call_out_gas, MAX_TRANSACTION_GAS)
        max_fee_wei = gas.base_fee_wei * BASE_FEE_HEADROOM + gas.tip_wei
        await self._require_funds(call.value_wei + gas_limit * max_fee_wei, remedy)
        return {
            "type": 2,
            "chainId": self._chain.chain_id,
            "nonce": await self._chain.transaction_count(self.address),
            "to": call.to,
            "value": call.value_wei,
            "data": call.data,
            "gas": gas_limit,
            "maxFeePerGas": max_fee_wei,
            "maxPriorityFeePerGas": gas.tip_wei,
        }

    async def _sign_and_send(self, fields: Mapping[str, Any]) -> Hash32:
        raw, transaction_hash = await self._signer.sign_transaction(fields)
        try:
            await self._chain.send_raw(raw)
        except Unknown:
            # It may have been taken: its receipt will tell, and sending it again is harmless.
            await self._chain.send_raw(raw)
        return transaction_hash

    async def _fresh_nonce(self, taken: int) -> int:
        """The nonce after the one that another transaction of the account took, once that one is in a block."""
        for _ in range(max(1, round(NONCE_S / self._poll_s))):
            nonce = await self._chain.transaction_count(self.address)
            if nonce > taken:
                return nonce
            await self._sleep(self._poll_s)
        raise self._nonce_taken()

    def _nonce_taken(self) -> Refused:
        return Refused(
            f"another transaction of the account {self.address} is on its way and has the same nonce; nothing was "
            "sent: try again when it is in a block, or use a key of its own for each program"
        )

    async def wait(
        self, transaction_hash: Hash32, timeout_s: float, on_wait: Callable[[], None] = lambda: None
    ) -> Receipt | None:
        """Wait for a receipt; see `TransactionSender`. `on_wait` is called each time that there is none."""
        for _ in range(max(1, round(timeout_s / self._poll_s))):
            receipt = await self._chain.receipt(transaction_hash)
            if receipt is not None:
                return receipt
            on_wait()
            await self._sleep(self._poll_s)
        return None

    async def _require_funds(self, needed_wei: int, remedy: str) -> None:
        balance_wei = await self._chain.balance_wei(self.address)
        if balance_wei < needed_wei:
            raise Refused(
                f"the account {self.address} has {balance_wei} wei and needs up to {needed_wei} wei for what it sends "
                f"and for gas: {remedy}"
            )


def _is_nonce_taken(refusal: Refused) -> bool:
    return any(words in str(refusal).lower() for words in _NONCE_TAKEN)
