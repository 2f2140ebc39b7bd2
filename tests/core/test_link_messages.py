"""The link's messages: what goes on the wire comes back the same, and nothing else is taken."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.gas import MAX_PROOF_BYTES
from headrace.core.link_messages import (
    MAX_FRAME_BYTES,
    MAX_ITEMS,
    MAX_PAYLOAD_BYTES,
    PROTOCOL_VERSION,
    AcceptMessage,
    Challenge,
    Delivered,
    DeliveryMessage,
    DeliveryRejected,
    GaveUp,
    HeartbeatMessage,
    Hello,
    ProtocolMismatch,
    RefusalMessage,
    Rejected,
    RejectionCode,
    SetSignature,
    SignSet,
    TaskMessage,
    Welcome,
    encode,
    heartbeat_digest,
    parse_node_message,
    parse_relayer_message,
    read_task,
    require_version,
)
from headrace.core.requests import request_id
from headrace.core.tasks import Accept, Delivery, Heartbeat, Refusal, RefusalReason, Task
from headrace.core.typed_data import Domain
from headrace.core.types import Assignment, Result
from tests.fakes import MARKET, NODE, RELAYER, make_request

REQUEST = make_request()
ID = request_id(REQUEST, 31337, MARKET)
SIGNATURE = bytes(range(65))
RESULT = Result(ID, "0x" + "77" * 32, 2**96 - 1, RELAYER, 2**53 - 1)
HEARTBEAT = Heartbeat(
    NODE, 5, 1_750_000_000_000, 4096, 1, 4, 730, (REQUEST.model_id,), (), 900, "local", verifiers=(RELAYER,)
)
TASK = Task(Assignment(ID, RELAYER, NODE, 3, 10**14, REQUEST.deadline_s), SIGNATURE, REQUEST, "smol", b"\x01\xff why")
DELIVERY = Delivery(
    NODE, RESULT, SIGNATURE, b"\x01" + bytes(MAX_PAYLOAD_BYTES - 1), 12, 345, proof=b"\x07" * MAX_PROOF_BYTES
)
REFUSAL = Refusal(ID, 3, RefusalReason.BUSY, "it has 4 tasks, its most")
CHALLENGE = Challenge(challenge="0x" + "99" * 32, relayer=RELAYER, chain_id=31337, market=MARKET)
HELLO = Hello(node=NODE, signature="0x" + SIGNATURE.hex())

FROM_RELAYER = [
    CHALLENGE,
    Welcome(),
    Rejected(code=RejectionCode.NOT_ALLOWED, message="register first"),
    TaskMessage.of(TASK),
    Delivered(request_id=ID, round=3),
    DeliveryRejected(request_id=ID, round=3, code="INVALID_INPUT", message="no"),
    SignSet.of("0x" + "55" * 32, 3, [RESULT, RESULT]),
]
FROM_NODE = [
    HELLO,
    HeartbeatMessage.of(HEARTBEAT, SIGNATURE),
    AcceptMessage.of(Accept(ID, 3, SIGNATURE)),
    RefusalMessage.of(REFUSAL),
    GaveUp.of(REFUSAL),
    DeliveryMessage.of(DELIVERY),
    SetSignature.of("0x" + "55" * 32, SIGNATURE),
    SetSignature.of("0x" + "55" * 32, None, "these are not its results"),
]


def _kind(message: Any) -> str:
    return str(message.type)


@pytest.mark.parametrize("message", FROM_RELAYER, ids=_kind)
def test_a_relayers_message_comes_back_the_same(message: Any) -> None:
    assert parse_relayer_message(encode(message)) == message
    with pytest.raises(InvalidInput, match="no message of the link"):
        parse_node_message(encode(message))


@pytest.mark.parametrize("message", FROM_NODE, ids=_kind)
def test_a_nodes_message_comes_back_the_same(message: Any) -> None:
    frame = encode(message)
    assert len(frame) <= MAX_FRAME_BYTES
    assert parse_node_message(frame) == message
    with pytest.raises(InvalidInput, match="no message of the link"):
        parse_relayer_message(frame)


def test_core_values_survive_the_wire() -> None:
    assert read_task(encode(TaskMessage.of(TASK))) == TASK
    assert DeliveryMessage.of(DELIVERY).delivery(NODE) == DELIVERY
    assert HeartbeatMessage.of(HEARTBEAT, SIGNATURE).heartbeat() == HEARTBEAT
    assert GaveUp.of(REFUSAL).refusal() == RefusalMessage.of(REFUSAL).refusal() == REFUSAL
    assert AcceptMessage.of(Accept(ID, 3, SIGNATURE)).accept() == Accept(ID, 3, SIGNATURE)
    assert SignSet.of("0x" + "55" * 32, 3, [RESULT]).core_results() == [RESULT]


def test_the_request_of_a_task_keeps_its_id() -> None:
    task = read_task(encode(TaskMessage.of(TASK)))
    assert request_id(task.request, 31337, MARKET) == ID


def test_a_heartbeats_digest_depends_on_all_of_it() -> None:
    domain = Domain(31337, MARKET)
    digests = {
        heartbeat_digest(domain, RELAYER, HEARTBEAT),
        heartbeat_digest(domain, NODE, HEARTBEAT),
        heartbeat_digest(Domain(1, MARKET), RELAYER, HEARTBEAT),
    }
    for change in ({"sequence": 6}, {"in_flight": 0}, {"models": ()}, {"region": "elsewhere"}, {"verifiers": ()}):
        digests.add(heartbeat_digest(domain, RELAYER, dataclasses.replace(HEARTBEAT, **change)))
    assert len(digests) == 8


@pytest.mark.parametrize(
    "change",
    [{"warm_models": (ID,)}, {"models": (REQUEST.model_id, REQUEST.model_id)}, {"verifiers": (RELAYER, RELAYER)}],
)
def test_a_heartbeat_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="each model and verifier once"):
        HeartbeatMessage.of(dataclasses.replace(HEARTBEAT, **change), SIGNATURE).heartbeat()


def test_what_is_too_long_is_not_sent() -> None:
    with pytest.raises(InvalidInput, match="the link carries at most"):
        TaskMessage.of(dataclasses.replace(TASK, prompt=bytes(MAX_PAYLOAD_BYTES + 1)))
    with pytest.raises(InvalidInput, match="proof: String should have at most 8194"):
        DeliveryMessage.of(dataclasses.replace(DELIVERY, proof=bytes(MAX_PROOF_BYTES + 1)))
    with pytest.raises(InvalidInput, match="results: List should have at most 1000"):
        SignSet.of(ID, 3, [RESULT] * (MAX_ITEMS + 1))
    with pytest.raises(InvalidInput, match="longer than"):
        parse_node_message(" " * (MAX_FRAME_BYTES + 1))
    assert len(SetSignature.of(ID, None, "x" * 10_000).message) == 500


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("assignment.reward_wei", 5),
        ("assignment.reward_wei", "05"),
        ("assignment.reward_wei", "-5"),
        ("assignment.reward_wei", "1e5"),
        ("assignment.reward_wei", "٣"),
        ("assignment.round", "3"),
        ("assignment.round", 3.0),
        ("assignment.round", True),
        ("assignment.round", 2**53),
        ("assignment.node", NODE.upper()),
        ("assignment.node", NODE + "\n"),
        ("assignment.extra", 1),
        ("request.terms", "1" * 79),
        ("assignment_signature", "0x00"),
        ("model_name", ""),
        ("prompt", None),
        ("type", "welcome"),
        ("type", "unknown"),
    ],
)
def test_a_field_that_is_not_as_it_must_be_is_refused(path: str, value: Any) -> None:
    frame = json.loads(encode(TaskMessage.of(TASK)))
    *parents, last = path.split(".")
    place = frame
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(InvalidInput):
        parse_relayer_message(json.dumps(frame))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("assignment.reward_wei", str(2**96), "96 bits"),
        ("request.terms", str(2**256), "no field owns"),
        ("request.amounts", str(2**240), "no field owns"),
        ("prompt", "!!!!", "base64"),
        ("prompt", "é", "base64"),
    ],
)
def test_a_task_that_does_not_unpack_is_refused(path: str, value: str, says: str) -> None:
    frame = json.loads(encode(TaskMessage.of(TASK)))
    *parents, last = path.split(".")
    place = frame
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(InvalidInput, match=says):
        read_task(json.dumps(frame))


@pytest.mark.parametrize(("version", "older"), [(0, "relayer"), (2, "node"), (65_535, "node")])
def test_another_version_is_refused_with_who_must_be_updated(version: int, older: str) -> None:
    frame = json.loads(encode(CHALLENGE))
    frame["protocol_version"] = version
    with pytest.raises(ProtocolMismatch, match=f"update the {older}"):
        require_version(parse_relayer_message(json.dumps(frame)))  # type: ignore[arg-type]
    # A later version may look different altogether.
    with pytest.raises(ProtocolMismatch, match=f"update the {older}"):
        parse_relayer_message(json.dumps({"type": "challenge", "protocol_version": version, "new": [1]}))


def test_the_own_version_is_taken() -> None:
    require_version(CHALLENGE)
    require_version(HELLO)
    assert CHALLENGE.protocol_version == PROTOCOL_VERSION == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FRAMES = [json.loads(encode(message)) for message in FROM_NODE + FROM_RELAYER if _kind(message) != "delivery"]


@given(st.text())
def test_text_is_taken_or_refused(frame: str) -> None:
    _parses_or_refuses(frame)


@given(JSON)
def test_json_is_taken_or_refused(document: Any) -> None:
    _parses_or_refuses(json.dumps(document))


@given(st.sampled_from(FRAMES), st.data())
def test_a_changed_message_is_taken_or_refused(frame: dict[str, Any], data: st.DataObject) -> None:
    changed = dict(frame)
    changed[data.draw(st.sampled_from(sorted(frame)) | st.text(max_size=8))] = data.draw(JSON)
    _parses_or_refuses(json.dumps(changed))


@pytest.mark.parametrize(
    "frame", ["[" * 100_000, '{"type":' * 10_000, '{"type":"hello","protocol_version":1e999}', "\ud800"]
)
def test_what_breaks_parsers_is_refused(frame: str) -> None:
    _parses_or_refuses(frame)


def _parses_or_refuses(frame: str) -> None:
    for parse in (parse_node_message, parse_relayer_message):
        try:
            message = parse(frame)
        except InvalidInput:
            continue
        assert parse(encode(message)) == message
