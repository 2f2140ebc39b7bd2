"""Sends a requester's transactions: simulated first, so that a refusal costs nothing and has a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from headrace.core.errors import Refused, Unknown
from headrace.core.types import Address, Hash32
from headrace.ports import Call, Chain, Receipt, Signer

GAS_HEADROOM_PERCENT = 120
# The base fee at most doubles in six full blocks; later the transaction waits for it to fall.
BASE_FEE_HEADROOM = 2


class TransactionSender(Protocol):
    """Signs and sends transactions of one account."""

    @property
    def address(self) -> Address:
        """Whose transactions."""
        ...

    async def send(self, call: Call) -> Hash32:
        """Sign and send; the hash is known even when the node's answer was lost.

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

    async def send(self, call: Call) -> Hash32:
        """Sign and send a call; see `TransactionSender`."""
        async with self._sending:
            (outcome,) = await self._chain.simulate(self.address, [call])
            if not outcome.succeeded:
                raise Refused(f"the transaction would fail: {outcome.error}")
            gas = await self._chain.gas_quote()
            gas_limit = outcome.gas_used * GAS_HEADROOM_PERCENT // 100
            max_fee_wei = gas.base_fee_wei * BASE_FEE_HEADROOM + gas.tip_wei
            await self._require_funds(call.value_wei + gas_limit * max_fee_wei)
            raw, transaction_hash = self._signer.sign_transaction(
                {
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
            )
            try:
                await self._chain.send_raw(raw)
            except Unknown:
                # It may have been taken: its receipt will tell, and sending it again is harmless.
                await self._chain.send_raw(raw)
        return transaction_hash

    async def wait(self, transaction_hash: Hash32, timeout_s: float) -> Receipt | None:
        """Wait for a receipt; see `TransactionSender`."""
        for _ in range(max(1, round(timeout_s / self._poll_s))):
            receipt = await self._chain.receipt(transaction_hash)
            if receipt is not None:
                return receipt
            await self._sleep(self._poll_s)
        return None

    async def _require_funds(self, needed_wei: int) -> None:
        balance_wei = await self._chain.balance_wei(self.address)
        if balance_wei < needed_wei:
            raise Refused(
                f"the account {self.address} has {balance_wei} wei and needs up to {needed_wei} for escrow and gas: "
                "send it some, or lower --max-reward or --gas-budget"
            )
