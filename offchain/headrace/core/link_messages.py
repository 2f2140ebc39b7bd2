"""The link between a node and a relayer: its messages, version 1, and what they become in the core's terms.

The node opens a WebSocket; each text frame is one JSON object, told apart by `type`.

    relayer                         node
    challenge          →
                       ←            hello        signs the challenge as `LinkHello`
    welcome | rejected →
                       ←            heartbeat    every 2 s, and at once when its load changes
    task               →
                       ←            accept | refusal
                       ←            delivery     again and again until it is answered; gave_up if it never comes
    delivered | delivery_rejected →
    sign_set           →
                       ←            set_signature
    rejected           →                         the last word before the relayer closes

Every field has a bound. Amounts are decimal text, bytes are `0x` hex, payloads base64. An unknown field, type or
version is refused: both ends are updated together, or say what does not fit.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from headrace.core.canonical import MAX_SAFE_INTEGER, content_hash
from headrace.core.errors import InvalidInput
from headrace.core.fields import to_json
from headrace.core.gas import MAX_PROOF_BYTES
from headrace.core.nesting import read_json
from headrace.core.requests import PackedRequest, pack, unpack
from headrace.core.tasks import Accept, Delivery, Heartbeat, Refusal, RefusalReason, Task
from headrace.core.typed_data import Domain, digest, hash_heartbeat, hash_link_hello
from headrace.core.types import Address, Assignment, Hash32, Result

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 2 * 1024 * 1024
MAX_PAYLOAD_BYTES = 1024 * 1024
"""Of a prompt or an answer, envelope included: in base64 it leaves room for the rest of its frame."""
MAX_ITEMS = 1_000
MAX_MESSAGE_CHARS = 500
MAX_VERIFIERS = 16
_MAX_IN_FLIGHT = 10_000
_MAX_BASE64_CHARS = 4 * -(-MAX_PAYLOAD_BYTES // 3)

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)

_Address = Annotated[str, Field(pattern=r"^0x[0-9a-f]{40}$")]
_Hash32 = Annotated[str, Field(pattern=r"^0x[0-9a-f]{64}$")]
_Signature = Annotated[str, Field(pattern=r"^0x[0-9a-f]{130}$")]
_Proof = Annotated[str, Field(pattern=r"^0x([0-9a-f]{2})*$", max_length=2 + 2 * MAX_PROOF_BYTES)]
_Uint96 = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,28})$")]
_Uint256 = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,77})$")]
_Integer = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
_Uint40 = Annotated[int, Field(ge=0, lt=1 << 40)]
_Count = Annotated[int, Field(ge=0, le=_MAX_IN_FLIGHT)]
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Message = Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)]
_Base64 = Annotated[str, Field(max_length=_MAX_BASE64_CHARS)]


class ProtocolMismatch(InvalidInput):
    """The other end speaks another version of the link."""

    code = "PROTOCOL_MISMATCH"


class RejectionCode(StrEnum):
    """Why a relayer closes a link."""

    PROTOCOL_MISMATCH = "protocol_mismatch"
    BAD_SIGNATURE = "bad_signature"
    NOT_ALLOWED = "not_allowed"
    REPLACED = "replaced"  # a newer link of the same node took its place
    MALFORMED = "malformed"
    BAD_HEARTBEAT = "bad_heartbeat"
    SILENT = "silent"
    SLOW = "slow"
    UNAVAILABLE = "unavailable"  # the relayer cannot tell now whether the node may link
    SHUTTING_DOWN = "shutting_down"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


# Parts


class AssignmentPart(_Model):
    """A relayer's word, as `core.types.Assignment`."""

    request_id: _Hash32
    relayer: _Address
    node: _Address
    round: _Integer
    reward_wei: _Uint96
    deadline_s: _Uint40


class RequestPart(_Model):
    """A request as the chain packs it, so that its id can be recomputed from just this."""

    requester: _Address
    relayer: _Address
    model_id: _Hash32
    prompt_hash: _Hash32
    amounts: _Uint256
    terms: _Uint256
    verifier: _Address


class ResultPart(_Model):
    """What a node signs, as `core.types.Result`."""

    request_id: _Hash32
    result_hash: _Hash32
    reward_wei: _Uint96
    relayer: _Address
    round: _Integer


class HeartbeatPart(_Model):
    """What a node says of itself, as `core.tasks.Heartbeat`."""

    node: _Address
    sequence: _Integer
    sent_at_ms: _Integer
    free_memory_mb: Annotated[int, Field(ge=0, le=1 << 30)]
    in_flight: _Count
    max_in_flight: _Count
    load_milli: Annotated[int, Field(ge=0, le=1_000_000_000)]
    models: Annotated[list[_Hash32], Field(max_length=MAX_ITEMS)]
    warm_models: Annotated[list[_Hash32], Field(max_length=MAX_ITEMS)]
    avg_latency_ms: Annotated[int, Field(ge=0, le=86_400_000)]
    region: Annotated[str, Field(max_length=32)]
    verifiers: Annotated[list[_Address], Field(max_length=MAX_VERIFIERS)]


# From the relayer


class Challenge(_Model):
    """The relayer's first word: 32 random bytes to sign, and who and where it is."""

    type: Literal["challenge"] = "challenge"
    protocol_version: Annotated[int, Field(ge=0, lt=1 << 16)] = PROTOCOL_VERSION
    challenge: _Hash32
    relayer: _Address
    chain_id: _Integer
    market: _Address


class Welcome(_Model):
    """The node is linked."""

    type: Literal["welcome"] = "welcome"


class Rejected(_Model):
    """The relayer's last word before it closes."""

    type: Literal["rejected"] = "rejected"
    code: RejectionCode
    message: _Message


class TaskMessage(_Model):
    """A task for the node."""

    type: Literal["task"] = "task"
    assignment: AssignmentPart
    assignment_signature: _Signature
    request: RequestPart
    model_name: _Name
    prompt: _Base64

    @classmethod
    def of(cls, task: Task) -> TaskMessage:
        """Put a task on the wire.

        Raises:
            InvalidInput: its prompt is longer than a frame carries.
        """
        packed = pack(task.request)
        return _checked(
            cls,
            assignment=_assignment_part(task.assignment),
            assignment_signature=_hex(task.assignment_signature),
            request={
                "requester": packed.requester,
                "relayer": packed.relayer,
                "model_id": _hex(packed.model_id),
                "prompt_hash": _hex(packed.prompt_hash),
                "amounts": str(packed.amounts),
                "terms": str(packed.terms),
                "verifier": packed.verifier,
            },
            model_name=task.model_name,
            prompt=_encode_payload(task.prompt, "prompt"),
        )

    def task(self) -> Task:
        """The task that it carries.

        Raises:
            InvalidInput: the request does not unpack, an amount does not fit, or the prompt is no base64.
        """
        part = self.request
        return Task(
            assignment=Assignment(
                request_id=self.assignment.request_id,
                relayer=self.assignment.relayer,
                node=self.assignment.node,
                round=self.assignment.round,
                reward_wei=_uint96(self.assignment.reward_wei),
                deadline_s=self.assignment.deadline_s,
            ),
            assignment_signature=_bytes(self.assignment_signature),
            request=unpack(
                PackedRequest(
                    part.requester,
                    part.relayer,
                    _bytes(part.model_id),
                    _bytes(part.prompt_hash),
                    int(part.amounts),
                    int(part.terms),
                    part.verifier,
                )
            ),
            model_name=self.model_name,
            prompt=_decode_payload(self.prompt, "prompt"),
        )


class Delivered(_Model):
    """The relayer has stored a result: the node need not send it again."""

    type: Literal["delivered"] = "delivered"
    request_id: _Hash32
    round: _Integer


class DeliveryRejected(_Model):
    """The relayer will never take this result."""

    type: Literal["delivery_rejected"] = "delivery_rejected"
    request_id: _Hash32
    round: _Integer
    code: Annotated[str, Field(max_length=64)]
    message: _Message


class SignSet(_Model):
    """The relayer asks for one signature over results that the node signed before, in the order of the batch."""

    type: Literal["sign_set"] = "sign_set"
    set_hash: _Hash32
    round: _Integer
    results: Annotated[list[ResultPart], Field(min_length=1, max_length=MAX_ITEMS)]

    @classmethod
    def of(cls, set_hash: Hash32, round_: int, results: Sequence[Result]) -> SignSet:
        """Put a set on the wire.

        Raises:
            InvalidInput: it is empty or has more than 1,000 results.
        """
        return _checked(cls, set_hash=set_hash, round=round_, results=[_result_part(result) for result in results])

    def core_results(self) -> list[Result]:
        """The results of the set.

        Raises:
            InvalidInput: an amount does not fit.
        """
        return [_result(part) for part in self.results]


# From the node


class Hello(_Model):
    """The node's answer to the challenge."""

    type: Literal["hello"] = "hello"
    protocol_version: Annotated[int, Field(ge=0, lt=1 << 16)] = PROTOCOL_VERSION
    node: _Address
    signature: _Signature


class HeartbeatMessage(_Model):
    """What the node says of itself, with its signature over the canonical JSON of the content."""

    type: Literal["heartbeat"] = "heartbeat"
    content: HeartbeatPart
    signature: _Signature

    @classmethod
    def of(cls, heartbeat: Heartbeat, signature: bytes) -> HeartbeatMessage:
        """Put a heartbeat on the wire."""
        return _checked(cls, content=to_json(heartbeat), signature=_hex(signature))

    def heartbeat(self) -> Heartbeat:
        """The heartbeat that it carries.

        Raises:
            InvalidInput: its models or verifiers repeat, or it calls a model warm that it does not serve.
        """
        fields = self.content.model_dump()
        models, warm = tuple(fields.pop("models")), tuple(fields.pop("warm_models"))
        verifiers = tuple(fields.pop("verifiers"))
        if any(len(set(each)) != len(each) for each in (models, warm, verifiers)) or not set(warm) <= set(models):
            raise InvalidInput("a heartbeat lists each model and verifier once, and as warm only what it serves")
        return Heartbeat(**fields, models=models, warm_models=warm, verifiers=verifiers)

    def signature_bytes(self) -> bytes:
        """The 65 bytes of the signature."""
        return _bytes(self.signature)


class AcceptMessage(_Model):
    """The node takes a task."""

    type: Literal["accept"] = "accept"
    request_id: _Hash32
    round: _Integer
    signature: _Signature

    @classmethod
    def of(cls, accept: Accept) -> AcceptMessage:
        """Put an accept on the wire."""
        return _checked(cls, request_id=accept.request_id, round=accept.round, signature=_hex(accept.signature))

    def accept(self) -> Accept:
        """The accept that it carries."""
        return Accept(self.request_id, self.round, _bytes(self.signature))


class _RefusalFields(_Model):
    request_id: _Hash32
    round: _Integer
    reason: RefusalReason
    message: _Message

    def refusal(self) -> Refusal:
        """The refusal that it carries."""
        return Refusal(self.request_id, self.round, self.reason, self.message)


class RefusalMessage(_RefusalFields):
    """The node does not take a task."""

    type: Literal["refusal"] = "refusal"

    @classmethod
    def of(cls, refusal: Refusal) -> RefusalMessage:
        """Put a refusal on the wire."""
        return _checked(cls, **_refusal_fields(refusal))


class GaveUp(_RefusalFields):
    """The node will not finish a task that it took."""

    type: Literal["gave_up"] = "gave_up"

    @classmethod
    def of(cls, refusal: Refusal) -> GaveUp:
        """Put it on the wire."""
        return _checked(cls, **_refusal_fields(refusal))


class DeliveryMessage(_Model):
    """A signed result with its payload. The node is the one whose link it came over."""

    type: Literal["delivery"] = "delivery"
    result: ResultPart
    signature: _Signature
    payload: _Base64
    output_tokens: _Integer
    compute_ms: _Integer
    proof: _Proof

    @classmethod
    def of(cls, delivery: Delivery) -> DeliveryMessage:
        """Put a delivery on the wire.

        Raises:
            InvalidInput: its payload or proof is longer than a frame carries.
        """
        return _checked(
            cls,
            result=_result_part(delivery.result),
            signature=_hex(delivery.signature),
            payload=_encode_payload(delivery.payload, "answer"),
            output_tokens=delivery.output_tokens,
            compute_ms=delivery.compute_ms,
            proof=_hex(delivery.proof),
        )

    def delivery(self, node: Address) -> Delivery:
        """The delivery that it carries, from this node.

        Raises:
            InvalidInput: an amount does not fit, or the payload is no base64.
        """
        return Delivery(
            node=node,
            result=_result(self.result),
            signature=_bytes(self.signature),
            payload=_decode_payload(self.payload, "answer"),
            output_tokens=self.output_tokens,
            compute_ms=self.compute_ms,
            proof=_bytes(self.proof),
        )


class SetSignature(_Model):
    """The node's signature over a set, or why it does not sign it."""

    type: Literal["set_signature"] = "set_signature"
    set_hash: _Hash32
    signature: _Signature | None
    message: _Message = ""

    @classmethod
    def of(cls, set_hash: Hash32, signature: bytes | None, message: str = "") -> SetSignature:
        """Put it on the wire."""
        signature_text = None if signature is None else _hex(signature)
        return _checked(cls, set_hash=set_hash, signature=signature_text, message=short(message))

    def signature_bytes(self) -> bytes | None:
        """The signature, if it gave one."""
        return None if self.signature is None else _bytes(self.signature)


RelayerMessage: TypeAlias = Challenge | Welcome | Rejected | TaskMessage | Delivered | DeliveryRejected | SignSet
NodeMessage: TypeAlias = (
    Hello | HeartbeatMessage | AcceptMessage | RefusalMessage | GaveUp | DeliveryMessage | SetSignature
)
_RELAYER: TypeAdapter[RelayerMessage] = TypeAdapter(Annotated[RelayerMessage, Field(discriminator="type")])
_NODE: TypeAdapter[NodeMessage] = TypeAdapter(Annotated[NodeMessage, Field(discriminator="type")])


def parse_relayer_message(frame: str) -> RelayerMessage:
    """Read a frame that a relayer sent.

    Raises:
        ProtocolMismatch: it opens a link of another version.
        InvalidInput: it is too long, or no message of this version.
    """
    return _parse(_RELAYER, frame, "relayer", "node")


def parse_node_message(frame: str) -> NodeMessage:
    """Read a frame that a node sent.

    Raises:
        ProtocolMismatch: it opens a link of another version.
        InvalidInput: it is too long, or no message of this version.
    """
    return _parse(_NODE, frame, "node", "relayer")


def encode(message: RelayerMessage | NodeMessage) -> str:
    """The frame of a message."""
    return message.model_dump_json()


def read_task(frame: str | bytes) -> Task:
    """Read back a task's frame that was kept.

    Raises:
        InvalidInput: it is none.
    """
    try:
        return TaskMessage.model_validate_json(frame).task()
    except ValidationError as exc:
        raise InvalidInput(f"the frame is no task: {_first_error(exc)}") from None


def hash_hello(node: Address, relayer: Address, challenge: Hash32) -> bytes:
    """Struct hash of what a node signs to open its link, in this version of it."""
    return hash_link_hello(node, relayer, PROTOCOL_VERSION, challenge)


def hello_digest(domain: Domain, node: Address, relayer: Address, challenge: Hash32) -> bytes:
    """What a node signs to open its link."""
    return digest(domain, hash_hello(node, relayer, challenge))


def hash_beat(relayer: Address, heartbeat: Heartbeat) -> bytes:
    """Struct hash of what a node signs of a heartbeat."""
    return hash_heartbeat(heartbeat.node, relayer, content_hash(to_json(heartbeat)))


def heartbeat_digest(domain: Domain, relayer: Address, heartbeat: Heartbeat) -> bytes:
    """What a node signs of a heartbeat."""
    return digest(domain, hash_beat(relayer, heartbeat))


def short(message: str) -> str:
    """A message cut to the length that a frame takes."""
    clean = message.encode("utf-8", "replace").decode()
    return clean if len(clean) <= MAX_MESSAGE_CHARS else clean[: MAX_MESSAGE_CHARS - 1] + "…"


def _parse(adapter: TypeAdapter[_T], frame: str, sender: str, receiver: str) -> _T:
    if len(frame) > MAX_FRAME_BYTES:
        raise InvalidInput(f"the {sender}'s frame is longer than {MAX_FRAME_BYTES} bytes")
    try:
        return adapter.validate_json(frame)
    except ValidationError as exc:
        # Another version may have other fields, so its version counts before its form.
        version = _opening_version(frame)
        if version is not None and version != PROTOCOL_VERSION:
            raise _mismatch(sender, version, receiver) from None
        raise InvalidInput(f"the {sender}'s frame is no message of the link: {_first_error(exc)}") from None


def require_version(message: Challenge | Hello) -> None:
    """Check the version of the message that opens a link.

    Raises:
        ProtocolMismatch: it is another.
    """
    if message.protocol_version != PROTOCOL_VERSION:
        sender, receiver = ("relayer", "node") if isinstance(message, Challenge) else ("node", "relayer")
        raise _mismatch(sender, message.protocol_version, receiver)


def _mismatch(sender: str, version: int, receiver: str) -> ProtocolMismatch:
    older = sender if version < PROTOCOL_VERSION else receiver
    return ProtocolMismatch(
        f"the {sender} speaks version {version} of the link and the {receiver} version {PROTOCOL_VERSION}: "
        f"update the {older}"
    )


def _opening_version(frame: str) -> int | None:
    try:
        document = read_json(frame)
    except ValueError:
        return None
    if not isinstance(document, dict) or document.get("type") not in ("challenge", "hello"):
        return None
    version = document.get("protocol_version")
    return version if isinstance(version, int) and not isinstance(version, bool) else None


def _first_error(exc: ValidationError) -> str:
    error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in error["loc"])[:100]
    return f"{where}: {error['msg']}" if where else error["msg"]


def _checked(cls: type[_M], **fields: Any) -> _M:
    """Build a message of our own by the rules that the other end applies."""
    try:
        return cls(**fields)
    except ValidationError as exc:
        raise InvalidInput(f"a {cls.__name__} cannot be sent: {_first_error(exc)}") from None


def _assignment_part(assignment: Assignment) -> AssignmentPart:
    return _checked(
        AssignmentPart,
        request_id=assignment.request_id,
        relayer=assignment.relayer,
        node=assignment.node,
        round=assignment.round,
        reward_wei=str(assignment.reward_wei),
        deadline_s=assignment.deadline_s,
    )


def _result_part(result: Result) -> ResultPart:
    return _checked(
        ResultPart,
        request_id=result.request_id,
        result_hash=result.result_hash,
        reward_wei=str(result.reward_wei),
        relayer=result.relayer,
        round=result.round,
    )


def _result(part: ResultPart) -> Result:
    return Result(part.request_id, part.result_hash, _uint96(part.reward_wei), part.relayer, part.round)


def _refusal_fields(refusal: Refusal) -> dict[str, Any]:
    return {
        "request_id": refusal.request_id,
        "round": refusal.round,
        "reason": refusal.reason,
        "message": short(refusal.message),
    }


def _uint96(text: str) -> int:
    value = int(text)
    if value >> 96:
        raise InvalidInput(f"the amount {text} does not fit into 96 bits")
    return value


def _encode_payload(payload: bytes, what: str) -> str:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidInput(f"the {what} has {len(payload)} bytes; the link carries at most {MAX_PAYLOAD_BYTES}")
    return base64.b64encode(payload).decode()


def _decode_payload(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"the {what} is not base64") from None


def _hex(data: bytes) -> str:
    return "0x" + data.hex()


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])
