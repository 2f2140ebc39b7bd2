"""What reading and sending share: the node, the contracts' addresses and their ABIs."""

from __future__ import annotations

from typing import Any

from headrace.adapters.abi_codec import ContractAbi, ErrorDecoder, EventDecoder
from headrace.adapters.abi_reader import MalformedData
from headrace.adapters.deployment import Deployment
from headrace.adapters.json_rpc import JsonRpc, RpcError
from headrace.core.errors import ChainUnavailable, InvalidInput
from headrace.core.types import Address, Hash32


class ChainPart:
    """A part of the chain adapter."""

    def __init__(self, rpc: JsonRpc, deployment: Deployment) -> None:
        """
        Args:
            rpc: the node, or the pool of nodes.
            deployment: where the contracts are.
        """
        self._rpc = rpc
        self._deployment = deployment
        self._market = ContractAbi("InferenceMarket")
        self._stakes = ContractAbi("StakeManager")
        self._log = ContractAbi("ScheduleLog")
        self._registry = ContractAbi("ModelRegistry")
        self._events = EventDecoder({name: each.address for name, each in deployment.contracts.items()})
        self._errors = ErrorDecoder()

    @property
    def deployment(self) -> Deployment:
        """Where the contracts are."""
        return self._deployment

    @property
    def chain_id(self) -> int:
        return self._deployment.chain_id

    @property
    def market(self) -> Address:
        return self._deployment.address_of("InferenceMarket")

    @property
    def schedule_log(self) -> Address:
        return self._deployment.address_of("ScheduleLog")

    @property
    def stake_manager(self) -> Address:
        return self._deployment.address_of("StakeManager")

    @property
    def attested_key_verifier(self) -> Address:
        return self._deployment.address_of("AttestedKeyVerifier")

    async def _ask(self, method: str, *params: Any) -> Any:
        return await answered(self._rpc, method, *params)

    async def _read(self, abi: ContractAbi, address: Address, function: str, *values: Any, at: str = "latest") -> Any:
        call = {"to": address, "data": hex_of(abi.call(function, *values))}
        try:
            data = await self._rpc.call("eth_call", call, at)
        except RpcError as exc:
            if revert := bytes_of(exc.data):
                raise InvalidInput(f"{function} reverts with {self._errors.decode(revert)}") from exc
            raise ChainUnavailable(f"{self._rpc.endpoint} answered {function} with: {exc.message}") from exc
        try:
            return abi.result(function, bytes_of(data))
        except MalformedData as exc:
            raise ChainUnavailable(f"{self._rpc.endpoint} answered {function} at {address} with: {exc}") from exc

    async def _latest(self) -> Any:
        return await self._ask("eth_getBlockByNumber", "latest", False)


async def answered(rpc: JsonRpc, method: str, *params: Any) -> Any:
    """Ask for what a node has no reason to refuse."""
    try:
        return await rpc.call(method, *params)
    except RpcError as exc:
        raise ChainUnavailable(f"{rpc.endpoint} answered {method} with: {exc.message}") from exc


def bytes_of(value: Any) -> bytes:
    """Bytes from what JSON-RPC gives; none where it gives something else."""
    return bytes.fromhex(value[2:]) if isinstance(value, str) and value.startswith("0x") else b""


def b32(text: Hash32) -> bytes:
    """A hash as bytes."""
    return bytes.fromhex(text[2:])


def hex_of(data: bytes) -> str:
    """Bytes as JSON-RPC has them."""
    return "0x" + data.hex()
