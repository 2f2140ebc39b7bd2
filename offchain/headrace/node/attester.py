"""Proves a node's answers to a contract that trusts attested keys (`contracts/verifiers/AttestedKeyVerifier.sol`)."""

from __future__ import annotations

from headrace.core.typed_data import ATTESTED_KEY_VERIFIER, Domain, hash_attestation
from headrace.core.types import Address, Hash32
from headrace.ports import Signer


class Attester:
    """A key that a registrar vouches for, and the verifier that takes its word.

    The key speaks for what the model said; the node's own key speaks for the node. They may be one.
    """

    def __init__(self, signer: Signer, chain_id: int, verifier: Address) -> None:
        self.verifier = verifier
        self._signer = signer
        self._domain = Domain(chain_id, verifier, ATTESTED_KEY_VERIFIER)

    @property
    def key(self) -> Address:
        """Whom the registrar must vouch for."""
        return self._signer.address

    async def prove(self, request_id: Hash32, node: Address, result_hash: Hash32) -> bytes:
        """The proof that a node's result of a request is what its model said."""
        return await self._signer.sign_typed(self._domain, hash_attestation(request_id, node, result_hash))
