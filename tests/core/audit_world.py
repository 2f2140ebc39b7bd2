"""A chain with requests and rounds, and a relayer that recorded them, honestly or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eth_utils.crypto import keccak

from headrace.core import typed_data
from headrace.core.audit import Evidence, Finding, RecordedRound, ServedRound, audit_rounds, chained_head
from headrace.core.canonical import canonical_json
from headrace.core.fields import to_json
from headrace.core.gas import required_answer_bytes
from headrace.core.rounds import close_round, merge_decisions
from headrace.core.scheduling import Anchor, CycleInputs, NodeView, Offer, Policy, WaitingRequest, plan_cycle
from headrace.core.snapshot import encode_snapshot, policy_hash
from headrace.core.tasks import Heartbeat
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Decision, GasQuote, Price, Reason, Request
from headrace.core.work import expected_work
from tests.fakes import GWEI, MARKET, MODEL_ID, RELAYER, TERMS, FakeChain, FakeSigner

CONFIRMATIONS = 2
NODE_SIGNERS = [FakeSigner(number) for number in (5, 6, 7, 8)]
NODE_SIGNER = NODE_SIGNERS[0]


class World:
    """Posts requests in block 1, and records rounds about them."""

    def __init__(self, *requests: Request) -> None:
        self.chain = FakeChain()
        registered = (self.chain.registered(signer.address, owner_of(signer)) for signer in NODE_SIGNERS)
        self.chain.mine(*registered, *(self.chain.requested(request) for request in requests))
        self.chain.mine_many(CONFIRMATIONS)
        self.requests = requests
        self.rounds: list[tuple[RecordedRound, ServedRound | None]] = []
        self.leaves: dict[int, list[Decision]] = {}
        self.owners = {signer.address: owner_of(signer) for signer in NODE_SIGNERS}
        self._head = ZERO_HASH
        self.reasons: dict[str, Reason] = {}

    def inputs(self, *, round_: int = 1, cycle: int = 0, streak: int = 0) -> CycleInputs:
        anchor = self.chain.all_blocks()[-1]
        now_ms = (anchor.timestamp_s + 1) * 1000
        return CycleInputs(
            chain_id=self.chain.chain_id,
            market=MARKET,
            relayer=RELAYER,
            round=round_,
            cycle=cycle,
            now_ms=now_ms,
            anchor=Anchor(anchor.number, anchor.hash, anchor.timestamp_s),
            gas=GasQuote(GWEI, GWEI),
            terms=TERMS,
            policy=Policy(),
            lane_streak=streak,
            requests=tuple(sorted((self._waiting(each) for each in self.requests), key=lambda each: each.request_id)),
            nodes=(node_view(NODE_SIGNER, now_ms),),
        )

    def _waiting(self, request: Request) -> WaitingRequest:
        return WaitingRequest(
            request_id=self.chain.id_of(request),
            model_id=request.model_id,
            model_name="model",
            lane=request.lane,
            priority_fee_wei=request.priority_fee_wei,
            included_at_s=self.chain.all_blocks()[1].timestamp_s,
            deadline_s=request.deadline_s,
            prompt_bytes=request.prompt_bytes,
            max_output_tokens=request.max_output_tokens,
            required_memory_mb=100,
            batchable=request.batchable,
            max_reward_wei=request.max_reward_wei,
            gas_budget_wei=request.gas_budget_wei,
            prompt_available=True,
            assignments=0,
            excluded_nodes=(),
            supersedes_round=0,
            k=request.k,
            n=request.n,
            kept_nodes=(),
            tried_owners=(),
            deterministic=True,
            released_until_s=0,
            callback_gas=request.callback_gas,
            answer_bytes=required_answer_bytes(request),
            verifier=request.verifier,
            verifier_gas=0 if request.verifier == ZERO_ADDRESS else 25_000,
            requester=request.requester,
            work=expected_work(request.prompt_bytes, request.max_output_tokens, 1_000),
        )

    def record(self, *cycles: CycleInputs, **changes: Any) -> None:
        """Close a round over these cycles, with fields of its record changed."""
        cycles = tuple(map(self.told, cycles))
        snapshots = [encode_snapshot(each) for each in cycles]
        self.record_as(cycles, snapshots, **changes)

    def told(self, inputs: CycleInputs) -> CycleInputs:
        """A cycle's inputs with what was decided last on each request; what it decides is noted."""
        last = self.reasons
        asked = [replace(each, last_reason=last.get(each.request_id, each.last_reason)) for each in inputs.requests]
        told = replace(inputs, requests=tuple(asked))
        self.reasons.update((each.decision.request_id, each.decision.reason) for each in plan_cycle(told).decisions)
        return told

    def record_as(self, cycles: Sequence[CycleInputs], snapshots: Sequence[bytes], **changes: Any) -> None:
        """Close a round over these cycles under these snapshots."""
        hashes = ["0x" + keccak(each).hex() for each in snapshots]
        leaves = merge_decisions([[planned.decision for planned in plan_cycle(each).decisions] for each in cycles])
        self.leaves[cycles[0].round] = leaves
        record = close_round(cycles[0].round, leaves, hashes, policy_hash(cycles[0].policy), cycles[-1].anchor)
        record = replace(record, **changes)
        self._head = chained_head(self._head, RELAYER, record)
        log = self.chain.recorded(RELAYER, record)
        block = self.chain.mine(replace(log, args={**log.args, "head": self._head})).number
        served = ServedRound(tuple(hashes), dict(zip(hashes, snapshots, strict=True)))
        self.rounds.append((RecordedRound(record, self._head, block), served))

    def evidence(self) -> Evidence:
        blocks = {block.number: block for block in self.chain.all_blocks()}
        chain, events = self.chain, self.chain.all_events()
        return Evidence(chain.chain_id, MARKET, RELAYER, TERMS, events, blocks, CONFIRMATIONS, self.owners)

    def findings(self, **options: Any) -> list[Finding]:
        return audit_rounds(self.rounds, self.evidence(), **options)


def owner_of(signer: FakeSigner) -> str:
    return "0x" + keccak(text=f"owner of {signer.address}")[12:].hex()


def node_view(signer: FakeSigner, now_ms: int, *, signed_by: FakeSigner | None = None, **changes: Any) -> NodeView:
    beat = Heartbeat(
        node=signer.address,
        sequence=1,
        sent_at_ms=now_ms - 500,
        free_memory_mb=4_000,
        in_flight=1,
        max_in_flight=2,
        load_milli=100,
        models=(MODEL_ID,),
        warm_models=(MODEL_ID,),
        avg_latency_ms=700,
        region="local",
    )
    content = canonical_json(to_json(beat))
    domain = typed_data.Domain(31337, MARKET)
    struct_hash = typed_data.hash_heartbeat(signer.address, RELAYER, "0x" + keccak(content).hex())
    signature = (signed_by or signer).sign_digest(typed_data.digest(domain, struct_hash))
    fields: dict[str, Any] = {
        "node": signer.address,
        "owner": owner_of(signer),
        "offers": (Offer(MODEL_ID, "model", Price(10**12, 10**12)),),
        "free_memory_mb": 4_000,
        "in_flight": 1,
        "max_in_flight": 2,
        "avg_latency_ms": 700,
        "settled_count": 0,
        "joined_at_s": 0,
        "heartbeat_at_ms": now_ms - 400,
        "heartbeat": content.decode(),
        "heartbeat_signature": "0x" + signature.hex(),
    }
    return NodeView(**{**fields, **changes})
