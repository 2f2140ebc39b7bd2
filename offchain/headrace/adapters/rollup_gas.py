"""What a rollup asks for a transaction's data, from the contract that each kind of rollup has at a fixed address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.core.gas_model import Arbitrum, Ethereum, GasModel, OpStack
from headrace.core.keccak import keccak

Ask = Callable[..., Awaitable[Any]]

GAS_PRICE_ORACLE = "0x420000000000000000000000000000000000000f"
"""Predeploy of OP-stack chains (Optimism specification, "Predeploys")."""
ARB_GAS_INFO = "0x000000000000000000000000000000000000006c"
"""Precompile of Arbitrum chains (Nitro, `precompiles/ArbGasInfo.go`)."""
_WORD = 32


class RollupGas:
    """Reads the gas model of a chain. What kind of chain it is is found once, by what has code there."""

    def __init__(self, ask: Ask) -> None:
        """
        Args:
            ask: a JSON-RPC question by method and parameters.
        """
        self._ask = ask
        self._kind: type[GasModel] | None = None

    async def model(self) -> GasModel:
        """The model with the prices of now.

        Raises:
            ChainUnavailable: the chain's node does not answer, or not so.
        """
        if self._kind is None:
            self._kind = await self._found()
        if self._kind is OpStack:
            names = ("l1BaseFee()", "blobBaseFee()", "baseFeeScalar()", "blobBaseFeeScalar()")
            words = await asyncio.gather(*(self._words(GAS_PRICE_ORACLE, name) for name in names))
            return OpStack(*(each[0] for each in words))
        if self._kind is Arbitrum:
            prices = await self._words(ARB_GAS_INFO, "getPricesInWei()")
            return Arbitrum(l1_byte_wei=prices[1], l1_transaction_wei=prices[0])
        return Ethereum()

    async def _found(self) -> type[GasModel]:
        codes = [await self._ask("eth_getCode", each, "latest") for each in (GAS_PRICE_ORACLE, ARB_GAS_INFO)]
        kinds: tuple[type[GasModel], ...] = (OpStack, Arbitrum)
        return next((kind for kind, code in zip(kinds, codes, strict=True) if code not in ("0x", "")), Ethereum)

    async def _words(self, contract: str, signature: str) -> list[int]:
        selector = "0x" + keccak(signature.encode())[:4].hex()
        data = bytes.fromhex((await self._ask("eth_call", {"to": contract, "data": selector}, "latest"))[2:])
        return [int.from_bytes(data[at : at + _WORD], "big") for at in range(0, len(data), _WORD)]
