"""The counts of `core.gas` against real settlements, on a chain that takes no transaction above 2^24 gas (EIP-7825).

Whatever a batch is made of, a transaction with the limit that it is counted with settles all of it: no item is
refused, and no call-out gets less than it is owed (I38, I39).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import pytest
import pytest_asyncio
from eth_account import Account
from eth_utils.abi import function_abi_to_4byte_selector
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from headrace.adapters.json_rpc import connect_http
from headrace.adapters.web3_chain import Web3Chain
from headrace.core import typed_data
from headrace.core.calls import request_inference_data
from headrace.core.gas import (
    ATTESTED_VERIFIER_GAS,
    MARKET_VERIFIER_GAS,
    MAX_BATCH_GAS,
    Load,
    batch_bytes,
    batch_gas,
    call_out_gas,
    counted_verifier_gas,
    fitting,
    unused_gas,
)
from headrace.core.guard import MAX_TRANSACTION_GAS
from headrace.core.requests import request_id
from headrace.core.types import (
    ZERO_HASH,
    Address,
    Hash32,
    ItemStatus,
    MarketTerms,
    Mode,
    Request,
    Result,
    RoundRecord,
    Status,
)
from headrace.node.attester import Attester
from headrace.ports import Call, ResultSetCall
from tests.fakes import FakeSigner, make_request
from tests.local_chain import CHAIN_ID, ETHER, GWEI, LocalChain, compiled, local_chain, sign_digest

NODE_KEY = bytes(31) + b"\x07"
NODE = str(Account.from_key(NODE_KEY).address).lower()
# In the order of their addresses, as a quorum stands in a set.
QUORUM_KEYS = sorted(
    (bytes(31) + bytes([number]) for number in (8, 9, 10)), key=lambda key: Account.from_key(key).address.lower()
)
ATTESTATION_KEY = FakeSigner(33)
OSAKA = ("--hardfork", "osaka", "--enable-tx-gas-limit", "--gas-limit", "100000000")
Behaviour = IntEnum("Behaviour", "NOTES REVERTS BURNS_ALL_GAS RETURNS_MUCH REVERTS_WITH_MUCH CALLS_BACK", start=0)
_PACKED = "(address,address,bytes32,bytes32,uint256,uint256,address)"

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@dataclass(frozen=True)
class Item:
    """A request that is on the chain, with the answer to settle it with."""

    request: Request
    answer: bytes
    proof: bytes = b""

    @property
    def inline(self) -> bytes:
        return self.answer if self.request.inline_result else b""


@dataclass
class Bench:
    """A market with a recorded round, and the hands to post to it and to settle."""

    anvil: LocalChain
    chain: Web3Chain
    receivers: dict[Behaviour, Address]
    terms: MarketTerms
    deadline_s: int

    # Posting

    def request(self, number: int, requester: Address, **changes: Any) -> Request:
        fields: dict[str, Any] = {
            "requester": requester,
            "relayer": self.anvil.accounts[1],
            "model_id": self.anvil.deployment.models["tiny"],
            "salt": number,
            "deadline_s": self.deadline_s,
            "gas_budget_wei": ETHER // 10,
        }
        return make_request(**{**fields, **changes})

    async def post(self, *requests: Request) -> None:
        """Put requests on the chain, each by its requester: a receiver of the tests, or an account that anvil lends."""
        receivers = set(self.receivers.values())
        for request in requests:
            to, sender = self.chain.market, request.requester
            data = request_inference_data(request, b"")
            if request.requester in receivers:
                to, sender = request.requester, self.anvil.accounts[3]
                data = selector_of("Receiver", "ask") + data[4:]  # it takes the same
            else:
                await self.anvil.rpc("anvil_impersonateAccount", sender)
            await self.anvil.rpc("anvil_setBalance", sender, hex(10**22))
            fields = {"from": sender, "to": to, "data": "0x" + data.hex(), "value": hex(request.escrow_wei)}
            await self.anvil.rpc("eth_sendTransaction", {**fields, "gas": hex(500_000)})
        await self.anvil.mine()
        statuses = await self.chain.statuses([self.id_of(each) for each in requests])
        assert set(statuses) == {Status.PENDING}

    def id_of(self, request: Request) -> Hash32:
        return request_id(request, CHAIN_ID, self.chain.market)

    # Settling

    def load(self, item: Item) -> Load:
        gas = counted_verifier_gas(item.request.verifier, self.chain.attested_key_verifier, self.terms)
        return Load(
            set_key=1,
            nodes=max(1, item.request.k),
            requester=item.request.requester,
            result_bytes=len(item.inline),
            proof_bytes=len(item.proof),
            callback_gas=item.request.callback_gas,
            verifier_gas=gas,
        )

    def call(self, items: Sequence[Item]) -> Call:
        """The batch with a signature for each result: the dearest way."""
        results = [
            Result(self.id_of(item.request), "0x" + keccak(item.answer).hex(), 10**12, self.anvil.accounts[1], 1)
            for item in items
        ]
        domain = typed_data.Domain(CHAIN_ID, self.chain.market)
        keys = QUORUM_KEYS if items[0].request.k else [NODE_KEY]
        signatures = [
            sign_digest(key, typed_data.digest(domain, typed_data.hash_result(result)))
            for result in results
            for key in keys
        ]
        whole = ResultSetCall(
            round=1,
            nodes=tuple(str(Account.from_key(key).address).lower() for key in keys),
            signatures=tuple(signatures),
            items=tuple((item.request, result) for item, result in zip(items, results, strict=True)),
            payloads=tuple(item.inline for item in items) if any(item.inline for item in items) else (),
            proofs=tuple(item.proof for item in items) if any(item.proof for item in items) else (),
        )
        return self.chain.submit_results_call(self.anvil.accounts[1], [whole])

    async def send(self, call: Call, gas_limit: int) -> Any:
        """Mine a transaction and return its receipt."""
        raw, hash_ = await self.anvil.sign(1, call.to, "0x" + call.data.hex(), gas=gas_limit)
        await self.chain.send_raw(raw)
        await self.anvil.mine()
        receipt = await self.chain.receipt(hash_)
        assert receipt is not None
        return receipt

    async def settle(self, items: Sequence[Item], gas_limit: int | None = None) -> Any:
        loads = [self.load(item) for item in items]
        call = self.call(items)
        assert len(call.data) <= batch_bytes(loads)
        receipt = await self.send(call, gas_limit or batch_gas(loads))
        assert receipt.succeeded
        assert receipt.gas_used <= batch_gas(loads)
        (batch,) = [event for event in receipt.events if event.name == "BatchSettled"]
        assert set(bytes.fromhex(batch.args["statuses"][2:])) == {ItemStatus.OK}
        return receipt

    async def charged_gas(self, item: Item) -> int:
        """What settlement charged for an item of a batch of one, in gas."""
        (outcome,) = await self.chain.simulate(self.anvil.accounts[1], [self.call([item])])
        (paid,) = [event for event in outcome.events if event.name == "ResultFulfilled"]
        request = item.request
        relayer_fee = request.priority_fee_wei * 2_000 // 10_000
        head = await self.anvil.rpc("eth_getBlockByNumber", "latest", False)
        # Of the budget the relayer has the charge and a tenth of the rest.
        charge_wei = (int(paid.args["relayerPaid"]) - relayer_fee - request.gas_budget_wei // 10) * 10 // 9
        # A simulation pays twice the base fee and a tip of one gwei, of which the market counts the next base fee + 2.
        price_wei = min(2 * int(head["baseFeePerGas"], 16) + GWEI, await self._next_base_fee_wei() + 2 * GWEI)
        return charge_wei // price_wei

    async def _next_base_fee_wei(self) -> int:
        return (await self.chain.gas_quote()).base_fee_wei


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    async with local_chain(*OSAKA) as anvil:
        await anvil.register_relayer()
        for key in (NODE_KEY, *QUORUM_KEYS):
            await anvil.register_node(key, anvil.deployment.models["tiny"])
        await anvil.mine()
        chain = Web3Chain(await connect_http(anvil.url), anvil.deployment)
        market = to_checksum_address(chain.market)
        receivers = {behaviour: await anvil.deploy("Receiver", market) for behaviour in Behaviour}
        await _teach(anvil, receivers)
        bench = Bench(anvil, chain, receivers, await chain.market_terms(), await anvil.now_s() + 80_000)
        model_id = bytes.fromhex(anvil.deployment.models["tiny"][2:])
        until_s = bench.deadline_s + 10_000
        await anvil.call(
            0, "AttestedKeyVerifier", "attest", to_checksum_address(ATTESTATION_KEY.address), model_id, until_s
        )
        record = RoundRecord(1, "0x" + "11" * 32, ZERO_HASH, ZERO_HASH, 1, ZERO_HASH, 1, 0, 0)
        call = chain.record_round_call(anvil.accounts[1], record)
        raw, _ = await anvil.sign(1, call.to, "0x" + call.data.hex())
        await chain.send_raw(raw)
        await anvil.mine()
        yield bench
        await chain.close()


async def _teach(anvil: LocalChain, receivers: dict[Behaviour, Address]) -> None:
    abi = compiled("Receiver")["abi"]
    for behaviour, address in receivers.items():
        # What calls back asks the market for its credit to be paid out to it.
        account = to_checksum_address(address)
        reentry = anvil.contract("InferenceMarket").encode_abi("withdraw", [account, 1])
        data = anvil.web3.eth.contract(abi=abi).encode_abi("set", [int(behaviour), reentry])
        raw, _ = await anvil.sign(3, address, data)
        await anvil.rpc("eth_sendRawTransaction", "0x" + raw.hex())
        await anvil.mine()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def snapshot(bench: Bench) -> AsyncIterator[None]:
    """Each test finds the same chain."""
    taken = await bench.anvil.rpc("evm_snapshot")
    yield
    await bench.anvil.rpc("anvil_dropAllTransactions")
    await bench.anvil.rpc("evm_revert", taken)


def selector_of(contract: str, function: str) -> bytes:
    entry = next(each for each in compiled(contract)["abi"] if each.get("name") == function)
    return function_abi_to_4byte_selector(entry)


def fresh(number: int) -> Address:
    """An account that nobody has ever used."""
    return "0x" + keccak(number.to_bytes(4, "big"))[12:].hex()


def called(bench: Bench, number: int, behaviour: Behaviour, gas: int = 2_000_000, **changes: Any) -> Request:
    return bench.request(number, bench.receivers[behaviour], callback_gas=gas, **changes)


async def test_chain__refuses_a_transaction_above_the_limit(bench: Bench) -> None:
    raw, _ = await bench.anvil.sign(1, bench.chain.market, "0x", gas=MAX_TRANSACTION_GAS + 1)
    response = await bench.anvil.web3.provider.make_request("eth_sendRawTransaction", ["0x" + raw.hex()])  # type: ignore[arg-type]
    assert "error" in response


async def test_batch__fresh_requesters_and_a_signature_each__is_within_its_count(bench: Bench) -> None:
    requests = [bench.request(number, fresh(number)) for number in range(40)]
    await bench.post(*requests)
    items = [Item(request, b"answer %d" % index) for index, request in enumerate(requests)]
    receipt = await bench.settle(items)
    # A bound that is far off would cost as many transactions as one that is too low costs batches.
    assert batch_gas([bench.load(item) for item in items]) < 1.5 * receipt.gas_used


@pytest.mark.parametrize("size", [1, 1_000, 60_000])
async def test_batch__inline_answers__is_within_its_count(bench: Bench, size: int) -> None:
    request = bench.request(1, fresh(1), inline_result=True)
    await bench.post(request)
    # No byte is zero: those cost a quarter.
    await bench.settle([Item(request, b"\xff" * size)])


@pytest.mark.parametrize("behaviour", Behaviour)
@pytest.mark.parametrize("size", [0, 20_000])
async def test_batch__callback_of_every_kind__is_within_its_count(
    bench: Bench, behaviour: Behaviour, size: int
) -> None:
    requests = [called(bench, number, behaviour, 400_000, inline_result=size > 0) for number in range(3)]
    await bench.post(*requests)
    await bench.settle([Item(request, b"\xff" * (size or 9)) for request in requests])


async def test_batch__proofs__is_within_its_count(bench: Bench) -> None:
    attester = Attester(ATTESTATION_KEY, CHAIN_ID, bench.chain.attested_key_verifier)
    requests = [
        bench.request(number, fresh(number), mode=Mode.VERIFIER, verifier=attester.verifier) for number in range(5)
    ]
    await bench.post(*requests)
    items = []
    for request in requests:
        proof = await attester.prove(bench.id_of(request), NODE, "0x" + keccak(b"said").hex())
        items.append(Item(request, b"said", proof))
        assert await bench.chain.is_verified(request, NODE, "0x" + keccak(b"said").hex(), proof)
    await bench.settle(items)


@pytest.mark.parametrize("count", [1, 8])
async def test_batch__quorums__is_within_its_count(bench: Bench, count: int) -> None:
    terms = {"mode": Mode.QUORUM, "k": len(QUORUM_KEYS), "n": len(QUORUM_KEYS)}
    requests = [bench.request(number, fresh(number), **terms) for number in range(count)]
    await bench.post(*requests)
    await bench.settle([Item(request, b"said") for request in requests])


async def test_batch__one_gas_less_than_callbacks_are_owed__is_refused_whole(bench: Bench) -> None:
    """The market's check at 63/64: what a simulation uses is not enough for a callback that uses less than it may."""
    request = called(bench, 1, Behaviour.NOTES)
    await bench.post(request)
    item = Item(request, b"said")
    (outcome,) = await bench.chain.simulate(bench.anvil.accounts[1], [bench.call([item])])
    short = outcome.gas_used * 125 // 100 + 20_000
    receipt = await bench.send(bench.call([item]), short)
    assert not receipt.succeeded
    limit = min(short + unused_gas([bench.load(item)]), MAX_TRANSACTION_GAS)
    await bench.settle([item], limit)
    assert await bench.chain.statuses([bench.id_of(request)]) == [Status.FULFILLED]


async def test_batch__at_the_cap_with_callbacks_that_burn_all_their_gas__settles_every_item(bench: Bench) -> None:
    """Burners first, then a verifier and plain results until nothing more fits."""
    attester = Attester(ATTESTATION_KEY, CHAIN_ID, bench.chain.attested_key_verifier)
    burners = [called(bench, number, Behaviour.BURNS_ALL_GAS) for number in range(7)]
    verified = bench.request(50, fresh(50), mode=Mode.VERIFIER, verifier=attester.verifier)
    plain = [bench.request(number, fresh(number)) for number in range(100, 160)]
    await bench.post(*burners, verified, *plain)
    proof = await attester.prove(bench.id_of(verified), NODE, "0x" + keccak(b"said").hex())
    all_items = [
        *(Item(request, b"said") for request in burners),
        Item(verified, b"said", proof),
        *(Item(request, b"said") for request in plain),
    ]
    count = fitting([bench.load(item) for item in all_items])
    assert len(burners) + 1 < count < len(all_items), "the cap cuts among the plain results"
    items = all_items[:count]
    loads = [bench.load(item) for item in items]
    assert MAX_BATCH_GAS - 60_000 < batch_gas(loads) <= MAX_BATCH_GAS < MAX_TRANSACTION_GAS
    receipt = await bench.settle(items, MAX_TRANSACTION_GAS)
    assert receipt.gas_used > 14_000_000
    statuses = await bench.chain.statuses([bench.id_of(item.request) for item in items])
    assert statuses[: len(burners)] == [Status.FULFILLED_CALLBACK_FAILED] * len(burners)
    assert set(statuses[len(burners) :]) == {Status.FULFILLED}
    # With one callback more than fits, it is another batch's.
    await bench.settle(all_items[count:])


async def test_market__offers_a_verifier_what_is_counted_on(bench: Bench) -> None:
    assert bench.terms.verifier_gas == MARKET_VERIFIER_GAS


async def test_charge__attested_proof__is_within_what_it_is_counted_with(bench: Bench) -> None:
    attester = Attester(ATTESTATION_KEY, CHAIN_ID, bench.chain.attested_key_verifier)
    plain = bench.request(1, fresh(1))
    verified = replace(plain, mode=Mode.VERIFIER, verifier=attester.verifier, salt=2)
    await bench.post(plain, verified)
    proof = await attester.prove(bench.id_of(verified), NODE, "0x" + keccak(b"said").hex())
    extra = await bench.charged_gas(Item(verified, b"said", proof)) - await bench.charged_gas(Item(plain, b"said"))
    assert 0.4 * ATTESTED_VERIFIER_GAS < extra <= ATTESTED_VERIFIER_GAS


async def test_charge__callback_that_burns_all__is_within_what_it_is_counted_with(bench: Bench) -> None:
    plain = called(bench, 1, Behaviour.BURNS_ALL_GAS, gas=0)
    burning = replace(plain, callback_gas=500_000, salt=2)
    await bench.post(plain, burning)
    extra = await bench.charged_gas(Item(burning, b"said")) - await bench.charged_gas(Item(plain, b"said"))
    assert 500_000 < extra <= call_out_gas(500_000, 0)
