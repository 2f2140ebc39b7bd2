"""Writes the golden vectors of the protocol: `python tests/vectors/protocol/generate.py`.

Same code, same files: each file draws from a generator of its own that is seeded with the file's name.

What contracts know has the ABI's names. Integers of more than 48 bits are decimal text, smaller ones numbers (as viem
types them); packed words are 0x hex text of 32 bytes; amounts in wei are always text.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from eth_abi.abi import encode
from eth_keys import keys
from eth_utils.crypto import keccak

from headrace.core import typed_data
from headrace.core.canonical import content_hash
from headrace.core.envelope import hash_payload, quorum_salt, seal
from headrace.core.fairness import Account
from headrace.core.fees import charged_gas, charged_gas_price_wei, payout
from headrace.core.fields import to_json
from headrace.core.merkle import leaf_of, proof_of, root_of, sort_decisions
from headrace.core.requests import pack, request_id
from headrace.core.rounds import close_round, merge_decisions
from headrace.core.scheduling import (
    Anchor,
    CycleInputs,
    CyclePlan,
    NodeView,
    Offer,
    PlannedDecision,
    Policy,
    WaitingRequest,
    plan_cycle,
)
from headrace.core.snapshot import encode_delta, encode_snapshot, policy_hash
from headrace.core.tasks import Heartbeat
from headrace.core.typed_data import Domain
from headrace.core.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Assignment,
    Decision,
    DecisionKind,
    GasQuote,
    Hash32,
    ItemStatus,
    Lane,
    MarketTerms,
    Mode,
    Price,
    Reason,
    Request,
    Result,
    ResultRef,
    RoundRecord,
    Status,
)

Entry = dict[str, Any]

FOLDER = Path(__file__).parent
CHAIN_ID = 31337
NOW_S = 1_800_000_000
GWEI, ETHER = 10**9, 10**18

BALANCED = Policy(name="balanced", lanes="shared")


def hash_of(text: str) -> Hash32:
    return "0x" + keccak(text=text).hex()


def address_of(text: str) -> Address:
    return "0x" + keccak(text=text)[12:].hex()


MARKET = address_of("market")
SCHEDULE_LOG = address_of("schedule log")
STAKE_MANAGER = address_of("stake manager")
VERIFIER = address_of("attested key verifier")
KEYS = {
    name: keys.PrivateKey(keccak(text=f"headrace test key: {name}"))
    for name in ("node", "other node", "owner", "relayer", "other relayer", "requester")
}


def account(name: str) -> Address:
    return KEYS[name].public_key.to_address()


def named_keys() -> Entry:
    return {name: {"privateKey": key.to_hex(), "address": account(name)} for name, key in KEYS.items()}


# Requests

PLAIN = Request(
    requester=account("requester"),
    relayer=account("relayer"),
    model_id=hash_of("llama-7b"),
    prompt_hash=hash_of("what is a headrace?"),
    salt=0x1122334455667788,
    deadline_s=NOW_S + 600,
    prompt_bytes=2048,
    max_output_tokens=256,
    callback_gas=0,
    lane=Lane.REALTIME,
    batchable=True,
    inline_result=False,
    mode=Mode.SIGNATURE,
    k=0,
    n=0,
    verifier=ZERO_ADDRESS,
    max_reward_wei=10**15,
    gas_budget_wei=4 * 10**14,
    priority_fee_wei=2 * 10**14,
)
NOTHING = Request(
    requester=ZERO_ADDRESS,
    relayer=ZERO_ADDRESS,
    model_id=ZERO_HASH,
    prompt_hash=ZERO_HASH,
    salt=0,
    deadline_s=0,
    prompt_bytes=0,
    max_output_tokens=0,
    callback_gas=0,
    lane=Lane.REALTIME,
    batchable=False,
    inline_result=False,
    mode=Mode.SIGNATURE,
    k=0,
    n=0,
    verifier=ZERO_ADDRESS,
    max_reward_wei=0,
    gas_budget_wei=0,
    priority_fee_wei=0,
)
LARGEST: dict[str, Any] = {
    "requester": "0x" + "ff" * 20,
    "relayer": "0x" + "ff" * 20,
    "model_id": "0x" + "ff" * 32,
    "prompt_hash": "0x" + "ff" * 32,
    "salt": 2**64 - 1,
    "deadline_s": 2**40 - 1,
    "prompt_bytes": 2**32 - 1,
    "max_output_tokens": 2**24 - 1,
    "callback_gas": 2**24 - 1,
    "lane": Lane.BULK,
    "batchable": True,
    "inline_result": True,
    "mode": Mode.VERIFIER,
    "k": 255,
    "n": 255,
    "verifier": "0x" + "ff" * 20,
    "max_reward_wei": 2**80 - 1,
    "gas_budget_wei": 2**80 - 1,
    "priority_fee_wei": 2**80 - 1,
}


def requests() -> list[Entry]:
    rng = Random("requests")
    cases: list[tuple[str, Request, int, Address]] = [
        ("a paid realtime request", PLAIN, CHAIN_ID, MARKET),
        ("the same at another market", PLAIN, CHAIN_ID, address_of("other market")),
        ("the same on mainnet", PLAIN, 1, MARKET),
        ("the same on a chain with a large id", PLAIN, 2**53 - 1, MARKET),
        ("an open race in the bulk lane", replace(PLAIN, relayer=ZERO_ADDRESS, lane=Lane.BULK), CHAIN_ID, MARKET),
        ("inline result", replace(PLAIN, inline_result=True, batchable=False), CHAIN_ID, MARKET),
        ("all zero", NOTHING, CHAIN_ID, MARKET),
        ("all at their largest", replace(NOTHING, **LARGEST), CHAIN_ID, MARKET),
    ]
    cases += [
        (f"only {name} set, to its largest", replace(NOTHING, **{name: value}), CHAIN_ID, MARKET)
        for name, value in LARGEST.items()
    ]
    cases += [(f"drawn {i}", random_request(rng), CHAIN_ID, MARKET) for i in range(6)]
    return [request_entry(*case) for case in cases]


def request_entry(name: str, request: Request, chain_id: int, market: Address) -> Entry:
    packed = pack(request)
    return {
        "name": name,
        "chainId": chain_id,
        "market": market,
        "requester": request.requester,
        "params": params_entry(request),
        "escrow": str(request.escrow_wei),
        "packed": {
            "requester": packed.requester,
            "relayer": packed.relayer,
            "modelId": "0x" + packed.model_id.hex(),
            "promptHash": "0x" + packed.prompt_hash.hex(),
            "amounts": word(packed.amounts),
            "terms": word(packed.terms),
            "verifier": packed.verifier,
        },
        "requestId": request_id(request, chain_id, market),
    }


def random_request(rng: Random) -> Request:
    return Request(
        requester=random_address(rng),
        relayer=random_address(rng),
        model_id=random_hash(rng),
        prompt_hash=random_hash(rng),
        salt=rng.getrandbits(64),
        deadline_s=rng.getrandbits(40),
        prompt_bytes=rng.getrandbits(32),
        max_output_tokens=rng.getrandbits(24),
        callback_gas=rng.getrandbits(24),
        lane=rng.choice(list(Lane)),
        batchable=rng.random() < 0.5,
        inline_result=rng.random() < 0.5,
        mode=rng.choice(list(Mode)),
        k=rng.getrandbits(8),
        n=rng.getrandbits(8),
        verifier=random_address(rng),
        max_reward_wei=rng.getrandbits(80),
        gas_budget_wei=rng.getrandbits(80),
        priority_fee_wei=rng.getrandbits(80),
    )


def random_hash(rng: Random) -> Hash32:
    return "0x" + rng.randbytes(32).hex()


def random_address(rng: Random) -> Address:
    return "0x" + rng.randbytes(20).hex()


# Typed data

HEARTBEAT = Heartbeat(
    node=account("node"),
    sequence=7,
    sent_at_ms=NOW_S * 1000,
    free_memory_mb=8192,
    in_flight=1,
    max_in_flight=4,
    load_milli=250,
    models=(hash_of("gpt-2"), hash_of("llama-7b")),
    warm_models=(hash_of("gpt-2"),),
    avg_latency_ms=900,
    region="Zürich",
)
TOP_DOMAIN = Domain(2**53 - 1, "0x" + "ff" * 20)


def typed_data_vectors() -> list[Entry]:
    market, log, stakes = (Domain(CHAIN_ID, contract) for contract in (MARKET, SCHEDULE_LOG, STAKE_MANAGER))
    relayer, node = account("relayer"), account("node")
    top_hash, top_address = "0x" + "ff" * 32, "0x" + "ff" * 20
    result = Result(hash_of("request 1"), hash_of("answer 1"), 750_000_000_000_000, relayer, 12)
    top_result = Result(top_hash, top_hash, 2**96 - 1, top_address, 2**64 - 1)
    others = [replace(result, request_id=hash_of(f"request {i}"), reward_wei=i) for i in (2, 3)]
    assignment = Assignment(result.request_id, relayer, node, 12, result.reward_wei, NOW_S + 600)
    record = RoundRecord(12, hash_of("root"), hash_of("snapshots"), hash_of("policy"), 345, hash_of("block"), 2, 3, 4)
    top_record = RoundRecord(2**64 - 1, *[top_hash] * 3, 2**64 - 1, top_hash, *[2**32 - 1] * 3)
    content = content_hash(to_json(HEARTBEAT))
    return [
        result_case("a result", market, result),
        result_case("a result on another chain", Domain(8453, MARKET), result),
        result_case("a result with all at their largest", TOP_DOMAIN, top_result),
        result_set_case("a set of one", market, relayer, 12, [result]),
        result_set_case("a set of three", market, relayer, 12, [result, *others]),
        typed_case(
            "an accept",
            market,
            "Accept",
            {"requestId": result.request_id, "relayer": relayer, "round": "12", "deadline": NOW_S + 600},
            typed_data.hash_accept(result.request_id, relayer, 12, NOW_S + 600),
            "node",
        ),
        typed_case(
            "an accept with all at their largest",
            TOP_DOMAIN,
            "Accept",
            {"requestId": top_hash, "relayer": top_address, "round": str(2**64 - 1), "deadline": 2**40 - 1},
            typed_data.hash_accept(top_hash, top_address, 2**64 - 1, 2**40 - 1),
            "other node",
        ),
        assignment_case("an assignment", market, assignment),
        assignment_case(
            "an assignment with all at their largest",
            TOP_DOMAIN,
            Assignment(top_hash, top_address, top_address, 2**64 - 1, 2**96 - 1, 2**40 - 1),
        ),
        typed_case(
            "a release",
            market,
            "Release",
            {"requestId": result.request_id, "validUntil": NOW_S + 60},
            typed_data.hash_release(result.request_id, NOW_S + 60),
            "relayer",
        ),
        submitter_case("a submitter's mandate", market, relayer, account("owner"), NOW_S + 3600),
        submitter_case("a submitter's mandate with all at their largest", TOP_DOMAIN, *[top_address] * 2, 2**40 - 1),
        request_for_case("a request to be posted for its requester", market, PLAIN, 10**14, NOW_S + 60),
        request_for_case(
            "the same for the same fee, to be answered inline and called back",
            market,
            replace(PLAIN, inline_result=True, batchable=False, callback_gas=50_000, lane=Lane.BULK),
            10**14,
            NOW_S + 60,
        ),
        request_for_case("the same on another chain", Domain(8453, MARKET), PLAIN, 10**14, NOW_S + 60),
        request_for_case("a request to be posted for nothing", market, NOTHING, 0, 0),
        request_for_case(
            "a request to be posted with all at their largest",
            TOP_DOMAIN,
            replace(NOTHING, **LARGEST),
            2**96 - 1,
            2**40 - 1,
        ),
        record_case("a round's record", log, record),
        record_case("a round's record with all at their largest", TOP_DOMAIN, top_record),
        typed_case(
            "a node's registration",
            stakes,
            "RegisterNode",
            {"key": node, "owner": account("owner")},
            typed_data.hash_register_node(node, account("owner")),
            "node",
        ),
        attestation_case("an attestation", Domain(CHAIN_ID, VERIFIER, typed_data.ATTESTED_KEY_VERIFIER), result),
        attestation_case(
            "an attestation with all at their largest",
            replace(TOP_DOMAIN, name=typed_data.ATTESTED_KEY_VERIFIER),
            top_result,
            top_address,
        ),
        typed_case(
            "a requester signs in",
            market,
            "Access",
            {"account": account("requester"), "relayer": relayer, "validUntil": NOW_S + 3600},
            typed_data.hash_access(account("requester"), relayer, NOW_S + 3600),
            "requester",
        ),
        typed_case(
            "a node answers the challenge",
            market,
            "LinkHello",
            {"node": node, "relayer": relayer, "protocolVersion": 1, "challenge": hash_of("challenge")},
            typed_data.hash_link_hello(node, relayer, 1, hash_of("challenge")),
            "node",
        ),
        typed_case(
            "a heartbeat",
            market,
            "Heartbeat",
            {"node": node, "relayer": relayer, "contentHash": content},
            typed_data.hash_heartbeat(node, relayer, content),
            "node",
        )
        | {"content": to_json(HEARTBEAT)},
    ]


def result_case(name: str, domain: Domain, result: Result) -> Entry:
    return typed_case(name, domain, "Result", result_entry(result), typed_data.hash_result(result), "node")


def result_set_case(name: str, domain: Domain, relayer: Address, round_: int, results: Sequence[Result]) -> Entry:
    hashes = [typed_data.hash_result(result) for result in results]
    message = {"relayer": relayer, "round": str(round_), "results": ["0x" + hash_.hex() for hash_ in hashes]}
    struct_hash = typed_data.hash_result_set(relayer, round_, hashes)
    entry = typed_case(name, domain, "ResultSet", message, struct_hash, "node")
    return entry | {"of": [result_entry(result) for result in results]}


def attestation_case(name: str, domain: Domain, result: Result, node: Address | None = None) -> Entry:
    node = node or account("node")
    message = {"requestId": result.request_id, "node": node, "resultHash": result.result_hash}
    struct_hash = typed_data.hash_attestation(result.request_id, node, result.result_hash)
    return typed_case(name, domain, "Attestation", message, struct_hash, "other node")


def assignment_case(name: str, domain: Domain, assignment: Assignment) -> Entry:
    struct_hash = typed_data.hash_assignment(assignment)
    return typed_case(name, domain, "Assignment", assignment_entry(assignment), struct_hash, "relayer")


def request_for_case(name: str, domain: Domain, request: Request, fee: int, valid_until: int) -> Entry:
    message = {
        "params": params_entry(request),
        "requester": request.requester,
        "relayerFee": str(fee),
        "validUntil": valid_until,
    }
    struct_hash = typed_data.hash_request_for(request, fee, valid_until)
    entry = typed_case(name, domain, "RequestFor", message, struct_hash, "requester")
    return entry | {"nested": {kind: fields_entry(fields) for kind, fields in typed_data.NESTED_TYPES.items()}}


def submitter_case(name: str, domain: Domain, relayer: Address, submitter: Address, valid_until_s: int) -> Entry:
    message = {"relayer": relayer, "submitter": submitter, "validUntil": valid_until_s}
    struct_hash = typed_data.hash_submitter(relayer, submitter, valid_until_s)
    return typed_case(name, domain, "Submitter", message, struct_hash, "relayer")


def record_case(name: str, domain: Domain, record: RoundRecord) -> Entry:
    struct_hash = typed_data.hash_round_record(record)
    return typed_case(name, domain, "RoundRecord", record_entry(record), struct_hash, "relayer")


def typed_case(name: str, domain: Domain, kind: str, message: Entry, struct_hash: bytes, signer: str) -> Entry:
    digest = typed_data.digest(domain, struct_hash)
    return {
        "name": name,
        "primaryType": kind,
        "domain": {
            "name": domain.name,
            "version": typed_data.VERSION,
            "chainId": domain.chain_id,
            "verifyingContract": domain.verifying_contract,
        },
        "types": fields_entry(typed_data.TYPES[kind]),
        "message": message,
        "structHash": "0x" + struct_hash.hex(),
        "digest": "0x" + digest.hex(),
        "signer": signer,
        "signature": "0x" + sign(signer, digest).hex(),
    }


def fields_entry(fields: Iterable[tuple[str, str]]) -> list[Entry]:
    return [{"name": name, "type": kind} for name, kind in fields]


def sign(name: str, digest: bytes) -> bytes:
    signature = KEYS[name].sign_msg_hash(digest)
    return signature.r.to_bytes(32, "big") + signature.s.to_bytes(32, "big") + bytes([27 + signature.v])


# Decisions and rounds

SIZES = (1, 2, 3, 5, 8, 17)
_SKIPS = [reason for reason in Reason if 10 <= reason < 40]


def decision_sets() -> dict[int, list[Decision]]:
    rng = Random("decisions")
    return {size: random_decisions(rng, size) for size in SIZES}


def random_decisions(rng: Random, size: int) -> list[Decision]:
    """Unsorted; the first is assigned, and the second (if any) is the same request at another node."""
    decisions = [random_decision(rng, DecisionKind.ASSIGNED)]
    if size > 1:
        decisions.append(replace(decisions[0], node=random_address(rng), supersedes_round=2**64 - 1))
    kinds = list(DecisionKind)
    decisions += [random_decision(rng, kinds[i % len(kinds)]) for i in range(2, size)]
    rng.shuffle(decisions)
    return decisions


def random_decision(rng: Random, kind: DecisionKind) -> Decision:
    id_ = random_hash(rng)
    if kind is DecisionKind.SKIPPED:
        return Decision(id_, ZERO_ADDRESS, kind, rng.choice(_SKIPS), 0, 0)
    if kind is DecisionKind.TOO_LATE:
        return Decision(id_, ZERO_ADDRESS, kind, Reason.DEADLINE_PASSED, 0, 0)
    reward = rng.choice([0, 2**96 - 1, rng.getrandbits(60)])
    return Decision(id_, random_address(rng), kind, Reason.LOWEST_COST, reward, rng.choice([0, 3, rng.getrandbits(50)]))


def decisions() -> list[Entry]:
    return [decision_set_entry(given) for given in decision_sets().values()]


def decision_set_entry(given: Sequence[Decision]) -> Entry:
    ordered = sort_decisions(given)
    leaves = [leaf_of(decision) for decision in ordered]
    return {
        "given": [decision_entry(decision) for decision in given],
        "root": root_of(leaves),
        "leaves": [
            {"decision": decision_entry(decision), "leaf": "0x" + leaf.hex(), "proof": proof_of(leaves, index)}
            for index, (decision, leaf) in enumerate(zip(ordered, leaves, strict=True))
        ],
    }


def rounds() -> list[Entry]:
    anchors = [Anchor(100 + i, hash_of(f"anchor {i}"), NOW_S + i) for i in range(len(SIZES))]
    records = [
        close_round(
            1 + i,
            merge_decisions([given]),
            [hash_of(f"snapshot {i}.{cycle}") for cycle in range(i + 1)],
            hash_of("policy"),
            anchors[i],
        )
        for i, given in enumerate(decision_sets().values())
    ]
    return [chain_entry("relayer", records), chain_entry("other relayer", records[:2])]


def chain_entry(relayer: str, records: Iterable[RoundRecord]) -> Entry:
    head, chain = ZERO_HASH, []
    for record in records:
        head = head_after(head, account(relayer), record)
        chain.append({"record": record_entry(record), "head": head})
    return {"relayer": account(relayer), "rounds": chain}


def head_after(previous: Hash32, relayer: Address, record: RoundRecord) -> Hash32:
    """The 216 high bits of keccak256(previous head ‖ relayer ‖ the record's words)."""
    entry = record_entry(record)
    kinds = [kind for _, kind in typed_data.TYPES["RoundRecord"]]
    values = [_as_abi(kind, entry[name]) for name, kind in typed_data.TYPES["RoundRecord"]]
    encoded = encode(("bytes32", "address", *kinds), (bytes.fromhex(previous[2:]), relayer, *values))
    return "0x" + (keccak(encoded)[:27] + bytes(5)).hex()


def _as_abi(kind: str, value: Any) -> Any:
    return bytes.fromhex(value[2:]) if kind == "bytes32" else int(value)


# Snapshots

TERMS = MarketTerms(
    grace_s=300,
    min_ttl_s=10,
    max_ttl_s=86_400,
    max_inline_prompt_bytes=8192,
    max_callback_gas=2_000_000,
    verifier_gas=400_000,
    tip_cap_wei=2 * GWEI,
    fixed_gas=90_000,
    item_gas=16_000,
    node_gas=15_001,
    assigned_gas=100_000,
    gas_per_result_byte=40,
    relayer_fee_share_bps=2000,
    relayer_saving_share_bps=1000,
    probation_max_reward_wei=10**15,
    probation_settled_count=10,
    probation_duration_s=86_400,
)
MODELS = ("gpt-2", "llama-7b", "llama-70b")


def waiting_request(id_: Hash32, **fields: Any) -> WaitingRequest:
    values: dict[str, Any] = {
        "request_id": id_,
        "model_id": hash_of("llama-7b"),
        "model_name": "llama-7b",
        "lane": Lane.REALTIME,
        "priority_fee_wei": 10**15,
        "included_at_s": NOW_S - 12,
        "deadline_s": NOW_S + 600,
        "prompt_bytes": 1500,
        "max_output_tokens": 256,
        "required_memory_mb": 4096,
        "batchable": True,
        "max_reward_wei": 10**15,
        "gas_budget_wei": 10**15,
        "prompt_available": True,
        "assignments": 0,
        "excluded_nodes": (),
        "supersedes_round": 0,
        "k": 0,
        "n": 0,
        "kept_nodes": (),
        "tried_owners": (),
        "deterministic": True,
        "released_until_s": 0,
        "callback_gas": 0,
        "answer_bytes": 0,
        "verifier": ZERO_ADDRESS,
        "verifier_gas": 0,
    }
    return WaitingRequest(**values | fields)


def offer(model: str, kib: int = 10**12, thousand: int = 10**14) -> Offer:
    return Offer(hash_of(model), model, Price(kib, thousand))


def node_view(node: Address, **fields: Any) -> NodeView:
    values: dict[str, Any] = {
        "node": node,
        "owner": node,
        "offers": tuple(offer(model) for model in MODELS),
        "free_memory_mb": 16_384,
        "in_flight": 0,
        "max_in_flight": 4,
        "avg_latency_ms": 900,
        "settled_count": 100,
        "joined_at_s": NOW_S - 10**6,
        "heartbeat_at_ms": NOW_S * 1000 - 500,
        "heartbeat": '{"region":"Zürich","sequence":7}',
        "heartbeat_signature": "0x" + "5a" * 64 + "1b",
        "verifiers": (),
    }
    return NodeView(**values | fields)


def cycle_inputs(requests_: Iterable[WaitingRequest], nodes: Iterable[NodeView], **fields: Any) -> CycleInputs:
    values: dict[str, Any] = {
        "chain_id": CHAIN_ID,
        "market": MARKET,
        "relayer": account("relayer"),
        "round": 12,
        "cycle": 1,
        "now_ms": NOW_S * 1000,
        "anchor": Anchor(345, hash_of("anchor"), NOW_S - 1),
        "gas": GasQuote(7 * GWEI, GWEI),
        "terms": TERMS,
        "policy": Policy(),
        "lane_streak": 0,
        "requests": tuple(sorted(requests_, key=lambda request: request.request_id)),
        "nodes": tuple(sorted(nodes, key=lambda view: view.node)),
    }
    return CycleInputs(**values | fields)


def snapshots() -> list[Entry]:
    rng = Random("snapshots")
    ids = [hash_of(f"waiting {i}") for i in range(24)]
    nodes = [address_of(f"node {i}") for i in range(8)]
    tiny = Policy(realtime_capacity=2, bulk_capacity=3, realtime_streak=2, realtime_fee_floor_wei=10**15)
    many = [random_waiting(rng, id_, nodes) for id_ in ids]
    return [
        snapshot_entry("nothing waits", cycle_inputs([], [])),
        snapshot_entry("one request, two nodes", cycle_inputs([waiting_request(ids[0])], map(node_view, nodes[:2]))),
        snapshot_entry("a request for each reason", every_reason()),
        snapshot_entry(
            "lanes that overflow, in the middle of a streak",
            cycle_inputs(
                [
                    waiting_request(id_, lane=Lane(i % 2), priority_fee_wei=(i + 1) * 2 * 10**14)
                    for i, id_ in enumerate(ids[:9])
                ],
                map(node_view, nodes),
                policy=tiny,
                lane_streak=1,
                cycle=2,
            ),
        ),
        snapshot_entry("quorums, new and listed again", quorums()),
        snapshot_entry("drawn", cycle_inputs(many, drawn := [random_node(rng, key) for key in nodes], lane_streak=19)),
        snapshot_entry("quorums, balanced", replace(quorums(), policy=BALANCED)),
        snapshot_entry("reasons of balanced", reasons_of_balanced()),
        snapshot_entry("drawn, balanced", first := balanced(many, drawn)),
        delta_entry("a cycle later", first, later(first)),
    ]


def later(inputs: CycleInputs) -> CycleInputs:
    """The cycle after: some requests were assigned, one is new, one pays more, nodes were heard and one left."""
    plan = plan_cycle(inputs)
    reasons = {each.decision.request_id: each.decision.reason for each in plan.of_kind(DecisionKind.SKIPPED)}
    waiting = [
        replace(each, last_reason=reasons[each.request_id]) for each in inputs.requests if each.request_id in reasons
    ]
    waiting[0] = replace(waiting[0], priority_fee_wei=waiting[0].priority_fee_wei + 10**16)
    waiting.append(waiting_request(hash_of("waiting later")))
    heard = [
        replace(each, heartbeat_at_ms=each.heartbeat_at_ms + 5_000, heartbeat='{"region":"Zürich","sequence":8}')
        for each in inputs.nodes[1:]
    ]
    return replace(
        inputs,
        cycle=inputs.cycle + 1,
        now_ms=inputs.now_ms + 5_000,
        requests=tuple(sorted(waiting, key=lambda request: request.request_id)),
        nodes=tuple(heard),
        lane_lag=plan.lane_lag,
        floor_work=plan.floor_work,
        accounts=plan.accounts,
    )


def delta_entry(name: str, base: CycleInputs, inputs: CycleInputs) -> Entry:
    base_hash = "0x" + keccak(encode_snapshot(base)).hex()
    text = encode_delta(base, base_hash, inputs)
    return {
        **snapshot_entry(name, inputs),
        "text": text.decode(),
        "hash": "0x" + keccak(text).hex(),
        "base": base_hash,
    }


def reasons_of_balanced() -> CycleInputs:
    """One request for each reason that only policy `balanced` gives."""
    node = [address_of(f"balanced node {i}") for i in range(3)]
    models = ["explored", "slow", "poor"]
    waiting = [waiting_request(hash_of(f"balanced {name}"), model_id=hash_of(name), model_name=name) for name in models]
    views = [
        node_view(node[0], offers=(offer("explored"),), settled_count=0),
        node_view(node[1], offers=(offer("slow"),), avg_latency_ms=700_000),
        node_view(node[2], offers=(offer("poor"),), stake_wei=10**18, exposure_wei=10**18),
    ]
    return cycle_inputs(waiting, views, policy=replace(BALANCED, exploration_milli=1_000))


def balanced(requests_: Sequence[WaitingRequest], nodes: Sequence[NodeView]) -> CycleInputs:
    """Few requesters of many requests, some with accounts; nodes that were seen at work, and some that are new."""
    rng = Random("balanced")
    requesters = sorted(address_of(f"requester {i}") for i in range(4))
    asked = [
        replace(each, requester=rng.choice(requesters), work=rng.randrange(1, 2_000), complexity_milli=1_000)
        for each in requests_
    ]
    seen = [
        replace(
            each,
            answered=rng.randrange(100),
            missed=rng.randrange(5),
            offers=tuple(
                replace(of, us_per_token=rng.randrange(60_000), is_warm=rng.random() < 0.7) for of in each.offers
            ),
        )
        for each in nodes
    ]
    return cycle_inputs(
        asked,
        seen,
        policy=BALANCED,
        lane_lag=-700,
        floor_work=500,
        accounts=tuple(Account(requester, 501 + 100 * i) for i, requester in enumerate(requesters[:2])),
        median_fee_wei=10**16,
    )


def every_reason() -> CycleInputs:
    """One request for each reason that policy `reference` gives, but LANE_FULL."""
    model_of = {reason: f"model {int(reason)}" for reason in Reason}
    model_of[Reason.NO_NODE_FOR_MODEL] = "nobody's"
    changes: dict[Reason, dict[str, Any]] = {
        Reason.LOWEST_COST: {"supersedes_round": 11, "assignments": 1, "excluded_nodes": (address_of("node 9"),)},
        Reason.NO_NODE_FOR_MODEL: {},
        Reason.NODE_MEMORY: {"required_memory_mb": 10**6},
        Reason.NODES_BUSY: {},
        Reason.NODES_TAKEN: {"priority_fee_wei": 0},
        Reason.PRICE_ABOVE_MAX: {"max_reward_wei": 1},
        Reason.GAS_BUDGET_SHORT: {"gas_budget_wei": 1},
        Reason.PROBATION: {},
        Reason.NODES_EXCLUDED: {"excluded_nodes": (address_of(f"node {int(Reason.NODES_EXCLUDED)}"),)},
        Reason.ATTEMPTS_EXHAUSTED: {"assignments": 3},
        Reason.PROMPT_MISSING: {"prompt_available": False},
        Reason.NODES_SILENT: {},
        Reason.RELEASED: {"released_until_s": NOW_S + 60},
        Reason.ANSWER_TOO_LONG: {"answer_bytes": 200_000, "callback_gas": 100_000},
        Reason.NO_PROOF: {"verifier": address_of("verifier"), "verifier_gas": 25_000},
        Reason.DEADLINE_PASSED: {"deadline_s": NOW_S},
    }
    model_of[Reason.NODES_TAKEN] = model_of[Reason.LOWEST_COST]
    node_changes: dict[Reason, dict[str, Any]] = {
        Reason.NODES_BUSY: {"in_flight": 4},
        Reason.PROBATION: {"settled_count": 9, "offers": (offer(model_of[Reason.PROBATION], thousand=10**15),)},
        Reason.NODES_SILENT: {"heartbeat_at_ms": NOW_S * 1000 - 15_001},
    }
    waiting = [
        waiting_request(
            hash_of(f"reason {int(reason)}"),
            **{"model_id": hash_of(model_of[reason]), "model_name": model_of[reason], "max_reward_wei": 10**16}
            | fields,
        )
        for reason, fields in changes.items()
    ]
    serving = [reason for reason in changes if reason not in (Reason.NO_NODE_FOR_MODEL, Reason.NODES_TAKEN)]
    nodes = [
        node_view(
            address_of(f"node {int(reason)}"),
            **{"offers": (offer(model_of[reason]),)} | node_changes.get(reason, {}),
        )
        for reason in serving
    ]
    return cycle_inputs(waiting, nodes)


def quorums() -> CycleInputs:
    """One that is placed, one that keeps a node beside a dearer new one, and one for each reason of its own."""
    node = [address_of(f"quorum node {i}") for i in range(8)]
    owner = [address_of(f"quorum owner {i}") for i in range(8)]
    again = {"assignments": 1, "supersedes_round": 11, "kept_nodes": (node[0],), "excluded_nodes": (node[7],)}
    again |= {"tried_owners": tuple(sorted((owner[0], owner[7])))}
    changes: list[dict[str, Any]] = [
        {},
        again,
        {"k": 3, "n": 5, "model_id": hash_of("gpt-2"), "model_name": "gpt-2"},
        {"deterministic": False},
        again | {"supersedes_round": 12},
    ]
    requests_ = [
        waiting_request(hash_of(f"quorum {i}"), **{"k": 2, "n": 3, "max_reward_wei": 10**16} | each)
        for i, each in enumerate(changes)
    ]
    views = [
        node_view(key, owner=owner[i], offers=(offer("llama-7b", thousand=(i + 1) * 10**13),))
        for i, key in enumerate(node[:6])
    ]
    # Two nodes of one owner are one vote.
    views += [node_view(address_of(f"gpt-2 node {i}"), owner=owner[i // 2], offers=(offer("gpt-2"),)) for i in range(4)]
    return cycle_inputs(requests_, views)


def random_waiting(rng: Random, id_: Hash32, nodes: Sequence[Address]) -> WaitingRequest:
    model = rng.choice(MODELS)
    return waiting_request(
        id_,
        model_id=hash_of(model),
        model_name=model,
        lane=rng.choice(list(Lane)),
        priority_fee_wei=rng.randrange(0, 4 * 10**16),
        included_at_s=NOW_S - rng.randrange(0, 600),
        deadline_s=NOW_S + rng.randrange(-5, 120),
        prompt_bytes=rng.randrange(1, 10_000),
        max_output_tokens=rng.randrange(1, 4000),
        required_memory_mb=rng.choice([512, 4096, 20_000]),
        batchable=rng.random() < 0.7,
        max_reward_wei=rng.choice([10**14, 10**15, 10**16]),
        gas_budget_wei=rng.choice([10**14, 10**15, 10**15, 10**16]),
        prompt_available=rng.random() < 0.95,
        assignments=rng.choice([0, 0, 0, 0, 0, 1, 1, 3]),
        excluded_nodes=tuple(sorted(rng.sample(nodes, rng.choice([0, 0, 2])))),
        supersedes_round=rng.choice([0, 0, 11]),
        callback_gas=rng.choice([0, 0, 0, 200_000, 2_000_000]),
        answer_bytes=rng.choice([0, 0, 0, 2_560, 150_000]),
        verifier=rng.choice([ZERO_ADDRESS, ZERO_ADDRESS, ZERO_ADDRESS, address_of("verifier")]),
        verifier_gas=rng.choice([0, 25_000, 400_000]),
    )


def random_node(rng: Random, key: Address) -> NodeView:
    return node_view(
        key,
        offers=tuple(
            offer(model, rng.randrange(0, 10**13), rng.randrange(0, 10**15))
            for model in rng.sample(MODELS, rng.randrange(1, 4))
        ),
        free_memory_mb=rng.choice([1000, 8192, 40_000]),
        in_flight=rng.randrange(0, 4),
        max_in_flight=rng.randrange(2, 5),
        avg_latency_ms=rng.randrange(100, 5000),
        settled_count=rng.choice([0, 10, 1000]),
        joined_at_s=NOW_S - rng.choice([1000, 86_400, 10**6]),
        heartbeat_at_ms=NOW_S * 1000 - rng.choice([0, 900, 900, 20_000]),
        verifiers=rng.choice([(), (address_of("verifier"),)]),
    )


def snapshot_entry(name: str, inputs: CycleInputs) -> Entry:
    text = encode_snapshot(inputs)
    return {
        "name": name,
        "inputs": to_json(inputs),
        "text": text.decode(),
        "hash": "0x" + keccak(text).hex(),
        "policy_hash": policy_hash(inputs.policy),
        "plan": plan_entry(plan_cycle(inputs)),
    }


# Money

TOP_AMOUNT = 2**80 - 1


def fees() -> list[Entry]:
    rng = Random("fees")
    free = replace(PLAIN, max_reward_wei=0, gas_budget_wei=0, priority_fee_wei=0)
    top = replace(PLAIN, max_reward_wei=TOP_AMOUNT, gas_budget_wei=TOP_AMOUNT, priority_fee_wei=TOP_AMOUNT)
    odd = replace(PLAIN, max_reward_wei=10**15 + 7, gas_budget_wei=4 * 10**15 + 3, priority_fee_wei=2 * 10**14 + 1)
    quote = GasQuote(7 * GWEI, GWEI)
    entries = [
        fee_entry("a single result", odd, quote),
        fee_entry("one of a batch of three", odd, quote, batch_size=3),
        fee_entry("one of a batch of seven, delivered inline", odd, quote, batch_size=7, result_bytes=33),
        fee_entry("the tip is above the cap", odd, GasQuote(7 * GWEI, 9 * GWEI)),
        fee_entry("the priority fee was raised", odd, quote, added=10**15 + 9),
        fee_entry("nothing is promised to the node", odd, quote, reward=0),
        fee_entry("all of the reward is promised", odd, quote, reward=odd.max_reward_wei),
        fee_entry("the charge is above the gas budget", replace(odd, gas_budget_wei=10**12 + 1), quote),
        fee_entry("nothing is escrowed", free, quote, reward=0),
        fee_entry("only a raise is escrowed", free, quote, reward=0, added=1),
        fee_entry("a wei of each", replace(free, max_reward_wei=1, gas_budget_wei=1, priority_fee_wei=1), quote),
        fee_entry("a quorum of two", odd, quote, reward=odd.max_reward_wei // 2, nodes=2),
        fee_entry("a quorum whose fee does not divide by its nodes", odd, quote, reward=10**14, nodes=3),
        fee_entry("one of a quorum's set of two, in a batch of three", odd, quote, 3, reward=7, nodes=3, set_size=2),
        fee_entry("a quorum of sixteen, delivered inline", odd, quote, reward=1, nodes=16, result_bytes=33),
        fee_entry("all at their largest", top, quote, reward=TOP_AMOUNT, added=2**96 - 1),
        fee_entry("all at their largest, nothing to the node", top, GasQuote(10**15, 0), reward=0),
    ]
    return entries + [random_fee_entry(rng, i) for i in range(6)]


def fee_entry(
    name: str,
    request: Request,
    quote: GasQuote,
    batch_size: int = 1,
    *,
    reward: int | None = None,
    added: int = 0,
    result_bytes: int = 0,
    nodes: int = 1,
    set_size: int = 1,
) -> Entry:
    reward = request.max_reward_wei * 3 // 4 if reward is None else reward
    gas = charged_gas(TERMS, batch_size, result_bytes, nodes, set_size)
    price = charged_gas_price_wei(TERMS, quote)
    parts = payout(TERMS, request, added, reward, gas * price, nodes)
    return {
        "name": name,
        "terms": terms_entry(TERMS),
        "maxReward": str(request.max_reward_wei),
        "gasBudget": str(request.gas_budget_wei),
        "priorityFee": str(request.priority_fee_wei),
        "priorityFeeAdded": str(added),
        "reward": str(reward),
        "nodes": nodes,
        "batchSize": batch_size,
        "setSize": set_size,
        "resultBytes": result_bytes,
        "baseFee": str(quote.base_fee_wei),
        "tip": str(quote.tip_wei),
        "chargedGas": gas,
        "chargedGasPrice": str(price),
        "nodePaid": str(parts.node_wei),
        "relayerPaid": str(parts.relayer_wei),
        "refund": str(parts.refund_wei),
    }


def random_fee_entry(rng: Random, index: int) -> Entry:
    request = replace(
        PLAIN,
        max_reward_wei=rng.getrandbits(60),
        gas_budget_wei=rng.getrandbits(53),
        priority_fee_wei=rng.getrandbits(60),
    )
    return fee_entry(
        f"drawn {index}",
        request,
        GasQuote(rng.randrange(10**9, 10**11), rng.randrange(0, 4 * 10**9)),
        reward=rng.randrange(0, request.max_reward_wei + 1),
        added=rng.choice([0, rng.getrandbits(60)]),
        batch_size=rng.randrange(1, 9),
        result_bytes=rng.choice([0, rng.randrange(1, 200)]),
    )


def words() -> list[Entry]:
    id_ = hash_of("request 1")
    ref = ResultRef(hash_of("answer 1"), account("relayer"), 12, (account("node"),), NOW_S + 60)
    pair = replace(ref, nodes=(account("node"), account("other node")))
    top = ResultRef("0x" + "ff" * 32, "0x" + "ff" * 20, 2**64 - 1, ("0x" + "ff" * 20,), 2**40 - 1)
    return [
        {"name": "unknown", "requestId": id_, "status": int(Status.NONE), "word": word(0)},
        pending_entry("pending", id_, 0, NOW_S + 600),
        pending_entry("pending with a raised fee", id_, 10**15 + 9, NOW_S + 600),
        pending_entry("pending with all at their largest", id_, 2**96 - 1, 2**40 - 1),
        fulfilled_entry("fulfilled", id_, Status.FULFILLED, ref),
        fulfilled_entry("fulfilled by two nodes", id_, Status.FULFILLED, pair),
        fulfilled_entry("fulfilled, all at their largest", "0x" + "ff" * 32, Status.FULFILLED, top),
        fulfilled_entry("fulfilled, its callback failed", id_, Status.FULFILLED_CALLBACK_FAILED, ref),
        {"name": "expired", "requestId": id_, "status": int(Status.EXPIRED), "deadline": NOW_S + 600}
        | {"word": word(expired_word(id_, NOW_S + 600))},
        {"name": "cancelled", "requestId": id_, "status": int(Status.CANCELLED), "word": word(cancelled_word(id_))},
    ]


def pending_entry(name: str, id_: Hash32, added: int, deadline_s: int) -> Entry:
    value = word(pending_word(added, deadline_s))
    return {
        "name": name,
        "requestId": id_,
        "status": int(Status.PENDING),
        "priorityFeeAdded": str(added),
        "effectiveDeadline": deadline_s,
        "word": value,
    }


def fulfilled_entry(name: str, id_: Hash32, status: Status, ref: ResultRef) -> Entry:
    value = word(fulfilled_word(id_, status, ref))
    return {"name": name, "requestId": id_, "status": int(status), "ref": ref_entry(ref), "word": value}


def pending_word(added: int, deadline_s: int) -> int:
    return (int(Status.PENDING) << 248) | (deadline_s << 96) | added


def fulfilled_word(id_: Hash32, status: Status, ref: ResultRef) -> int:
    nodes = list(ref.nodes)
    values = (bytes.fromhex(ref.result_hash[2:]), ref.relayer, ref.round, nodes, ref.settled_at_s)
    kinds = ("uint8", "bytes32", "(bytes32,address,uint64,address[],uint40)")
    return _tagged(status, encode(kinds, (int(status), bytes.fromhex(id_[2:]), values)))


def expired_word(id_: Hash32, effective_deadline_s: int) -> int:
    values = (int(Status.EXPIRED), bytes.fromhex(id_[2:]), effective_deadline_s)
    return _tagged(Status.EXPIRED, encode(("uint8", "bytes32", "uint40"), values))


def cancelled_word(id_: Hash32) -> int:
    return _tagged(Status.CANCELLED, encode(("uint8", "bytes32"), (int(Status.CANCELLED), bytes.fromhex(id_[2:]))))


def _tagged(status: Status, preimage: bytes) -> int:
    return (int(status) << 248) | int.from_bytes(keccak(preimage)[1:], "big")


# Payloads, names

CHAT = '{"messages":[{"role":"user","content":"Was ist ein Oberwasserkanal? 水路"}],"seed":7}'


def envelopes() -> list[Entry]:
    salt = keccak(text="salt")[:16]
    return [
        payload_entry("plain text, bare", "what is a headrace?", None),
        payload_entry("plain text, sealed", "what is a headrace?", salt),
        payload_entry("the same under another salt", "what is a headrace?", bytes(16)),
        payload_entry("a chat body, bare", CHAT, None),
        payload_entry("a chat body, sealed", CHAT, salt),
        payload_entry("an empty answer, sealed", "", salt),
        quorum_answer("an answer of a quorum", CHAT, seal(CHAT.encode(), salt)),
        quorum_answer("an answer of a quorum to a public prompt", "42", CHAT.encode()),
        refused_payload("nothing", b""),
        refused_payload("an envelope without a salt", b"\x01"),
        refused_payload("an envelope that ends within its salt", b"\x01" + salt[:15]),
    ]


def payload_entry(name: str, content: str, salt: bytes | None) -> Entry:
    payload = content.encode() if salt is None else seal(content.encode(), salt)
    return {
        "name": name,
        "content": content,
        "salt": None if salt is None else "0x" + salt.hex(),
        "payload": "0x" + payload.hex(),
        "hash": hash_payload(payload),
    }


def quorum_answer(name: str, content: str, prompt: bytes) -> Entry:
    id_ = hash_of("request 1")
    entry = payload_entry(name, content, quorum_salt(id_, prompt))
    return entry | {"requestId": id_, "prompt": "0x" + prompt.hex()}


def refused_payload(name: str, payload: bytes) -> Entry:
    return {"name": name, "content": None, "payload": "0x" + payload.hex()}


def enums() -> Entry:
    kinds = (Status, ItemStatus, Mode, Lane, DecisionKind, Reason)
    return {kind.__name__: {member.name: int(member) for member in kind} for kind in kinds}


_REQUEST = "(address,address,bytes32,bytes32,uint256,uint256,address)"
_RECORD = "(uint64,bytes32,bytes32,bytes32,uint64,bytes32,uint32,uint32,uint32)"
EVENTS = {
    "InferenceMarket": (
        f"InferenceRequested(bytes32,address,address,{_REQUEST},bytes)",
        "PriorityFeeRaised(bytes32,uint256,uint256)",
        "CancelAnnounced(bytes32,uint40)",
        "ResultFulfilled(bytes32,bytes32,uint256,uint256,uint256)",
        "ResultDelivered(bytes32,bytes)",
        "BatchSettled(address,uint64,address[],bytes)",
        "RequestClosed(bytes32,address,uint8,uint256)",
        "Deposited(address,address,uint256)",
        "Withdrawn(address,address,uint256)",
        "RequestsPausedSet(bool,uint40)",
        "RelayerFeePaid(bytes32,address,uint256)",
        "CallbackFailed(bytes32,bytes4)",
        "CallbackRetried(bytes32)",
    ),
    "Faults": ("FaultProven(uint8,address,bytes32,address,address,uint256,uint256,address,uint256)",),
    "AttestedKeyVerifier": ("KeyAttested(address,bytes32,uint40)", "KeyRevoked(address)"),
    "ModelRegistry": ("ModelRegistered(bytes32,(string,string,bytes32,string,uint32,uint32,uint32,string))",),
    "ScheduleLog": (f"RoundRecorded(address,uint64,{_RECORD},bytes32)",),
    "StakeManager": (
        "NodeRegistered(address,address,uint256,string)",
        "StakeAdded(address,uint256,uint256)",
        "UnbondBegun(address,uint256,uint40)",
        "StakeWithdrawn(address,uint256,uint256)",
        "MarketJoined(address,address,address)",
        "MarketLeft(address,address,uint40)",
        "PayeeChanged(address,address,address)",
        "PriceAnnounced(address,bytes32,uint80,uint80,uint40)",
        "ModelWithdrawn(address,bytes32)",
        "RelayerRegistered(address,uint256,string)",
        "BondAdded(address,uint256,uint256)",
        "RelayerUnbondBegun(address,uint40)",
        "BondWithdrawn(address,uint256)",
        "KeyRotated(address,address)",
        "NodeSlashed(address,uint256,uint256)",
        "RelayerSlashed(address,uint256,uint256)",
    ),
}


def events() -> list[Entry]:
    return [
        {"contract": contract, "name": text.partition("(")[0], "signature": text, "topic": hash_of(text)}
        for contract, signatures in EVENTS.items()
        for text in signatures
    ]


# What the files hold, in JSON

REQUEST_PARAMS = (
    ("relayer", "relayer"),
    ("modelId", "model_id"),
    ("promptHash", "prompt_hash"),
    ("salt", "salt"),
    ("deadline", "deadline_s"),
    ("promptBytes", "prompt_bytes"),
    ("maxOutputTokens", "max_output_tokens"),
    ("callbackGas", "callback_gas"),
    ("lane", "lane"),
    ("batchable", "batchable"),
    ("inlineResult", "inline_result"),
    ("mode", "mode"),
    ("k", "k"),
    ("n", "n"),
    ("verifier", "verifier"),
    ("maxReward", "max_reward_wei"),
    ("gasBudget", "gas_budget_wei"),
    ("priorityFee", "priority_fee_wei"),
)
"""(name in the ABI's `RequestParams`, name in `Request`), in the order of the ABI."""
_LARGE_PARAMS = frozenset({"salt", "maxReward", "gasBudget", "priorityFee"})


def word(value: int) -> str:
    return f"0x{value:064x}"


def params_entry(request: Request) -> Entry:
    entry: Entry = {}
    for name, attribute in REQUEST_PARAMS:
        value = getattr(request, attribute)
        if name in _LARGE_PARAMS:
            entry[name] = str(value)
        elif isinstance(value, bool | str):
            entry[name] = value
        else:
            entry[name] = int(value)
    return entry


def decision_entry(decision: Decision) -> Entry:
    return {
        "requestId": decision.request_id,
        "node": decision.node,
        "kind": int(decision.kind),
        "reason": int(decision.reason),
        "reward": str(decision.reward_wei),
        "supersedesRound": str(decision.supersedes_round),
    }


def record_entry(record: RoundRecord) -> Entry:
    return {
        "round": str(record.round),
        "decisionsRoot": record.decisions_root,
        "snapshotHash": record.snapshot_hash,
        "policyHash": record.policy_hash,
        "anchorBlock": str(record.anchor_block),
        "anchorHash": record.anchor_hash,
        "assigned": record.assigned,
        "skipped": record.skipped,
        "tooLate": record.too_late,
    }


def result_entry(result: Result) -> Entry:
    return {
        "requestId": result.request_id,
        "resultHash": result.result_hash,
        "reward": str(result.reward_wei),
        "relayer": result.relayer,
        "round": str(result.round),
    }


def assignment_entry(assignment: Assignment) -> Entry:
    return {
        "requestId": assignment.request_id,
        "relayer": assignment.relayer,
        "node": assignment.node,
        "round": str(assignment.round),
        "reward": str(assignment.reward_wei),
        "deadline": assignment.deadline_s,
    }


def ref_entry(ref: ResultRef) -> Entry:
    return {
        "resultHash": ref.result_hash,
        "relayer": ref.relayer,
        "round": str(ref.round),
        "nodes": list(ref.nodes),
        "settledAt": ref.settled_at_s,
    }


def terms_entry(terms: MarketTerms) -> Entry:
    entry = dataclasses.asdict(terms)
    return {name: str(value) if name.endswith("_wei") else value for name, value in entry.items()}


def plan_entry(plan: CyclePlan) -> Entry:
    return {"decisions": [_planned_entry(planned) for planned in plan.decisions], **to_json(plan.carried)}


def _planned_entry(planned: PlannedDecision) -> Entry:
    return {
        "decision": decision_entry(planned.decision),
        "score_e9": str(planned.score_e9),
        "cost_wei": str(planned.cost_wei),
        "runner_up": planned.runner_up,
        "runner_up_cost_wei": str(planned.runner_up_cost_wei),
    }


FILES: dict[str, Callable[[], Any]] = {
    "keys.json": named_keys,
    "requests.json": requests,
    "typed_data.json": typed_data_vectors,
    "decisions.json": decisions,
    "rounds.json": rounds,
    "snapshots.json": snapshots,
    "fees.json": fees,
    "words.json": words,
    "envelopes.json": envelopes,
    "enums.json": enums,
    "events.json": events,
}


def generate() -> dict[str, str]:
    """What each file holds."""
    return {
        name: json.dumps(content(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        for name, content in FILES.items()
    }


if __name__ == "__main__":
    for file_name, text in generate().items():
        (FOLDER / file_name).write_text(text, encoding="utf-8")
