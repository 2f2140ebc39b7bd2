"""The golden vectors of the protocol against the core, and both against libraries that share no code with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from eth_abi import encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils import event_signature_to_log_topic, keccak

from headrace.core import typed_data, types
from headrace.core.canonical import canonical_json, content_hash
from headrace.core.envelope import content_of, hash_payload, quorum_salt, seal
from headrace.core.errors import InvalidInput
from headrace.core.fees import charged_gas, charged_gas_price_wei, payout
from headrace.core.fields import to_json
from headrace.core.merkle import is_proven, leaf_of, proof_of, root_of, sort_decisions
from headrace.core.requests import PackedRequest, pack, request_id, unpack
from headrace.core.scheduling import plan_cycle
from headrace.core.snapshot import SnapshotReader, base_of, policy_hash
from headrace.core.typed_data import Domain
from headrace.core.types import DecisionKind, GasQuote, Reason
from tests.core.protocol_vectors import (
    FOLDER,
    Entry,
    assignment_from,
    decision_from,
    named,
    read,
    record_from,
    request_from,
    result_from,
    terms_from,
)
from tests.vectors.protocol import generate

TYPES_SOL = (Path(__file__).parents[2] / "contracts" / "Types.sol").read_text(encoding="utf-8")
TYPE_STRINGS = {
    "Result": "bytes32 requestId,bytes32 resultHash,uint96 reward,address relayer,uint64 round",
    "ResultSet": "address relayer,uint64 round,bytes32[] results",
    "Accept": "bytes32 requestId,address relayer,uint64 round,uint40 deadline",
    "Assignment": "bytes32 requestId,address relayer,address node,uint64 round,uint96 reward,uint40 deadline",
    "Release": "bytes32 requestId,uint40 validUntil",
    "RequestFor": "RequestParams params,address requester,uint96 relayerFee,uint40 validUntil",
    "RoundRecord": "uint64 round,bytes32 decisionsRoot,bytes32 snapshotHash,bytes32 policyHash,uint64 anchorBlock,"
    "bytes32 anchorHash,uint32 assigned,uint32 skipped,uint32 tooLate",
    "RegisterNode": "address key,address owner",
    "Submitter": "address relayer,address submitter,uint40 validUntil",
    "Attestation": "bytes32 requestId,address node,bytes32 resultHash",
    "Access": "address account,address relayer,uint40 validUntil",
    "LinkHello": "address node,address relayer,uint16 protocolVersion,bytes32 challenge",
    "Heartbeat": "address node,address relayer,bytes32 contentHash",
}
NESTED = {
    "RequestParams": "address relayer,bytes32 modelId,bytes32 promptHash,uint64 salt,uint40 deadline,"
    "uint32 promptBytes,uint24 maxOutputTokens,uint24 callbackGas,uint8 lane,bool batchable,bool inlineResult,"
    "uint8 mode,uint8 k,uint8 n,address verifier,uint80 maxReward,uint80 gasBudget,uint80 priorityFee",
}
GENERATED = generate.generate()
DOMAIN_TYPE = "string name,string version,uint256 chainId,address verifyingContract"


def raw(text: str) -> bytes:
    return bytes.fromhex(text[2:])


# The files


@pytest.mark.parametrize("name", list(generate.FILES))
def test_file__is_what_the_generator_writes(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == GENERATED[name], "run tests/vectors/protocol/generate.py"


def test_files__are_all_generated_and_described() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == set(generate.FILES)
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+\.json)`", readme, re.MULTILINE)) == set(generate.FILES)


def test_generator__run_twice__writes_the_same() -> None:
    assert generate.generate() == GENERATED


@pytest.mark.parametrize("name", list(generate.FILES))
def test_file__holds_no_number_that_javascript_rounds(name: str) -> None:
    for number in re.findall(r"(?<![\w\"])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w\"])", _without_text(name)):
        assert re.fullmatch(r"-?\d+", number) and abs(int(number)) < 2**53


def _without_text(name: str) -> str:
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', (FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", list(read("keys")))
def test_key__has_its_address(name: str) -> None:
    key = read("keys")[name]
    assert Account.from_key(key["privateKey"]).address.lower() == key["address"]


# Requests


@pytest.mark.parametrize("entry", **named(read("requests")))
def test_request(entry: Entry) -> None:
    request = request_from(entry["requester"], entry["params"])
    p = entry["packed"]
    packed = PackedRequest(
        p["requester"],
        p["relayer"],
        raw(p["modelId"]),
        raw(p["promptHash"]),
        int(p["amounts"], 16),
        int(p["terms"], 16),
        p["verifier"],
    )
    assert pack(request) == packed
    assert unpack(packed) == request
    assert request.escrow_wei == int(entry["escrow"])
    assert request_id(request, entry["chainId"], entry["market"]) == entry["requestId"]


@pytest.mark.parametrize("entry", **named(read("requests")))
def test_request__words_written_out(entry: Entry) -> None:
    params, p = entry["params"], entry["packed"]
    assert int(p["amounts"], 16) == sum(
        int(params[name]) << at for name, at in (("maxReward", 0), ("gasBudget", 80), ("priorityFee", 160))
    )
    places = {"salt": 0, "deadline": 64, "promptBytes": 104, "maxOutputTokens": 136, "callbackGas": 160, "lane": 184}
    places |= {"mode": 192, "k": 200, "n": 208, "batchable": 216, "inlineResult": 217}
    assert int(p["terms"], 16) == sum(int(params[name]) << at for name, at in places.items())
    assert (p["requester"], p["relayer"], p["verifier"]) == (entry["requester"], params["relayer"], params["verifier"])
    words = [entry["chainId"], entry["market"], *p.values()]
    encoded = encode(["uint256"] * 9, [word if isinstance(word, int) else int(word, 16) for word in words])
    assert "0x" + keccak(encoded).hex() == entry["requestId"]


def test_requests__each_field__is_set_alone_in_one() -> None:
    assert {f"only {name} set, to its largest" for name in types.Request.__dataclass_fields__} <= {
        entry["name"] for entry in read("requests")
    }


# Typed data


def domain_of(entry: Entry) -> Domain:
    domain = entry["domain"]
    return Domain(domain["chainId"], domain["verifyingContract"], domain["name"])


@pytest.mark.parametrize("entry", **named(read("typed_data")))
def test_typed_data__core(entry: Entry) -> None:
    domain = domain_of(entry)
    struct_hash = STRUCT_HASHES[entry["primaryType"]](entry["message"])
    assert "0x" + struct_hash.hex() == entry["structHash"]
    digest = typed_data.digest(domain, struct_hash)
    assert "0x" + digest.hex() == entry["digest"]
    signer = read("keys")[entry["signer"]]["address"]
    assert typed_data.signer_of(digest, raw(entry["signature"])) == signer


STRUCT_HASHES = {
    "Result": lambda m: typed_data.hash_result(result_from(m)),
    "ResultSet": lambda m: typed_data.hash_result_set(m["relayer"], int(m["round"]), [raw(h) for h in m["results"]]),
    "Accept": lambda m: typed_data.hash_accept(m["requestId"], m["relayer"], int(m["round"]), m["deadline"]),
    "Assignment": lambda m: typed_data.hash_assignment(assignment_from(m)),
    "Release": lambda m: typed_data.hash_release(m["requestId"], m["validUntil"]),
    "RequestFor": lambda m: typed_data.hash_request_for(
        request_from(m["requester"], m["params"]), int(m["relayerFee"]), m["validUntil"]
    ),
    "RoundRecord": lambda m: typed_data.hash_round_record(record_from(m)),
    "RegisterNode": lambda m: typed_data.hash_register_node(m["key"], m["owner"]),
    "Submitter": lambda m: typed_data.hash_submitter(m["relayer"], m["submitter"], m["validUntil"]),
    "Attestation": lambda m: typed_data.hash_attestation(m["requestId"], m["node"], m["resultHash"]),
    "Access": lambda m: typed_data.hash_access(m["account"], m["relayer"], m["validUntil"]),
    "LinkHello": lambda m: typed_data.hash_link_hello(m["node"], m["relayer"], m["protocolVersion"], m["challenge"]),
    "Heartbeat": lambda m: typed_data.hash_heartbeat(m["node"], m["relayer"], m["contentHash"]),
}


def _fields(type_string: str) -> list[dict[str, str]]:
    pairs = [field.split(" ") for field in type_string.split(",")]
    return [{"name": name, "type": kind} for kind, name in pairs]


def _typed_document(entry: Entry) -> dict[str, Any]:
    """For eth_account's encoder, from the type strings above."""
    kind = entry["primaryType"]
    nested = {each: _fields(type_string) for each, type_string in NESTED.items() if each in entry.get("nested", {})}
    return {
        "types": {"EIP712Domain": _fields(DOMAIN_TYPE), kind: _fields(TYPE_STRINGS[kind]), **nested},
        "primaryType": kind,
        "domain": entry["domain"],
        "message": _typed_message(kind, entry["message"]),
    }


def _typed_message(kind: str, message: Entry) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in _fields((TYPE_STRINGS | NESTED)[kind]):
        value = message[field["name"]]
        if field["type"] in NESTED:
            value = _typed_message(field["type"], value)
        values[field["name"]] = int(value) if field["type"].startswith("uint") else value
    return values


@pytest.mark.parametrize("entry", **named(read("typed_data")))
def test_typed_data__eth_account(entry: Entry) -> None:
    assert entry["types"] == _fields(TYPE_STRINGS[entry["primaryType"]])
    signable = encode_typed_data(full_message=_typed_document(entry))
    assert "0x" + signable.body.hex() == entry["structHash"]
    envelope = b"\x19" + signable.version + signable.header + signable.body
    assert "0x" + keccak(envelope).hex() == entry["digest"]
    key = read("keys")[entry["signer"]]
    assert Account.recover_message(signable, signature=entry["signature"]).lower() == key["address"]
    # Signing is deterministic (RFC 6979), so all signers write the same bytes.
    signed = Account.sign_message(signable, key["privateKey"])
    assert "0x" + bytes(signed.signature).hex() == entry["signature"]


@pytest.mark.parametrize("entry", **named(read("typed_data")))
def test_typed_data__document_for_a_wallet__is_the_same(entry: Entry) -> None:
    domain = domain_of(entry)
    expected = _typed_document(entry)
    assert typed_data.typed_message(domain, entry["primaryType"], expected["message"]) == expected


@pytest.mark.parametrize("entry", **named([each for each in read("typed_data") if "nested" in each]))
def test_typed_data__request_for__what_a_wallet_shows_is_what_is_signed(entry: Entry) -> None:
    assert entry["nested"] == {kind: _fields(type_string) for kind, type_string in NESTED.items()}
    message = entry["message"]
    request = request_from(message["requester"], message["params"])
    shown = typed_data.request_for_message(request, int(message["relayerFee"]), message["validUntil"])
    domain = domain_of(entry)
    document = json.loads(json.dumps(typed_data.typed_message(domain, "RequestFor", shown)))
    assert not _numbers_in(document["message"]), "a wallet would round them"
    signable = encode_typed_data(full_message=document)
    assert "0x" + signable.body.hex() == entry["structHash"]


def _numbers_in(message: Entry) -> list[int]:
    inner = [number for value in message.values() if isinstance(value, dict) for number in _numbers_in(value)]
    return inner + [value for value in message.values() if type(value) is int]


def test_typed_data__every_type__has_a_vector() -> None:
    assert set(typed_data.TYPES) == set(TYPE_STRINGS) == {entry["primaryType"] for entry in read("typed_data")}


def test_typed_data__a_set__lists_the_struct_hashes_of_its_results() -> None:
    for entry in read("typed_data"):
        if entry["primaryType"] == "ResultSet":
            hashes = ["0x" + typed_data.hash_result(result_from(result)).hex() for result in entry["of"]]
            assert hashes == entry["message"]["results"]


def test_typed_data__a_heartbeat__has_the_hash_of_its_content() -> None:
    (entry,) = (entry for entry in read("typed_data") if entry["primaryType"] == "Heartbeat")
    assert content_hash(entry["content"]) == entry["message"]["contentHash"]
    assert "0x" + keccak(canonical_json(entry["content"])).hex() == entry["message"]["contentHash"]


# Decisions and rounds


def test_decisions__sizes__are_around_powers_of_two() -> None:
    assert [len(entry["leaves"]) for entry in read("decisions")] == [1, 2, 3, 5, 8, 17]


@pytest.mark.parametrize("entry", read("decisions"), ids=lambda entry: str(len(entry["leaves"])))
def test_decisions(entry: Entry) -> None:
    decisions = sort_decisions(decision_from(decision) for decision in entry["given"])
    assert decisions == [decision_from(each["decision"]) for each in entry["leaves"]]
    leaves = [raw(each["leaf"]) for each in entry["leaves"]]
    assert [leaf_of(decision) for decision in decisions] == leaves
    assert root_of(leaves) == entry["root"]
    for index, each in enumerate(entry["leaves"]):
        assert proof_of(leaves, index) == each["proof"]
        assert is_proven(entry["root"], leaves[index], index, len(leaves), each["proof"])


@pytest.mark.parametrize("entry", read("decisions"), ids=lambda entry: str(len(entry["leaves"])))
def test_decisions__leaves_and_root_written_out(entry: Entry) -> None:
    order = [(int(each["decision"]["requestId"], 16), int(each["decision"]["node"], 16)) for each in entry["leaves"]]
    assert order == sorted(order)
    for each in entry["leaves"]:
        d = each["decision"]
        words = [int(d["requestId"], 16), int(d["node"], 16), d["kind"], d["reason"]]
        words += [int(d["reward"]), int(d["supersedesRound"])]
        assert "0x" + keccak(keccak(encode(["uint256"] * 6, words))).hex() == each["leaf"]
    level = [raw(each["leaf"]) for each in entry["leaves"]]
    level += [bytes(32)] * (2 ** len(entry["leaves"][0]["proof"]) - len(level))
    while len(level) > 1:
        level = [keccak(level[i] + level[i + 1]) for i in range(0, len(level), 2)]
    assert "0x" + level[0].hex() == entry["root"]


@pytest.mark.parametrize("entry", read("rounds"), ids=["relayer", "other-relayer"])
def test_rounds__heads_written_out(entry: Entry) -> None:
    head = bytes(32)
    for number, each in enumerate(entry["rounds"], 1):
        record = each["record"]
        assert int(record["round"]) == number
        values = [int(value, 16) if str(value).startswith("0x") else int(value) for value in record.values()]
        encoded = encode(["uint256"] * 11, [int.from_bytes(head, "big"), int(entry["relayer"], 16), *values])
        head = keccak(encoded)[:27] + bytes(5)
        assert "0x" + head.hex() == each["head"]


def test_rounds__records__are_of_the_decisions() -> None:
    for entry in read("rounds"):
        for each, decisions in zip(entry["rounds"], read("decisions"), strict=False):
            record, kinds = each["record"], [leaf["decision"]["kind"] for leaf in decisions["leaves"]]
            assert record["decisionsRoot"] == decisions["root"]
            assert [record["assigned"], record["skipped"], record["tooLate"]] == [kinds.count(i) for i in range(3)]


# Snapshots


@pytest.mark.parametrize("entry", **named(read("snapshots")))
def test_snapshot(entry: Entry) -> None:
    texts = {each["hash"]: each["text"].encode() for each in read("snapshots")}
    text = texts[entry["hash"]]
    assert canonical_json(json.loads(text)) == text
    assert "0x" + keccak(text).hex() == entry["hash"]
    assert base_of(text) == entry.get("base")
    inputs = SnapshotReader().read(entry["hash"], texts)
    assert to_json(inputs) == entry["inputs"]
    assert policy_hash(inputs.policy) == entry["policy_hash"] == content_hash(entry["inputs"]["policy"])
    plan = plan_cycle(inputs)
    assert to_json(plan.carried).items() <= entry["plan"].items()
    planned = [
        {
            "decision": generate.decision_entry(each.decision),
            "score_e9": str(each.score_e9),
            "cost_wei": str(each.cost_wei),
            "runner_up": each.runner_up,
            "runner_up_cost_wei": str(each.runner_up_cost_wei),
        }
        for each in plan.decisions
    ]
    assert planned == entry["plan"]["decisions"]


def test_snapshots__every_reason_but_two__occurs() -> None:
    found = {Reason(each["decision"]["reason"]) for entry in read("snapshots") for each in entry["plan"]["decisions"]}
    assert set(Reason) - found == {Reason.NONE, Reason.DEADLINE_INFEASIBLE}


# Money


@pytest.mark.parametrize("entry", **named(read("fees")))
def test_fees(entry: Entry) -> None:
    terms = terms_from(entry["terms"])
    plain = read("requests")[0]
    amounts = {name: entry[name] for name in ("maxReward", "gasBudget", "priorityFee")}
    request = request_from(plain["requester"], plain["params"] | amounts)
    gas = charged_gas(terms, entry["batchSize"], entry["resultBytes"], entry["nodes"], entry["setSize"])
    price = charged_gas_price_wei(terms, GasQuote(int(entry["baseFee"]), int(entry["tip"])))
    assert (gas, price) == (entry["chargedGas"], int(entry["chargedGasPrice"]))
    reward, nodes = int(entry["reward"]), entry["nodes"]
    parts = payout(terms, request, int(entry["priorityFeeAdded"]), reward, gas * price, nodes)
    paid = (parts.node_wei, parts.relayer_wei, parts.refund_wei)
    assert paid == tuple(int(entry[name]) for name in ("nodePaid", "relayerPaid", "refund"))


@pytest.mark.parametrize("entry", **named(read("fees")))
def test_fees__written_out(entry: Entry) -> None:
    names = ("maxReward", "gasBudget", "priorityFee", "priorityFeeAdded", "reward", "baseFee", "tip")
    most, budget, fee, added, reward, base, tip = (int(entry[name]) for name in names)
    gas = entry["terms"]["fixed_gas"] // entry["batchSize"] + entry["terms"]["item_gas"] + 40 * entry["resultBytes"]
    gas += entry["terms"]["node_gas"] * (entry["nodes"] - 1) // entry["setSize"]
    assert reward * entry["nodes"] <= most
    paid_for = min(budget, gas * min(base + tip, base + int(entry["terms"]["tip_cap_wei"])))
    fee_share = (fee + added) * 2000 // 10_000
    assert int(entry["nodePaid"]) == (reward + (fee + added - fee_share) // entry["nodes"]) * entry["nodes"]
    assert int(entry["relayerPaid"]) == paid_for + (budget - paid_for) * 1000 // 10_000 + fee_share
    parts = [int(entry[name]) for name in ("nodePaid", "relayerPaid", "refund")]
    assert sum(parts) == most + budget + fee + added
    assert min(parts) >= 0


@pytest.mark.parametrize("entry", **named(read("words")))
def test_word__written_out(entry: Entry) -> None:
    status, id_ = entry["status"], int(entry["requestId"], 16)
    if status == 0:
        expected = bytes(32)
    elif status == 1:
        expected = bytes([1]) + bytes(14) + entry["effectiveDeadline"].to_bytes(5, "big")
        expected += int(entry["priorityFeeAdded"]).to_bytes(12, "big")
    elif "ref" in entry:
        ref = entry["ref"]
        words = [status, id_, 96, int(ref["resultHash"], 16), int(ref["relayer"], 16), int(ref["round"]), 160]
        words += [ref["settledAt"], len(ref["nodes"]), *(int(node, 16) for node in ref["nodes"])]
        expected = bytes([status]) + keccak(encode(["uint256"] * len(words), words))[1:]
    else:
        words = [status, id_, *([entry["deadline"]] if "deadline" in entry else [])]
        expected = bytes([status]) + keccak(encode(["uint256"] * len(words), words))[1:]
    assert "0x" + expected.hex() == entry["word"]


# Payloads and names


@pytest.mark.parametrize("entry", **named(read("envelopes")))
def test_envelope(entry: Entry) -> None:
    payload = raw(entry["payload"])
    if entry["content"] is None:
        with pytest.raises(InvalidInput):
            content_of(payload)
        return
    if "prompt" in entry:
        tagged = b"headrace: salt of a quorum's answer" + raw(entry["requestId"]) + raw(entry["prompt"])
        assert quorum_salt(entry["requestId"], raw(entry["prompt"])) == raw(entry["salt"]) == keccak(tagged)[:16]
    content = entry["content"].encode()
    assert payload == (content if entry["salt"] is None else seal(content, raw(entry["salt"])))
    assert payload == (content if entry["salt"] is None else b"\x01" + raw(entry["salt"]) + content)
    assert content_of(payload) == content
    assert hash_payload(payload) == entry["hash"] == "0x" + keccak(payload).hex()


def enum_in_solidity(name: str) -> list[str]:
    (body,) = re.findall(rf"^enum {name} \{{\n(.*?)^\}}$", TYPES_SOL, re.MULTILINE | re.DOTALL)
    members = body.strip().split(",\n")
    assert all(re.fullmatch(r"\s*[A-Z_]+", member) for member in members), body
    return [member.strip() for member in members]


@pytest.mark.parametrize("name", ["Status", "ItemStatus", "Mode"])
def test_enum__numbers__are_those_of_the_contracts(name: str) -> None:
    expected = {member: number for number, member in enumerate(enum_in_solidity(name))}
    assert read("enums")[name] == expected
    assert {member.name: int(member) for member in getattr(types, name)} == expected


@pytest.mark.parametrize(
    ("name", "comment"),
    [("Lane", "0 = realtime, 1 = bulk"), ("DecisionKind", "0 = assigned, 1 = skipped, 2 = too late")],
)
def test_enum__numbers__are_those_that_the_contracts_comment(name: str, comment: str) -> None:
    assert f"// {comment}\n" in TYPES_SOL
    pairs = [part.split(" = ") for part in comment.split(", ")]
    expected = {text.upper().replace(" ", "_"): int(number) for number, text in pairs}
    assert read("enums")[name] == expected == {member.name: int(member) for member in getattr(types, name)}


def test_enum__every_enum_of_the_contracts_and_of_leaves__is_listed() -> None:
    in_solidity = set(re.findall(r"^enum (\w+)", TYPES_SOL, re.MULTILINE))
    assert set(read("enums")) == in_solidity | {"Lane", "DecisionKind", "Reason"}


def test_enum__reasons__are_within_the_numbers_of_their_kind() -> None:
    assert read("enums")["Reason"] == {
        "NONE": 0,
        "LOWEST_COST": 1,
        "QUORUM_KEPT": 2,
        "EXPLORATION": 3,
        "NO_NODE_FOR_MODEL": 10,
        "NODE_MEMORY": 11,
        "NODES_BUSY": 12,
        "NODES_TAKEN": 13,
        "PRICE_ABOVE_MAX": 14,
        "GAS_BUDGET_SHORT": 15,
        "PROBATION": 16,
        "NODES_EXCLUDED": 17,
        "ATTEMPTS_EXHAUSTED": 18,
        "LANE_FULL": 19,
        "PROMPT_MISSING": 20,
        "NODES_SILENT": 21,
        "RELEASED": 22,
        "ANSWER_TOO_LONG": 23,
        "NO_PROOF": 24,
        "OWNERS_TOO_FEW": 25,
        "NOT_DETERMINISTIC": 26,
        "ROUND_OF_QUORUM": 27,
        "NODES_TOO_SLOW": 28,
        "STAKE_SHORT": 29,
        "DEADLINE_PASSED": 40,
        "DEADLINE_INFEASIBLE": 41,
    }
    ranges = {DecisionKind.ASSIGNED: range(1, 10), DecisionKind.SKIPPED: range(10, 40)}
    ranges[DecisionKind.TOO_LATE] = range(40, 50)
    for entry in read("snapshots"):
        for each in entry["plan"]["decisions"]:
            assert each["decision"]["reason"] in ranges[DecisionKind(each["decision"]["kind"])]


@pytest.mark.parametrize("entry", read("events"), ids=lambda entry: entry["name"])
def test_event__topic__is_of_its_signature(entry: Entry) -> None:
    assert entry["signature"].startswith(entry["name"] + "(")
    assert "0x" + event_signature_to_log_topic(entry["signature"]).hex() == entry["topic"]
