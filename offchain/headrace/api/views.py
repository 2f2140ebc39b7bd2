"""Core values as resources."""

from __future__ import annotations

from headrace.api import schemas
from headrace.api.drafts import Signing
from headrace.core import typed_data
from headrace.core.cycle import Offer
from headrace.core.postings import PostingState
from headrace.core.requests import pack
from headrace.core.tasks import LinkedNode
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Address, Decision, Lane, Mode, Request, RoundRecord
from headrace.ports import (
    Call,
    ModelFacts,
    NodeFacts,
    StoredAssignment,
    StoredPosting,
    StoredRequest,
    StoredResult,
    StoredRound,
)


def model_view(model: ModelFacts) -> schemas.ModelView:
    """A registered model."""
    return schemas.ModelView(
        model_id=model.model_id,
        name=model.name,
        revision=model.revision,
        quantisation=model.quantisation,
        weights_hash=model.weights_hash,
        memory_mb=model.memory_mb,
        memory_per_token_bytes=model.memory_per_token_bytes,
        complexity_milli=model.complexity_milli,
        unit=model.unit,
    )


def params_view(request: Request) -> schemas.ParamsView:
    """A request's terms."""
    return schemas.ParamsView(
        relayer=request.relayer,
        model_id=request.model_id,
        prompt_hash=request.prompt_hash,
        salt=str(request.salt),
        deadline_s=request.deadline_s,
        prompt_bytes=request.prompt_bytes,
        max_output_tokens=request.max_output_tokens,
        callback_gas=request.callback_gas,
        lane=lane_name(request.lane),
        batchable=request.batchable,
        inline_result=request.inline_result,
        mode=request.mode.name.lower(),
        k=request.k,
        n=request.n,
        verifier=request.verifier,
        max_reward_wei=str(request.max_reward_wei),
        gas_budget_wei=str(request.gas_budget_wei),
        priority_fee_wei=str(request.priority_fee_wei),
    )


def request_of(params: schemas.ParamsView, requester: Address) -> Request:
    """The request of a requester with these terms."""
    return Request(
        requester=requester,
        relayer=params.relayer,
        model_id=params.model_id,
        prompt_hash=params.prompt_hash,
        salt=int(params.salt),
        deadline_s=params.deadline_s,
        prompt_bytes=params.prompt_bytes,
        max_output_tokens=params.max_output_tokens,
        callback_gas=params.callback_gas,
        lane=Lane[params.lane.upper()],
        batchable=params.batchable,
        inline_result=params.inline_result,
        mode=Mode[params.mode.upper()],
        k=params.k,
        n=params.n,
        verifier=params.verifier,
        max_reward_wei=int(params.max_reward_wei),
        gas_budget_wei=int(params.gas_budget_wei),
        priority_fee_wei=int(params.priority_fee_wei),
    )


def packed_view(request: Request) -> schemas.PackedView:
    """A request's seven words."""
    packed = pack(request)
    return schemas.PackedView(
        requester=packed.requester,
        relayer=packed.relayer,
        model_id=request.model_id,
        prompt_hash=request.prompt_hash,
        amounts=str(packed.amounts),
        terms=str(packed.terms),
        verifier=packed.verifier,
    )


def transaction_view(call: Call, chain_id: int) -> schemas.TransactionView:
    """An unsigned transaction."""
    return schemas.TransactionView(
        to=call.to, data="0x" + call.data.hex(), value_wei=str(call.value_wei), chain_id=chain_id
    )


def lane_name(lane: Lane) -> schemas.LaneName:
    """A lane by its name."""
    return "realtime" if lane is Lane.REALTIME else "bulk"


def summary_view(stored: StoredRequest, model_name: str) -> schemas.RequestSummary:
    """A request in a list."""
    return schemas.RequestSummary(
        request_id=stored.request_id,
        state=stored.state,
        requester=stored.request.requester,
        model_id=stored.request.model_id,
        model_name=model_name,
        prompt_hash=stored.request.prompt_hash,
        lane=lane_name(stored.request.lane),
        escrow_wei=str(stored.request.escrow_wei + stored.priority_fee_added_wei),
        deadline_s=stored.request.deadline_s,
        block_number=stored.block_number,
        transaction_hash=stored.transaction_hash,
        included_at_s=stored.included_at_s,
    )


def posting_view(stored: StoredPosting) -> schemas.PostingView:
    """What was handed in with a request."""
    return schemas.PostingView(
        submitted_at_ms=stored.submitted_at_ms,
        relayer_fee_wei=str(stored.relayer_fee_wei),
        valid_until_s=stored.valid_until_s,
        reason=stored.reason,
    )


def signing_view(request: Request, signing: Signing, domain: typed_data.Domain) -> schemas.SigningView:
    """What a wallet shows and signs."""
    message = typed_data.request_for_message(request, signing.relayer_fee_wei, signing.valid_until_s)
    return schemas.SigningView(
        relayer_fee_wei=str(signing.relayer_fee_wei),
        valid_until_s=signing.valid_until_s,
        typed_data=typed_data.typed_message(domain, "RequestFor", message),
    )


def submitted_summary(stored: StoredPosting, model_name: str) -> schemas.RequestSummary:
    """A request that no block has yet, in a list."""
    request = stored.request
    return schemas.RequestSummary(
        request_id=stored.request_id,
        # One that was posted is on its way to the index.
        state="unposted" if stored.state is PostingState.UNPOSTED else "submitted",
        requester=request.requester,
        model_id=request.model_id,
        model_name=model_name,
        prompt_hash=request.prompt_hash,
        lane=lane_name(request.lane),
        escrow_wei=str(request.escrow_wei),
        deadline_s=request.deadline_s,
        block_number=None,
        transaction_hash=stored.transaction_hash or None,
        included_at_s=None,
    )


def decision_view(decision: Decision) -> schemas.DecisionView:
    """A decision by its names."""
    return schemas.DecisionView(
        request_id=decision.request_id,
        node=None if decision.node == ZERO_ADDRESS else decision.node,
        kind=decision.kind.name.lower(),
        reason=decision.reason.name,
        reward_wei=str(decision.reward_wei),
        supersedes_round=decision.supersedes_round,
    )


def assignment_view(stored: StoredAssignment) -> schemas.AssignmentView:
    """An assignment without its signatures: the relayer's is for the node alone, the node's is among the accepts."""
    return schemas.AssignmentView(
        attempt=stored.attempt,
        node=stored.assignment.node,
        round=stored.assignment.round,
        state=stored.state,
        reward_wei=str(stored.assignment.reward_wei),
        assigned_at_ms=stored.assigned_at_ms,
        lease_until_ms=stored.lease_until_ms,
        detail=stored.detail,
    )


def accept_view(stored: StoredAssignment) -> schemas.AcceptView:
    """The node's word on an assignment, for whoever wants to hold it to it."""
    return schemas.AcceptView(
        request_id=stored.request_id,
        node=stored.assignment.node,
        deadline_s=stored.assignment.deadline_s,
        signature="0x" + stored.accept_signature.hex(),
    )


def result_view(stored: StoredResult) -> schemas.ResultView:
    """A result without its bytes."""
    return schemas.ResultView(
        result_hash=stored.result.result_hash,
        result_bytes=stored.payload_bytes,
        node=stored.node,
        round=stored.result.round,
        received_at_ms=stored.received_at_ms,
    )


def record_view(record: RoundRecord) -> schemas.RecordView:
    """A round's record."""
    return schemas.RecordView(
        round=record.round,
        decisions_root=record.decisions_root,
        snapshot_hash=record.snapshot_hash,
        policy_hash=record.policy_hash,
        anchor_block=record.anchor_block,
        anchor_hash=record.anchor_hash,
        assigned=record.assigned,
        skipped=record.skipped,
        too_late=record.too_late,
    )


def round_view(stored: StoredRound) -> schemas.RoundSummary:
    """A round in a list."""
    is_recorded = stored.state == "recorded"
    return schemas.RoundSummary(
        round=stored.round,
        state=stored.state,
        opened_at_ms=stored.opened_at_ms,
        cycle_count=stored.cycles,
        record=record_view(stored.record) if stored.record else None,
        recorded_block=stored.recorded_block if is_recorded else None,
        transaction_hash=stored.transaction_hash if is_recorded and stored.transaction_hash != ZERO_HASH else None,
    )


def heartbeat_view(linked: LinkedNode) -> schemas.HeartbeatView:
    """A node's last heartbeat."""
    beat = linked.heartbeat
    return schemas.HeartbeatView(
        sequence=beat.sequence,
        sent_at_ms=beat.sent_at_ms,
        received_at_ms=linked.received_at_ms,
        free_memory_mb=beat.free_memory_mb,
        in_flight=beat.in_flight,
        max_in_flight=beat.max_in_flight,
        load_milli=beat.load_milli,
        models=list(beat.models),
        warm_models=list(beat.warm_models),
        avg_latency_ms=beat.avg_latency_ms,
        region=beat.region,
        signature="0x" + linked.signature.hex(),
    )


def facts_view(facts: NodeFacts) -> schemas.NodeFactsView:
    """A node on-chain."""
    return schemas.NodeFactsView(
        owner=facts.owner,
        stake_wei=str(facts.stake_wei),
        unbonding_wei=str(facts.unbonding_wei),
        is_active=facts.is_active,
        payee=facts.payee,
        joined_at_s=facts.joined_at_s,
        settled_count=facts.settled_count,
        misses=facts.misses,
        faults=facts.faults,
    )


def offer_view(offer: Offer) -> schemas.OfferView:
    """A node's price for a model."""
    return schemas.OfferView(
        model_id=offer.model_id,
        model_name=offer.model_name,
        per_prompt_kib_wei=str(offer.price.per_prompt_kib_wei),
        per_thousand_tokens_wei=str(offer.price.per_thousand_tokens_wei),
    )
