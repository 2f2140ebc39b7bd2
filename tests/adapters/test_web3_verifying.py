"""Asking verifiers on a real chain: what they refuse is refused, and what nobody answers is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from enum import IntEnum
from typing import Any

import pytest
import pytest_asyncio
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from headrace.adapters.json_rpc import JsonRpc, RpcError, connect_http
from headrace.adapters.web3_chain import Web3Chain
from headrace.core.errors import ChainUnavailable, InvalidInput
from headrace.core.requests import pack, request_id
from headrace.core.types import ZERO_HASH, Address, Mode, Request
from headrace.node.attester import Attester
from headrace.ports import Attestation
from tests.fakes import NODE, FakeSigner, make_request
from tests.local_chain import CHAIN_ID, LocalChain, compiled, local_chain

Behaviour = IntEnum("Behaviour", "HONEST WRONG_MAGIC SHORT_ANSWER REVERTS BURNS_ALL_GAS RETURNS_MUCH", start=0)
RESULT_HASH = "0x" + keccak(b"said").hex()
KEY = FakeSigner(33)
DAY_S = 86_400

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def anvil() -> AsyncIterator[LocalChain]:
    async with local_chain() as chain:
        yield chain


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(anvil: LocalChain) -> AsyncIterator[Web3Chain]:
    opened = Web3Chain(await connect_http(anvil.url), anvil.deployment)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier(anvil: LocalChain) -> Address:
    return await anvil.deploy("TestVerifier")


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def snapshot(anvil: LocalChain, verifier: Address) -> AsyncIterator[None]:
    """Each test finds the same chain."""
    taken = await anvil.rpc("evm_snapshot")
    yield
    await anvil.rpc("anvil_dropAllTransactions")
    await anvil.rpc("evm_revert", taken)


def request_for(verifier: Address, **changes: Any) -> Request:
    return make_request(**{"mode": Mode.VERIFIER, "verifier": verifier, **changes})


async def proof_of(anvil: LocalChain, chain: Web3Chain, request: Request) -> bytes:
    contract: Any = anvil.web3.eth.contract(to_checksum_address(request.verifier), abi=compiled("TestVerifier")["abi"])
    packed = pack(request)
    struct = (*map(to_checksum_address, packed[:2]), *packed[2:6], to_checksum_address(packed[6]))
    id_ = bytes.fromhex(request_id(request, CHAIN_ID, chain.market)[2:])
    return bytes(
        await contract.functions.proofOf(struct, id_, to_checksum_address(NODE), bytes.fromhex(RESULT_HASH[2:])).call()
    )


async def test_is_verified__proof_of_this_result__is_taken_and_no_other(
    anvil: LocalChain, chain: Web3Chain, verifier: Address
) -> None:
    request = request_for(verifier)
    proof = await proof_of(anvil, chain, request)
    assert await chain.is_verified(request, NODE, RESULT_HASH, proof)
    assert not await chain.is_verified(request, NODE, RESULT_HASH, b"")
    assert not await chain.is_verified(request, NODE, ZERO_HASH, proof)
    assert not await chain.is_verified(request, "0x" + "d2" * 20, RESULT_HASH, proof)
    assert not await chain.is_verified(replace(request, salt=9), NODE, RESULT_HASH, proof)


@pytest.mark.parametrize("behaviour", Behaviour)
async def test_is_verified__verifier_that_misbehaves__is_judged_as_the_market_judges_it(
    anvil: LocalChain, chain: Web3Chain, verifier: Address, behaviour: Behaviour
) -> None:
    request = request_for(verifier)
    proof = await proof_of(anvil, chain, request)
    data = anvil.web3.eth.contract(abi=compiled("TestVerifier")["abi"]).encode_abi("set", [int(behaviour)])
    raw, _ = await anvil.sign(3, verifier, data)
    await anvil.rpc("eth_sendRawTransaction", "0x" + raw.hex())
    await anvil.mine()
    expected = behaviour in (Behaviour.HONEST, Behaviour.RETURNS_MUCH)
    assert await chain.is_verified(request, NODE, RESULT_HASH, proof) is expected


async def test_is_verified__no_contract_there__is_refused(chain: Web3Chain) -> None:
    assert not await chain.is_verified(request_for("0x" + "5e" * 20), NODE, RESULT_HASH, b"")


@pytest.mark.parametrize("error", [RpcError(-32005, "daily request count exceeded"), ChainUnavailable("gone")])
async def test_is_verified__node_does_not_tell__is_unknown(
    chain: Web3Chain, verifier: Address, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(self: JsonRpc, method: str, *params: Any) -> Any:
        raise error

    monkeypatch.setattr(JsonRpc, "call", fail)
    with pytest.raises(ChainUnavailable):
        await chain.is_verified(request_for(verifier), NODE, RESULT_HASH, b"")


async def test_attestation_of__key__is_what_the_registrar_said(anvil: LocalChain, chain: Web3Chain) -> None:
    verifier, model_id = chain.attested_key_verifier, anvil.deployment.models["tiny"]
    assert await chain.attestation_of(verifier, KEY.address) == Attestation(KEY.address, ZERO_HASH, 0)
    until_s = await anvil.now_s() + DAY_S
    key = to_checksum_address(KEY.address)
    await anvil.call(0, "AttestedKeyVerifier", "attest", key, bytes.fromhex(model_id[2:]), until_s)
    await anvil.mine()
    assert await chain.attestation_of(verifier, KEY.address) == Attestation(KEY.address, model_id, until_s)


async def test_attestation_of__no_contract_there__says_so(chain: Web3Chain) -> None:
    with pytest.raises(InvalidInput, match="there is no contract"):
        await chain.attestation_of("0x" + "5e" * 20, KEY.address)


async def test_is_verified__attested_key__until_it_is_revoked(anvil: LocalChain, chain: Web3Chain) -> None:
    attester = Attester(KEY, CHAIN_ID, chain.attested_key_verifier)
    request = request_for(attester.verifier, model_id=anvil.deployment.models["tiny"])
    proof = await attester.prove(request_id(request, CHAIN_ID, chain.market), NODE, RESULT_HASH)
    assert not await chain.is_verified(request, NODE, RESULT_HASH, proof)
    key, model_id = to_checksum_address(KEY.address), bytes.fromhex(request.model_id[2:])
    await anvil.call(0, "AttestedKeyVerifier", "attest", key, model_id, await anvil.now_s() + DAY_S)
    await anvil.mine()
    assert await chain.is_verified(request, NODE, RESULT_HASH, proof)
    assert not await chain.is_verified(replace(request, model_id=ZERO_HASH), NODE, RESULT_HASH, proof)
    await anvil.call(0, "AttestedKeyVerifier", "revoke", key)
    await anvil.mine()
    assert not await chain.is_verified(request, NODE, RESULT_HASH, proof)
