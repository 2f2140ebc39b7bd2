"""The values that everything shares. Frozen: a change needs a note in docs/decisions/ and new golden vectors.

Addresses, hashes and ids are lower-case `0x` hex text, so that they can be keys, JSON and database columns alike.
Amounts are integers in wei. Times that come from the chain are whole seconds (`_s`), all others milliseconds (`_ms`).
Source: `contracts/Types.sol`, which these mirror.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

Address: TypeAlias = str
"""20 bytes as 42 characters."""
Hash32: TypeAlias = str
"""32 bytes as 66 characters: request ids, model ids, hashes, roots."""

ZERO_ADDRESS: Address = "0x" + "00" * 20
ZERO_HASH: Hash32 = "0x" + "00" * 32


class Status(IntEnum):
    """What has become of a request on-chain (`Status` in Types.sol)."""

    NONE = 0
    PENDING = 1
    PROPOSED = 2
    CHALLENGED = 3
    FULFILLED = 4
    FULFILLED_CALLBACK_FAILED = 5
    EXPIRED = 6
    CANCELLED = 7


class ItemStatus(IntEnum):
    """What has become of one item of a batch (`ItemStatus` in Types.sol)."""

    OK = 0
    UNKNOWN = 1
    ALREADY_DONE = 2
    LATE = 3
    WRONG_RELAYER = 4
    REWARD_TOO_HIGH = 5
    BAD_RESULT = 6
    BAD_SIGNATURE = 7
    NODE_NOT_JOINED = 8
    NO_ROUND = 9
    PROBATION = 10
    VERIFICATION_FAILED = 11


class Mode(IntEnum):
    """How a result earns its pay (`Mode` in Types.sol)."""

    SIGNATURE = 0
    QUORUM = 1
    OPTIMISTIC = 2
    VERIFIER = 3


class Lane(IntEnum):
    """Which queue a request waits in."""

    REALTIME = 0
    BULK = 1


class DecisionKind(IntEnum):
    """What a cycle made of a request."""

    ASSIGNED = 0
    SKIPPED = 1
    TOO_LATE = 2


class Reason(IntEnum):
    """Why. Numbers are in leaves, so they are only ever added to: 1-9 assigned, 10-39 skipped, 40-49 too late."""

    NONE = 0
    LOWEST_COST = 1
    QUORUM_KEPT = 2
    EXPLORATION = 3
    NO_NODE_FOR_MODEL = 10
    NODE_MEMORY = 11
    NODES_BUSY = 12
    NODES_TAKEN = 13
    PRICE_ABOVE_MAX = 14
    GAS_BUDGET_SHORT = 15
    PROBATION = 16
    NODES_EXCLUDED = 17
    ATTEMPTS_EXHAUSTED = 18
    LANE_FULL = 19
    PROMPT_MISSING = 20
    NODES_SILENT = 21
    RELEASED = 22
    ANSWER_TOO_LONG = 23
    NO_PROOF = 24
    OWNERS_TOO_FEW = 25
    NOT_DETERMINISTIC = 26
    ROUND_OF_QUORUM = 27
    NODES_TOO_SLOW = 28
    STAKE_SHORT = 29
    DEADLINE_PASSED = 40
    DEADLINE_INFEASIBLE = 41


@dataclass(frozen=True, slots=True)
class Request:
    """A request with all its terms. `core.requests` packs it as the chain does and gives its id."""

    requester: Address
    relayer: Address
    model_id: Hash32
    prompt_hash: Hash32
    salt: int
    deadline_s: int
    prompt_bytes: int
    max_output_tokens: int
    callback_gas: int
    lane: Lane
    batchable: bool
    inline_result: bool
    mode: Mode
    k: int
    n: int
    verifier: Address
    max_reward_wei: int
    gas_budget_wei: int
    priority_fee_wei: int

    @property
    def escrow_wei(self) -> int:
        """The most that it may cost, as posted (raises of the priority fee come on top)."""
        return self.max_reward_wei + self.gas_budget_wei + self.priority_fee_wei


@dataclass(frozen=True, slots=True)
class Decision:
    """What a round made of a request: a leaf under the round's root. `node` is zero unless assigned."""

    request_id: Hash32
    node: Address
    kind: DecisionKind
    reason: Reason
    reward_wei: int
    supersedes_round: int


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What closes a round on-chain. `assigned + skipped + too_late` is the number of leaves."""

    round: int
    decisions_root: Hash32
    snapshot_hash: Hash32
    policy_hash: Hash32
    anchor_block: int
    anchor_hash: Hash32
    assigned: int
    skipped: int
    too_late: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A relayer's word that a node shall serve a request in a round for a reward."""

    request_id: Hash32
    relayer: Address
    node: Address
    round: int
    reward_wei: int
    deadline_s: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a node signs when it delivers."""

    request_id: Hash32
    result_hash: Hash32
    reward_wei: int
    relayer: Address
    round: int


@dataclass(frozen=True, slots=True)
class ResultRef:
    """With the request id, the preimage of the digest that the market keeps of a fulfilled request."""

    result_hash: Hash32
    relayer: Address
    round: int
    nodes: tuple[Address, ...]
    settled_at_s: int


@dataclass(frozen=True, slots=True)
class Pending:
    """What the market keeps of a request that is open."""

    priority_fee_added_wei: int
    effective_deadline_s: int


@dataclass(frozen=True, slots=True)
class Price:
    """What a node asks for a model: wei per started KiB of prompt, and per started thousand output tokens."""

    per_prompt_kib_wei: int
    per_thousand_tokens_wei: int


@dataclass(frozen=True, slots=True)
class GasQuote:
    """Wei a gas: the next block's base fee, and the tip bid on top of it; on rollups also wei for a byte of calldata,
    which is paid besides."""

    base_fee_wei: int
    tip_wei: int
    data_byte_wei: int = 0

    @property
    def price_wei(self) -> int:
        """What a transaction pays for each unit of gas."""
        return self.base_fee_wei + self.tip_wei


@dataclass(frozen=True, slots=True)
class MarketTerms:
    """The market's immutable numbers, read once from the chain."""

    grace_s: int
    min_ttl_s: int
    max_ttl_s: int
    max_inline_prompt_bytes: int
    max_callback_gas: int
    verifier_gas: int  # the most that a verifier's call gets
    tip_cap_wei: int
    fixed_gas: int
    item_gas: int
    node_gas: int  # of each further node of a quorum's set, shared by its items
    assigned_gas: int  # of a whole `submitAssigned`
    gas_per_result_byte: int
    relayer_fee_share_bps: int
    relayer_saving_share_bps: int
    probation_max_reward_wei: int
    probation_settled_count: int
    probation_duration_s: int
