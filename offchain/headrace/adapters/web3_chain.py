"""The `Chain` port over JSON-RPC, with web3.py's providers underneath."""

from __future__ import annotations

from pathlib import Path

from headrace.adapters.deployment import load_deployment
from headrace.adapters.json_rpc import connect_http
from headrace.adapters.web3_faults import FaultsReader
from headrace.adapters.web3_holdings import HoldingsReader
from headrace.adapters.web3_part import answered, bytes_of, hex_of
from headrace.adapters.web3_sending import ChainSender
from headrace.adapters.web3_verifying import VerifierReader
from headrace.core.errors import ConfigurationError, ExpiredContext
from headrace.core.keccak import keccak
from headrace.core.types import Address


class Web3Chain(HoldingsReader, ChainSender, VerifierReader, FaultsReader):
    """A chain with Headrace's contracts on it."""

    @classmethod
    async def connect(cls, url: str, deployments: Path, *, timeout_s: float = 10.0) -> Web3Chain:
        """Open a connection, find the deployment of the chain that answers, and check that it is there.

        Raises:
            ChainUnavailable: nothing answers at the URL.
            ConfigurationError: nothing is deployed on its chain, or something else than the file says.
        """
        rpc = await connect_http(url, timeout_s)
        try:
            chain_id = int(await answered(rpc, "eth_chainId"), 16)
            chain = cls(rpc, load_deployment(deployments, chain_id))
            await chain.check()
        except BaseException:
            await rpc.close()
            raise
        return chain

    async def check(self) -> None:
        """Check that the node is of the deployment's chain, with its contracts' very code on it.

        Raises:
            ConfigurationError: it is not; the message says what to do.
        """
        chain_id = int(await self._ask("eth_chainId"), 16)
        if chain_id != self.chain_id:
            raise ConfigurationError(
                f"{self._rpc.endpoint} is a node of chain {chain_id}, but the deployment is of chain {self.chain_id}"
            )
        for name, contract in self._deployment.contracts.items():
            code = bytes.fromhex((await self._ask("eth_getCode", contract.address, "latest"))[2:])
            if not code:
                raise ConfigurationError(
                    f"there is no {name} at {contract.address} on chain {chain_id}: run `ape run deploy` for that chain"
                )
            if hex_of(keccak(code)) != contract.code_hash:
                raise ConfigurationError(
                    f"the code at {contract.address} on chain {chain_id} is not the {name} of the deployment file: "
                    "run `ape run deploy` for that chain"
                )

    async def require_code(self, contract: Address) -> None:
        named = {each.address: (name, each.code_hash) for name, each in self._deployment.contracts.items()}
        name, code_hash = named[contract]
        if hex_of(keccak(bytes_of(await self._ask("eth_getCode", contract, "latest")))) != code_hash:
            raise ExpiredContext(
                f"{self._rpc.endpoint} has other code at {contract} than that of the deployment's {name}: it is not a "
                "node of this chain any more. Nothing is signed until it is; check the endpoint"
            )

    async def close(self) -> None:
        """Close the connections."""
        await self._rpc.close()
