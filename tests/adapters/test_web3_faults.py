"""Faults against the contracts themselves: what `core.faults` finds is proven, punished and paid on a real chain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio
from eth_account import Account
from eth_utils.crypto import keccak

from headrace.adapters.json_rpc import connect_http
from headrace.adapters.web3_chain import Web3Chain
from headrace.core import typed_data
from headrace.core.calls import cancel_with_release_data, fault_selectors
from headrace.core.faults import (
    Dossier,
    Ending,
    Fault,
    FoundFault,
    SignedAccept,
    SignedAssignment,
    SignedResult,
    WatchedRound,
    bounty_wei,
    find_faults,
    is_result_signed,
)
from headrace.core.merkle import leaf_of, root_of, sort_decisions
from headrace.core.requests import request_id
from headrace.core.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Assignment,
    Decision,
    DecisionKind,
    GasQuote,
    Hash32,
    Reason,
    Request,
    Result,
    ResultRef,
    RoundRecord,
)
from headrace.ports import Call, Receipt, ResultSetCall
from tests.fakes import make_request
from tests.local_chain import CHAIN_ID, ETHER, LocalChain, local_chain, sign_digest

NODE_KEY = bytes.fromhex("11" * 32)
NODE = str(Account.from_key(NODE_KEY).address).lower()
OTHER = "0x" + "22" * 20
REWARD = 10**12
RELAYER, REQUESTER, REPORTER = 1, 3, 3  # accounts

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@dataclass
class Bench:
    """A chain with a relayer, a node and a request, and the words that were given about it."""

    anvil: LocalChain
    chain: Web3Chain
    request: Request
    id: Hash32
    rounds: int = 0

    @property
    def relayer(self) -> Address:
        return self.anvil.accounts[RELAYER]

    @property
    def domain(self) -> typed_data.Domain:
        return typed_data.Domain(CHAIN_ID, self.chain.market)

    def by_node(self, struct_hash: bytes) -> bytes:
        return sign_digest(NODE_KEY, typed_data.digest(self.domain, struct_hash))

    def by_relayer(self, struct_hash: bytes) -> bytes:
        return sign_digest(self.anvil.keys[RELAYER], typed_data.digest(self.domain, struct_hash))

    async def send(self, call: Call, account: int = RELAYER) -> Receipt:
        raw, hash_ = await self.anvil.sign(account, call.to, "0x" + call.data.hex(), call.value_wei)
        await self.chain.send_raw(raw)
        await self.anvil.mine()
        receipt = await self.chain.receipt(hash_)
        assert receipt is not None
        assert receipt.succeeded
        return receipt

    async def record(self, *leaves: Decision) -> WatchedRound:
        self.rounds += 1
        kept = sort_decisions(leaves)
        root = root_of([leaf_of(leaf) for leaf in kept])
        record = RoundRecord(self.rounds, root, ZERO_HASH, ZERO_HASH, 1, ZERO_HASH, len(kept), 0, 0)
        await self.send(self.chain.record_round_call(self.relayer, record))
        at_s = await self.chain.recorded_at_s(self.relayer, self.rounds)
        return WatchedRound(self.relayer, record, at_s, kept)

    def decision(self, node: str = NODE, **changes: Any) -> Decision:
        return replace(Decision(self.id, node, DecisionKind.ASSIGNED, Reason.LOWEST_COST, REWARD, 0), **changes)

    def accept(self) -> SignedAccept:
        struct_hash = typed_data.hash_accept(self.id, self.relayer, 1, self.request.deadline_s)
        return SignedAccept(self.id, NODE, self.relayer, 1, self.request.deadline_s, self.by_node(struct_hash))

    def assignment(self, **changes: Any) -> SignedAssignment:
        word = Assignment(self.id, self.relayer, NODE, 1, REWARD, self.request.deadline_s)
        word = replace(word, **changes)
        return SignedAssignment(word, self.by_relayer(typed_data.hash_assignment(word)))

    def result(self, answer: bytes, beside: Sequence[bytes] | None = None) -> SignedResult:
        made = Result(self.id, "0x" + keccak(answer).hex(), REWARD, self.relayer, 1)
        if beside is None:
            return SignedResult(NODE, made, self.by_node(typed_data.hash_result(made)))
        hashes = (*beside, typed_data.hash_result(made))
        return SignedResult(NODE, made, self.by_node(typed_data.hash_result_set(self.relayer, 1, hashes)), hashes)

    async def pay(self) -> tuple[ResultRef, Receipt]:
        signed = self.result(b"answer")
        results = ResultSetCall(1, (NODE,), (signed.signature,), ((self.request, signed.result),), ())
        receipt = await self.send(self.chain.submit_results_call(self.relayer, [results]))
        block = await self.chain.block(receipt.block_number)
        assert block is not None
        return ResultRef(signed.result.result_hash, self.relayer, 1, (NODE,), block.timestamp_s), receipt

    async def expire(self) -> None:
        await self.anvil.rpc("evm_setNextBlockTimestamp", self.request.deadline_s + 301)
        await self.send(self.chain.expire_call([self.request]))

    async def release(self) -> None:
        until_s = await self.anvil.now_s() + 1_000
        signature = self.by_relayer(typed_data.hash_release(self.id, until_s))
        data = cancel_with_release_data(self.request, until_s, signature)
        await self.send(Call(self.chain.market, data), REQUESTER)

    def find(self, ending: Ending, *rounds: WatchedRound, **known: Any) -> FoundFault:
        by_number = {each.record.round: each for each in rounds}
        paid = known.pop("paid", None)
        (found,) = find_faults(
            Dossier(self.id, self.request, self.relayer, ending, paid, by_number, **known), self.domain
        )
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def anvil() -> AsyncIterator[LocalChain]:
    async with local_chain() as chain:
        await chain.register_relayer()
        await chain.register_node(NODE_KEY, chain.deployment.models["tiny"])
        await chain.mine()
        yield chain


@pytest_asyncio.fixture(loop_scope="module")
async def bench(anvil: LocalChain) -> AsyncIterator[Bench]:
    """Each test finds the same chain."""
    taken = await anvil.rpc("evm_snapshot")
    chain = Web3Chain(await connect_http(anvil.url), anvil.deployment)
    request = make_request(
        requester=anvil.accounts[REQUESTER],
        relayer=anvil.accounts[RELAYER],
        model_id=anvil.deployment.models["tiny"],
        deadline_s=await anvil.now_s() + 600,
    )
    await anvil.post(request)
    await anvil.mine()
    yield Bench(anvil, chain, request, request_id(request, CHAIN_ID, chain.market))
    await chain.close()
    await anvil.rpc("evm_revert", taken)


# Each kind, from what happened to the proof


async def missed(bench: Bench) -> FoundFault:
    round_ = await bench.record(bench.decision(), bench.decision(OTHER, request_id="0x" + "ff" * 32))
    await bench.expire()
    return bench.find(Ending.EXPIRED, round_, accepts=[bench.accept()])


async def equivocated(bench: Bench) -> FoundFault:
    return bench.find(Ending.OPEN, results=[bench.result(b"yes"), bench.result(b"no", [keccak(b"x"), keccak(b"y")])])


async def paid_undecided(bench: Bench) -> FoundFault:
    low, high = (bench.decision(OTHER, request_id=each) for each in ("0x" + "00" * 32, "0x" + "ff" * 32))
    round_ = await bench.record(low, bench.decision(OTHER), high)
    paid, _ = await bench.pay()
    return bench.find(Ending.SETTLED, round_, paid=paid)


async def assigned_undecided(bench: Bench) -> FoundFault:
    return bench.find(Ending.OPEN, await bench.record(bench.decision(OTHER)), assignments=[bench.assignment()])


async def contradicted(bench: Bench) -> FoundFault:
    round_ = await bench.record(bench.decision(reward_wei=REWARD + 1))
    return bench.find(Ending.OPEN, round_, assignments=[bench.assignment()])


async def assigned_twice(bench: Bench) -> FoundFault:
    rounds = [await bench.record(bench.decision()), await bench.record(bench.decision(OTHER))]
    return bench.find(Ending.OPEN, *rounds)


async def released_assignment(bench: Bench) -> FoundFault:
    await bench.release()
    return bench.find(Ending.RELEASED, assignments=[bench.assignment()])


async def released_decision(bench: Bench) -> FoundFault:
    round_ = await bench.record(bench.decision(), bench.decision(OTHER, request_id="0x" + "00" * 32))
    await bench.release()
    return bench.find(Ending.RELEASED, round_)


WAYS = (
    missed,
    equivocated,
    paid_undecided,
    assigned_undecided,
    contradicted,
    assigned_twice,
    released_assignment,
    released_decision,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_prove__what_was_found__is_punished_and_paid(
    bench: Bench, way: Callable[[Bench], Awaitable[FoundFault]]
) -> None:
    found, chain = await way(bench), bench.chain
    key = (found.fault, found.culprit, found.request_id, found.node)
    reporter = bench.anvil.accounts[REPORTER]
    head = (await chain.head()).number
    held_wei, credit_wei = await chain.held_wei(found.fault, found.culprit), await chain.credit_wei(reporter)
    assert not await chain.is_proven(*key, head)
    receipt = await bench.send(chain.prove_call(found), REPORTER)
    assert await chain.is_proven(*key, head + 1)
    assert not await chain.is_proven(*key, head)
    terms = await chain.fault_terms()
    taken = held_wei - await chain.held_wei(found.fault, found.culprit)
    assert taken == terms.amount_wei(found.fault)
    (event,) = [each for each in receipt.events if each.name == "FaultProven"]
    assert (event.args["fault"], event.args["culprit"]) == (found.fault, found.culprit)
    assert event.args["node"] == found.node
    price = GasQuote(0, receipt.effective_gas_price_wei)
    assert event.args["bounty"] == bounty_wei(replace(terms, tip_cap_wei=10**12), found.fault, held_wei, price)
    assert receipt.gas_used < terms.proof_gas
    (again,) = await chain.simulate(reporter, [chain.prove_call(found)])
    assert again.error.startswith("AlreadyProven(")
    gained = await chain.credit_wei(reporter) - credit_wei
    assert gained >= event.args["bounty"]


async def test_prove__anything_changed__is_not_proven(bench: Bench) -> None:
    found = await missed(bench)
    assert isinstance(found.request, Request)
    (outcome,) = await bench.chain.simulate(
        OTHER, [bench.chain.prove_call(replace(found, proof=replace(found.proof, accept_deadline_s=1)))]
    )
    assert outcome.error == f"NotProven(reason=0x{b'not signed so'.ljust(32, bytes(1)).hex()})"


async def test_terms_and_stakes__are_the_contracts(bench: Bench) -> None:
    terms = await bench.chain.fault_terms()
    assert (terms.missed_wei, terms.equivocation_wei, terms.relayer_wei) == (10**16, ETHER // 4, ETHER // 4)
    assert (terms.bounty_bps, terms.proof_gas, terms.tip_cap_wei) == (1_000, 200_000, 2 * 10**9)
    assert await bench.chain.held_wei(Fault.MISSED, NODE) == ETHER
    assert await bench.chain.held_wei(Fault.RELEASED, bench.relayer) == ETHER
    assert await bench.chain.held_wei(Fault.RELEASED, ZERO_ADDRESS) == 0


async def test_is_proven__another_key_of_the_node__is_the_same_culprit(bench: Bench) -> None:
    key = bytes.fromhex("33" * 32)
    new = Account.from_key(key).address
    stakes = typed_data.Domain(CHAIN_ID, bench.chain.stake_manager)
    owner = bench.anvil.accounts[2]
    signature = sign_digest(key, typed_data.digest(stakes, typed_data.hash_register_node(new.lower(), owner)))
    await bench.anvil.call(2, "StakeManager", "rotateKey", Account.from_key(NODE_KEY).address, new, signature, [])
    await bench.anvil.mine()
    found = await equivocated(bench)
    await bench.send(bench.chain.prove_call(found), REPORTER)
    head = (await bench.chain.head()).number
    assert await bench.chain.is_proven(Fault.EQUIVOCATION, new.lower(), bench.id, ZERO_ADDRESS, head)


async def test_submitted__settlement__has_what_the_node_signed(bench: Bench) -> None:
    await bench.record(bench.decision())
    _, receipt = await bench.pay()
    submission = await bench.chain.submitted(receipt.transaction_hash)
    assert submission is not None
    ((word,),) = submission.sets[0].signed
    assert word.node == NODE
    assert word.result == bench.result(b"answer").result
    assert is_result_signed(word, bench.domain)


async def test_submitted__other_transaction__is_none(bench: Bench) -> None:
    round_ = await bench.anvil.call(RELAYER, "StakeManager", "addBond", value=1)
    await bench.anvil.mine()
    assert await bench.chain.submitted(round_) is None
    assert await bench.chain.submitted("0x" + "00" * 32) is None


async def test_prove_call__every_kind__is_one_that_the_guard_knows(bench: Bench) -> None:
    taken = set()
    for way in (equivocated, assigned_undecided):
        taken.add(bench.chain.prove_call(await way(bench)).data[:4])
    assert taken == {fault_selectors()[name] for name in ("proveEquivocation", "proveAssignedUndecided")}
