"""`requestInferenceFor` on a real chain: what it costs is what fees are reckoned with, and who may sign."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from eth_account import Account
from eth_utils.address import to_checksum_address

from headrace.adapters.json_rpc import connect_http
from headrace.adapters.web3_chain import Web3Chain
from headrace.core import typed_data
from headrace.core.calls import request_inference_for_data
from headrace.core.envelope import hash_payload
from headrace.core.fees import posting_gas
from headrace.core.postings import SignedRequest, is_signed_by_key, refusal_of
from headrace.core.requests import request_id
from headrace.core.types import Status
from headrace.ports import Call
from tests.fakes import make_request
from tests.local_chain import CHAIN_ID, ETHER, LocalChain, local_chain, sign_digest

KEY = b"\x33" * 32
REQUESTER = str(Account.from_key(KEY).address).lower()
FEE_WEI = 10**14

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def anvil() -> AsyncIterator[LocalChain]:
    """A requester with credit and without wei; the relayer has had credit before."""
    async with local_chain() as chain:
        await chain.register_relayer()
        for account, wei in ((REQUESTER, ETHER), (chain.accounts[1], 1)):
            await chain.call(0, "InferenceMarket", "deposit", to_checksum_address(account), value=wei)
        await chain.mine()
        yield chain


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(anvil: LocalChain) -> AsyncIterator[Web3Chain]:
    opened = Web3Chain(await connect_http(anvil.url), anvil.deployment)
    yield opened
    await opened.close()


async def signed(anvil: LocalChain, chain: Web3Chain, key: bytes = KEY, **changes: Any) -> SignedRequest:
    fields = {
        "requester": REQUESTER,
        "relayer": anvil.accounts[1],
        "model_id": anvil.deployment.models["tiny"],
        "deadline_s": await anvil.now_s() + 600,
        "salt": 0x1122334455667788,
    }
    request = make_request(**{**fields, **changes})
    until_s = await anvil.now_s() + 300
    struct_hash = typed_data.hash_request_for(request, FEE_WEI, until_s)
    digest = typed_data.digest(typed_data.Domain(CHAIN_ID, chain.market), struct_hash)
    return SignedRequest(request, FEE_WEI, until_s, sign_digest(key, digest))


def call_of(chain: Web3Chain, given: SignedRequest, prompt: bytes = b"") -> Call:
    data = request_inference_for_data(
        given.request, prompt, given.relayer_fee_wei, given.valid_until_s, given.signature
    )
    return Call(chain.market, data)


async def gas_of(anvil: LocalChain, chain: Web3Chain, call: Call) -> int:
    (outcome,) = await chain.simulate(anvil.accounts[1], [call])
    assert outcome.succeeded, outcome.error
    return outcome.gas_used


@pytest.mark.parametrize("size", [0, 1, 32, 257, 1024, 2893, 4096, 8192])
async def test_posting_gas__is_what_the_chain_takes_within_five_percent(
    anvil: LocalChain, chain: Web3Chain, size: int
) -> None:
    """Of bytes that are not zero, the dearest."""
    prompt = bytes(1 + index % 255 for index in range(size))
    given = await signed(anvil, chain, prompt_hash=hash_payload(prompt), prompt_bytes=max(size, 1))
    used = await gas_of(anvil, chain, call_of(chain, given, prompt))
    assert used <= posting_gas(size) <= used * 1.05


async def test_posted__pays_escrow_and_fee_from_credit_and_is_never_taken_again(
    anvil: LocalChain, chain: Web3Chain
) -> None:
    given = await signed(anvil, chain, salt=1)
    assert is_signed_by_key(given, typed_data.Domain(CHAIN_ID, chain.market))
    before_wei, call = await chain.credit_wei(REQUESTER), call_of(chain, given)
    raw, hash_ = await anvil.sign(1, call.to, "0x" + call.data.hex())
    await chain.send_raw(raw)
    await anvil.mine()
    receipt = await chain.receipt(hash_)
    assert receipt is not None and receipt.succeeded
    assert [event.name for event in receipt.events] == ["InferenceRequested", "RelayerFeePaid"]
    id_ = request_id(given.request, CHAIN_ID, chain.market)
    assert receipt.events[0].args["requestId"] == id_
    assert await chain.statuses([id_]) == [Status.PENDING]
    assert before_wei - await chain.credit_wei(REQUESTER) == given.cost_wei
    assert await chain.balance_wei(REQUESTER) == 0
    (again,) = await chain.simulate(anvil.accounts[0], [call])
    assert again.error == f"RequestExists(requestId={id_})"
    assert refusal_of(again.error).code == "REQUEST_EXISTS"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"relayer_fee_wei": 1}, "SIGNATURE_MISMATCH"),
        ({"valid_until_s": 1}, "SIGNATURE_LAPSED"),
        ({"signature": b""}, "SIGNATURE_MISMATCH"),
    ],
)
async def test_refused__by_the_market__has_the_words_of_the_core(
    anvil: LocalChain, chain: Web3Chain, changes: dict[str, Any], code: str
) -> None:
    given = replace(await signed(anvil, chain, salt=2), **changes)
    (outcome,) = await chain.simulate(anvil.accounts[1], [call_of(chain, given)])
    assert not outcome.succeeded
    assert refusal_of(outcome.error).code == code


async def test_refused__credit_short__says_by_how_much(anvil: LocalChain, chain: Web3Chain) -> None:
    given = await signed(anvil, chain, salt=3, max_reward_wei=2 * ETHER)
    (outcome,) = await chain.simulate(anvil.accounts[1], [call_of(chain, given)])
    refusal = refusal_of(outcome.error)
    assert refusal.code == "CREDIT_SHORT"
    assert f"are {given.cost_wei} wei" in str(refusal)


async def test_contract_account__its_own_word_counts(anvil: LocalChain, chain: Web3Chain) -> None:
    """ERC-1271: the market asks the wallet, whose owner signed."""
    wallet = await anvil.deploy("SignerWallet", to_checksum_address(REQUESTER))
    await anvil.call(0, "InferenceMarket", "deposit", to_checksum_address(wallet), value=ETHER)
    await anvil.mine()
    given = await signed(anvil, chain, requester=wallet)
    assert not is_signed_by_key(given, typed_data.Domain(CHAIN_ID, chain.market)), "no key is the wallet's"
    used = await gas_of(anvil, chain, call_of(chain, given))
    assert used > posting_gas(0), "its own check is on top, and only a simulation tells how much"
    other = await signed(anvil, chain, b"\x44" * 32, requester=wallet)
    (outcome,) = await chain.simulate(anvil.accounts[1], [call_of(chain, other)])
    assert outcome.error == f"InvalidSignature(signer={wallet})"
