"""What a cycle decides on and what comes of it: the snapshot's content, field by field. Frozen with its schema."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headrace.core.errors import InvalidInput
from headrace.core.fairness import Account
from headrace.core.types import (
    ZERO_ADDRESS,
    Address,
    Decision,
    DecisionKind,
    GasQuote,
    Hash32,
    Lane,
    MarketTerms,
    Price,
    Reason,
)

REFERENCE, BALANCED = "reference", "balanced"
STRICT, SHARED = "strict", "shared"
POLICIES = frozenset({(REFERENCE, STRICT), (BALANCED, SHARED)})


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that a relayer publishes and is held to. Its hash is in each round's record.

    `reference` with lanes `strict` reads `realtime_streak`; `balanced` with lanes `shared` all that stands below it.
    """

    name: str = REFERENCE
    lanes: str = STRICT
    realtime_capacity: int = 200
    bulk_capacity: int = 1_000
    realtime_streak: int = 20
    realtime_fee_floor_wei: int = 0
    max_assignments: int = 3
    expected_batch_size: int = 8
    heartbeat_timeout_ms: int = 15_000
    realtime_max_wait_ms: int = 10_000
    bulk_max_wait_ms: int = 120_000
    fee_weight_milli: int = 600
    wait_weight_milli: int = 300
    deadline_weight_milli: int = 100
    least_delay_wei_per_s: int = 10**12
    miss_delay_ms: int = 30_000
    exploration_milli: int = 50

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = int(field.name in ("expected_batch_size", "realtime_max_wait_ms", "bulk_max_wait_ms"))
            if isinstance(value, int) and value < least:
                raise InvalidInput(f"{field.name} of a policy is {value}: it must be at least {least}")

    def max_wait_ms(self, lane: Lane) -> int:
        """How long a request of a lane waits before it goes first."""
        return self.realtime_max_wait_ms if lane is Lane.REALTIME else self.bulk_max_wait_ms


@dataclass(frozen=True, slots=True)
class Anchor:
    """The block that a cycle's chain facts were read at."""

    block: int
    hash: Hash32
    timestamp_s: int


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that is eligible, with what its scheduling depends on."""

    request_id: Hash32
    model_id: Hash32
    model_name: str
    lane: Lane
    priority_fee_wei: int  # raises included
    included_at_s: int
    deadline_s: int  # effective
    prompt_bytes: int
    max_output_tokens: int
    required_memory_mb: int
    batchable: bool
    max_reward_wei: int
    gas_budget_wei: int
    prompt_available: bool
    assignments: int  # attempts; of a quorum, how often it was listed
    excluded_nodes: tuple[Address, ...]
    supersedes_round: int
    k: int  # of a quorum; 0 = one node serves it
    n: int
    kept_nodes: tuple[Address, ...]  # of a quorum that is listed again: whom it goes on with
    tried_owners: tuple[Address, ...]  # of all nodes that a quorum was listed with
    deterministic: bool  # whether prompt and model fix the answer; looked at for quorums only
    released_until_s: int  # 0, or until when the requester may cancel on the relayer's word that it is not assigned
    callback_gas: int = 0
    answer_bytes: int = 0  # most of an answer that must go on-chain; 0 = none must
    verifier: Address = ZERO_ADDRESS
    verifier_gas: int = 0  # what the verifier is counted with
    requester: Address = ZERO_ADDRESS
    work: int = 1  # what it is expected to take, see core.work
    complexity_milli: int = 1_000  # of its model: 7B class = 1,000
    last_reason: Reason = Reason.NONE  # of the relayer's last decision on it; NONE before the first


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that a node offers, at its price."""

    model_id: Hash32
    model_name: str
    price: Price
    is_warm: bool = True  # by its heartbeat
    us_per_token: int = 0  # median from assignment to answer, by the tokens that were asked; 0 = few were seen


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that is linked and bonded. Load and memory are its own signed word, the rest is chain and history."""

    node: Address
    owner: Address
    offers: tuple[Offer, ...]
    free_memory_mb: int
    in_flight: int
    max_in_flight: int
    avg_latency_ms: int
    settled_count: int
    joined_at_s: int
    heartbeat_at_ms: int
    heartbeat: str  # canonical JSON of the heartbeat's content
    heartbeat_signature: str
    verifiers: tuple[Address, ...] = ()  # contracts to which it can prove its answers
    stake_wei: int = 2**96 - 1
    exposure_wei: int = 0  # rewards of what it was assigned and has not answered
    answered: int = 0  # of its last assignments by this relayer
    missed: int = 0


@dataclass(frozen=True, slots=True)
class CycleInputs:
    """Everything that a cycle decides on: its snapshot. Requests and nodes are in ascending order of their ids."""

    chain_id: int
    market: Address
    relayer: Address
    round: int
    cycle: int
    now_ms: int
    anchor: Anchor
    gas: GasQuote
    terms: MarketTerms
    policy: Policy
    lane_streak: int
    requests: tuple[WaitingRequest, ...]
    nodes: tuple[NodeView, ...]
    lane_lag: int = 0
    floor_work: int = 0
    accounts: tuple[Account, ...] = ()
    median_fee_wei: int = 0  # of the priority fees of requests that were fulfilled lately


@dataclass(frozen=True, slots=True)
class Carried:
    """What a cycle leaves to the next: the streak of lanes `strict`; of lanes `shared` the lag, and the accounts of
    served work above their floor."""

    lane_streak: int = 0
    lane_lag: int = 0
    floor_work: int = 0
    accounts: tuple[Account, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedDecision:
    """A decision with what led to it. `score_e9` is the score × 10⁹; costs are 0 unless assigned."""

    decision: Decision
    score_e9: int
    cost_wei: int
    runner_up: Address
    runner_up_cost_wei: int


@dataclass(frozen=True, slots=True)
class CyclePlan:
    """What a cycle decided, in the order in which it did, and what the next one starts with, as in `Carried`."""

    decisions: tuple[PlannedDecision, ...]
    lane_streak: int
    lane_lag: int = 0
    floor_work: int = 0
    accounts: tuple[Account, ...] = ()

    @property
    def carried(self) -> Carried:
        """What the next cycle starts with."""
        return Carried(self.lane_streak, self.lane_lag, self.floor_work, self.accounts)

    def of_kind(self, kind: DecisionKind) -> list[PlannedDecision]:
        """The decisions of one kind."""
        return [planned for planned in self.decisions if planned.decision.kind == kind]
