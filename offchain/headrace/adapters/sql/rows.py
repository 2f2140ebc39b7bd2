"""Between rows and the values of the ports: `x_of(row)` and `row_of_x(x)`."""

# ruff: noqa: D103 - the names say it all

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import RowMapping

from headrace.core.cycle import Anchor, Carried, CyclePlan, PlannedDecision
from headrace.core.events import BlockRef, ChainEvent
from headrace.core.fairness import Account
from headrace.core.lifecycle import RequestState
from headrace.core.postings import PostingState
from headrace.core.types import Assignment, Decision, DecisionKind, Lane, Mode, Reason, Request, Result, RoundRecord
from headrace.ports import (
    Call,
    StoredAssignment,
    StoredAttempt,
    StoredCycle,
    StoredIntent,
    StoredPosting,
    StoredRequest,
    StoredResult,
    StoredRound,
)

Row = RowMapping

REQUEST_FIELDS = tuple(field.name for field in dataclasses.fields(Request))


def block_of(row: Row) -> BlockRef:
    return BlockRef(row["number"], row["hash"], row["parent_hash"], row["timestamp_s"])


def event_of(row: Row) -> ChainEvent:
    return ChainEvent(
        row["block_number"],
        row["block_hash"],
        row["transaction_hash"],
        row["log_index"],
        row["contract"],
        row["name"],
        row["args"],
    )


def request_of(row: Row) -> StoredRequest:
    return StoredRequest(
        request_id=row["request_id"],
        request=_request_of_fields({name: row[name] for name in REQUEST_FIELDS}),
        state=RequestState(row["state"]),
        block_number=row["block_number"],
        block_hash=row["block_hash"],
        transaction_hash=row["transaction_hash"],
        included_at_s=row["included_at_s"],
        priority_fee_added_wei=row["priority_fee_added_wei"],
        effective_deadline_s=row["effective_deadline_s"],
        released_until_s=row["released_until_s"],
        closed=row["closed"],
    )


def _request_of_fields(fields: Mapping[str, Any]) -> Request:
    return Request(**{**fields, "lane": Lane(fields["lane"]), "mode": Mode(fields["mode"])})


def row_of_request(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in REQUEST_FIELDS}


def assignment_of(row: Row) -> StoredAssignment:
    return StoredAssignment(
        request_id=row["request_id"],
        attempt=row["attempt"],
        assignment=Assignment(
            request_id=row["request_id"],
            relayer=row["relayer"],
            node=row["node"],
            round=row["round"],
            reward_wei=row["reward_wei"],
            deadline_s=row["deadline_s"],
        ),
        state=row["state"],
        assigned_at_ms=row["assigned_at_ms"],
        lease_until_ms=row["lease_until_ms"],
        signature=row["signature"],
        accept_signature=row["accept_signature"],
        detail=row["detail"],
    )


def row_of_assignment(stored: StoredAssignment) -> dict[str, Any]:
    word = stored.assignment
    return {
        "request_id": stored.request_id,
        "attempt": stored.attempt,
        "state": stored.state,
        "relayer": word.relayer,
        "node": word.node,
        "round": word.round,
        "reward_wei": word.reward_wei,
        "deadline_s": word.deadline_s,
        "assigned_at_ms": stored.assigned_at_ms,
        "lease_until_ms": stored.lease_until_ms,
        "signature": stored.signature,
        "accept_signature": stored.accept_signature,
        "detail": stored.detail,
    }


def result_of(row: Row) -> StoredResult:
    return StoredResult(
        node=row["node"],
        result=Result(
            request_id=row["request_id"],
            result_hash=row["result_hash"],
            reward_wei=row["reward_wei"],
            relayer=row["relayer"],
            round=row["round"],
        ),
        signature=row["signature"],
        payload_hash=row["payload_hash"],
        payload_bytes=row["payload_bytes"],
        received_at_ms=row["received_at_ms"],
        proof=row["proof"],
    )


def row_of_result(stored: StoredResult) -> dict[str, Any]:
    return {
        "request_id": stored.result.request_id,
        "node": stored.node,
        "result_hash": stored.result.result_hash,
        "reward_wei": stored.result.reward_wei,
        "relayer": stored.result.relayer,
        "round": stored.result.round,
        "signature": stored.signature,
        "payload_hash": stored.payload_hash,
        "payload_bytes": stored.payload_bytes,
        "received_at_ms": stored.received_at_ms,
        "proof": stored.proof,
    }


def decision_of(row: Row) -> Decision:
    return Decision(
        request_id=row["request_id"],
        node=row["node"],
        kind=DecisionKind(row["kind"]),
        reason=Reason(row["reason"]),
        reward_wei=row["reward_wei"],
        supersedes_round=row["supersedes_round"],
    )


def row_of_decision(decision: Decision) -> dict[str, Any]:
    return {
        "request_id": decision.request_id,
        "node": decision.node,
        "kind": int(decision.kind),
        "reason": int(decision.reason),
        "reward_wei": decision.reward_wei,
        "supersedes_round": decision.supersedes_round,
    }


def cycle_of(row: Row, planned: Sequence[Row]) -> StoredCycle:
    return StoredCycle(
        round=row["round"],
        cycle=row["cycle"],
        snapshot_hash=row["snapshot_hash"],
        anchor=Anchor(row["anchor_block"], row["anchor_hash"], row["anchor_timestamp_s"]),
        planned_at_ms=row["planned_at_ms"],
        plan=_plan_of(carried_of(row), planned),
    )


def _plan_of(carried: Carried, planned: Sequence[Row]) -> CyclePlan:
    return CyclePlan(
        decisions=tuple(_planned_of(each) for each in planned),
        lane_streak=carried.lane_streak,
        lane_lag=carried.lane_lag,
        floor_work=carried.floor_work,
        accounts=carried.accounts,
    )


def carried_of(row: Row) -> Carried:
    """What a cycle left to the next."""
    accounts = tuple(Account(requester, served_work) for requester, served_work in row["accounts"])
    return Carried(row["lane_streak"], row["lane_lag"], row["floor_work"], accounts)


def row_of_cycle(cycle: StoredCycle) -> dict[str, Any]:
    return {
        "round": cycle.round,
        "cycle": cycle.cycle,
        "snapshot_hash": cycle.snapshot_hash,
        "anchor_block": cycle.anchor.block,
        "anchor_hash": cycle.anchor.hash,
        "anchor_timestamp_s": cycle.anchor.timestamp_s,
        "planned_at_ms": cycle.planned_at_ms,
        "lane_streak": cycle.plan.lane_streak,
        "lane_lag": cycle.plan.lane_lag,
        "floor_work": cycle.plan.floor_work,
        "accounts": [[account.requester, account.served_work] for account in cycle.plan.accounts],
    }


def rows_of_plan(cycle: StoredCycle) -> list[dict[str, Any]]:
    return [
        {
            "round": cycle.round,
            "cycle": cycle.cycle,
            "position": position,
            **row_of_decision(planned.decision),
            "score_e9": planned.score_e9,
            "cost_wei": planned.cost_wei,
            "runner_up": planned.runner_up,
            "runner_up_cost_wei": planned.runner_up_cost_wei,
        }
        for position, planned in enumerate(cycle.plan.decisions)
    ]


def round_of(row: Row) -> StoredRound:
    return StoredRound(
        round=row["round"],
        state=row["state"],
        opened_at_ms=row["opened_at_ms"],
        cycles=row["cycles"],
        record=RoundRecord(**row["record"]) if row["record"] else None,
        policy_hash=row["policy_hash"],
        recorded_block=row["recorded_block"],
        transaction_hash=row["transaction_hash"],
    )


def json_of_record(record: RoundRecord) -> dict[str, Any]:
    return dataclasses.asdict(record)


def record_of_event(args: Mapping[str, Any]) -> RoundRecord:
    """The record in a `RoundRecorded` event's arguments."""
    record = args["record"]
    return RoundRecord(
        round=record["round"],
        decisions_root=record["decisionsRoot"],
        snapshot_hash=record["snapshotHash"],
        policy_hash=record["policyHash"],
        anchor_block=record["anchorBlock"],
        anchor_hash=record["anchorHash"],
        assigned=record["assigned"],
        skipped=record["skipped"],
        too_late=record["tooLate"],
    )


def intent_of(row: Row, attempts: Sequence[Row]) -> StoredIntent:
    return StoredIntent(
        intent_id=row["intent_id"],
        kind=row["kind"],
        key=row["key"],
        detail={**row["detail"], **row["outcome"]},
        call=Call(row["to"], row["data"], row["value_wei"]),
        gas_limit=row["gas_limit"],
        nonce=row["nonce"],
        state=row["state"],
        attempts=tuple(_attempt_of(attempt) for attempt in attempts),
        block_number=row["block_number"],
        created_at_ms=row["created_at_ms"],
        sender=row["sender"],
        until_s=row["until_s"],
        worth_wei=row["worth_wei"],
    )


def posting_of(row: Row) -> StoredPosting:
    return StoredPosting(
        request_id=row["request_id"],
        request=_request_of_fields(row["request"]),
        relayer_fee_wei=row["relayer_fee_wei"],
        valid_until_s=row["valid_until_s"],
        data=row["data"],
        submitted_at_ms=row["submitted_at_ms"],
        state=PostingState(row["state"]),
        reason=row["reason"],
        ended_at_ms=row["ended_at_ms"],
        intent_state=row["intent_state"] or "",
        intent_block=row["intent_block"] or 0,
        transaction_hash=row["transaction_hash"] or "",
    )


def row_of_posting(stored: StoredPosting) -> dict[str, Any]:
    return {
        "request_id": stored.request_id,
        "state": str(stored.state),
        "requester": stored.request.requester,
        "request": dataclasses.asdict(stored.request),
        "relayer_fee_wei": stored.relayer_fee_wei,
        "valid_until_s": stored.valid_until_s,
        "data": stored.data,
        "reason": stored.reason,
        "submitted_at_ms": stored.submitted_at_ms,
        "ended_at_ms": stored.ended_at_ms,
        "intent_id": None,
    }


def row_of_attempt(attempt: StoredAttempt) -> dict[str, Any]:
    return {
        "transaction_hash": attempt.transaction_hash,
        "raw": attempt.raw,
        "max_fee_wei": attempt.max_fee_wei,
        "tip_wei": attempt.tip_wei,
        "created_at_ms": attempt.created_at_ms,
        "is_noop": attempt.is_noop,
    }


def _attempt_of(row: Row) -> StoredAttempt:
    return StoredAttempt(
        transaction_hash=row["transaction_hash"],
        raw=row["raw"],
        max_fee_wei=row["max_fee_wei"],
        tip_wei=row["tip_wei"],
        created_at_ms=row["created_at_ms"],
        is_noop=row["is_noop"],
    )


def _planned_of(row: Row) -> PlannedDecision:
    return PlannedDecision(
        decision=decision_of(row),
        score_e9=row["score_e9"],
        cost_wei=row["cost_wei"],
        runner_up=row["runner_up"],
        runner_up_cost_wei=row["runner_up_cost_wei"],
    )
