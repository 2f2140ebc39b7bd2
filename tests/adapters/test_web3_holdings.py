"""The holdings of owners, read from anvil and the real contracts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from eth_account import Account
from eth_utils.address import to_checksum_address

from headrace.adapters.json_rpc import JsonRpc, RpcError, connect_http
from headrace.adapters.web3_chain import Web3Chain
from headrace.core import typed_data
from headrace.core.errors import InvalidInput, NotFound
from headrace.core.types import ZERO_ADDRESS, Price
from headrace.ports import Holdings
from tests.local_chain import CHAIN_ID, ETHER, LocalChain, local_chain, sign_digest

KEYS = [bytes(31) + bytes([number]) for number in (7, 8)]
OLD, NEW = (str(Account.from_key(key).address).lower() for key in KEYS)
UNBOND_DELAY_S, OWNERSHIP_DELAY_S, MAX_PAUSE_S = 259_200, 3 * 86_400, 7 * 86_400

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def anvil() -> AsyncIterator[LocalChain]:
    """A node whose key was rotated, in one market, with a raise under way."""
    async with local_chain() as chain:
        await chain.register_relayer()
        await chain.register_node(KEYS[0], chain.deployment.models["tiny"])
        await chain.mine()
        market = to_checksum_address(chain.deployment.address_of("InferenceMarket"))
        await chain.call(2, "StakeManager", "rotateKey", checksum(OLD), checksum(NEW), consent(chain), [market])
        model_id = bytes.fromhex(chain.deployment.models["tiny"][2:])
        await chain.call(2, "StakeManager", "setPrices", checksum(NEW), [model_id], [5 * 10**12], [10**12])
        await chain.mine()
        yield chain


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(anvil: LocalChain) -> AsyncIterator[Web3Chain]:
    opened = Web3Chain(await connect_http(anvil.url), anvil.deployment)
    yield opened
    await opened.close()


def checksum(address: str) -> str:
    return to_checksum_address(address)


def consent(chain: LocalChain) -> bytes:
    domain = typed_data.Domain(CHAIN_ID, chain.deployment.address_of("StakeManager"))
    return sign_digest(KEYS[1], typed_data.digest(domain, typed_data.hash_register_node(NEW, chain.accounts[2])))


async def test_adapter__is_the_port(chain: Web3Chain) -> None:
    port: Holdings = chain
    terms = await port.stake_terms()
    assert (terms.min_stake_wei, terms.min_bond_wei) == (ETHER, ETHER)
    assert (terms.unbond_delay_s, terms.price_notice_s) == (UNBOND_DELAY_S, 3_600)


async def test_node_facts__retired_key__is_still_paid_and_assigned_nothing(anvil: LocalChain, chain: Web3Chain) -> None:
    old, new = await chain.node_facts(OLD), await chain.node_facts(NEW)
    assert (old.is_active, old.retired_at_s, old.payee) == (False, await anvil.now_s(), anvil.accounts[2])
    assert (new.is_active, new.retired_at_s, new.payee) == (True, 0, anvil.accounts[2])
    assert (old.stake_wei, old.owner, old.joined_at_s) == (new.stake_wei, new.owner, new.joined_at_s)


@pytest.mark.parametrize("key", [OLD, NEW])
async def test_node_stake__by_any_key__has_all_keys(anvil: LocalChain, chain: Web3Chain, key: str) -> None:
    stake = await chain.node_stake(key)
    assert (stake.owner, stake.stake_wei, stake.signing_key) == (anvil.accounts[2], ETHER, NEW)
    old, new = stake.keys
    assert (old.address, old.retired_at_s) == (OLD, await anvil.now_s())
    assert [place.leaves_at_s for place in old.memberships] == [old.retired_at_s + UNBOND_DELAY_S]
    assert [place.leaves_at_s for place in new.memberships] == [0]
    assert {place.market for each in stake.keys for place in each.memberships} == {chain.market}


async def test_node_stake__nobody__not_found(chain: Web3Chain) -> None:
    with pytest.raises(NotFound, match="is of no registered node"):
        await chain.node_stake("0x" + "99" * 20)
    assert await chain.posted_prices("0x" + "99" * 20) == []


@pytest.mark.parametrize("key", [OLD, NEW])
async def test_posted_prices__raise_under_way__is_told(anvil: LocalChain, chain: Web3Chain, key: str) -> None:
    (posted,) = await chain.posted_prices(key)
    assert posted.offer.price == Price(10**12, 2 * 10**12)
    assert posted.raised == Price(5 * 10**12, 10**12)
    assert posted.raised_at_s == await anvil.now_s() + 3_600


async def test_bond__relayer_or_nobody(anvil: LocalChain, chain: Web3Chain) -> None:
    bond = await chain.bond(anvil.accounts[1])
    assert (bond.bond_wei, bond.is_bonded, bond.withdrawable_at_s, bond.faults) == (ETHER, True, 0, 0)
    assert bond.registered_at_s > 0
    assert (await chain.bond(anvil.accounts[3])).registered_at_s == 0


async def test_ownership_and_pause__begun__are_told_from_the_events(anvil: LocalChain, chain: Web3Chain) -> None:
    assert await chain.paused_until_s() == 0
    assert (await chain.ownership("InferenceMarket")).pending_owner == ZERO_ADDRESS
    snapshot = await anvil.rpc("evm_snapshot")
    try:
        await anvil.call(0, "InferenceMarket", "transferOwnership", checksum(anvil.accounts[3]))
        await anvil.call(0, "InferenceMarket", "setRequestsPaused", True)
        await anvil.mine()
        now_s = await anvil.now_s()
        owned = await chain.ownership("InferenceMarket")
        assert (owned.owner, owned.pending_owner) == (anvil.accounts[0], anvil.accounts[3])
        assert owned.acceptable_at_s == now_s + OWNERSHIP_DELAY_S
        assert (await chain.ownership("ModelRegistry")).acceptable_at_s == 0
        assert await chain.paused_until_s() == now_s + MAX_PAUSE_S
    finally:
        assert await anvil.rpc("evm_revert", snapshot)


async def test_found__node_that_refuses_long_ranges__is_asked_in_parts(
    anvil: LocalChain, chain: Web3Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = JsonRpc.call
    asked = []

    async def call(self: JsonRpc, method: str, *params: object) -> object:
        if method == "eth_getLogs":
            (wanted,) = params
            span = int(wanted["toBlock"], 16) - int(wanted["fromBlock"], 16)  # type: ignore[index]
            asked.append(span)
            if span > 2:
                raise RpcError(-32005, "query returned more than 10000 results")
        return await whole(self, method, *params)

    expected = await chain.node_stake(NEW)
    monkeypatch.setattr(JsonRpc, "call", call)
    assert await chain.node_stake(NEW) == expected
    assert max(asked) > 2


async def test_call__values_of_other_types__are_refused(chain: Web3Chain) -> None:
    assert chain.call("StakeManager", "addBond", value_wei=5).value_wei == 5
    assert chain.call("StakeManager", "addBond").to == chain.stake_manager
    with pytest.raises(InvalidInput, match="beginUnbond cannot take what is given"):
        chain.call("StakeManager", "beginUnbond", OLD, -1)
