"""The chain adapter against anvil and the real contracts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio
from eth_account import Account
from eth_utils.crypto import keccak

from headrace.adapters.deployment import Deployment
from headrace.adapters.json_rpc import AnswerLost, JsonRpc, RpcError, connect_http
from headrace.adapters.web3_chain import Web3Chain
from headrace.core import typed_data
from headrace.core.errors import ChainUnavailable, ConfigurationError, InvalidInput, Refused, Unknown
from headrace.core.events import request_from_event
from headrace.core.requests import request_id
from headrace.core.scheduling import Offer
from headrace.core.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Hash32,
    ItemStatus,
    Price,
    Request,
    Result,
    ResultRef,
    RoundRecord,
    Status,
)
from headrace.ports import Call, Chain, ResultSetCall
from tests.fakes import make_request
from tests.local_chain import CHAIN_ID, ETHER, GWEI, LocalChain, local_chain, sign_digest

NODE_KEY = bytes(31) + b"\x07"
NODE = str(Account.from_key(NODE_KEY).address).lower()
PROMPT = b"Why is the sky blue?"
_HISTORY_POLLS = 500
_HISTORY_POLL_S = 0.02

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def anvil() -> AsyncIterator[LocalChain]:
    async with local_chain() as chain:
        await chain.register_relayer()
        await chain.register_node(NODE_KEY, chain.deployment.models["tiny"])
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


async def make_posted(anvil: LocalChain, **changes: Any) -> Request:
    """A request that is on the chain."""
    fields = {
        "requester": anvil.accounts[3],
        "relayer": anvil.accounts[1],
        "model_id": anvil.deployment.models["tiny"],
        "deadline_s": await anvil.now_s() + 3600,
        "prompt_hash": "0x" + keccak(PROMPT).hex(),
        "prompt_bytes": len(PROMPT),
    }
    request = make_request(**{**fields, **changes})
    await anvil.post(request, PROMPT)
    await anvil.mine()
    return request


def id_of(chain: Chain, request: Request) -> Hash32:
    return request_id(request, chain.chain_id, chain.market)


def record_of(round_: int, assigned: int = 1) -> RoundRecord:
    return RoundRecord(round_, "0x" + "11" * 32, ZERO_HASH, ZERO_HASH, 1, ZERO_HASH, assigned, 2, 3)


def result_set(chain: Chain, anvil: LocalChain, request: Request, reward_wei: int = 10**12) -> ResultSetCall:
    result = Result(id_of(chain, request), "0x" + "77" * 32, reward_wei, anvil.accounts[1], 1)
    digest = typed_data.digest(typed_data.Domain(CHAIN_ID, chain.market), typed_data.hash_result(result))
    return ResultSetCall(1, (NODE,), (sign_digest(NODE_KEY, digest),), ((request, result),), ())


async def send(anvil: LocalChain, chain: Chain, call: Call, **fields: Any) -> Hash32:
    raw, hash_ = await anvil.sign(1, call.to, "0x" + call.data.hex(), call.value_wei, **fields)
    await chain.send_raw(raw)
    return hash_


async def test_head_and_blocks__link_up(anvil: LocalChain, chain: Web3Chain) -> None:
    await anvil.mine(3)
    head = await chain.head()
    blocks = await chain.blocks(0, head.number + 5)
    assert blocks[-1] == head
    assert [block.number for block in blocks] == list(range(head.number + 1))
    assert all(child.parent_hash == parent.hash for parent, child in pairwise(blocks))
    assert await chain.block(head.number) == head
    assert await chain.block(head.number + 1) is None


async def test_events__request__is_decoded_to_what_was_posted(anvil: LocalChain, chain: Web3Chain) -> None:
    request = await make_posted(anvil, salt=2**64 - 1, priority_fee_wei=2**60, inline_result=True)
    head = await chain.head()
    (event,) = await chain.events(head.number, head.number)
    assert (event.name, event.contract, event.block_hash) == ("InferenceRequested", chain.market, head.hash)
    assert event.args["requestId"] == id_of(chain, request)
    assert event.args["requester"] == anvil.accounts[3]
    assert event.args["prompt"] == "0x" + PROMPT.hex()
    assert request_from_event(event.args) == request
    assert await chain.statuses([id_of(chain, request), "0x" + "99" * 32]) == [Status.PENDING, Status.NONE]


async def test_events__of_all_contracts__are_in_order(anvil: LocalChain, chain: Web3Chain) -> None:
    events = await chain.events(0, (await chain.head()).number)
    names = [event.name for event in events]
    assert [name for name in names if name != "OwnershipTransferred"] == [
        "ModelRegistered",
        "RelayerRegistered",
        "NodeRegistered",
        "MarketJoined",
        "PriceAnnounced",
    ]
    registered = next(event for event in events if event.name == "ModelRegistered")
    assert registered.args["model"]["name"] == "tiny"
    places = [(event.block_number, event.log_index) for event in events]
    assert places == sorted(places)


async def assert_tip(chain: Web3Chain, tip_wei: int) -> None:
    """The chain quotes this tip, once anvil's history, which it writes after the blocks, knows them.

    Until then it may show blocks that an earlier test mined under the same numbers.
    """
    for _ in range(_HISTORY_POLLS):
        if (await chain.gas_quote()).tip_wei == tip_wei:
            return
        await asyncio.sleep(_HISTORY_POLL_S)
    assert (await chain.gas_quote()).tip_wei == tip_wei


async def test_gas_quote__quiet_chain__bids_one_gwei(anvil: LocalChain, chain: Web3Chain) -> None:
    await anvil.mine(15)
    await assert_tip(chain, GWEI)
    await anvil.rpc("anvil_setNextBlockBaseFeePerGas", hex(7 * GWEI))
    assert (await chain.gas_quote()).base_fee_wei == 7 * GWEI


async def test_gas_quote__used_blocks__bids_what_they_paid(anvil: LocalChain, chain: Web3Chain) -> None:
    raw, _ = await anvil.sign(1, ZERO_ADDRESS, "0x", maxPriorityFeePerGas=3 * GWEI)
    await chain.send_raw(raw)
    await anvil.mine(12)
    await assert_tip(chain, GWEI)
    raw, _ = await anvil.sign(1, ZERO_ADDRESS, "0x", maxPriorityFeePerGas=3 * GWEI)
    await chain.send_raw(raw)
    await anvil.mine(2)
    await assert_tip(chain, 3 * GWEI)


async def test_facts__are_those_of_the_contracts(anvil: LocalChain, chain: Web3Chain) -> None:
    tiny = anvil.deployment.models["tiny"]
    facts = await chain.node_facts(NODE)
    assert (facts.owner, facts.payee, facts.stake_wei) == (anvil.accounts[2], anvil.accounts[2], ETHER)
    assert facts.is_active
    assert facts.joined_at_s > 0
    stranger = await chain.node_facts(anvil.accounts[3])
    assert (stranger.owner, stranger.payee, stranger.is_active) == (ZERO_ADDRESS, ZERO_ADDRESS, False)
    assert await chain.offers(NODE, [tiny, "0x" + "99" * 32]) == [Offer(tiny, "tiny", Price(10**12, 2 * 10**12))]
    assert await chain.is_bonded(anvil.accounts[1])
    assert not await chain.is_bonded(anvil.accounts[3])
    (model,) = await chain.models()
    assert (model.model_id, model.name, model.memory_mb, model.unit) == (tiny, "tiny", 200, "output_token")
    terms = await chain.market_terms()
    assert (terms.grace_s, terms.max_ttl_s, terms.tip_cap_wei, terms.probation_settled_count) == (
        300,
        86_400,
        2 * GWEI,
        10,
    )
    assert await chain.balance_wei("0x" + "12" * 20) == 0
    assert await chain.credit_wei(anvil.accounts[1]) == 0


async def test_has_code__contracts_and_lent_code__but_no_plain_account(anvil: LocalChain, chain: Web3Chain) -> None:
    lent = "0x" + "77" * 20
    await anvil.rpc("anvil_setCode", lent, "0xef0100" + chain.market[2:])  # EIP-7702's pointer to a contract
    assert await chain.has_code(chain.market)
    assert await chain.has_code(lent)
    assert not await chain.has_code(anvil.accounts[1])


async def test_read__reverts__says_with_what(chain: Web3Chain) -> None:
    with pytest.raises(InvalidInput, match=r"modelOf reverts with UnknownModel\(modelId=0x9999"):
        await chain._model("0x" + "99" * 32)


async def test_simulate__record_then_batch__see_each_other(anvil: LocalChain, chain: Web3Chain) -> None:
    request, relayer = await make_posted(anvil), anvil.accounts[1]
    record = chain.record_round_call(relayer, record_of(1))
    batch = chain.submit_results_call(relayer, [result_set(chain, anvil, request)])
    recorded, settled = await chain.simulate(relayer, [record, batch])
    assert recorded.succeeded and settled.succeeded
    assert recorded.events[0].args["record"]["tooLate"] == 3
    assert [event.name for event in settled.events] == ["ResultFulfilled", "BatchSettled"]
    assert settled.events[1].args["statuses"] == "0x00"
    (alone,) = await chain.simulate(relayer, [batch])
    assert alone.events[-1].args["statuses"] == f"0x{ItemStatus.NO_ROUND:02x}"
    assert await chain.simulate(relayer, []) == []


async def test_simulate__gas__is_what_the_transaction_uses(anvil: LocalChain, chain: Web3Chain) -> None:
    request, relayer = await make_posted(anvil), anvil.accounts[1]
    calls = [
        chain.record_round_call(relayer, record_of(1)),
        chain.submit_results_call(relayer, [result_set(chain, anvil, request)]),
    ]
    outcomes = await chain.simulate(relayer, calls)
    nonce = await chain.transaction_count(relayer)
    hashes = [await send(anvil, chain, call, nonce=nonce + index) for index, call in enumerate(calls)]
    await anvil.mine()
    for hash_, outcome in zip(hashes, outcomes, strict=True):
        receipt = await chain.receipt(hash_)
        assert receipt is not None and receipt.succeeded
        assert outcome.gas_used == pytest.approx(receipt.gas_used, rel=0.01)
        assert [event.name for event in receipt.events] == [event.name for event in outcome.events]
    assert await chain.statuses([id_of(chain, request)]) == [Status.FULFILLED]
    assert await chain.credit_wei(relayer) > 0
    assert await chain.recorded_at_s(relayer, 1) == await anvil.now_s()
    assert await chain.next_round(relayer) == 2


async def test_verify_result__settled__is_true_of_that_result_only(anvil: LocalChain, chain: Web3Chain) -> None:
    request, relayer = await make_posted(anvil), anvil.accounts[1]
    settled_set = result_set(chain, anvil, request)
    await send(anvil, chain, chain.record_round_call(relayer, record_of(1)))
    await anvil.mine()
    await send(anvil, chain, chain.submit_results_call(relayer, [settled_set]))
    await anvil.mine()
    ((_, result),) = settled_set.items
    ref = ResultRef(result.result_hash, relayer, 1, (NODE,), (await chain.head()).timestamp_s)
    assert await chain.verify_result(id_of(chain, request), ref, b"")
    assert not await chain.verify_result(id_of(chain, request), ref, b"other bytes")
    assert not await chain.verify_result(id_of(chain, request), replace(ref, settled_at_s=1), b"")
    assert not await chain.verify_result(ZERO_HASH, ref, b"")


async def test_simulate__on_a_block_that_is_gone__says_nothing_of_the_calls(
    anvil: LocalChain, chain: Web3Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    await anvil.mine()
    latest = await chain._latest()
    await anvil.rpc("anvil_reorg", 1, [])
    assert (await chain._latest())["number"] == latest["number"]

    async def latest_of_before() -> Any:
        return latest

    monkeypatch.setattr(chain, "_latest", latest_of_before)
    with pytest.raises(ChainUnavailable):
        await chain.simulate(anvil.accounts[1], [chain.record_round_call(anvil.accounts[1], record_of(1))])


async def test_simulate__poor_sender__is_told_of_the_logic_only(anvil: LocalChain, chain: Web3Chain) -> None:
    relayer = anvil.accounts[1]
    await anvil.rpc("anvil_setBalance", relayer, "0x1")
    (outcome,) = await chain.simulate(relayer, [chain.record_round_call(relayer, record_of(1))])
    assert outcome.succeeded


async def test_simulate__revert__is_worded_with_its_values(anvil: LocalChain, chain: Web3Chain) -> None:
    stranger, relayer = anvil.accounts[3], anvil.accounts[1]
    unbonded, nothing, fine = await chain.simulate(
        relayer,
        [
            chain.record_round_call(stranger, record_of(1)),
            chain.record_round_call(relayer, record_of(1, assigned=0)),
            chain.record_round_call(relayer, record_of(1)),
        ],
    )
    assert (unbonded.succeeded, unbonded.error) == (False, f"NotBonded(relayer={stranger})")
    assert nothing.error == "NothingAssigned(round=1)"
    assert (fine.succeeded, fine.error) == (True, "")
    assert unbonded.events == ()
    assert unbonded.gas_used > 21_000


async def test_expire__after_grace__closes(anvil: LocalChain, chain: Web3Chain) -> None:
    request = await make_posted(anvil)
    await anvil.rpc("evm_setNextBlockTimestamp", request.deadline_s + 301)
    hash_ = await send(anvil, chain, chain.expire_call([request]))
    await anvil.mine()
    receipt = await chain.receipt(hash_)
    assert receipt is not None
    assert receipt.events[0].args["status"] == Status.EXPIRED
    assert receipt.events[0].args["refund"] == request.escrow_wei
    assert receipt.block_hash == (await chain.head()).hash
    assert receipt.effective_gas_price_wei > GWEI


async def test_send_raw__known_or_mined__is_no_error(anvil: LocalChain, chain: Web3Chain) -> None:
    raw, hash_ = await anvil.sign(1, ZERO_ADDRESS, "0x")
    nonce = await chain.transaction_count(anvil.accounts[1])
    await chain.send_raw(raw)
    await chain.send_raw(raw)
    assert await chain.receipt(hash_) is None
    assert await chain.transaction_count(anvil.accounts[1]) == nonce
    await anvil.mine()
    await chain.send_raw(raw)
    assert await chain.transaction_count(anvil.accounts[1]) == nonce + 1


async def test_send_raw__nonce_of_another_transaction__is_refused(anvil: LocalChain, chain: Web3Chain) -> None:
    nonce = await chain.transaction_count(anvil.accounts[1])
    first, _ = await anvil.sign(1, ZERO_ADDRESS, "0x", nonce=nonce)
    other, _ = await anvil.sign(1, ZERO_ADDRESS, "0x01", nonce=nonce)
    await chain.send_raw(first)
    await anvil.mine()
    with pytest.raises(Refused, match="nonce too low"):
        await chain.send_raw(other)


async def test_send_raw__poor_sender__is_refused(anvil: LocalChain, chain: Web3Chain) -> None:
    raw, _ = await anvil.sign(1, ZERO_ADDRESS, "0x", value=10**30)
    with pytest.raises(Refused, match=r"(?i)insufficient funds"):
        await chain.send_raw(raw)


async def test_check__deployment__must_be_what_is_there(anvil: LocalChain, chain: Web3Chain) -> None:
    await chain.check()
    contracts = dict(anvil.deployment.contracts)

    async def complaint_of(deployment: Deployment) -> str:
        other = Web3Chain(chain._rpc, deployment)
        with pytest.raises(ConfigurationError) as caught:
            await other.check()
        return str(caught.value)

    assert "is a node of chain 31337, but the deployment is of chain 5" in await complaint_of(
        replace(anvil.deployment, chain_id=5)
    )
    gone = {**contracts, "ScheduleLog": replace(contracts["ScheduleLog"], address="0x" + "12" * 20)}
    assert "there is no ScheduleLog at 0x1212" in await complaint_of(replace(anvil.deployment, contracts=gone))
    changed = {**contracts, "ScheduleLog": replace(contracts["ScheduleLog"], code_hash=ZERO_HASH)}
    assert "is not the ScheduleLog of the deployment file: run `ape run deploy`" in await complaint_of(
        replace(anvil.deployment, contracts=changed)
    )


class Intercepted(JsonRpc):
    """A node whose answers a test may change."""

    def __init__(self, inner: JsonRpc) -> None:
        self.__dict__.update(inner.__dict__)
        self.asked: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}

    async def call(self, method: str, *params: Any) -> Any:
        self.asked.append((method, *params))
        answer = await super().call(method, *params) if method not in self.answers else self.answers[method]
        if callable(answer):
            answer = answer(*params)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest_asyncio.fixture(loop_scope="module")
async def intercepted(anvil: LocalChain, chain: Web3Chain) -> tuple[Web3Chain, Intercepted]:
    rpc = Intercepted(chain._rpc)
    return Web3Chain(rpc, anvil.deployment), rpc


async def test_events__node_leaves_logs_out__is_noticed_by_the_header(
    anvil: LocalChain, intercepted: tuple[Web3Chain, Intercepted]
) -> None:
    """F12: an empty answer that is no error."""
    chain, rpc = intercepted
    await make_posted(anvil)
    head = await chain.head()
    real = await rpc.call("eth_getLogs", {"blockHash": head.hash})
    rpc.answers["eth_getLogs"] = lambda query: real if "blockHash" in query else []
    with pytest.raises(ChainUnavailable, match=f"left out logs of block {head.number}"):
        await chain.events(head.number, head.number)
    rpc.answers.clear()
    assert len(await chain.events(0, head.number)) > 5


async def test_events__blocks_without_logs__are_not_asked_for_twice(
    anvil: LocalChain, intercepted: tuple[Web3Chain, Intercepted]
) -> None:
    chain, rpc = intercepted
    await anvil.mine(5)
    head = await chain.head()
    await chain.blocks(0, head.number)
    assert await chain.events(head.number - 3, head.number) == []
    assert [asked[0] for asked in rpc.asked].count("eth_getLogs") == 1


async def test_transport__lost_answers_to_a_send__are_unknown(
    anvil: LocalChain, intercepted: tuple[Web3Chain, Intercepted]
) -> None:
    chain, rpc = intercepted
    raw, _ = await anvil.sign(1, ZERO_ADDRESS, "0x")
    rpc.answers["eth_sendRawTransaction"] = AnswerLost("gone")
    with pytest.raises(Unknown, match="is not known: gone"):
        await chain.send_raw(raw)
    rpc.answers["eth_sendRawTransaction"] = RpcError(-32000, "nonce too low")
    rpc.answers["eth_getTransactionByHash"] = AnswerLost("gone")
    with pytest.raises(Unknown, match="cannot be found"):
        await chain.send_raw(raw)
    rpc.answers["eth_simulateV1"] = RpcError(-32601, "no such method")
    with pytest.raises(ConfigurationError, match="does not have eth_simulateV1"):
        await chain.simulate(anvil.accounts[1], [Call(ZERO_ADDRESS, b"")])
    rpc.answers["eth_simulateV1"] = RpcError(-38014, "insufficient funds")
    (outcome,) = await chain.simulate(anvil.accounts[1], [Call(ZERO_ADDRESS, b"")])
    assert (outcome.succeeded, outcome.error) == (False, "insufficient funds")
