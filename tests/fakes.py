"""Fakes of the ports for tests of services: a chain in memory, a clock that is told the time, metrics that remember.

The fake chain keeps blocks with events, can be reorganised, and runs the three calls that a relayer sends by the
contracts' own rules, so that a whole relayer can be driven on it. What goes wrong is scripted on its attributes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eth_abi.abi import decode
from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_keys.datatypes import PrivateKey
from eth_utils.address import to_checksum_address
from hexbytes import HexBytes

from headrace.core.calls import selectors
from headrace.core.errors import Refused, SignatureMismatch, Unknown
from headrace.core.events import BlockRef, ChainEvent
from headrace.core.fees import charged_gas, charged_gas_price_wei, payout
from headrace.core.keccak import keccak
from headrace.core.requests import pack, request_id
from headrace.core.scheduling import Offer
from headrace.core.typed_data import (
    NESTED_TYPES,
    Domain,
    digest,
    hash_assignment,
    hash_request_for,
    hash_result,
    hash_result_set,
    hash_round_record,
    hash_submitter,
    signer_of,
)
from headrace.core.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Assignment,
    GasQuote,
    Hash32,
    ItemStatus,
    Lane,
    MarketTerms,
    Mode,
    Pending,
    Request,
    ResultRef,
    RoundRecord,
    Status,
)
from headrace.ports import Attestation, Call, CallOutcome, ModelFacts, NodeFacts, Receipt, ResultSetCall

START_S = 1_750_000_000
GWEI = 10**9
MARKET: Address = "0x" + "a1" * 20
SCHEDULE_LOG: Address = "0x" + "a2" * 20
STAKE_MANAGER: Address = "0x" + "a3" * 20
VERIFIER: Address = "0x" + "a4" * 20
RELAYER: Address = "0x" + "b1" * 20
REQUESTER: Address = "0x" + "c1" * 20
NODE: Address = "0x" + "d1" * 20
MODEL_ID: Hash32 = "0x" + "e1" * 32

TERMS = MarketTerms(
    grace_s=300,
    min_ttl_s=10,
    max_ttl_s=86_400,
    max_inline_prompt_bytes=8192,
    max_callback_gas=2_000_000,
    verifier_gas=400_000,
    tip_cap_wei=2 * GWEI,
    fixed_gas=60_000,
    item_gas=20_000,
    node_gas=15_000,
    assigned_gas=90_000,
    gas_per_result_byte=40,
    relayer_fee_share_bps=2000,
    relayer_saving_share_bps=1000,
    probation_max_reward_wei=10**15,
    probation_settled_count=10,
    probation_duration_s=86_400,
)


def make_request(**changes: Any) -> Request:
    """A request that everything in it allows; name what a test is about."""
    fields: dict[str, Any] = {
        "requester": REQUESTER,
        "relayer": RELAYER,
        "model_id": MODEL_ID,
        "prompt_hash": "0x" + keccak(b"Why is the sky blue?").hex(),
        "salt": 1,
        "deadline_s": START_S + 3600,
        "prompt_bytes": 20,
        "max_output_tokens": 100,
        "callback_gas": 0,
        "lane": Lane.BULK,
        "batchable": True,
        "inline_result": False,
        "mode": Mode.SIGNATURE,
        "k": 0,
        "n": 0,
        "verifier": ZERO_ADDRESS,
        "max_reward_wei": 10**15,
        "gas_budget_wei": 10**15,
        "priority_fee_wei": 10**14,
    }
    return Request(**{**fields, **changes})


class FakeClock:
    """Time that moves when it is told to."""

    def __init__(self, now_ms: int = START_S * 1000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self._now_ms += ms


class LoopClock:
    """Time that follows the event loop's: virtual time in a test marked with `looptime`."""

    def __init__(self, start_ms: int = START_S * 1000) -> None:
        self._start_ms = start_ms
        self._origin_s: float | None = None

    def now_ms(self) -> int:
        time_s = asyncio.get_running_loop().time()
        if self._origin_s is None:
            self._origin_s = time_s
        return self._start_ms + round((time_s - self._origin_s) * 1000)


class FakeMetrics:
    """Remembers what it was told. Labels are part of the key: `("name", "label=value", …)`."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.observations: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
        self.gauges: dict[tuple[str, ...], float] = {}

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        self.counts[_key(name, labels)] += amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.observations[_key(name, labels)].append(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[_key(name, labels)] = value

    def total(self, name: str) -> int:
        """A counter's sum over all labels."""
        return sum(amount for key, amount in self.counts.items() if key[0] == name)


def _key(name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    return (name, *(f"{label}={value}" for label, value in sorted(labels.items())))


class FakeSigner:
    """A key made from a small number."""

    def __init__(self, number: int) -> None:
        self._key = PrivateKey(number.to_bytes(32, "big"))

    @property
    def address(self) -> Address:
        return self._key.public_key.to_address()

    def sign_digest(self, digest_: bytes) -> bytes:
        signature = self._key.sign_msg_hash(digest_).to_bytes()
        return signature[:64] + bytes([signature[64] + 27])

    async def sign_typed(self, domain: Domain, struct_hash: bytes) -> bytes:
        return self.sign_digest(digest(domain, struct_hash))

    async def sign_transaction(self, transaction: Mapping[str, Any]) -> tuple[bytes, Hash32]:
        return self.transaction(transaction)

    def transaction(self, transaction: Mapping[str, Any]) -> tuple[bytes, Hash32]:
        """As `sign_transaction`, at once."""
        signed = Account.sign_transaction(
            {**transaction, "to": to_checksum_address(transaction["to"])}, self._key.to_bytes()
        )
        return bytes(signed.raw_transaction), "0x" + bytes(signed.hash).hex()


@dataclass(frozen=True)
class Log:
    """An event that is in no block yet."""

    contract: Address
    name: str
    args: Mapping[str, Any]


@dataclass
class _Transaction:
    hash: Hash32
    sender: Address
    nonce: int
    call: Call
    tip_wei: int


@dataclass
class _Block:
    ref: BlockRef
    events: list[ChainEvent] = field(default_factory=list)
    transactions: list[_Transaction] = field(default_factory=list)
    receipts: dict[Hash32, Receipt] = field(default_factory=dict)


class FakeChain:
    """The `Chain` port in memory.

    `mine` appends a block with given logs and with what `send_raw` left in the pool; `reorg` and `rollback` take blocks
    away. Script failures with `fail(method, *errors)`; lag with `lag`; facts with the public attributes.
    """

    def __init__(
        self, clock: FakeClock | LoopClock | None = None, chain_id: int = 31337, automine: bool = False
    ) -> None:
        self.clock = clock
        self.automine = automine  # each transaction is mined as soon as it is sent
        self.lag = 0  # blocks that the node is behind
        self.gas = GasQuote(base_fee_wei=GWEI, tip_wei=GWEI)
        self.terms = TERMS
        self.with_code: set[Address] = set()
        self.balances: defaultdict[Address, int] = defaultdict(lambda: 10**20)
        self.credits: Counter[Address] = Counter()  # before what requests that were posted for their requesters took
        self.wallets: dict[Address, bytes] = {}  # contract accounts, with the signature that each takes for its own
        self.request_for_gas = 76_000
        self.facts: dict[Address, NodeFacts] = {}
        self.node_offers: dict[Address, list[Offer]] = {}
        self.bonded: set[Address] = {RELAYER}
        self.registered_models: list[ModelFacts] = []
        self.item_statuses: dict[Hash32, ItemStatus] = {}  # what an item gets in a batch, whatever the rules say
        self.accepted_proofs: set[bytes] = set()  # whatever they are of
        self.attestations: dict[Address, Attestation] = {}
        self.failing_callbacks: set[Hash32] = set()  # requests whose contract reverts when it is called
        self.reverts: dict[
            str, str
        ] = {}  # by kind (record_round, submit_results, expire): the error of every such call
        self.poison: set[Hash32] = set()  # requests whose item makes the whole batch revert
        self.sent: list[bytes] = []  # every raw transaction that send_raw was given
        self.calls: Counter[str] = Counter()
        self._chain_id = chain_id
        self._failures: defaultdict[str, deque[Exception]] = defaultdict(deque)
        self._known_calls: dict[tuple[Address, bytes], tuple[str, tuple[Any, ...]]] = {}
        self._requests: dict[Hash32, Request] = {}
        self._posted_for: dict[Hash32, int] = {}  # what each took from its requester's credit
        self._pool: dict[tuple[Address, int], _Transaction] = {}
        self._forks = 0
        genesis_s = clock.now_ms() // 1000 if clock and not isinstance(clock, LoopClock) else START_S
        self._blocks = [_Block(BlockRef(0, _hash("genesis"), ZERO_HASH, genesis_s))]

    @property
    def chain_id(self) -> int:
        return self._chain_id

    @property
    def market(self) -> Address:
        return MARKET

    @property
    def schedule_log(self) -> Address:
        return SCHEDULE_LOG

    @property
    def stake_manager(self) -> Address:
        return STAKE_MANAGER

    @property
    def attested_key_verifier(self) -> Address:
        return VERIFIER

    # What tests do to it

    def fail(self, method: str, *errors: Exception) -> None:
        """Let the next calls of a method raise these."""
        self._failures[method].extend(errors)

    def mine(self, *logs: Log, timestamp_s: int | None = None) -> BlockRef:
        """Append a block: each log in a transaction of its own, then what is in the pool."""
        parent = self._blocks[-1].ref
        now_s = self.clock.now_ms() // 1000 if self.clock else parent.timestamp_s + 1
        number = parent.number + 1
        hash_ = _hash(f"{number}/{parent.hash}/{self._forks}/{[_identity(log) for log in logs]}")
        ref = BlockRef(number, hash_, parent.hash, timestamp_s or max(parent.timestamp_s, now_s))
        block = _Block(ref)
        for log in logs:
            # The same request posted again after a reorg is the same transaction.
            block.events.append(self._event(block, _hash(_identity(log)), log))
        self._blocks.append(block)
        for transaction in self._includable():
            self._include(block, transaction)
        return ref

    def mine_many(self, count: int) -> BlockRef:
        """Append empty blocks (and what is in the pool)."""
        for _ in range(count):
            self.mine()
        return self._blocks[-1].ref

    def reorg(self, depth: int, *blocks: Iterable[Log]) -> list[BlockRef]:
        """Replace the last `depth` blocks by others, as many unless `blocks` gives the logs of more.

        Transactions of the blocks that go are not put back into the pool.
        """
        self.rollback(depth)
        contents = [*blocks, *([()] * (depth - len(blocks)))]
        return [self.mine(*logs) for logs in contents]

    def rollback(self, depth: int) -> None:
        """Take the last `depth` blocks away."""
        if not 0 <= depth < len(self._blocks):
            raise ValueError(f"there are {len(self._blocks) - 1} blocks to take away, not {depth}")
        self._forks += 1
        del self._blocks[len(self._blocks) - depth :]

    def drop_pool(self) -> None:
        """Forget the transactions that wait."""
        self._pool.clear()

    def id_of(self, request: Request) -> Hash32:
        return request_id(request, self._chain_id, MARKET)

    def all_events(self) -> list[ChainEvent]:
        """Every event of the chain as it is now."""
        return [event for block in self._blocks for event in block.events]

    def all_blocks(self) -> list[BlockRef]:
        return [block.ref for block in self._blocks]

    # Logs

    def requested(self, request: Request, prompt: bytes = b"") -> Log:
        packed = pack(request)
        id_ = self.id_of(request)
        self._requests[id_] = request
        struct = {
            "requester": packed.requester,
            "relayer": packed.relayer,
            "modelId": _hex(packed.model_id),
            "promptHash": _hex(packed.prompt_hash),
            "amounts": packed.amounts,
            "terms": packed.terms,
            "verifier": packed.verifier,
        }
        args = {"requestId": id_, "requester": request.requester, "relayer": request.relayer}
        return Log(MARKET, "InferenceRequested", {**args, "request": struct, "prompt": _hex(prompt)})

    def registered(self, key: Address, owner: Address) -> Log:
        args = {"key": key, "owner": owner, "stake": 10**18, "metadataURI": ""}
        return Log(STAKE_MANAGER, "NodeRegistered", args)

    def raised(self, id_: Hash32, added: int, total: int) -> Log:
        return Log(MARKET, "PriorityFeeRaised", {"requestId": id_, "added": added, "total": total})

    def cancel_announced(self, id_: Hash32, effective_deadline_s: int) -> Log:
        return Log(MARKET, "CancelAnnounced", {"requestId": id_, "effectiveDeadline": effective_deadline_s})

    def fulfilled(self, id_: Hash32, result_hash: Hash32 = "0x" + "f1" * 32, node_paid: int = 1) -> Log:
        args = {"requestId": id_, "resultHash": result_hash, "nodePaid": node_paid, "relayerPaid": 1, "refund": 1}
        return Log(MARKET, "ResultFulfilled", args)

    def closed(self, id_: Hash32, status: Status, requester: Address = REQUESTER, refund: int = 1) -> Log:
        args = {"requestId": id_, "requester": requester, "status": int(status), "refund": refund}
        return Log(MARKET, "RequestClosed", args)

    def callback_failed(self, id_: Hash32, reason: str = "0x08c379a0") -> Log:
        return Log(MARKET, "CallbackFailed", {"requestId": id_, "reason": reason})

    def callback_retried(self, id_: Hash32) -> Log:
        return Log(MARKET, "CallbackRetried", {"requestId": id_})

    def relayer_fee_paid(self, id_: Hash32, fee_wei: int, relayer: Address = RELAYER) -> Log:
        return Log(MARKET, "RelayerFeePaid", {"requestId": id_, "relayer": relayer, "fee": fee_wei})

    def recorded(self, relayer: Address, record: RoundRecord) -> Log:
        struct = {
            "round": record.round,
            "decisionsRoot": record.decisions_root,
            "snapshotHash": record.snapshot_hash,
            "policyHash": record.policy_hash,
            "anchorBlock": record.anchor_block,
            "anchorHash": record.anchor_hash,
            "assigned": record.assigned,
            "skipped": record.skipped,
            "tooLate": record.too_late,
        }
        head = _hash(f"head/{relayer}/{record}")
        args = {"relayer": relayer, "round": record.round, "record": struct, "head": head}
        return Log(SCHEDULE_LOG, "RoundRecorded", args)

    # The port: reading

    async def head(self) -> BlockRef:
        self._enter("head")
        return self._blocks[max(0, len(self._blocks) - 1 - self.lag)].ref

    async def block(self, number: int) -> BlockRef | None:
        self._enter("block")
        return self._blocks[number].ref if 0 <= number < len(self._blocks) - self.lag else None

    async def blocks(self, from_block: int, to_block: int) -> list[BlockRef]:
        self._enter("blocks")
        visible = self._blocks[: len(self._blocks) - self.lag]
        return [block.ref for block in visible[from_block : to_block + 1]]

    async def events(self, from_block: int, to_block: int) -> list[ChainEvent]:
        self._enter("events")
        visible = self._blocks[: len(self._blocks) - self.lag]
        return [event for block in visible[from_block : to_block + 1] for event in block.events]

    async def gas_quote(self) -> GasQuote:
        self._enter("gas_quote")
        return self.gas

    async def balance_wei(self, account: Address) -> int:
        self._enter("balance_wei")
        return self.balances[account]

    async def has_code(self, account: Address) -> bool:
        self._enter("has_code")
        return account in self.with_code

    async def require_code(self, contract: Address) -> None:
        self._enter("require_code")

    async def credit_wei(self, account: Address) -> int:
        self._enter("credit_wei")
        return self._credit(_World(self.all_events()), account)

    async def market_terms(self) -> MarketTerms:
        self._enter("market_terms")
        return self.terms

    async def statuses(self, request_ids: Sequence[Hash32]) -> list[Status]:
        self._enter("statuses")
        world = _World(self.all_events())
        return [world.statuses[id_] for id_ in request_ids]

    async def pending(self, request_ids: Sequence[Hash32]) -> list[Pending | None]:
        self._enter("pending")
        world = _World(self.all_events())
        return [
            Pending(world.added[id_], world.deadlines.get(id_, self._requests[id_].deadline_s))
            if world.statuses[id_] is Status.PENDING
            else None
            for id_ in request_ids
        ]

    async def verify_result(self, request_id: Hash32, ref: ResultRef, payload: bytes) -> bool:
        """By the hashes alone: who settled when is not looked at."""
        self._enter("verify_result")
        settled = any(
            event.name == "ResultFulfilled"
            and event.args["requestId"] == request_id
            and event.args["resultHash"] == ref.result_hash
            for event in self.all_events()
        )
        return settled and (not payload or _hex(keccak(payload)) == ref.result_hash)

    async def is_verified(self, request: Request, node: Address, result_hash: Hash32, proof: bytes) -> bool:
        self._enter("is_verified")
        return proof in self.accepted_proofs

    async def attestation_of(self, verifier: Address, key: Address) -> Attestation:
        self._enter("attestation_of")
        return self.attestations.get(key, Attestation(key, ZERO_HASH, 0))

    async def node_facts(self, key: Address) -> NodeFacts:
        self._enter("node_facts")
        nobody = NodeFacts(key, ZERO_ADDRESS, 0, 0, False, ZERO_ADDRESS, 0, 0, 0, 0)
        return self.facts.get(key, nobody)

    async def offers(self, key: Address, model_ids: Sequence[Hash32]) -> list[Offer]:
        self._enter("offers")
        return [offer for offer in self.node_offers.get(key, []) if offer.model_id in model_ids]

    async def is_bonded(self, relayer: Address) -> bool:
        self._enter("is_bonded")
        return relayer in self.bonded

    async def models(self) -> list[ModelFacts]:
        self._enter("models")
        return list(self.registered_models)

    async def recorded_at_s(self, relayer: Address, round_: int) -> int:
        self._enter("recorded_at_s")
        for block in self._blocks:
            if any(_is_record(event, relayer, round_) for event in block.events):
                return block.ref.timestamp_s
        return 0

    async def next_round(self, relayer: Address) -> int:
        self._enter("next_round")
        return _World(self.all_events()).next_round[relayer]

    # The port: calls

    def record_round_call(self, relayer: Address, record: RoundRecord, signature: bytes = b"") -> Call:
        return self._call(SCHEDULE_LOG, "record_round", relayer, record, signature)

    def submit_results_call(self, relayer: Address, sets: Sequence[ResultSetCall]) -> Call:
        return self._call(MARKET, "submit_results", relayer, tuple(sets))

    def submit_results_for_call(
        self, relayer: Address, sets: Sequence[ResultSetCall], valid_until_s: int, signature: bytes
    ) -> Call:
        return self._call(MARKET, "submit_results_for", relayer, tuple(sets), valid_until_s, signature)

    def submit_assigned_call(self, assignment: Assignment, signature: bytes, result_set: ResultSetCall) -> Call:
        return self._call(MARKET, "submit_assigned", assignment, signature, result_set)

    def expire_call(self, requests: Sequence[Request]) -> Call:
        return self._call(MARKET, "expire", tuple(requests))

    # The port: sending

    async def simulate(self, sender: Address, calls: Sequence[Call]) -> list[CallOutcome]:
        self._enter("simulate")
        outcomes = []
        events = self.all_events()
        for call in calls:
            logs, error = self._run(call, events, sender)
            made = tuple(self._event(self._blocks[-1], ZERO_HASH, log) for log in logs)
            events += made
            outcomes.append(CallOutcome(not error, self._gas_used(call, logs), made, error))
        return outcomes

    async def transaction_count(self, account: Address) -> int:
        self._enter("transaction_count")
        return self._mined_count(account)

    async def send_raw(self, raw: bytes) -> None:
        """Script `fail("send_raw", Unknown(…))` for an answer that is lost after the transaction was taken."""
        self.calls["send_raw"] += 1
        self.sent.append(raw)
        error = self._failures["send_raw"].popleft() if self._failures["send_raw"] else None
        if error is None or isinstance(error, Unknown):
            self._take(raw)
        if error is not None:
            raise error

    async def receipt(self, transaction_hash: Hash32) -> Receipt | None:
        self._enter("receipt")
        return next(
            (block.receipts[transaction_hash] for block in self._blocks if transaction_hash in block.receipts), None
        )

    # Inside

    def _enter(self, method: str) -> None:
        self.calls[method] += 1
        if self._failures[method]:
            raise self._failures[method].popleft()

    def _call(self, to: Address, kind: str, *arguments: Any) -> Call:
        data = keccak(f"{kind}{arguments!r}".encode())
        self._known_calls[to, data] = (kind, arguments)
        return Call(to, data)

    def _mined_count(self, account: Address) -> int:
        return sum(1 for block in self._blocks for each in block.transactions if each.sender == account)

    def _take(self, raw: bytes) -> None:
        fields = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
        sender = str(Account.recover_transaction(raw)).lower()
        hash_ = _hex(keccak(raw))
        if any(hash_ in block.receipts for block in self._blocks):
            return
        if fields["nonce"] < self._mined_count(sender):
            raise Refused("nonce too low")
        call = Call(_hex(fields["to"]), bytes(fields["data"]), fields["value"])
        tip_wei = fields["maxPriorityFeePerGas"]
        waiting = self._pool.get((sender, fields["nonce"]))
        if waiting is not None and waiting.hash != hash_ and tip_wei * 10 < waiting.tip_wei * 11:
            raise Refused("replacement transaction underpriced")
        self._pool[sender, fields["nonce"]] = _Transaction(hash_, sender, fields["nonce"], call, tip_wei)
        if self.automine:
            self.mine()

    def _includable(self) -> list[_Transaction]:
        """What waits with the next nonce of its sender, in order; what no longer fits is dropped."""
        taken = []
        for sender in {sender for sender, _ in self._pool}:
            nonce = self._mined_count(sender)
            for stale in [key for key in self._pool if key[0] == sender and key[1] < nonce]:
                del self._pool[stale]
            while (sender, nonce) in self._pool:
                taken.append(self._pool.pop((sender, nonce)))
                nonce += 1
        return taken

    def _include(self, block: _Block, transaction: _Transaction) -> None:
        logs, error = self._run(transaction.call, self.all_events(), transaction.sender)
        events = []
        for log in logs:
            events.append(self._event(block, transaction.hash, log))
            block.events.append(events[-1])
        block.transactions.append(transaction)
        price_wei = self.gas.base_fee_wei + transaction.tip_wei
        gas_used = self._gas_used(transaction.call, logs)
        block.receipts[transaction.hash] = Receipt(
            transaction.hash, block.ref.number, block.ref.hash, not error, gas_used, price_wei, tuple(events)
        )

    def _event(self, block: _Block, transaction_hash: Hash32, log: Log) -> ChainEvent:
        ref = block.ref
        index = len(block.events)
        return ChainEvent(ref.number, ref.hash, transaction_hash, index, log.contract, log.name, dict(log.args))

    def _run(self, call: Call, events: Sequence[ChainEvent], sender: Address) -> tuple[list[Log], str]:
        """What a call logs after these events, or its error."""
        if _is_request_for(call):
            return self._run_request_for(_World(events), call.data)
        if (call.to, call.data) not in self._known_calls:
            return [], ""  # a plain transfer, such as the no-op that frees a nonce
        kind, arguments = self._known_calls[call.to, call.data]
        if kind in self.reverts:
            return [], self.reverts[kind]
        world = _World(events)
        if kind == "record_round":
            return self._run_record(world, sender, *arguments)
        if kind == "submit_results":
            return self._run_submit(world, sender, *arguments)
        if kind == "submit_results_for":
            return self._run_submit_for(world, sender, *arguments)
        if kind == "submit_assigned":
            return self._run_submit_assigned(world, *arguments)
        return self._run_expire(world, *arguments), ""

    def _run_record(
        self, world: _World, sender: Address, relayer: Address, record: RoundRecord, signature: bytes
    ) -> tuple[list[Log], str]:
        due = world.next_round[relayer]
        if not (
            _is_signed(SCHEDULE_LOG, relayer, hash_round_record(record), signature) if signature else sender == relayer
        ):
            return [], f"InvalidSignature(signer={relayer})"
        if relayer not in self.bonded:
            return [], f"NotBonded(relayer={relayer})"
        if record.assigned == 0:
            return [], f"NothingAssigned(round={record.round})"
        if record.round < due:
            return [], f"RoundAlreadyRecorded(relayer={relayer}, round={record.round})"
        if record.round > due:
            return [], f"RoundOutOfOrder(relayer={relayer}, round={record.round})"
        return [self.recorded(relayer, record)], ""

    def _gas_used(self, call: Call, logs: Sequence[Log]) -> int:
        return self.request_for_gas if _is_request_for(call) else 40_000 + 20_000 * len(logs)

    def _run_request_for(self, world: _World, data: bytes) -> tuple[list[Log], str]:
        """By the market's rules, but for those on the terms of a request."""
        if "request_for" in self.reverts:
            return [], self.reverts["request_for"]
        request, prompt, fee, valid_until, signature = decode_request_for(data)
        id_, now_s = self.id_of(request), self._blocks[-1].ref.timestamp_s
        if now_s > valid_until:
            return [], f"SignatureExpired(validUntil={valid_until}, blockTimestamp={now_s})"
        signer, struct_hash = request.requester, hash_request_for(request, fee, valid_until)
        if not _is_signed(MARKET, signer, struct_hash, signature) and self.wallets.get(signer) != signature:
            return [], f"InvalidSignature(signer={request.requester})"
        if world.statuses[id_] is not Status.NONE:
            return [], f"RequestExists(requestId={id_})"
        cost, credit = request.escrow_wei + fee, self._credit(world, request.requester)
        if credit < cost:
            return [], f"EscrowShort(required={cost}, available={credit})"
        self._posted_for[id_] = cost
        paid = Log(MARKET, "RelayerFeePaid", {"requestId": id_, "relayer": request.relayer, "fee": fee})
        return [self.requested(request, prompt), *([paid] if fee else [])], ""

    def _credit(self, world: _World, account: Address) -> int:
        posted = [id_ for id_ in self._posted_for if world.statuses[id_] is not Status.NONE]
        taken = sum(self._posted_for[id_] for id_ in posted if self._requests[id_].requester == account)
        return self.credits[account] - taken

    def _run_submit(
        self, world: _World, sender: Address, relayer: Address, sets: Sequence[ResultSetCall]
    ) -> tuple[list[Log], str]:
        if sender != relayer:
            return [], f"NotSubmitter(caller={sender}, relayer={relayer})"
        return self._submit_sets(world, relayer, sets)

    def _run_submit_for(
        self,
        world: _World,
        sender: Address,
        relayer: Address,
        sets: Sequence[ResultSetCall],
        valid_until_s: int,
        signature: bytes,
    ) -> tuple[list[Log], str]:
        if self._blocks[-1].ref.timestamp_s > valid_until_s:
            return [], f"SignatureExpired(validUntil={valid_until_s})"
        if not _is_signed(MARKET, relayer, hash_submitter(relayer, sender, valid_until_s), signature):
            return [], f"NotSubmitter(caller={sender}, relayer={relayer})"
        return self._submit_sets(world, relayer, sets)

    def _run_submit_assigned(
        self, world: _World, assignment: Assignment, signature: bytes, result_set: ResultSetCall
    ) -> tuple[list[Log], str]:
        ((request, result),) = result_set.items
        id_, now_s = assignment.request_id, self._blocks[-1].ref.timestamp_s
        if not _is_signed(MARKET, assignment.relayer, hash_assignment(assignment), signature):
            return [], f"InvalidSignature(signer={assignment.relayer})"
        status = self._item_status(world, assignment.relayer, 0, request, result.reward_wei)
        if status is ItemStatus.OK and now_s <= world.deadlines.get(id_, request.deadline_s):
            status = ItemStatus.NO_ROUND
        if status is ItemStatus.OK and not _is_signed(
            MARKET, assignment.node, hash_result(result), result_set.signatures[0]
        ):
            status = ItemStatus.BAD_SIGNATURE
        payload = result_set.payloads[0] if result_set.payloads else b""
        if status is ItemStatus.OK and payload and _hex(keccak(payload)) != result.result_hash:
            status = ItemStatus.BAD_RESULT
        if status is not ItemStatus.OK:
            return [], f"ItemRefused(requestId={id_}, status={int(status)})"
        paid = self._settle(world, request, result.reward_wei, result.result_hash, 0, result_set)
        delivered = [Log(MARKET, "ResultDelivered", {"requestId": id_, "result": _hex(payload)})] if payload else []
        args = {
            "relayer": assignment.relayer,
            "round": assignment.round,
            "nodes": list(result_set.nodes),
            "statuses": "0x00",
        }
        return [*delivered, paid, Log(MARKET, "BatchSettled", args)], ""

    def _submit_sets(self, world: _World, relayer: Address, sets: Sequence[ResultSetCall]) -> tuple[list[Log], str]:
        spoilt = [result.request_id for each in sets for _, result in each.items if result.request_id in self.poison]
        if spoilt:
            return [], "InsufficientGas(required=2, available=1)"
        for index, each in enumerate(sets):
            k = len(each.nodes)
            if list(each.nodes) != sorted(set(each.nodes)) or len(each.signatures) not in (k, k * len(each.items)):
                return [], f"MalformedSet(setIndex={index})"
        return self._settle_sets(world, relayer, sets), ""

    def _settle_sets(self, world: _World, relayer: Address, sets: Sequence[ResultSetCall]) -> list[Log]:
        total = sum(len(each.items) for each in sets)
        logs = []
        for each in sets:
            statuses = []
            for index, (request, result) in enumerate(each.items):
                payload = each.payloads[index] if each.payloads else b""
                proof = each.proofs[index] if each.proofs else b""
                status = self._item_status(world, relayer, each.round, request, result.reward_wei, len(each.nodes))
                if status is ItemStatus.OK and any(not self._has_joined(node) for node in each.nodes):
                    status = ItemStatus.NODE_NOT_JOINED
                if status is ItemStatus.OK and len(each.nodes) > 1 and not _is_signed_by_all(relayer, each, index):
                    status = ItemStatus.BAD_SIGNATURE
                if status is ItemStatus.OK:
                    status = self._status_of_call_outs(request, result.result_hash, payload, proof)
                statuses.append(int(status))
                if status is ItemStatus.OK:
                    logs += self._called_out(request, payload)
                    logs.append(self._settle(world, request, result.reward_wei, result.result_hash, total, each))
            args = {"relayer": relayer, "round": each.round, "nodes": list(each.nodes)}
            args["statuses"] = _hex(bytes(statuses))
            logs.append(Log(MARKET, "BatchSettled", args))
        return logs

    def _has_joined(self, node: Address) -> bool:
        return node not in self.facts or self.facts[node].payee != ZERO_ADDRESS

    def _settle(
        self,
        world: _World,
        request: Request,
        reward_wei: int,
        result_hash: Hash32,
        total: int,
        result_set: ResultSetCall,
    ) -> Log:
        id_ = self.id_of(request)
        world.statuses[id_] = Status.FULFILLED
        nodes = len(result_set.nodes)
        gas = charged_gas(self.terms, total, 0, nodes, len(result_set.items)) if total else self.terms.assigned_gas
        charge_wei = gas * charged_gas_price_wei(self.terms, self.gas)
        paid = payout(self.terms, request, world.added[id_], reward_wei, charge_wei, nodes)
        args = {"requestId": id_, "resultHash": result_hash, "nodePaid": paid.node_wei}
        return Log(MARKET, "ResultFulfilled", {**args, "relayerPaid": paid.relayer_wei, "refund": paid.refund_wei})

    def _status_of_call_outs(self, request: Request, result_hash: Hash32, payload: bytes, proof: bytes) -> ItemStatus:
        if request.mode is Mode.VERIFIER and proof not in self.accepted_proofs:
            return ItemStatus.VERIFICATION_FAILED
        is_needed = request.inline_result and request.callback_gas > 0
        is_bad = payload and (not request.inline_result or _hex(keccak(payload)) != result_hash)
        return ItemStatus.BAD_RESULT if is_bad or (is_needed and not payload) else ItemStatus.OK

    def _called_out(self, request: Request, payload: bytes) -> list[Log]:
        id_ = self.id_of(request)
        logs = [Log(MARKET, "ResultDelivered", {"requestId": id_, "result": _hex(payload)})] if payload else []
        return [*logs, self.callback_failed(id_)] if request.callback_gas and id_ in self.failing_callbacks else logs

    def _item_status(
        self, world: _World, relayer: Address, round_: int, request: Request, reward_wei: int, nodes: int = 1
    ) -> ItemStatus:
        id_ = self.id_of(request)
        if world.statuses[id_] is Status.NONE:
            return ItemStatus.UNKNOWN
        if world.statuses[id_] is not Status.PENDING:
            return ItemStatus.ALREADY_DONE
        if id_ in self.item_statuses:
            return self.item_statuses[id_]
        deadline_s = world.deadlines.get(id_, request.deadline_s)
        if self._blocks[-1].ref.timestamp_s > deadline_s + self.terms.grace_s:
            return ItemStatus.LATE
        if round_ >= world.next_round[relayer]:  # 0: it needs no round
            return ItemStatus.NO_ROUND
        if request.relayer != relayer and (request.relayer != ZERO_ADDRESS or relayer not in self.bonded):
            return ItemStatus.WRONG_RELAYER
        if request.k != (nodes if nodes > 1 else 0):
            return ItemStatus.BAD_SIGNATURE
        if reward_wei * nodes > request.max_reward_wei:
            return ItemStatus.REWARD_TOO_HIGH
        return ItemStatus.OK

    def _run_expire(self, world: _World, requests: Sequence[Request]) -> list[Log]:
        now_s = self._blocks[-1].ref.timestamp_s
        logs = []
        for request in requests:
            id_ = self.id_of(request)
            deadline_s = world.deadlines.get(id_, request.deadline_s)
            if world.statuses[id_] is Status.PENDING and now_s > deadline_s + self.terms.grace_s:
                world.statuses[id_] = Status.EXPIRED
                refund_wei = request.escrow_wei + world.added[id_]
                logs.append(self.closed(id_, Status.EXPIRED, request.requester, refund_wei))
        return logs


class _World:
    """What events amount to."""

    def __init__(self, events: Iterable[ChainEvent]) -> None:
        self.statuses: defaultdict[Hash32, Status] = defaultdict(lambda: Status.NONE)
        self.deadlines: dict[Hash32, int] = {}
        self.added: Counter[Hash32] = Counter()
        self.next_round: defaultdict[Address, int] = defaultdict(lambda: 1)
        for event in events:
            args = event.args
            match event.name:
                case "InferenceRequested":
                    self.statuses[args["requestId"]] = Status.PENDING
                case "PriorityFeeRaised":
                    self.added[args["requestId"]] = args["total"]
                case "CancelAnnounced":
                    self.deadlines[args["requestId"]] = args["effectiveDeadline"]
                case "ResultFulfilled":
                    self.statuses[args["requestId"]] = Status.FULFILLED
                case "RequestClosed":
                    self.statuses[args["requestId"]] = Status(args["status"])
                case "RoundRecorded":
                    self.next_round[args["relayer"]] = args["round"] + 1


def _is_request_for(call: Call) -> bool:
    return (call.to, call.data[:4]) == (MARKET, selectors()["requestInferenceFor"])


def decode_request_for(data: bytes) -> tuple[Request, bytes, int, int, bytes]:
    """Request, published prompt, relayer's fee, validity and signature of a call of `requestInferenceFor`."""
    kinds = ",".join(kind for _, kind in NESTED_TYPES["RequestParams"])
    params, prompt, requester, fee, valid_until, signature = decode(
        [f"({kinds})", "bytes", "address", "uint96", "uint40", "bytes"], data[4:]
    )
    names = [name for name in Request.__dataclass_fields__ if name != "requester"]
    fields = {
        name: _hex(value) if isinstance(value, bytes) else value for name, value in zip(names, params, strict=True)
    }
    fields |= {"lane": Lane(fields["lane"]), "mode": Mode(fields["mode"])}
    return Request(requester=requester, **fields), prompt, fee, valid_until, signature


def _is_record(event: ChainEvent, relayer: Address, round_: int) -> bool:
    return event.name == "RoundRecorded" and event.args["relayer"] == relayer and event.args["round"] == round_


def _is_signed(contract: Address, signer: Address, struct_hash: bytes, signature: bytes) -> bool:
    try:
        return signer_of(digest(Domain(31337, contract), struct_hash), signature) == signer
    except SignatureMismatch:
        return False


def _is_signed_by_all(relayer: Address, result_set: ResultSetCall, index: int) -> bool:
    """Whether each node of a set signed the set, or this item of it: signatures go by item, then by node."""
    k, hashes = len(result_set.nodes), [hash_result(result) for _, result in result_set.items]
    if len(result_set.signatures) == k * len(hashes):
        struct_hash, signatures = hashes[index], result_set.signatures[index * k : (index + 1) * k]
    else:
        struct_hash, signatures = hash_result_set(relayer, result_set.round, hashes), result_set.signatures
    pairs = zip(result_set.nodes, signatures, strict=True)
    return all(_is_signed(MARKET, node, struct_hash, signature) for node, signature in pairs)


def _identity(log: Log) -> str:
    return f"{log.contract}/{log.name}/{sorted(log.args.items())}"


def _hash(text: str) -> Hash32:
    return _hex(keccak(text.encode()))


def _hex(data: bytes) -> str:
    return "0x" + bytes(data).hex()
