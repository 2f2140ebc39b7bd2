"""What a node asks before it gives its word, against anvil and the real contracts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from eth_utils.crypto import keccak

from headrace.adapters.clock import SystemClock
from headrace.adapters.json_rpc import connect_http
from headrace.adapters.keystore import LocalSigner
from headrace.adapters.web3_chain import Web3Chain
from headrace.core.calls import cancel_data
from headrace.core.requests import request_id
from headrace.core.self_settlement import SelfSettlementPolicy
from headrace.core.tasks import Task
from headrace.core.types import Assignment
from headrace.node.payability import Payability, PayabilitySettings
from headrace.node.refusing import TaskRefused
from tests.fakes import make_request
from tests.local_chain import LocalChain, local_chain

NODE = LocalSigner(bytes(31) + b"\x07")
PROMPT = b"Why is the sky blue?"
REQUESTER, RELAYER = 3, 1  # of the chain's accounts
SETTINGS = PayabilitySettings(posting_wait_s=0.3, poll_s=0.05)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def anvil() -> AsyncIterator[LocalChain]:
    async with local_chain() as chain:
        await chain.register_relayer()
        await chain.register_node(bytes(31) + b"\x07", chain.deployment.models["tiny"])
        await chain.mine()
        yield chain


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(anvil: LocalChain) -> AsyncIterator[Web3Chain]:
    opened = Web3Chain(await connect_http(anvil.url), anvil.deployment)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def snapshot(anvil: LocalChain) -> AsyncIterator[None]:
    """Each test finds the same chain."""
    taken = await anvil.rpc("evm_snapshot")
    yield
    await anvil.rpc("anvil_dropAllTransactions")
    await anvil.rpc("evm_revert", taken)


async def task_of(anvil: LocalChain, chain: Web3Chain, *, posted: bool = True, reward_wei: int = 10**14) -> Task:
    """An assignment of a request, unsigned: who signed it was checked before."""
    request = make_request(
        requester=anvil.accounts[REQUESTER],
        relayer=anvil.accounts[RELAYER],
        model_id=anvil.deployment.models["tiny"],
        deadline_s=await anvil.now_s() + 600,
        prompt_hash="0x" + keccak(PROMPT).hex(),
        prompt_bytes=len(PROMPT),
        max_reward_wei=10**18,
    )
    if posted:
        await anvil.post(request, PROMPT)
        await anvil.mine()
    id_ = request_id(request, chain.chain_id, chain.market)
    word = Assignment(id_, anvil.accounts[RELAYER], NODE.address, 1, reward_wei, request.deadline_s)
    return Task(word, b"", request, "tiny", PROMPT)


async def refusal_of(chain: Web3Chain, task: Task, node: str = NODE.address) -> str:
    """Why a task is refused; empty when it is not."""
    terms = await chain.market_terms()
    payability = Payability(chain, SystemClock(), node, terms, SelfSettlementPolicy(), SETTINGS)
    try:
        await payability.require_paid(task)
    except TaskRefused as refused:
        return f"{refused.reason}: {refused}"
    return ""


async def test_require_paid__posted_and_payable__is_not_refused(anvil: LocalChain, chain: Web3Chain) -> None:
    assert await refusal_of(chain, await task_of(anvil, chain)) == ""


async def test_require_paid__never_posted__refused(anvil: LocalChain, chain: Web3Chain) -> None:
    assert "unpayable: the request is not on the chain" in await refusal_of(
        chain, await task_of(anvil, chain, posted=False)
    )


async def test_require_paid__other_terms_than_posted__are_another_request(anvil: LocalChain, chain: Web3Chain) -> None:
    posted = await task_of(anvil, chain)
    richer = replace(posted.request, max_reward_wei=posted.request.max_reward_wei + 1)
    word = replace(posted.assignment, request_id=request_id(richer, chain.chain_id, chain.market))
    assert "not on the chain" in await refusal_of(chain, replace(posted, request=richer, assignment=word))


async def test_require_paid__relayer_takes_its_bond_out__refused(anvil: LocalChain, chain: Web3Chain) -> None:
    task = await task_of(anvil, chain)
    await anvil.call(RELAYER, "StakeManager", "beginUnbondRelayer")
    await anvil.mine()
    assert "has no bond" in await refusal_of(chain, task)


async def test_require_paid__cancelled__refused(anvil: LocalChain, chain: Web3Chain) -> None:
    task = await task_of(anvil, chain)
    raw, _ = await anvil.sign(REQUESTER, chain.market, "0x" + cancel_data(task.request).hex())
    await chain.send_raw(raw)
    await anvil.mine()
    assert "the request was cancelled" in await refusal_of(chain, task)


async def test_require_paid__node_on_probation__the_cap_is_the_most(anvil: LocalChain, chain: Web3Chain) -> None:
    cap_wei = (await chain.market_terms()).probation_max_reward_wei
    assert await refusal_of(chain, await task_of(anvil, chain, reward_wei=cap_wei)) == ""
    assert "on probation" in await refusal_of(chain, await task_of(anvil, chain, reward_wei=cap_wei + 1))


async def test_require_paid__key_of_no_member__refused(anvil: LocalChain, chain: Web3Chain) -> None:
    assert "is not in the market" in await refusal_of(
        chain, await task_of(anvil, chain), node=anvil.accounts[REQUESTER]
    )
