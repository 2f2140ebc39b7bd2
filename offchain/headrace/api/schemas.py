"""The API's resources. Wei are decimal text, because JSON readers round; every number has its unit in its name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from headrace.api.dependencies import AddressText, HashText
from headrace.core.lifecycle import RequestState
from headrace.core.prompts import MAX_MESSAGES, MAX_STOP_CHARS, MAX_STOPS
from headrace.core.requests import MAX_QUORUM

EXAMPLE_HASH = "0x5b1c8a0d4e6f7a2b3c9d8e7f60514233445566778899aabbccddeeff00112233"
EXAMPLE_HASH_2 = "0xa0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566778899aabbccddeeff"
EXAMPLE_REQUESTER = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8"
EXAMPLE_RELAYER = "0x90f79bf6eb2c4f870365e785982e1f101e93b906"
EXAMPLE_NODE = "0x15d34aaf54267db7d7c367839aaf71a00a2c6a65"

WeiText = Annotated[str, StringConstraints(pattern=r"^(0|[1-9]\d{0,77})$"), Field(examples=["1250000000000000"])]
AmountText = Annotated[str, StringConstraints(pattern=r"^(0|[1-9]\d{0,24}|auto)$")]
HexText = Annotated[str, StringConstraints(pattern=r"^0x([0-9a-f]{2})*$")]
DigitsText = Annotated[str, StringConstraints(pattern=r"^\d{1,20}$")]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]
LaneName = Literal["realtime", "bulk"]
# Wallets of several owners have long ones.
MAX_SIGNATURE_BYTES = 4096


class Resource(BaseModel):
    """What the API answers."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(Resource):
    """What went wrong, for a program and for a person."""

    code: str = Field(examples=["UNKNOWN_MODEL"])
    message: str = Field(examples=["No registered model is called 'gpt-9'; there are: smollm2-135m-instruct."])
    hint: str = Field(examples=["GET /v1/models lists the models that are registered."])


class Error(Resource):
    """Every error has this shape."""

    error: ErrorBody


# Network


class ModelView(Resource):
    """A registered model."""

    model_id: HashText = Field(examples=[EXAMPLE_HASH])
    name: str = Field(examples=["smollm2-135m-instruct"])
    revision: str
    quantisation: str
    weights_hash: HashText
    memory_mb: int
    memory_per_token_bytes: int
    complexity_milli: int = Field(description="Expected time relative to a 7B model, in thousandths.")
    unit: str = Field(examples=["output_token"])


class ContractsView(Resource):
    """Where the contracts are."""

    inference_market: AddressText
    schedule_log: AddressText
    stake_manager: AddressText
    model_registry: AddressText


class TermsView(Resource):
    """The market's immutable numbers."""

    grace_s: int
    min_ttl_s: int
    max_ttl_s: int
    max_inline_prompt_bytes: int
    max_callback_gas: int
    verifier_gas: int
    tip_cap_wei: WeiText
    fixed_gas: int
    item_gas: int
    node_gas: int
    assigned_gas: int
    gas_per_result_byte: int
    relayer_fee_share_bps: int
    relayer_saving_share_bps: int
    probation_max_reward_wei: WeiText
    probation_settled_count: int
    probation_duration_s: int


class PolicyView(Resource):
    """The relayer's published policy, whose hash is in each round's record."""

    name: str
    policy_hash: HashText
    realtime_fee_floor_wei: WeiText
    expected_batch_size: int
    max_assignments: int


class WholePolicy(Resource):
    """The scheduling policy, as snapshots have it, and its hash."""

    policy_hash: HashText
    policy: dict[str, int | str] = Field(description="Each number by its name; amounts in wei are decimal text.")


class PolicyChange(Resource):
    """Numbers of the policy that are to change. The others stay."""

    realtime_capacity: int | None = Field(default=None, ge=1, le=100_000)
    bulk_capacity: int | None = Field(default=None, ge=1, le=100_000)
    realtime_fee_floor_wei: WeiText | None = None
    realtime_max_wait_ms: int | None = Field(default=None, ge=1, le=86_400_000)
    bulk_max_wait_ms: int | None = Field(default=None, ge=1, le=86_400_000)
    fee_weight_milli: int | None = Field(default=None, ge=0, le=1_000)
    wait_weight_milli: int | None = Field(default=None, ge=0, le=1_000)
    deadline_weight_milli: int | None = Field(default=None, ge=0, le=1_000)
    least_delay_wei_per_s: WeiText | None = None
    miss_delay_ms: int | None = Field(default=None, ge=0, le=3_600_000)
    exploration_milli: int | None = Field(default=None, ge=0, le=1_000)


class LimitsView(Resource):
    """What this relayer takes."""

    payload_bytes: int
    max_output_tokens: int


class GaslessView(Resource):
    """On what terms this relayer posts requests that their requesters only sign."""

    relayer_fee_floor_wei: WeiText | None = Field(
        description="The least fee for a prompt that stays off-chain, at the gas price of now. Sign a higher one: gas "
        "may become dearer. Null when the chain does not answer."
    )
    fee_margin_bps: int = Field(description="The least fee, of what posting costs in gas.")
    max_open: int = Field(description="Requests that may wait to be posted, of all requesters together.")
    max_open_per_requester: int


class NetworkView(Resource):
    """All that a client needs to post a request here and to check what comes back."""

    chain_id: int
    contracts: ContractsView
    relayer: AddressText
    terms: TermsView
    policy: PolicyView
    limits: LimitsView
    gasless: GaslessView | None = Field(description="Null: this relayer posts requests for nobody.")
    confirmations: int
    models: list[ModelView]
    link_url: str = Field(description="Where nodes open their links; empty when it is not published.")
    api_version: int
    link_protocol_version: int
    package_version: str


# Drafts


class ChatMessage(BaseModel):
    """A message of an OpenAI chat."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, StringConstraints(min_length=1)]


class DraftRequest(BaseModel):
    """What is asked for. Give a prompt or messages; a deadline or a time to live; amounts in wei, or `auto`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "requester": EXAMPLE_REQUESTER,
                    "model": "smollm2-135m-instruct",
                    "prompt": "Why is the sky blue?",
                    "lane": "bulk",
                    "ttl_s": 120,
                },
                {
                    "requester": EXAMPLE_REQUESTER,
                    "model": EXAMPLE_HASH,
                    "messages": [{"role": "user", "content": "Name three rivers."}],
                    "temperature": 0,
                    "seed": 7,
                    "lane": "realtime",
                    "deadline_s": 1_800_000_000,
                    "max_output_tokens": 64,
                    "max_reward_wei": "2000000000000000",
                    "public": True,
                },
            ]
        },
    )
    requester: AddressText = Field(description="The account that will send the transaction.")
    model: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(description="A name or an id.")
    prompt: Annotated[str, StringConstraints(min_length=1)] | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] | None = None
    stop: Annotated[list[StopText], Field(min_length=1, max_length=MAX_STOPS)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] = 256
    lane: LaneName = "bulk"
    ttl_s: Annotated[int, Field(ge=1)] | None = None
    deadline_s: Annotated[int, Field(ge=1)] | None = None
    max_reward_wei: AmountText = "auto"
    gas_budget_wei: AmountText = "auto"
    priority_fee_wei: AmountText = "auto"
    public: bool = Field(
        default=False, description="Prompt and answer are published on-chain, for everyone and for ever."
    )
    batchable: bool = True
    callback_gas: Annotated[int, Field(ge=0, lt=1 << 24)] = Field(
        default=0,
        description="Gas for onInferenceResult of the requester's contract, once it is settled; 0 for no call. It gets "
        "the answer's bytes when the request is public, else their hash.",
    )
    verifier: AddressText | None = Field(
        default=None, description="A contract that must take the node's proof of its answer, or the node is not paid."
    )
    k: Annotated[int, Field(ge=2, le=MAX_QUORUM)] | None = Field(
        default=None,
        description="Of a quorum: how many nodes of different owners must give one answer. Each is paid. The prompt "
        "must fix its answer: plain text, or temperature 0 and a seed.",
    )
    n: Annotated[int, Field(ge=2, le=MAX_QUORUM)] | None = Field(
        default=None, description="Of a quorum: how many nodes may be asked in all, when some fail or disagree."
    )
    salt: DigitsText | None = Field(default=None, description="A 64-bit number; random unless given.")

    @model_validator(mode="after")
    def _one_of_each(self) -> DraftRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.ttl_s is not None and self.deadline_s is not None:
            raise ValueError("give either ttl_s or deadline_s")
        if self.salt is not None and int(self.salt) >= 1 << 64:
            raise ValueError("salt must fit into 64 bits")
        if (self.k is None) != (self.n is None) or (self.k or 0) > (self.n or 0):
            raise ValueError("give both k and n of a quorum, or neither, and k at most n")
        if self.k is not None and self.verifier is not None:
            raise ValueError("give either a quorum or a verifier")
        return self

    @property
    def nodes(self) -> int:
        """How many are paid."""
        return self.k or 1

    def options(self) -> dict[str, Any]:
        """How the model shall answer, where that is said."""
        return {name: getattr(self, name) for name in ("temperature", "top_p", "seed", "stop")}


class ParamsView(Resource):
    """`RequestParams`, as the market takes them."""

    relayer: AddressText
    model_id: HashText
    prompt_hash: HashText
    salt: DigitsText
    deadline_s: int
    prompt_bytes: int
    max_output_tokens: int
    callback_gas: int
    lane: LaneName
    batchable: bool
    inline_result: bool
    mode: Literal["signature", "quorum", "optimistic", "verifier"]
    k: int
    n: int
    verifier: AddressText
    max_reward_wei: WeiText
    gas_budget_wei: WeiText
    priority_fee_wei: WeiText


class PackedView(Resource):
    """`Request`: the seven words that the market hashes, logs and wants back."""

    requester: AddressText
    relayer: AddressText
    model_id: HashText
    prompt_hash: HashText
    amounts: str = Field(description="A 256-bit number in decimal.")
    terms: str = Field(description="A 256-bit number in decimal.")
    verifier: AddressText


class TransactionView(Resource):
    """A transaction to sign and send."""

    to: AddressText
    data: HexText
    value_wei: WeiText
    chain_id: int


class SigningView(Resource):
    """What the requester signs to have this relayer post the draft, instead of sending the transaction."""

    relayer_fee_wei: WeiText = Field(description="The least fee of now, with room for dearer gas.")
    valid_until_s: int
    typed_data: dict[str, Any] = Field(description="The EIP-712 document, as `eth_signTypedData_v4` takes it.")


class DraftView(Resource):
    """A request that is ready to be sent. Its payload is stored here under its hash."""

    request_id: HashText = Field(examples=[EXAMPLE_HASH])
    params: ParamsView
    request: PackedView
    payload: HexText = Field(description="The prompt's bytes as hashed, envelope included: check them before signing.")
    escrow_wei: WeiText = Field(description="The most that it can cost; what is not paid comes back as credit.")
    transaction: TransactionView
    gasless: SigningView | None = Field(description="Null: this relayer posts requests for nobody.")
    obstacles: list[str] = Field(
        description="What keeps every node from it at today's prices, one sentence each: do not send it as it is."
    )
    warnings: list[str] = Field(
        description="The obstacles, and what else may keep it from being answered, one sentence each."
    )


class SubmitRequest(BaseModel):
    """A request that its requester signed as `RequestFor`. Give its prompt as text or as bytes, unless the bytes were
    handed in before."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "params": {
                        "relayer": EXAMPLE_RELAYER,
                        "model_id": EXAMPLE_HASH,
                        "prompt_hash": EXAMPLE_HASH_2,
                        "salt": "1234605616436508552",
                        "deadline_s": 1_800_000_000,
                        "prompt_bytes": 36,
                        "max_output_tokens": 64,
                        "callback_gas": 0,
                        "lane": "bulk",
                        "batchable": True,
                        "inline_result": False,
                        "mode": "signature",
                        "k": 0,
                        "n": 0,
                        "verifier": "0x" + "00" * 20,
                        "max_reward_wei": "2000000000000000",
                        "gas_budget_wei": "400000000000000",
                        "priority_fee_wei": "0",
                    },
                    "requester": EXAMPLE_REQUESTER,
                    "relayer_fee_wei": "160000000000000",
                    "valid_until_s": 1_799_999_800,
                    "signature": "0x" + "1b" * 65,
                }
            ]
        },
    )
    params: ParamsView
    requester: AddressText = Field(description="Who signed, and whose credit in the market pays.")
    relayer_fee_wei: WeiText = Field(description="For this relayer; GET /v1/network shows the least.")
    valid_until_s: Annotated[int, Field(ge=0, lt=1 << 40)] = Field(
        description="The last second in which the signature counts."
    )
    signature: Annotated[HexText, StringConstraints(max_length=2 + 2 * MAX_SIGNATURE_BYTES)] = Field(
        description="Of the requester's key; or whatever its contract takes for one (ERC-1271)."
    )
    prompt: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None, description="A prompt whose UTF-8 bytes are the payload, without an envelope."
    )
    payload: HexText | None = Field(default=None, description="The payload's bytes, as hashed.")
    publish_prompt: bool = Field(
        default=False, description="Publish the prompt's bytes with the request, on-chain, for everyone and for ever."
    )

    @model_validator(mode="after")
    def _fits(self) -> SubmitRequest:
        if self.prompt is not None and self.payload is not None:
            raise ValueError("give either prompt or payload")
        if int(self.relayer_fee_wei) >= 1 << 96:
            raise ValueError("relayer_fee_wei must fit into 96 bits")
        return self


class PostingView(Resource):
    """A request that this relayer posts, or posted, for its requester."""

    submitted_at_ms: int
    relayer_fee_wei: WeiText
    valid_until_s: int
    reason: str = Field(description="Why it is unposted, in a sentence; empty when it is not.")


class SubmittedView(Resource):
    """Where a request stands that was handed in; GET /v1/requests/{request_id} follows it."""

    request_id: HashText = Field(examples=[EXAMPLE_HASH])
    state: Literal["submitted", "posted"]
    posting: PostingView


class PayloadView(Resource):
    """A payload that is stored."""

    payload_hash: HashText
    payload_bytes: int


# Requests

PostingName = Literal["submitted", "unposted"]
StageName = Literal[
    "submitted",
    "sent",
    "included",
    "eligible",
    "queued",
    "assigned",
    "computing",
    "signed",
    "settled",
    "final",
    "closed",
]


class StageView(Resource):
    """A stage of a request's life. Those that it has not reached have no time."""

    stage: StageName
    reached: bool
    at_ms: int | None = Field(description="Unix time in milliseconds; for what the chain says, the block's.")
    block_number: int | None = None
    transaction_hash: HashText | None = None
    note: str = Field(default="", examples=["LOWEST_COST", "NODES_BUSY"])


class EventView(Resource):
    """One thing that happened, as it was written down."""

    at_ms: int
    stage: str
    detail: dict[str, Any]


class DecisionView(Resource):
    """What a round made of a request."""

    request_id: HashText
    node: AddressText | None
    kind: Literal["assigned", "skipped", "too_late"]
    reason: str = Field(examples=["LOWEST_COST"])
    reward_wei: WeiText
    supersedes_round: int


class AssignmentView(Resource):
    """One attempt at serving a request."""

    attempt: int
    node: AddressText
    round: int
    state: str = Field(examples=["delivered"])
    reward_wei: WeiText
    assigned_at_ms: int
    lease_until_ms: int
    detail: str


class ResultView(Resource):
    """A node's signed result. Its bytes are at /v1/payloads/{result_hash} once its settlement is included."""

    result_hash: HashText
    result_bytes: int
    node: AddressText
    round: int
    received_at_ms: int


class CallbackView(Resource):
    """What became of the call of the requester's contract. One that failed changed nothing of the settlement: the
    answer is paid and final, its status on the chain is FULFILLED_CALLBACK_FAILED, and `retryCallback` calls again."""

    made: bool
    reason: HexText | None = Field(
        description="The first four bytes of what the contract reverted with; zeros when it said nothing, "
        "as one does that runs out of gas."
    )
    transaction_hash: HashText
    block_number: int


class SettlementView(Resource):
    """How a request ended, to the wei: what the three got adds up to the escrow."""

    outcome: Literal["fulfilled", "expired", "cancelled"]
    transaction_hash: HashText
    block_number: int
    batch_size: int | None = Field(description="Requests in the same transaction, when this relayer sent it.")
    node_wei: WeiText
    relayer_wei: WeiText
    refund_wei: WeiText
    callback: CallbackView | None = Field(description="Null when none was asked for.")


class RequestSummary(Resource):
    """A request in a list."""

    request_id: HashText = Field(examples=[EXAMPLE_HASH])
    state: RequestState | PostingName = Field(
        description="`submitted`: this relayer posts it for its requester, and no block has it yet. `unposted`: it "
        "could not; nothing was escrowed."
    )
    requester: AddressText
    model_id: HashText
    model_name: str = Field(
        description="Empty when the model is not registered (any more), or the chain does not tell."
    )
    prompt_hash: HashText = Field(description="Its requester reads the bytes at /v1/payloads/{prompt_hash}.")
    lane: LaneName
    escrow_wei: WeiText
    deadline_s: int
    block_number: int | None = Field(description="Null before a block has it.")
    transaction_hash: HashText | None = Field(description="Null before it is sent.")
    included_at_s: int | None


class RequestView(RequestSummary):
    """A request with everything that happened to it."""

    params: ParamsView
    request: PackedView
    priority_fee_added_wei: WeiText
    effective_deadline_s: int
    refund_from_s: int = Field(description="From then on the escrow can be had back if nobody answered.")
    cancel_announced_at_s: int | None = Field(
        description="When a cancel without a release took effect: answers of rounds recorded later are not paid. "
        "Null when there is none."
    )
    posting: PostingView | None = Field(description="Null when the requester sent the transaction itself.")
    released_until_s: int | None = Field(
        description="Until when a release that this relayer signed counts; null when it signed none."
    )
    stages: list[StageView]
    events: list[EventView]
    decision: DecisionView | None
    why_unassigned: str = Field(
        description="Why no node was given it when it was last looked at, in a sentence; empty when one was, nobody "
        "looked yet, or it is signed, settled or cancelled since.",
        examples=["Every node that could take it works at its limit; it waits for one to be free."],
    )
    assignments: list[AssignmentView]
    result: ResultView | None = Field(
        description="What was, or will be, settled; of a quorum, that of the first of the k nodes that agree."
    )
    results: list[ResultView] = Field(
        description="All that nodes signed, by round and node: of a quorum what each of them said, in every round that "
        "listed it."
    )
    settlement: SettlementView | None


class RequestList(Resource):
    """Newest first."""

    requests: list[RequestSummary]
    next_before_block: int | None = Field(description="Give it as before_block to read on; null at the end.")


class ResultRefView(Resource):
    """`ResultRef`: with the request id, the preimage of the digest that the market keeps."""

    result_hash: HashText
    relayer: AddressText
    round: int
    nodes: list[AddressText]
    settled_at_s: int


class ResultProofView(Resource):
    """What `verifyResult` takes, for any contract to check the answer."""

    request_id: HashText
    request: PackedView
    ref: ResultRefView


class ReleaseView(Resource):
    """The relayer's signed word that a request is not assigned: `cancelWithRelease` refunds at once on it."""

    request_id: HashText
    valid_until_s: int
    signature: HexText
    transaction: TransactionView


# Nodes


class OfferView(Resource):
    """A model that a node offers, at its price."""

    model_id: HashText
    model_name: str
    per_prompt_kib_wei: WeiText
    per_thousand_tokens_wei: WeiText


class HeartbeatView(Resource):
    """What a node says of itself, signed."""

    sequence: int
    sent_at_ms: int
    received_at_ms: int
    free_memory_mb: int
    in_flight: int
    max_in_flight: int
    load_milli: int
    models: list[HashText]
    warm_models: list[HashText]
    avg_latency_ms: int
    region: str
    signature: HexText


class NodeFactsView(Resource):
    """What the chain knows of a node."""

    owner: AddressText
    stake_wei: WeiText
    unbonding_wei: WeiText
    is_active: bool
    payee: AddressText
    joined_at_s: int
    settled_count: int
    misses: int
    faults: int


class NodeView(Resource):
    """A node. `facts` and `offers` are null when the chain does not tell in time."""

    key: AddressText = Field(examples=[EXAMPLE_NODE])
    linked: bool
    heartbeat: HeartbeatView | None
    facts: NodeFactsView | None
    offers: list[OfferView] | None


class NodeList(Resource):
    """The nodes that are linked now, by key."""

    nodes: list[NodeView]
    linked_count: int


# Rounds


class RecordView(Resource):
    """`RoundRecord`, as it is on-chain."""

    round: int
    decisions_root: HashText
    snapshot_hash: HashText
    policy_hash: HashText
    anchor_block: int
    anchor_hash: HashText
    assigned: int
    skipped: int
    too_late: int


class CycleView(Resource):
    """A cycle of a round."""

    cycle: int
    snapshot_hash: HashText
    anchor_block: int
    anchor_hash: HashText
    planned_at_ms: int
    decisions: int


class RoundSummary(Resource):
    """A round in a list."""

    round: int
    state: Literal["open", "closed", "recorded"]
    opened_at_ms: int
    cycle_count: int
    record: RecordView | None
    recorded_block: int | None
    transaction_hash: HashText | None


class RoundView(RoundSummary):
    """A round with its cycles; their snapshots are at /v1/snapshots/{snapshot_hash}."""

    relayer: AddressText
    cycles: list[CycleView]


class RoundList(Resource):
    """Newest first."""

    rounds: list[RoundSummary]
    next_before: int | None


class LeafView(DecisionView):
    """A leaf under a round's root. `proof` is given when one request is asked for."""

    index: int
    proof: list[HashText] | None


class DecisionList(Resource):
    """The leaves of a closed round in their order."""

    round: int
    count: int
    leaves: list[LeafView]
    next_offset: int | None


class AcceptView(Resource):
    """A node's word that it has the prompt and will answer by the deadline: its EIP-712 signature of
    `Accept(bytes32 requestId,address relayer,uint64 round,uint40 deadline)` under the market's domain."""

    request_id: HashText
    node: AddressText
    deadline_s: int
    signature: HexText


class AcceptList(Resource):
    """The accepts of a round, by request."""

    round: int
    accepts: list[AcceptView]
    next_offset: int | None


# Health


class Health(Resource):
    """The process answers."""

    status: Literal["ok"]


class Readiness(Resource):
    """Whether requests are served; if not, why."""

    ready: bool
    reasons: list[str] = Field(examples=[["The chain does not answer."]])
