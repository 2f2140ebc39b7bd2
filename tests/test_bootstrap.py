"""What a relayer needs before it starts, against a real chain."""

from __future__ import annotations

import pytest

from headrace.adapters.json_rpc import connect_http
from headrace.adapters.keystore import LocalSigner
from headrace.adapters.web3_chain import Web3Chain
from headrace.bootstrap.relayer import _require_fit
from headrace.core.errors import ConfigurationError
from tests.fakes import FakeSigner
from tests.local_chain import ETHER, local_chain

RELAYER = 1  # of the chain's accounts

pytestmark = pytest.mark.slow


async def test_require_fit__registered_funded_or_not__starts_also_to_settle_what_is_owed() -> None:
    async with local_chain() as anvil:
        chain, signer = Web3Chain(await connect_http(anvil.url), anvil.deployment), LocalSigner(anvil.keys[RELAYER])
        try:
            with pytest.raises(ConfigurationError, match=r"has no bond .* run `ape run register_relayer`"):
                await _require_fit(chain, signer, None, ETHER)
            await anvil.register_relayer()
            await anvil.mine()
            await _require_fit(chain, signer, None, ETHER)
            with pytest.raises(ConfigurationError, match="send it ether"):
                await _require_fit(chain, signer, None, 10**9 * ETHER)
            # Of several submitters, one that can pay is enough.
            poor = [FakeSigner(number) for number in (70, 71)]
            with pytest.raises(ConfigurationError, match="the submitter"):
                await _require_fit(chain, signer, poor[0], ETHER, poor[1:])
            await _require_fit(chain, signer, poor[0], ETHER, [poor[1], LocalSigner(anvil.keys[3])])
            await anvil.call(RELAYER, "StakeManager", "beginUnbondRelayer")
            await anvil.mine()
            assert not await chain.is_bonded(signer.address)
            await _require_fit(chain, signer, None, ETHER)
        finally:
            await chain.close()
