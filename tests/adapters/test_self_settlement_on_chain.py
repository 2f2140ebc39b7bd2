"""Settling by a node itself and by a relayer's submitter, against anvil and the real contracts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from eth_utils.crypto import keccak

from headrace.adapters.clock import SystemClock
from headrace.adapters.json_rpc import connect_http
from headrace.adapters.keystore import LocalSigner
from headrace.adapters.node_journal import SqlNodeJournal
from headrace.adapters.web3_chain import Web3Chain
from headrace.core import typed_data
from headrace.core.calls import cancel_data, selectors
from headrace.core.guard import MAX_FEE_CEILING_WEI, GuardPolicy
from headrace.core.journal import JournalEntry, TaskState
from headrace.core.link_messages import TaskMessage, encode
from headrace.core.requests import request_id
from headrace.core.self_settlement import SelfSettlementPolicy, pay_wei
from headrace.core.tasks import Task
from headrace.core.types import (
    ZERO_HASH,
    Assignment,
    GasQuote,
    ItemStatus,
    Pending,
    Request,
    Result,
    RoundRecord,
    Status,
)
from headrace.node.self_settler import SelfSettler, SelfSettlerSettings
from headrace.ports import ResultSetCall
from headrace.services.submitting import Submitting
from tests.fakes import make_request
from tests.local_chain import ETHER, LocalChain, local_chain

NODE = LocalSigner(bytes(31) + b"\x07")
PAYER = LocalSigner(bytes(31) + b"\x08")
PROMPT, ANSWER = b"Why is the sky blue?", b"Rayleigh scattering."
REWARD_WEI = 10**12

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


async def assigned(anvil: LocalChain, chain: Web3Chain, **changes: Any) -> Task:
    """A request that is on the chain and that the relayer assigned to the node."""
    fields = {
        "requester": anvil.accounts[3],
        "relayer": anvil.accounts[1],
        "model_id": anvil.deployment.models["tiny"],
        "deadline_s": await anvil.now_s() + 600,
        "prompt_hash": "0x" + keccak(PROMPT).hex(),
        "prompt_bytes": len(PROMPT),
    }
    request = make_request(**{**fields, **changes})
    await anvil.post(request, PROMPT)
    await anvil.mine()
    id_ = request_id(request, chain.chain_id, chain.market)
    word = Assignment(id_, anvil.accounts[1], NODE.address, 1, REWARD_WEI, request.deadline_s)
    signature = LocalSigner(anvil.keys[1]).sign_digest(
        typed_data.digest(market_of(chain), typed_data.hash_assignment(word))
    )
    return Task(word, signature, request, "tiny", PROMPT)


def market_of(chain: Web3Chain) -> typed_data.Domain:
    return typed_data.Domain(chain.chain_id, chain.market)


def result_set(chain: Web3Chain, request: Request, word: Assignment, payload: bytes = b"") -> ResultSetCall:
    result = Result(word.request_id, "0x" + keccak(ANSWER).hex(), word.reward_wei, word.relayer, word.round)
    signature = NODE.sign_digest(typed_data.digest(market_of(chain), typed_data.hash_result(result)))
    return ResultSetCall(word.round, (NODE.address,), (signature,), ((request, result),), (payload,) if payload else ())


async def base_fee_of(anvil: LocalChain, block: int) -> int:
    return int((await anvil.rpc("eth_getBlockByNumber", hex(block), False))["baseFeePerGas"], 16)


async def travel(anvil: LocalChain, time_s: int) -> None:
    """Mine a block at a time."""
    await anvil.rpc("evm_setNextBlockTimestamp", hex(time_s))
    await anvil.mine()


async def test_pending__is_what_the_market_keeps(anvil: LocalChain, chain: Web3Chain) -> None:
    task = await assigned(anvil, chain)
    id_, deadline_s = task.assignment.request_id, task.request.deadline_s
    assert await chain.pending([id_, ZERO_HASH]) == [Pending(0, deadline_s), None]
    await anvil.call(0, "InferenceMarket", "raisePriorityFee", bytes.fromhex(id_[2:]), value=12_345)
    await anvil.mine()
    assert await chain.pending([id_]) == [Pending(12_345, deadline_s)]
    assert await chain.pending([]) == []


async def test_submit_assigned__only_in_its_window(anvil: LocalChain, chain: Web3Chain) -> None:
    task = await assigned(anvil, chain)
    word, deadline_s = task.assignment, task.request.deadline_s
    call = chain.submit_assigned_call(word, task.assignment_signature, result_set(chain, task.request, word))
    assert call.data[:4] == selectors()["submitAssigned"]
    seen = []
    # A simulation runs in a block after the newest.
    for time_s in (deadline_s - 60, deadline_s + 1, deadline_s + 301):
        await travel(anvil, time_s)
        (outcome,) = await chain.simulate(PAYER.address, [call])
        seen.append(outcome.error)
    assert f"status={ItemStatus.NO_ROUND.value}" in seen[0]
    assert seen[1] == ""
    assert f"status={ItemStatus.LATE.value}" in seen[2]


@pytest.mark.parametrize("inline", [False, True])
async def test_self_settler__relayer_gone__settles_once_and_the_node_is_paid(
    anvil: LocalChain, chain: Web3Chain, tmp_path: Path, inline: bool
) -> None:
    task = await assigned(anvil, chain, inline_result=inline)
    await anvil.rpc("anvil_setBalance", PAYER.address, hex(ETHER))
    async with SqlNodeJournal(tmp_path / "node.db") as journal:
        settler = await started(journal, chain, task)
        await settler.step()
        assert await chain.transaction_count(PAYER.address) == 0
        await travel(anvil, task.request.deadline_s + 31)
        quote = await chain.gas_quote()
        await settler.step()
        await anvil.mine()
        for _ in range(3):
            await settler.step()
            await anvil.mine()
        assert await journal.settlements.unsettled(9) == []
    assert await chain.statuses([task.assignment.request_id]) == [Status.FULFILLED]
    assert await chain.transaction_count(PAYER.address) == 1
    events = await chain.events(0, (await chain.head()).number)
    (settled,) = [event for event in events if event.name == "ResultFulfilled"]
    assert [event.args["result"] for event in events if event.name == "ResultDelivered"] == [
        "0x" + ANSWER.hex()
    ] * inline
    paid_wei = settled.args["nodePaid"] + settled.args["relayerPaid"]
    assert await chain.credit_wei(anvil.accounts[2]) == paid_wei
    assert await chain.credit_wei(anvil.accounts[1]) == 0
    receipt = await chain.receipt(settled.transaction_hash)
    assert receipt is not None
    tip_wei = receipt.effective_gas_price_wei - (await base_fee_of(anvil, receipt.block_number))
    # The node reckons before it sends by the same arithmetic.
    expected = pay_wei(
        await chain.market_terms(),
        task.request,
        0,
        REWARD_WEI,
        len(ANSWER) * inline,
        receipt.gas_used,
        GasQuote(receipt.effective_gas_price_wei - tip_wei, tip_wei),
    )
    assert paid_wei == expected
    assert quote.tip_wei == tip_wei


async def test_self_settler__contract_to_be_called__has_the_gas_that_the_market_wants_left(
    anvil: LocalChain, chain: Web3Chain, tmp_path: Path
) -> None:
    """The contract uses next to nothing when it is simulated, and is owed all that its request names."""
    task = await assigned(anvil, chain, inline_result=True, callback_gas=1_000_000)
    await anvil.rpc("anvil_setCode", anvil.accounts[3], "0x00")
    await anvil.rpc("anvil_setBalance", PAYER.address, hex(ETHER))
    async with SqlNodeJournal(tmp_path / "node.db") as journal:
        settler = await started(journal, chain, task)
        await travel(anvil, task.request.deadline_s + 31)
        await settler.step()
        (settlement,) = await journal.settlements.unsettled(1)
        assert settlement.gas_limit > 1_000_000
        await anvil.mine()
    assert await chain.statuses([task.assignment.request_id]) == [Status.FULFILLED]


async def test_self_settler__cancelled_between_answer_and_record__is_paid_all_the_same(
    anvil: LocalChain, chain: Web3Chain, tmp_path: Path
) -> None:
    task = await assigned(anvil, chain)
    await anvil.rpc("anvil_setBalance", PAYER.address, hex(ETHER))
    async with SqlNodeJournal(tmp_path / "node.db") as journal:
        settler = await started(journal, chain, task)
        raw, _ = await anvil.sign(3, chain.market, "0x" + cancel_data(task.request).hex())
        await chain.send_raw(raw)
        await anvil.mine()
        (kept,) = await chain.pending([task.assignment.request_id])
        assert kept is not None
        assert kept.effective_deadline_s < task.request.deadline_s - 500
        await travel(anvil, kept.effective_deadline_s + 31)
        await settler.step()
        await anvil.mine()
    assert await chain.statuses([task.assignment.request_id]) == [Status.FULFILLED]


async def test_submitter__record_and_batch__count_as_the_relayers(anvil: LocalChain, chain: Web3Chain) -> None:
    task = await assigned(anvil, chain)
    relayer = LocalSigner(anvil.keys[1])
    record = RoundRecord(1, "0x" + "11" * 32, ZERO_HASH, ZERO_HASH, 1, ZERO_HASH, 1, 0, 0)
    sets = [result_set(chain, task.request, task.assignment)]
    submitting = Submitting(chain, ChainClock(await anvil.now_s()), relayer, PAYER.address)
    calls = [await submitting.record_round_call(record), await submitting.submit_results_call(sets)]
    assert [call.data[:4] for call in calls] == [selectors()[name] for name in ("recordRound", "submitResultsFor")]
    recorded, settled = await chain.simulate(PAYER.address, calls)
    assert (recorded.error, settled.error) == ("", "")
    assert recorded.events[0].args["relayer"] == relayer.address
    assert settled.events[-1].args["statuses"] == "0x00"
    stolen, refused = await chain.simulate(NODE.address, calls)
    assert stolen.succeeded  # a record says the same whoever brings it
    assert "NotSubmitter" in refused.error
    lapsed = Submitting(chain, ChainClock(await anvil.now_s() - 4_000), relayer, PAYER.address)
    (late,) = await chain.simulate(PAYER.address, [await lapsed.submit_results_call(sets)])
    assert "SignatureExpired" in late.error


class ChainClock:
    """Stands still."""

    def __init__(self, now_s: int) -> None:
        self._now_s = now_s

    def now_ms(self) -> int:
        return self._now_s * 1000


async def started(journal: SqlNodeJournal, chain: Web3Chain, task: Task) -> SelfSettler:
    """A node that has computed its answer."""
    word = task.assignment
    frame = encode(TaskMessage.of(task))
    entry = JournalEntry(word.request_id, word.round, TaskState.ACCEPTED, frame, b"", None, b"", 0, 0, "", 1, 1)
    await journal.put(entry)
    result = Result(word.request_id, "0x" + keccak(ANSWER).hex(), word.reward_wei, word.relayer, word.round)
    await journal.add_result(word.request_id, result, ANSWER, 3, 40, 2, word.deadline_s)
    return SelfSettler(
        chain,
        journal,
        journal.settlements,
        SystemClock(),
        NODE,
        PAYER,
        await chain.market_terms(),
        (await chain.fault_terms()).missed_wei,
        GuardPolicy({chain.market: frozenset({selectors()["submitAssigned"]})}, MAX_FEE_CEILING_WEI),
        SelfSettlementPolicy(),
        SelfSettlerSettings(sure_blocks=2),
    )
