"""The golden vectors of the protocol, and drawn inputs, against the contracts."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from eth_utils import keccak, to_checksum_address

from headrace.core import merkle, requests, typed_data
from headrace.core.types import Assignment, RoundRecord
from tests.contracts import builders
from tests.contracts.builders import CHAIN_ID, ETHER
from tests.contracts.conftest import MIN_BOND
from tests.contracts.world import GasTerms
from tests.vectors.protocol import generate

FOLDER = Path(__file__).parents[1] / "vectors" / "protocol"
CONTRACTS = ("AttestedKeyVerifier", "Faults", "InferenceMarket", "ModelRegistry", "ScheduleLog", "StakeManager")
DRAWS = 50


def read(name: str):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def named(name: str) -> dict:
    entries = read(name)
    return {"argvalues": entries, "ids": [entry["name"].replace(" ", "-") for entry in entries]}


def abi(value):
    """A vector's value as Ape takes it: decimal text as a number, structs as tuples."""
    if isinstance(value, dict):
        return tuple(abi(each) for each in value.values())
    if isinstance(value, list):
        return [abi(each) for each in value]
    if isinstance(value, str):
        if not value.startswith("0x"):
            return int(value)
        return to_checksum_address(value) if len(value) == 42 else bytes.fromhex(value[2:])
    return value


def packed(entry: dict) -> tuple:
    """A packed request, its words as numbers."""
    return tuple(int(each, 16) if name in ("amounts", "terms") else abi(each) for name, each in entry.items())


def same(answer, entry: dict) -> bool:
    """Whether a struct that a contract returned is that of a vector."""
    got = [each.lower() if isinstance(each, str) else each for each in tuple(answer)]
    expected = packed(entry) if "terms" in entry else abi(entry)
    return got == [each.lower() if isinstance(each, str) else each for each in expected]


@pytest.fixture(scope="module", autouse=True)
def _harness_before_any_test(_session_world, harness, verifier, market_of_fees):
    """Ape takes a snapshot before each test; what is built later than that is built again and again."""


@pytest.fixture(scope="module")
def harness(project, owner, _session_world):
    return owner.deploy(project.VectorHarness)


@pytest.fixture(scope="module")
def verifier(project, owner, _session_world):
    return owner.deploy(project.AttestedKeyVerifier, owner)


@pytest.fixture(scope="module")
def at(chain):
    """Puts a contract's code at an address, on a chain with an id, while the block lasts."""

    @contextmanager
    def placed(contract, address: str, chain_id: int = CHAIN_ID):
        provider = chain.provider
        before = bytes(provider.get_code(to_checksum_address(address)))
        code = bytes(provider.get_code(contract.address))
        provider.make_request("anvil_setCode", [address, "0x" + code.hex()])
        provider.make_request("anvil_setChainId", [chain_id])
        try:
            yield type(contract)(to_checksum_address(address), contract.contract_type)
        finally:
            provider.make_request("anvil_setChainId", [CHAIN_ID])
            provider.make_request("anvil_setCode", [address, "0x" + before.hex()])

    return placed


# REQUESTS


@pytest.mark.parametrize("entry", **named("requests"))
def test_request(harness, market, at, entry):
    params, requester, words = abi(entry["params"]), abi(entry["requester"]), packed(entry["packed"])
    assert same(harness.pack(params, requester), entry["packed"])
    assert harness.escrowOfParams(params) == harness.escrowOfRequest(words) == int(entry["escrow"])
    amounts = tuple(int(entry["params"][name]) for name in ("maxReward", "gasBudget", "priorityFee"))
    assert tuple(harness.amountsOf(int(entry["packed"]["amounts"], 16))) == amounts
    flags = entry["params"]["batchable"] + 2 * entry["params"]["inlineResult"]
    assert harness.flagsOf(int(entry["packed"]["terms"], 16)) == flags
    with at(harness, harness.address, entry["chainId"]):
        for id_of in (harness.idOf, harness.idOfCalldata):
            assert "0x" + id_of(words, entry["market"]).hex() == entry["requestId"]
    # The market itself, at the address of the vector.
    with at(market, entry["market"], entry["chainId"]) as there:
        assert same(there.packRequest(params, requester), entry["packed"])
        assert there.escrowOf(params) == int(entry["escrow"])
        assert "0x" + there.requestIdOf(words).hex() == entry["requestId"]


def test_request__drawn__is_packed_and_named_as_the_core_does(harness, market):
    rng = Random("parity of requests")
    for _ in range(DRAWS):
        request = generate.random_request(rng)
        entry = generate.request_entry("drawn", request, CHAIN_ID, market.address.lower())
        words = packed(entry["packed"])
        assert same(market.packRequest(abi(entry["params"]), abi(entry["requester"])), entry["packed"])
        id_ = requests.request_id(request, CHAIN_ID, market.address.lower())
        assert "0x" + market.requestIdOf(words).hex() == id_
        assert "0x" + harness.idOf(words, market.address).hex() == id_


# TYPED DATA


def struct_hash(harness, kind: str, message: dict):
    if kind in ("Assignment", "RoundRecord"):
        return getattr(harness, f"hash{kind}")(abi(message))
    return getattr(harness, f"hash{kind}")(*(abi(value) for value in message.values()))


@pytest.mark.parametrize("entry", **named("typed_data"))
def test_typed_data(harness, verifier, at, entry):
    if entry["primaryType"] == "Attestation":
        # A verifier's own type, under its own domain.
        with at(verifier, entry["domain"]["verifyingContract"], entry["domain"]["chainId"]) as there:
            digest = there.digestOf(*(abi(value) for value in entry["message"].values()))
        assert "0x" + digest.hex() == entry["digest"]
        return
    # The last three no contract ever sees.
    if entry["primaryType"] not in ("Access", "LinkHello", "Heartbeat"):
        assert "0x" + struct_hash(harness, entry["primaryType"], entry["message"]).hex() == entry["structHash"]
    domain = entry["domain"]
    with at(harness, domain["verifyingContract"], domain["chainId"]) as there:
        assert "0x" + there.digestOf(entry["structHash"]).hex() == entry["digest"]
    signer = harness.signerOf(entry["digest"], entry["signature"])
    assert signer.lower() == read("keys")[entry["signer"]]["address"]


@pytest.mark.parametrize("name", ["InferenceMarket", "ScheduleLog", "StakeManager"])
def test_domain__of_each_contract__is_that_of_the_core(market, log, stakes, name):
    contract = {"InferenceMarket": market, "ScheduleLog": log, "StakeManager": stakes}[name]
    domain = contract.eip712Domain()
    assert (domain.name, domain.version) == (typed_data.NAME, typed_data.VERSION)
    assert (domain.chainId, domain.verifyingContract) == (CHAIN_ID, contract.address)


def test_typed_data__drawn__is_hashed_as_the_core_does(harness):
    rng = Random("parity of typed data")
    domain = typed_data.Domain(CHAIN_ID, harness.address.lower())
    for _ in range(DRAWS):
        entries = [
            generate.result_case("", domain, _drawn_result(rng)),
            generate.result_set_case(
                "", domain, generate.random_address(rng), rng.getrandbits(64), [_drawn_result(rng) for _ in range(3)]
            ),
            generate.assignment_case("", domain, _drawn_assignment(rng)),
            generate.record_case("", domain, _drawn_record(rng)),
            generate.request_for_case(
                "", domain, generate.random_request(rng), rng.getrandbits(96), rng.getrandbits(40)
            ),
        ]
        for entry in entries:
            assert "0x" + struct_hash(harness, entry["primaryType"], entry["message"]).hex() == entry["structHash"]
            assert "0x" + harness.digestOf(entry["structHash"]).hex() == entry["digest"]
        id_, address, round_, time = (
            generate.random_hash(rng),
            generate.random_address(rng),
            rng.getrandbits(64),
            rng.getrandbits(40),
        )
        assert harness.hashAccept(id_, address, round_, time) == typed_data.hash_accept(id_, address, round_, time)
        assert harness.hashRelease(id_, time) == typed_data.hash_release(id_, time)
        other = generate.random_address(rng)
        assert harness.hashSubmitter(address, other, time) == typed_data.hash_submitter(address, other, time)
        assert harness.hashRegisterNode(address, other) == typed_data.hash_register_node(address, other)


def _drawn_result(rng: Random):
    return generate.Result(
        generate.random_hash(rng),
        generate.random_hash(rng),
        rng.getrandbits(96),
        generate.random_address(rng),
        rng.getrandbits(64),
    )


def _drawn_assignment(rng: Random) -> Assignment:
    return Assignment(
        generate.random_hash(rng),
        generate.random_address(rng),
        generate.random_address(rng),
        rng.getrandbits(64),
        rng.getrandbits(96),
        rng.getrandbits(40),
    )


def _drawn_record(rng: Random) -> RoundRecord:
    hashes = [generate.random_hash(rng) for _ in range(4)]
    counts = [rng.getrandbits(32) for _ in range(3)]
    return RoundRecord(rng.getrandbits(64), *hashes[:3], rng.getrandbits(64), hashes[3], *counts)


def test_signature__what_the_core_refuses__is_nobodys_for_the_contracts(harness):
    entry = read("typed_data")[0]
    digest, signature = bytes.fromhex(entry["digest"][2:]), bytes.fromhex(entry["signature"][2:])
    r, s, v = signature[:32], int.from_bytes(signature[32:64], "big"), signature[64]
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    bad = [b"", signature[:64], signature + b"\0", bytes(64) + bytes([v])]
    bad += [signature[:64] + bytes([other]) for other in (0, 1, 26, 29, 255)]
    bad += [r + (order - s).to_bytes(32, "big") + bytes([other]) for other in (27, 28)]
    bad += [(5).to_bytes(32, "big") + (1).to_bytes(32, "big") + b"\x1b", order.to_bytes(32, "big") + signature[32:]]
    for refused in bad:
        assert harness.signerOf(digest, refused) == builders.ZERO, refused.hex()
        with pytest.raises(typed_data.SignatureMismatch):
            typed_data.signer_of(digest, refused)


def test_signature__drawn__recovers_to_the_same_or_is_refused_by_both(harness):
    rng = Random("parity of recovery")
    recovered = 0
    for _ in range(DRAWS):
        digest, signature = rng.randbytes(32), bytearray(rng.randbytes(65))
        signature[64] = rng.choice([27, 28])
        signature[32] &= 0x7F
        there = harness.signerOf(digest, bytes(signature)).lower()
        try:
            here = typed_data.signer_of(digest, bytes(signature))
        except typed_data.SignatureMismatch:
            here = builders.ZERO
        assert here == there
        recovered += here != builders.ZERO
    assert 0 < recovered < DRAWS


# DECISIONS AND DRAWS


@pytest.mark.parametrize("entry", read("decisions"), ids=lambda entry: str(len(entry["leaves"])))
def test_decisions(harness, entry):
    count = len(entry["leaves"])
    assert harness.depthOf(count) == len(entry["leaves"][0]["proof"])
    for index, each in enumerate(entry["leaves"]):
        assert "0x" + harness.leafOf(abi(each["decision"])).hex() == each["leaf"]
        proof = [entry["root"], each["leaf"], index, count, each["proof"]]
        assert harness.isProven(*proof)
        other_hash = keccak(hexstr=each["leaf"])
        for place, other in enumerate([other_hash, other_hash, index + 1, index, [*each["proof"], other_hash]]):
            assert not harness.isProven(*proof[:place], other, *proof[place + 1 :])


def test_decisions__drawn__are_proven_exactly_where_the_core_proves_them(harness):
    rng = Random("parity of decisions")
    for _ in range(DRAWS):
        entry = generate.decision_set_entry(generate.random_decisions(rng, rng.randrange(1, 40)))
        count = len(entry["leaves"])
        index = rng.randrange(count)
        each = entry["leaves"][index]
        assert "0x" + harness.leafOf(abi(each["decision"])).hex() == each["leaf"]
        assert harness.isProven(entry["root"], each["leaf"], index, count, each["proof"])
        wrong_index, wrong_count = rng.randrange(70), rng.randrange(70)
        for case in ((wrong_index, count), (index, wrong_count), (wrong_index, wrong_count)):
            here = merkle.is_proven(entry["root"], bytes.fromhex(each["leaf"][2:]), *case, each["proof"])
            assert harness.isProven(entry["root"], each["leaf"], *case, each["proof"]) is here


@pytest.mark.parametrize("entry", read("rounds"), ids=["relayer", "other-relayer"])
def test_rounds(accounts, chain, stakes, log, stranger, entry):
    relayer = _bonded(accounts, chain, stakes, entry["relayer"])
    key = next(key["privateKey"] for key in read("keys").values() if key["address"] == entry["relayer"])
    for each, decisions in zip(entry["rounds"], read("decisions"), strict=False):
        record = abi(each["record"])
        signature = builders.sign_record(key, log.address, {name: abi(value) for name, value in each["record"].items()})
        receipt = log.recordRound(relayer, record, signature, sender=stranger)
        (event,) = receipt.decode_logs(log.RoundRecorded)
        assert "0x" + event.head.hex() == "0x" + log.headOf(relayer, record[0]).hex() == each["head"]
        for index, leaf in enumerate(decisions["leaves"]):
            decision = abi(leaf["decision"])
            assert log.verifyDecision(relayer, record, decision, index, leaf["proof"])
            assert not log.verifyDecision(relayer, record, decision, index + 1, leaf["proof"])
    assert log.nextRound(relayer) == len(entry["rounds"]) + 1


def _bonded(accounts, chain, stakes, address: str) -> str:
    account = accounts.impersonate_account(to_checksum_address(address))
    chain.provider.set_balance(account.address, 10 * ETHER)
    stakes.registerRelayer("https://vectors.example", sender=account, value=MIN_BOND)
    return account.address


# WORDS


@pytest.fixture
def slot_of(chain, market):
    """The slot of a request's word. Where the mapping begins hangs on what the market inherits, so it is looked for."""

    def slot(request_id: bytes, base: int) -> str:
        return "0x" + keccak(request_id + base.to_bytes(32, "big")).hex()

    probe = keccak(text="probe")
    pending = generate.word(generate.pending_word(1, 2))
    for base in range(12):
        write_word(chain, market, slot(probe, base), pending)
    (found,) = [base for base in range(12) if _is_read(chain, market, probe, slot(probe, base))]
    return lambda request_id: slot(request_id, found)


def _is_read(chain, market, request_id: bytes, slot: str) -> bool:
    """Whether the request is forgotten when the slot is cleared."""
    word = read_word(chain, market, slot)
    write_word(chain, market, slot, generate.word(0))
    cleared = list(market.statusOf([request_id])) == [0]
    write_word(chain, market, slot, word)
    return cleared


def write_word(chain, market, slot: str, word: str) -> None:
    chain.provider.make_request("anvil_setStorageAt", [market.address, slot, word])


def read_word(chain, market, slot: str) -> str:
    answer = chain.provider.make_request("eth_getStorageAt", [market.address, slot, "latest"])
    return f"0x{int(answer, 16):064x}"


@pytest.mark.parametrize("entry", **named("words"))
def test_word__in_the_markets_storage__reads_as_what_it_says(chain, market, slot_of, entry):
    id_ = bytes.fromhex(entry["requestId"][2:])
    write_word(chain, market, slot_of(id_), entry["word"])
    assert list(market.statusOf([id_])) == [entry["status"]]
    pending = (int(entry.get("priorityFeeAdded", 0)), entry.get("effectiveDeadline", 0))
    assert tuple(market.pendingOf(id_)) == pending
    any_ref = next(each["ref"] for each in read("words") if "ref" in each)
    ref = abi(entry.get("ref", any_ref))
    assert market.verifyResult(id_, ref, b"") is ("ref" in entry)
    if "ref" in entry:
        for place in range(len(ref)):
            assert not market.verifyResult(id_, _with_another(ref, place), b"")
        assert not market.verifyResult(keccak(id_), ref, b"")


def _with_another(ref: tuple, place: int) -> tuple:
    value = ref[place]
    other = {
        bytes: lambda: keccak(value),
        str: lambda: to_checksum_address("0x" + "12" * 20),
        int: lambda: value ^ 1,
        list: lambda: [*value, value[0]],
    }[type(value)]()
    return (*ref[:place], other, *ref[place + 1 :])


def test_word__of_a_live_request__is_that_of_the_vectors(world, chain, slot_of):
    posted, cancelled, expired = world.post(), world.post(), world.post()

    def word(request) -> str:
        return read_word(chain, world.market, slot_of(request.id))

    assert word(posted) == generate.word(generate.pending_word(0, posted.deadline))
    world.market.raisePriorityFee(posted.id, sender=world.stranger, value=12345)
    assert word(posted) == generate.word(generate.pending_word(12345, posted.deadline))

    receipt = world.settle(posted)
    item = builders.item(posted)
    ref = generate.ResultRef(
        "0x" + item.result_hash.hex(),
        world.relayer.address.lower(),
        world.log.nextRound(world.relayer) - 1,
        (world.node.lower(),),
        chain.blocks[receipt.block_number].timestamp,
    )
    id_ = "0x" + posted.id.hex()
    assert word(posted) == generate.word(generate.fulfilled_word(id_, generate.Status.FULFILLED, ref))

    until = world.now + 60
    release = builders.sign_release(world.relayer_key, world.market.address, cancelled.id, until)
    world.market.cancelWithRelease(cancelled.request, until, release, sender=world.requester)
    expected = generate.cancelled_word("0x" + cancelled.id.hex())
    assert word(cancelled) == generate.word(expected)

    world.next_block_at(expired.deadline + builders.GRACE + 1)
    world.market.expire([expired.request], sender=world.stranger)
    expected = generate.expired_word("0x" + expired.id.hex(), expired.deadline)
    assert word(expired) == generate.word(expected)


# MONEY


FEE_KEYS = [f"0x{index:064x}" for index in range(0xFEE0, 0xFEE0 + 16)]


@pytest.fixture(scope="module")
def market_of_fees(_session_world, deploy_market, register_node):
    """A market with the terms of all the vectors, in which sixteen nodes are beyond their probation."""
    (terms,) = {json.dumps(entry["terms"]) for entry in read("fees")}
    terms = json.loads(terms)
    gas = ("fixed_gas", "item_gas", "node_gas", "assigned_gas")
    market = deploy_market(GasTerms(int(terms["tip_cap_wei"]), *(terms[name] for name in gas)))
    assert market.GAS_PER_RESULT_BYTE() == terms["gas_per_result_byte"]
    assert market.RELAYER_FEE_SHARE_BPS() == terms["relayer_fee_share_bps"]
    assert market.RELAYER_SAVING_SHARE_BPS() == terms["relayer_saving_share_bps"]
    for key in FEE_KEYS:
        register_node(key, market)
    return market


@pytest.mark.parametrize("entry", **named("fees"))
def test_fees(world, chain, market_of_fees, entry):
    world.market = market_of_fees
    for account in (world.requester, world.relayer, world.stranger):
        chain.provider.set_balance(account.address, 2**100)
    amounts = {name: int(entry[name]) for name in ("maxReward", "gasBudget", "priorityFee")}
    nodes = entry["nodes"]
    mode = {"mode": builders.Mode.QUORUM, "k": nodes, "n": nodes} if nodes > 1 else {}
    posted = world.post(inlineResult=True, **mode, **amounts)
    if added := int(entry["priorityFeeAdded"]):
        # A raise that is larger than what the test accounts hold at once.
        world.market.raisePriorityFee(posted.id, sender=world.stranger, value=added)
    round_ = world.record_round()
    inline = entry["resultBytes"] > 0
    item = builders.item(posted, int(entry["reward"]), b"x" * entry["resultBytes"], inline=inline)
    # The rest of the batch are requests that the market does not know: they count in its size.
    unknown = [builders.item(world.prepare()) for _ in range(entry["batchSize"] - 1)]
    in_set, beside = unknown[: entry["setSize"] - 1], unknown[entry["setSize"] - 1 :]
    sets = [world.set_of([item, *in_set], round_, single=True, keys=FEE_KEYS[:nodes])]
    sets += [world.set_of(beside, round_, single=True)] if beside else []
    base_fee, tip = int(entry["baseFee"]), int(entry["tip"])
    world.next_block_base_fee(base_fee)
    receipt = world.submit(*sets, max_fee=base_fee + tip, max_priority_fee=tip)
    assert chain.blocks[receipt.block_number].base_fee == base_fee
    (event,) = receipt.decode_logs(world.market.ResultFulfilled)
    paid = (event.nodePaid, event.relayerPaid, event.refund)
    assert paid == tuple(int(entry[name]) for name in ("nodePaid", "relayerPaid", "refund"))
    charge = entry["chargedGas"] * int(entry["chargedGasPrice"])
    assert paid[1] == builders_relayer_pay(entry, charge)


def builders_relayer_pay(entry: dict, charge: int) -> int:
    budget = int(entry["gasBudget"])
    gas = min(budget, charge)
    fee = int(entry["priorityFee"]) + int(entry["priorityFeeAdded"])
    return gas + (budget - gas) // 10 + fee // 5


# NAMES


def test_events(project):
    listed = read("events")
    for name in CONTRACTS:
        compiled = {event.selector for event in getattr(project, name).contract_type.events}
        # What OpenZeppelin's bases add is theirs to keep.
        inherited = {"EIP712DomainChanged()"}
        if name in ("AttestedKeyVerifier", "InferenceMarket", "ModelRegistry"):
            inherited |= {
                "OwnershipTransferStarted(address,address)",
                "OwnershipTransferTimed(address,uint40)",
                "OwnershipTransferred(address,address)",
            }
        expected = {entry["signature"] for entry in listed if entry["contract"] == name}
        assert expected <= compiled <= expected | inherited
    assert {entry["contract"] for entry in listed} == set(CONTRACTS)
    for entry in listed:
        assert "0x" + keccak(text=entry["signature"]).hex() == entry["topic"]


@pytest.mark.parametrize("name", ["Status", "ItemStatus", "Mode"])
def test_enums__as_the_contracts_tests_have_them(name):
    assert read("enums")[name] == {member.name: int(member) for member in getattr(builders, name)}
