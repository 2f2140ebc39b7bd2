"""Asking verifiers: what they take for proven, and whom an attested-key verifier vouches for."""

from __future__ import annotations

from headrace.adapters.abi_codec import ContractAbi
from headrace.adapters.deployment import Deployment
from headrace.adapters.json_rpc import JsonRpc, RpcError
from headrace.adapters.web3_part import ChainPart, b32, bytes_of, hex_of
from headrace.core.errors import ChainUnavailable, InvalidInput
from headrace.core.requests import pack, request_id
from headrace.core.types import Address, Hash32, Request
from headrace.ports import Attestation

# The most that the market gives a verifier, and what is taken of a call before it begins: a base and each byte.
_VERIFIER_GAS = 400_000
_CALL_GAS = 21_000
_BYTE_GAS = 40
_REVERTED = 3  # of JSON-RPC's error codes
# How nodes say that the code itself gave up; anything else is the node's own trouble, and proves nothing.
_GAVE_UP = (
    "revert",
    "out of gas",
    "outofgas",
    "opcode",
    "stack underflow",
    "stack limit",
    "invalid jump",
    "invalidjump",
)


class VerifierReader(ChainPart):
    """What verifiers say."""

    def __init__(self, rpc: JsonRpc, deployment: Deployment) -> None:
        super().__init__(rpc, deployment)
        self._verifier = ContractAbi("IResultVerifier")
        self._attested = ContractAbi("AttestedKeyVerifier")

    async def is_verified(self, request: Request, node: Address, result_hash: Hash32, proof: bytes) -> bool:
        id_ = request_id(request, self.chain_id, self.market)
        data = self._verifier.call("verifyInference", tuple(pack(request)), b32(id_), node, b32(result_hash), proof)
        call = {
            "from": self.market,
            "to": request.verifier,
            "data": hex_of(data),
            "gas": hex(_VERIFIER_GAS + _CALL_GAS + _BYTE_GAS * len(data)),
        }
        try:
            answer = bytes_of(await self._rpc.call("eth_call", call, "latest"))
        except RpcError as exc:
            if exc.code == _REVERTED or any(words in exc.message.lower() for words in _GAVE_UP):
                return False
            raise ChainUnavailable(f"{self._rpc.endpoint} answered verifyInference with: {exc.message}") from exc
        # A verifier that agrees answers with its function's selector.
        return answer[:32] == data[:4].ljust(32, b"\0")

    async def attestation_of(self, verifier: Address, key: Address) -> Attestation:
        if not bytes_of(await self._ask("eth_getCode", verifier, "latest")):
            raise InvalidInput(f"there is no contract at {verifier} on chain {self.chain_id}")
        model_id, valid_until_s = await self._read(self._attested, verifier, "attestedOf", key)
        return Attestation(key, model_id, valid_until_s)
