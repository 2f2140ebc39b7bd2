"""What the services need of the world, as Protocols. Frozen: a change needs a note in docs/decisions/.

Every call that may wait has a deadline of its own in its adapter and raises `Unavailable` when that passes. An answer
that is missing is unknown, never failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.core.cycle import Anchor, Carried, CyclePlan, Offer, Policy
from headrace.core.events import BlockRef, ChainEvent
from headrace.core.faults import Fault, FaultTerms, FoundFault, SignedAccept, SignedAssignment
from headrace.core.lease import Lease
from headrace.core.lifecycle import Cause, RequestState
from headrace.core.postings import PostingState
from headrace.core.spending import Signed
from headrace.core.submissions import Submission
from headrace.core.tasks import Accept, Delivery, LinkedNode, Refusal, Task
from headrace.core.typed_data import Domain
from headrace.core.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Assignment,
    Decision,
    GasQuote,
    Hash32,
    MarketTerms,
    Pending,
    Price,
    Request,
    Result,
    ResultRef,
    RoundRecord,
    Status,
)

# Time, keys, measures


class Clock(Protocol):
    """Wall-clock time. Waiting goes through asyncio, so that tests can run it in virtual time."""

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        ...


class Signer(Protocol):
    """A secp256k1 key that can be used but not read, here or at another machine. It signs the types of this program
    and transactions, and nothing else. Calls may overlap."""

    @property
    def address(self) -> Address:
        """Its address, lower case."""
        ...

    async def sign_typed(self, domain: Domain, struct_hash: bytes) -> bytes:
        """65 bytes r ‖ s ‖ v (27 or 28) over typed data (EIP-712).

        Raises:
            SignerUnavailable: there is no signature now; nothing was signed that anyone has.
        """
        ...

    async def sign_transaction(self, transaction: Mapping[str, Any]) -> tuple[bytes, Hash32]:
        """Raw bytes and hash of a signed EIP-1559 transaction.

        Raises:
            InvalidInput: it is none that can be signed.
            SignerUnavailable: there is no signature now; nothing was signed that anyone has.
        """
        ...


class Metrics(Protocol):
    """Counts and observations. Names and labels are those of docs/operations.md; labels are few and bounded."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        ...

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        ...


# Chain


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the chain knows of a node, at one block."""

    key: Address
    owner: Address
    stake_wei: int
    unbonding_wei: int
    is_active: bool  # enough of the stake stays, and the key was not rotated away
    payee: Address  # zero = has not joined the market
    joined_at_s: int
    settled_count: int  # of the payee
    misses: int
    faults: int
    retired_at_s: int = 0  # when another key took over from this one; 0 = it did not


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A registered model."""

    model_id: Hash32
    name: str
    revision: str
    weights_hash: Hash32
    quantisation: str
    memory_mb: int
    memory_per_token_bytes: int
    complexity_milli: int
    unit: str


@dataclass(frozen=True, slots=True)
class Attestation:
    """For which model a registrar vouches for a key, and until when; 0 = it does not."""

    key: Address
    model_id: Hash32
    valid_until_s: int


@dataclass(frozen=True, slots=True)
class Call:
    """A transaction that is not signed yet."""

    to: Address
    data: bytes
    value_wei: int = 0


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What a simulated call did."""

    succeeded: bool
    gas_used: int
    events: tuple[ChainEvent, ...]
    error: str  # the decoded custom error with its values, or the node's message; empty when it succeeded


@dataclass(frozen=True, slots=True)
class Receipt:
    """A transaction in a block."""

    transaction_hash: Hash32
    block_number: int
    block_hash: Hash32
    succeeded: bool
    gas_used: int
    effective_gas_price_wei: int
    events: tuple[ChainEvent, ...]


@dataclass(frozen=True, slots=True)
class ResultSetCall:
    """One set of a `submitResults` transaction: of one node, or of the k of a quorum.

    `signatures` holds one of each node over the set; or those over each item, all nodes' of the first item first.
    """

    round: int
    nodes: tuple[Address, ...]  # ascending
    signatures: tuple[bytes, ...]
    items: tuple[tuple[Request, Result], ...]
    payloads: tuple[bytes, ...]  # empty, or one per item: bytes delivered inline, b"" = by hash
    proofs: tuple[bytes, ...] = ()  # empty, or one per item: for the requests' verifiers


class Chain(Protocol):
    """A chain with Headrace's contracts on it. Raises ChainUnavailable when it does not answer."""

    @property
    def chain_id(self) -> int:
        """EIP-155 id."""
        ...

    @property
    def market(self) -> Address:
        """InferenceMarket's address."""
        ...

    @property
    def schedule_log(self) -> Address:
        """ScheduleLog's address."""
        ...

    @property
    def stake_manager(self) -> Address:
        """StakeManager's address."""
        ...

    @property
    def attested_key_verifier(self) -> Address:
        """AttestedKeyVerifier's address."""
        ...

    # Reading
    async def head(self) -> BlockRef:
        """The newest block."""
        ...

    async def block(self, number: int) -> BlockRef | None:
        """The block at a height of the canonical chain."""
        ...

    async def blocks(self, from_block: int, to_block: int) -> list[BlockRef]:
        """The blocks of a closed range, in order; fewer when the chain ends before it."""
        ...

    async def events(self, from_block: int, to_block: int) -> list[ChainEvent]:
        """Decoded logs of Headrace's contracts in a closed range, in order."""
        ...

    async def gas_quote(self) -> GasQuote:
        """What the next block asks for gas."""
        ...

    async def balance_wei(self, account: Address) -> int:
        """Wei of an account itself."""
        ...

    async def has_code(self, account: Address) -> bool:
        """Whether a call of the account runs anything: a contract, or code that the account lends itself (EIP-7702)."""
        ...

    async def require_code(self, contract: Address) -> None:
        """Check that a contract of the deployment has its code now, as this endpoint tells.

        Raises:
            ExpiredContext: it has another, or none: the endpoint is of another chain than at the start.
        """
        ...

    async def credit_wei(self, account: Address) -> int:
        """Credit in the market."""
        ...

    async def market_terms(self) -> MarketTerms:
        """The market's immutable numbers."""
        ...

    async def statuses(self, request_ids: Sequence[Hash32]) -> list[Status]:
        """Status of each, in order."""
        ...

    async def pending(self, request_ids: Sequence[Hash32]) -> list[Pending | None]:
        """What the market keeps of each that is pending, in order; None for the others."""
        ...

    async def verify_result(self, request_id: Hash32, ref: ResultRef, payload: bytes) -> bool:
        """Whether the market settled the request with this result and, unless `payload` is empty, with these bytes."""
        ...

    async def is_verified(self, request: Request, node: Address, result_hash: Hash32, proof: bytes) -> bool:
        """Whether the request's verifier takes a proof of a node's result, asked as the market would ask it now."""
        ...

    async def attestation_of(self, verifier: Address, key: Address) -> Attestation:
        """What an attested-key verifier says of a key.

        Raises:
            InvalidInput: there is no such verifier at the address.
        """
        ...

    async def node_facts(self, key: Address) -> NodeFacts:
        """What the chain knows of a node; owner zero when it is not registered."""
        ...

    async def offers(self, key: Address, model_ids: Sequence[Hash32]) -> list[Offer]:
        """The models of these that the node offers on-chain, at the prices of the last block."""
        ...

    async def is_bonded(self, relayer: Address) -> bool:
        """Whether a relayer may record rounds."""
        ...

    async def models(self) -> list[ModelFacts]:
        """All registered models."""
        ...

    async def recorded_at_s(self, relayer: Address, round_: int) -> int:
        """Block time of a record, 0 = none."""
        ...

    async def next_round(self, relayer: Address) -> int:
        """The first round that is not recorded."""
        ...

    # Calls
    def record_round_call(self, relayer: Address, record: RoundRecord, signature: bytes = b"") -> Call:
        """`recordRound`, sent by the relayer itself or, with its signature, by anyone."""
        ...

    def submit_results_call(self, relayer: Address, sets: Sequence[ResultSetCall]) -> Call:
        """`submitResults`."""
        ...

    def submit_results_for_call(
        self, relayer: Address, sets: Sequence[ResultSetCall], valid_until_s: int, signature: bytes
    ) -> Call:
        """`submitResultsFor`, sent by whom the relayer's signature names."""
        ...

    def submit_assigned_call(self, assignment: Assignment, signature: bytes, result_set: ResultSetCall) -> Call:
        """`submitAssigned`, with the relayer's signature of the assignment and a set of its one result."""
        ...

    def expire_call(self, requests: Sequence[Request]) -> Call:
        """`expire`."""
        ...

    # Sending
    async def simulate(self, sender: Address, calls: Sequence[Call]) -> list[CallOutcome]:
        """Run calls one after the other on top of the last block (eth_simulateV1)."""
        ...

    async def transaction_count(self, account: Address) -> int:
        """At the last block; never `pending`."""
        ...

    async def send_raw(self, raw: bytes) -> None:
        """Hand a signed transaction to the chain. One that is already known or mined is no error.

        Raises:
            Unknown: the answer was lost; it may have been taken.
            Refused: the node said no for certain; the message is its own.
        """
        ...

    async def receipt(self, transaction_hash: Hash32) -> Receipt | None:
        """The receipt, or None: not included as far as is known."""
        ...


# Stake, bonds and ownership


@dataclass(frozen=True, slots=True)
class StakeTerms:
    """The stake manager's immutable numbers."""

    min_stake_wei: int
    min_bond_wei: int
    unbond_delay_s: int
    price_notice_s: int


@dataclass(frozen=True, slots=True)
class Membership:
    """A key's place in a market."""

    market: Address
    payee: Address
    joined_at_s: int
    leaves_at_s: int  # 0 = it stays


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A key that a node signs with, or did."""

    address: Address
    retired_at_s: int  # 0 = it signs now
    memberships: tuple[Membership, ...]  # those that still count


@dataclass(frozen=True, slots=True)
class NodeStake:
    """A node as its owner sees it."""

    keys: tuple[NodeKey, ...]  # all that it ever had, oldest first; the last signs now
    owner: Address
    stake_wei: int
    unbonding_wei: int  # part of the stake
    withdrawable_at_s: int  # when what is unbonding may be withdrawn
    is_active: bool
    misses: int
    faults: int

    @property
    def signing_key(self) -> Address:
        """The key that signs now."""
        return self.keys[-1].address


@dataclass(frozen=True, slots=True)
class PostedPrice:
    """What a node asks for a model, and will once the notice of a raise is over."""

    offer: Offer
    raised: Price | None  # announced, and not in effect yet
    raised_at_s: int  # from when it holds; 0 = no raise is announced


@dataclass(frozen=True, slots=True)
class Bond:
    """What stands behind a relayer."""

    relayer: Address
    bond_wei: int
    registered_at_s: int  # 0 = it is not registered
    withdrawable_at_s: int  # 0 = it is not unbonding
    is_bonded: bool
    faults: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whose a contract is, and whose it is about to be."""

    contract: str
    address: Address
    owner: Address  # zero = nobody's, for ever
    pending_owner: Address  # zero = it is handed to nobody
    acceptable_at_s: int  # from when the pending owner may accept


class Holdings(Protocol):
    """What owners of nodes, relayers and contracts look at and change. Raises ChainUnavailable when the chain does not
    answer."""

    async def stake_terms(self) -> StakeTerms:
        """The stake manager's immutable numbers."""
        ...

    async def node_stake(self, key: Address) -> NodeStake:
        """The node that a key is, or was, a key of.

        Raises:
            NotFound: it is of none.
        """
        ...

    async def posted_prices(self, key: Address) -> list[PostedPrice]:
        """What a node asks for each model that it offers."""
        ...

    async def bond(self, relayer: Address) -> Bond:
        """What stands behind a relayer."""
        ...

    async def ownership(self, contract: str) -> Ownership:
        """Whose a contract of the deployment is."""
        ...

    async def paused_until_s(self) -> int:
        """Until when the market takes no new requests; 0 = it takes them."""
        ...

    def call(self, contract: str, function: str, *values: object, value_wei: int = 0) -> Call:
        """A call of a function that changes something, by the ABI's names. Bytes are bytes.

        Raises:
            InvalidInput: a value is not of the function's type.
        """
        ...


# Store


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request as the relayer knows it."""

    request_id: Hash32
    request: Request
    state: RequestState
    block_number: int
    block_hash: Hash32
    transaction_hash: Hash32
    included_at_s: int
    priority_fee_added_wei: int
    effective_deadline_s: int
    released_until_s: int  # 0, or until when a release that the relayer signed counts
    closed: Mapping[str, Any] | None  # args of the event that closed it, with transaction_hash and block_number


@dataclass(frozen=True, slots=True)
class StoredAssignment:
    """One attempt at serving a request; of a quorum, one node's part in a listing."""

    request_id: Hash32
    attempt: int  # 1, 2, 3
    assignment: Assignment
    state: (
        str  # open, accepted, refused, put_off, failed, lease_expired, delivered; superseded: a quorum's, listed again
    )
    assigned_at_ms: int
    lease_until_ms: int  # of one that was put off: from when its node may be asked again
    signature: bytes
    accept_signature: bytes
    detail: str


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A verified result that waits to be settled, or was; of a quorum, one node's vote."""

    node: Address
    result: Result
    signature: bytes
    payload_hash: Hash32
    payload_bytes: int
    received_at_ms: int
    proof: bytes = b""  # for the request's verifier


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One thing that happened to a request."""

    at_ms: int
    stage: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredCycle:
    """A cycle of a round: its snapshot's hash and what it decided."""

    round: int
    cycle: int
    snapshot_hash: Hash32
    anchor: Anchor
    planned_at_ms: int
    plan: CyclePlan


@dataclass(frozen=True, slots=True)
class Running:
    """Assignments of a node that are open or accepted: how many, and what they may earn together."""

    count: int
    rewards_wei: int


@dataclass(frozen=True, slots=True)
class StoredRound:
    """A round. `record` is set once it is closed, the rest once the record is in a block."""

    round: int
    state: str  # open, closed, recorded
    opened_at_ms: int
    cycles: int
    record: RoundRecord | None
    policy_hash: Hash32
    recorded_block: int
    transaction_hash: Hash32


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """A signed transaction of an intent, stored before it is sent."""

    transaction_hash: Hash32
    raw: bytes
    max_fee_wei: int
    tip_wei: int
    created_at_ms: int
    is_noop: bool = False  # does nothing but take the intent's nonce


@dataclass(frozen=True, slots=True)
class StoredIntent:
    """What a transaction is for. It owns one nonce for ever."""

    intent_id: int
    kind: str  # record_round, submit_results, expire, request_for, fill_nonce
    key: str  # idempotency key: two open intents never share it
    detail: Mapping[str, Any]  # round; request_ids
    call: Call
    gas_limit: int
    nonce: int
    state: str  # open, included, reverted, cancelled (its nonce went to a no-op), dropped (to nobody, or a stranger)
    attempts: tuple[StoredAttempt, ...]
    block_number: int
    created_at_ms: int
    sender: Address = ZERO_ADDRESS  # whose nonce it is
    until_s: int = 0  # block time after which it is of no use; 0 = always of use
    worth_wei: int = 0  # what may be spent on it; 0 = whatever the market asks


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A result that the relayer does not try to settle any more. Its request ends by `expire`, or by a replay."""

    request_id: Hash32
    reason: str  # a clause
    error: str  # the chain's own: an item status, or what the call reverted with
    call: Call | None  # that was simulated, with nothing else in it
    block_number: int  # after which it was
    at_ms: int


@dataclass(frozen=True, slots=True)
class StoredPosting:
    """A request that its requester signed, at the relayer that is to post it."""

    request_id: Hash32
    request: Request
    relayer_fee_wei: int
    valid_until_s: int
    data: bytes  # call data of the market's `requestInferenceFor`
    submitted_at_ms: int
    state: PostingState = PostingState.SUBMITTED
    reason: str = ""  # why it is not posted, a sentence
    ended_at_ms: int = 0  # when it was posted or given up
    intent_state: str = ""  # of the transaction that posts it; empty while there is none
    intent_block: int = 0  # that ended it
    transaction_hash: Hash32 = ""  # of its last attempt

    @property
    def cost_wei(self) -> int:
        """What posting it takes from the requester's credit: escrow and fee."""
        return self.request.escrow_wei + self.relayer_fee_wei


class Store(Protocol):
    """What a relayer knows, durably. Each call is one transaction. Amounts and ids survive exactly.

    Moves of a request go through `core.lifecycle.next_state` and are written to its timeline in the same transaction.
    """

    # Blocks and events (the indexer)
    async def last_block(self) -> BlockRef | None:
        """The newest stored block: the cursor."""
        ...

    async def block(self, number: int) -> BlockRef | None:
        """The stored block at a height."""
        ...

    async def event_places(self, from_block: int, to_block: int) -> set[tuple[Hash32, int]]:
        """Block hash and log index of each event of a closed range."""
        ...

    async def add_blocks(self, blocks: Sequence[BlockRef], events: Sequence[ChainEvent], relayer: Address) -> None:
        """Append blocks (each the child of the one before, the first of `last_block`) with their events, and apply the
        events to requests and rounds. Requests that name another relayer are kept, but never become eligible.

        Raises:
            InvalidInput: the blocks do not follow on `last_block`.
        """
        ...

    async def rewind_to(self, number: int) -> list[Hash32]:
        """Forget all blocks above `number` and undo what their events did. Returns the requests that were touched."""
        ...

    async def confirm_up_to(self, number: int, at_ms: int) -> int:
        """Make included requests in blocks up to `number` eligible (or signed, when a result is there already).
        Returns how many."""
        ...

    # Requests
    async def request(self, request_id: Hash32) -> StoredRequest | None:
        """One request."""
        ...

    async def requests_of(self, request_ids: Sequence[Hash32]) -> dict[Hash32, StoredRequest]:
        """Those of these requests that are in the store."""
        ...

    async def requests(
        self,
        *,
        states: Sequence[RequestState] | None = None,
        requester: Address | None = None,
        limit: int = 1000,
        before_block: int | None = None,
    ) -> list[StoredRequest]:
        """Newest first; `before_block` pages on."""
        ...

    async def relayer(self) -> Address | None:
        """Whose assignments it has; None when it has none."""
        ...

    async def eligible(self, limit: int) -> list[StoredRequest]:
        """Oldest first."""
        ...

    async def waiting_at_head(self, limit: int, confirmations: int) -> tuple[BlockRef, list[StoredRequest]] | None:
        """The last block and what is eligible at it, oldest first, of one moment. None as long as there is no block, or
        requests that it confirms are still to be made eligible: a cycle that leaves them out would leave them out for
        all to see."""
        ...

    async def expirable(self, before_s: int, limit: int) -> list[StoredRequest]:
        """Requests of this relayer, or of anyone, that are on the chain, not closed, and whose effective deadline is
        before `before_s`."""
        ...

    async def move(self, request_id: Hash32, cause: Cause, at_ms: int, detail: Mapping[str, Any]) -> RequestState:
        """Move a request by a cause.

        Raises:
            IllegalTransition: it is in a state that this cause does not move.
            NotFound: there is no such request.
        """
        ...

    async def release(self, request_id: Hash32, until_s: int, at_ms: int) -> bool:
        """Write down that a release is about to be signed. False, and nothing is written, when the request is not
        waiting or has an assignment that runs.

        Raises:
            NotFound: there is no such request.
        """
        ...

    async def note(self, request_id: Hash32, at_ms: int, stage: str, detail: Mapping[str, Any]) -> None:
        """Add to a request's timeline without moving it."""
        ...

    async def timeline(self, request_id: Hash32) -> list[TimelineEntry]:
        """All that happened to a request, oldest first."""
        ...

    # Rounds, cycles, assignments (the scheduler)
    async def open_round(self, at_ms: int, first: int) -> StoredRound:
        """The round that takes decisions now; the next one (or `first`) is opened when the last was closed."""
        ...

    async def add_cycle(
        self,
        cycle: StoredCycle,
        snapshot: bytes,
        assignments: Sequence[StoredAssignment],
        policy_hash: Hash32,
    ) -> None:
        """Store a cycle of the open round with its assignments, and move the assigned requests. What still runs of an
        earlier listing of a quorum is superseded."""
        ...

    async def restart_round(self, round_: int) -> None:
        """Forget the cycles of the open round, none of which assigned anything. Their snapshots stay.

        Raises:
            IllegalTransition: it is not open, or something was assigned in it.
        """
        ...

    async def close_round(self, round_: int, record: RoundRecord, leaves: Sequence[Decision]) -> None:
        """Store an open round's record and leaves; it takes no more cycles."""
        ...

    async def round(self, round_: int) -> StoredRound | None:
        """One round."""
        ...

    async def rounds(self, *, limit: int = 100, before: int | None = None) -> list[StoredRound]:
        """Newest first; `before` pages on."""
        ...

    async def unrecorded_rounds(self) -> list[StoredRound]:
        """Those that are open, or closed and not recorded as far as is known; oldest first."""
        ...

    async def cycles(self, round_: int) -> list[StoredCycle]:
        """Cycles of a round, in order."""
        ...

    async def leaves(self, round_: int) -> list[Decision]:
        """Leaves of a closed round, in order."""
        ...

    async def snapshot(self, snapshot_hash: Hash32) -> bytes | None:
        """The bytes of a snapshot."""
        ...

    async def fulfilled_fees(self, limit: int) -> list[int]:
        """Priority fees in wei, raises included, of the requests that were fulfilled last, by the time of their
        inclusion."""
        ...

    async def last_decisions(self, request_ids: Sequence[Hash32]) -> dict[Hash32, Decision]:
        """The newest decision on each of these."""
        ...

    async def adopted_policy(self, configured_hash: Hash32) -> Policy | None:
        """What was adopted last, if it was over a policy of this hash."""
        ...

    async def adopt_policy(self, configured_hash: Hash32, policy: Policy, at_ms: int) -> None:
        """Keep a policy that counts in place of the settings', whose hash is given."""
        ...

    async def carried(self) -> Carried:
        """What the last cycle left to the next."""
        ...

    async def assignments(self, request_id: Hash32) -> list[StoredAssignment]:
        """Oldest first."""
        ...

    async def assignments_of(self, request_ids: Sequence[Hash32]) -> dict[Hash32, list[StoredAssignment]]:
        """Those of each of these requests that has any, oldest first."""
        ...

    async def open_assignments(self) -> list[StoredAssignment]:
        """Those in state `open` or `accepted`."""
        ...

    async def unsent_assignments(self) -> list[StoredAssignment]:
        """Those in state `open`: no node has answered them."""
        ...

    async def lapsed_assignments(self, now_ms: int) -> list[StoredAssignment]:
        """Open or accepted ones whose lease is over."""
        ...

    async def assignments_due(self, before_s: int) -> list[StoredAssignment]:
        """Open or accepted ones whose deadline is not later than that."""
        ...

    async def running_by_node(self) -> dict[Address, Running]:
        """What each node has in hand: its assignments that are open or accepted."""
        ...

    async def end_assignment(
        self,
        request_id: Hash32,
        attempt: int,
        cause: Cause,
        at_ms: int,
        detail: str,
        accept_signature: bytes = b"",
        again_at_ms: int = 0,
    ) -> None:
        """Record an accept, refusal, failure or lapse of an assignment and move its request, in one transaction. The
        first of a quorum's nodes moves it, the others are noted. A refusal of a single request with `again_at_ms` puts
        it off: its node may be asked again from then on."""
        ...

    # Payloads and results (the aggregator)
    async def put_prompt(self, payload: bytes, holder: Address, at_ms: int) -> Hash32:
        """Keep a prompt under its hash, as handed in for an account: hashes are public, so a request that names one
        says nothing about who may have the bytes."""
        ...

    async def unused_prompt_bytes(self) -> int:
        """Bytes of payloads that no request, result or posting names."""
        ...

    async def prune_unused_prompts(self, before_ms: int, *, at_most: int = 100_000) -> int:
        """Forget such payloads that were stored before a time, the oldest first. Returns how many."""
        ...

    async def prune_ended_payloads(self, before_ms: int) -> int:
        """Forget the payloads of requests that all ended before a time, by the relayer's clock. What is needed to prove
        anything, hashes and signatures, stays. Returns how many."""
        ...

    async def payload(self, payload_hash: Hash32) -> bytes | None:
        """The bytes under a hash."""
        ...

    async def held_prompts(self, prompts: Collection[tuple[Hash32, Address]]) -> set[tuple[Hash32, Address]]:
        """Which of these prompts were handed in for their account, or are public."""
        ...

    async def add_result(self, result: StoredResult, payload: bytes, at_ms: int, detail: Mapping[str, Any]) -> bool:
        """Store a verified result and its payload, end its assignment and move its request. False when there is one
        already: the first stays. A quorum has one of each node and round; it is moved when all of its last listing
        agree, or the first time that they cannot any more."""
        ...

    async def result(self, request_id: Hash32) -> StoredResult | None:
        """The result of a request; of a quorum that of the first of its nodes, once all of them agree."""
        ...

    async def results(self, request_id: Hash32) -> list[StoredResult]:
        """All results of a request, by round and node: several when it is a quorum's."""
        ...

    async def ready_results(self, limit: int) -> list[tuple[StoredResult, ...]]:
        """Results of requests that are `signed` and no dead letters, oldest first: one each, or a quorum's k."""
        ...

    async def add_dead_letter(self, letter: StoredDeadLetter) -> None:
        """Take a request's results out of those that are ready, and say so in its timeline."""
        ...

    async def dead_letters(self, limit: int) -> list[StoredDeadLetter]:
        """Newest first."""
        ...

    async def replay_dead_letter(self, request_id: Hash32, at_ms: int) -> bool:
        """Have a request's results be ready again. False: it is no dead letter."""
        ...

    async def requests_of_payload(self, payload_hash: Hash32) -> list[StoredRequest]:
        """Requests whose prompt or result it is."""
        ...

    async def note_results(self, noted: Sequence[NotedResult]) -> None:
        """Keep results that nodes signed, as evidence: of a node and a request the first two that differ."""
        ...

    async def assignments_of_round(self, round_: int) -> list[StoredAssignment]:
        """All assignments that were made in a round, by request."""
        ...

    async def rounds_owed(self, from_s: int, to_s: int) -> set[int]:
        """Open rounds with an assignment that its node accepted and did not serve, whose deadline is in this time."""
        ...

    # Postings (the intake and the poster)
    async def add_posting(self, posting: StoredPosting, prompt: bytes | None) -> StoredPosting:
        """Store a posting and, when given, the bytes of its prompt for its requester. One that is known is returned
        as it is, unless it went unposted: then it is submitted anew."""
        ...

    async def posting(self, request_id: Hash32) -> StoredPosting | None:
        """One posting."""
        ...

    async def postings(
        self, state: PostingState, *, requester: Address | None = None, limit: int = 1000
    ) -> list[StoredPosting]:
        """Newest first."""
        ...

    async def reverted_postings(self, requester: Address, since_ms: int) -> int:
        """How many transactions that were sent since then, to post an account's requests, were spent in vain."""
        ...

    async def end_posting(self, request_id: Hash32, state: PostingState, reason: str, at_ms: int) -> None:
        """Write down that a posting is posted, or why it never will be.

        Raises:
            NotFound: there is no such posting.
        """
        ...

    # Intents (the settler)
    async def add_intent(
        self,
        kind: str,
        key: str,
        detail: Mapping[str, Any],
        call: Call,
        gas_limit: int,
        chain_nonce: int,
        at_ms: int,
        sender: Address = ZERO_ADDRESS,
        *,
        until_s: int = 0,
        worth_wei: int = 0,
    ) -> StoredIntent:
        """Store an intent under its sender's next nonce, max(`chain_nonce`, highest one ever signed for or open + 1),
        and, for `submit_results`, move its requests to settling; for `request_for`, tie it to its posting. One with the
        same key that is open, or ended in a block that is not indexed yet, is returned as it is."""
        ...

    async def add_attempt(self, intent_id: int, attempt: StoredAttempt) -> None:
        """Store a signed transaction of an intent, before it is sent."""
        ...

    async def open_intents(self) -> list[StoredIntent]:
        """In the order of their nonces."""
        ...

    async def signed_since(self, sender: Address, since_ms: int) -> list[Signed]:
        """What a key has signed for its intents since then, each with what it can cost; in the order of the attempts of
        each intent, with those that came before."""
        ...

    async def end_intent(self, intent_id: int, state: str, block_number: int, detail: Mapping[str, Any]) -> None:
        """Mark an intent included, reverted, cancelled or dropped. When it is not included, or an item went unpaid
        (`detail["unpaid"]`: request id → item status name), its requests move back. The posting of an included one
        is posted; that of a dropped one waits for another."""
        ...

    async def fill_nonces(self, sender: Address, start: int, end: int, at_ms: int) -> list[StoredIntent]:
        """Open an intent that only takes its nonce for each nonce from `start` and below `end` that no intent has but a
        dropped one, whose own it becomes. Returns those that are open then, some dozens at most."""
        ...

    async def intent_of_transaction(self, transaction_hash: Hash32) -> StoredIntent | None:
        """Whose attempt a transaction is."""
        ...

    async def close(self) -> None:
        """Let go of what it holds."""
        ...


class LeaseStore(Protocol):
    """Who leads, in the store that all processes of a relayer share."""

    async def lease(self) -> Lease | None:
        """As it is now; None = nobody ever led."""
        ...

    async def take_lease(self, seen: Lease | None, holder: str, locked_on: str, lease_ms: int) -> Lease | None:
        """Take the lead over from a lease that was seen, with the next token; None when it is another by now. From then
        on the store takes writes of this process, and none of those before."""
        ...

    async def renew_lease(self, token: int, locked_on: str) -> Lease:
        """Say that the holder of a token is still there.

        Raises:
            NotLeader: another process has taken over.
        """
        ...

    async def give_lease_back(self, token: int) -> None:
        """Let the next process take over at once; this one writes no more.

        Raises:
            NotLeader: another process has taken over.
        """
        ...


class ProcessLock(Protocol):
    """A lock beside the store that ends with the process that has it, however that ends."""

    @property
    def machine(self) -> str:
        """By which machine's lock this process has it: another machine's says nothing. Empty = it does not have it."""
        ...

    def take(self) -> bool:
        """Whether it could be had, or is held already."""
        ...

    def free(self) -> None:
        """Let go of it."""
        ...


# Faults


@dataclass(frozen=True, slots=True)
class NotedResult:
    """A result that a node signed. Without a signature, it is in the calldata of the transaction."""

    node: Address
    result: Result
    signature: bytes
    transaction_hash: Hash32 = ZERO_HASH


@dataclass(frozen=True, slots=True)
class StoredFault:
    """A fault with the call that proves it.

    `culprit` is a node's signing key, or a relayer; `node` whom a relayer's fault was done to, or the zero address.
    """

    fault: Fault
    culprit: Address
    request_id: Hash32
    node: Address
    round: int
    call: Call
    state: str  # found, sent, proven, refused
    detail: str  # what became of the last try
    transaction_hash: Hash32  # of the last try, if there was one
    found_at_ms: int
    tried_at_ms: int


class RecoveryStore(Store, Protocol):
    """What a relayer's own store says of whether it has all that its relayer signed."""

    async def is_behind(self) -> bool:
        """Whether it is a copy that was made by a backup, or the chain has a record of a round that it never decided,
        and this has not been written down yet."""
        ...

    async def last_lost_round(self) -> StoredRound | None:
        """The lost round of the greatest number, whose `opened_at_ms` is when the loss was seen here; None = none."""
        ...

    async def seal_lost_rounds(self, records: Sequence[RoundRecord], at_ms: int) -> None:
        """Close these rounds with these records, unless they are closed already: they take no more decisions. From here
        on the store is not behind."""
        ...


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What a relayer's database says of itself.

    Args:
        is_copy: it was made by `StoreCopies.back_up`: a relayer that starts on it takes what came after as forgotten.
        revision: of its tables.
        last_block: the last that is indexed, -1 = none.
        requests: how many it has.
        newest_round: the greatest number of a round, 0 = none.
        open_intents: transactions that are on their way.
        size_bytes: of the file.
    """

    is_copy: bool
    revision: str
    last_block: int
    requests: int
    newest_round: int
    open_intents: int
    size_bytes: int


class StoreCopies(Protocol):
    """Copies of a relayer's database."""

    def back_up(self, database: Path, copy: Path, on_progress: Callable[[int, int], None]) -> StoreFacts:
        """Copy a database that may be in use, as of one moment; tells how many parts of how many are copied.

        Raises:
            NotFound: there is no such database.
            Refused: there is a file of the copy's name already.
            InvalidInput: the copy is damaged, which its source is too then.
        """
        ...

    def look_through(self, database: Path) -> StoreFacts:
        """What is in a database that nobody writes to.

        Raises:
            NotFound: there is no such file.
            InvalidInput: it is no relayer's database, or is damaged; the message says where.
        """
        ...

    def put_back(self, copy: Path, database: Path) -> Path | None:
        """Put a copy in the place of a database. Returns where the former one is kept, if there was one.

        Raises:
            NotFound: there is no such copy.
            Refused: it was not made by `back_up`, or a relayer works with the database.
            InvalidInput: it is damaged.
        """
        ...


class WatchStore(Store, Protocol):
    """What a watcher keeps and reads beside what a relayer does: a relayer's own store, or one of its own."""

    async def known_requests(self, request_ids: Sequence[Hash32]) -> dict[Hash32, StoredRequest]:
        """Those of these requests that are in the store."""
        ...

    async def noted_results(self, request_ids: Sequence[Hash32]) -> dict[Hash32, list[NotedResult]]:
        """Results of these requests that nodes signed: those delivered here and those that were noted."""
        ...

    async def noted_in_round(self, round_: int) -> list[Hash32]:
        """Requests with a noted result that names a round."""
        ...

    async def equivocated(self, after: int) -> tuple[list[Hash32], int]:
        """Requests of which a node signed two results, of what was noted after a place; and the place to go on from."""
        ...

    async def events_between(self, from_block: int, to_block: int, names: Collection[str]) -> list[ChainEvent]:
        """Stored events of these names in a closed range of blocks, in order."""
        ...

    async def events_of(self, request_ids: Sequence[Hash32]) -> dict[Hash32, list[ChainEvent]]:
        """Stored events of each of these requests, in order."""
        ...

    async def keep_leaves(self, round_: int, decisions: Sequence[Decision]) -> None:
        """Keep the leaves of a recorded round of another's, in place of what was kept before."""
        ...

    async def rounds_assigning(self, request_ids: Sequence[Hash32]) -> dict[Hash32, set[int]]:
        """Rounds whose leaves assign each of these requests."""
        ...

    async def rounds_without_leaves(self, limit: int) -> list[StoredRound]:
        """Recorded rounds whose leaves are not kept, oldest first."""
        ...

    async def add_fault(self, fault: StoredFault) -> bool:
        """Keep a fault that was found. False when it is known; one whose proof was refused is taken up again."""
        ...

    async def faults(self, states: Sequence[str] | None, limit: int) -> list[StoredFault]:
        """Faults in these states, or all: those first that were not tried for longest."""
        ...

    async def set_fault(self, fault: StoredFault) -> None:
        """Write down what became of a fault."""
        ...

    async def watched_up_to(self) -> int:
        """The last block whose events were looked at, -1 = none. A reorg takes it back."""
        ...

    async def set_watched_up_to(self, block_number: int) -> None:
        """Write down how far the events were looked at."""
        ...


class FaultChain(Chain, Protocol):
    """What a watcher asks the chain beside what a relayer does."""

    async def fault_terms(self) -> FaultTerms:
        """The faults contract's immutable numbers."""
        ...

    async def held_wei(self, fault: Fault, culprit: Address) -> int:
        """The stake or bond that a culprit has left, unbonding or not."""
        ...

    async def is_proven(self, fault: Fault, culprit: Address, request_id: Hash32, node: Address, at_block: int) -> bool:
        """Whether a fault was proven as of a block, by whichever key of the node."""
        ...

    async def submitted(self, transaction_hash: Hash32) -> Submission | None:
        """What a transaction settles; None when it is gone, or does not call the market itself."""
        ...

    def prove_call(self, found: FoundFault) -> Call:
        """The call of the faults contract that proves a fault."""
        ...


class RoundWords(Protocol):
    """Where the leaves of a relayer's rounds and the accepts of its nodes are had from."""

    async def leaves(self, round_: int, count: int) -> list[Decision] | None:
        """A recorded round's leaves in their order, or None when they cannot be had. `count` bounds them."""
        ...

    async def accepts(self, round_: int) -> list[SignedAccept] | None:
        """The accepts of a recorded round, unchecked, or None when they cannot be had."""
        ...


class AssignmentJournal(Protocol):
    """Where a node's signed assignments are had from."""

    async def assignments(self, since_ms: int) -> list[SignedAssignment]:
        """Those that came at this time or later."""
        ...


# Nodes


class NodeLink(Protocol):
    """The relayer's end of the links that nodes opened."""

    def linked(self) -> Sequence[LinkedNode]:
        """All nodes that are linked and have sent a heartbeat, by key."""
        ...

    async def dispatch(self, task: Task, timeout_s: float) -> Accept | Refusal:
        """Send a task and wait for the node's word.

        Raises:
            Unknown: the link broke or the time passed; the node may have it.
            Unavailable: the node is not linked; it cannot have it.
        """
        ...

    async def sign_set(self, node: Address, round_: int, results: Sequence[Result], timeout_s: float) -> bytes | None:
        """The node's signature over a set of results that it signed before, or None when it did not answer in time."""
        ...


class LinkEvents(Protocol):
    """What a link tells the relayer's services."""

    async def admit(self, node: Address) -> None:
        """A node proved its key and wants to be linked.

        Raises:
            NotAllowed: it is not registered, not bonded enough or not in the market; the message says what to do.
        """
        ...

    async def delivered(self, delivery: Delivery) -> None:
        """A node delivers. Returning acknowledges it: the result is stored. May be called again for the same result.

        Raises:
            InvalidInput: the result is not what it claims; the node is told and does not send it again.
        """
        ...

    async def gave_up(self, node: Address, refusal: Refusal) -> None:
        """A node could not finish a task that it had accepted."""
        ...

    def changed(self) -> None:
        """A node came, went or sent a heartbeat that matters to scheduling."""
        ...


# Models


@dataclass(frozen=True, slots=True)
class Generation:
    """A model's answer."""

    text: str
    finish_reason: str  # stop, length
    prompt_tokens: int
    output_tokens: int
    compute_ms: int


class Backend(Protocol):
    """A model server."""

    @property
    def model_names(self) -> Sequence[str]:
        """Registry names of the models it serves."""
        ...

    def context_tokens(self, model_name: str) -> int | None:
        """Tokens that prompt and answer of one request may have together, by the last check; None = it does not say."""
        ...

    async def count_prompt_tokens(self, model_name: str, body: Mapping[str, Any]) -> int | None:
        """Tokens of a body's prompt as `generate` would render it; None = it cannot count.

        Raises:
            BackendUnavailable: the server does not answer.
            InvalidInput: it does not take such a prompt.
        """
        ...

    async def generate(self, model_name: str, body: Mapping[str, Any], max_output_tokens: int) -> Generation:
        """Answer an OpenAI chat body (messages, temperature, seed, stop, …).

        Raises:
            BackendUnavailable: the server does not answer.
            InvalidInput: it refuses the body for good.
        """
        ...

    async def check(self) -> None:
        """Raises BackendUnavailable, naming what to do, unless it can answer now."""
        ...

    async def close(self) -> None:
        """Let go of what it holds."""
        ...
