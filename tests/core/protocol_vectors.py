"""The golden vectors of the protocol, and the core's values in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.core.types import (
    Assignment,
    Decision,
    DecisionKind,
    Lane,
    MarketTerms,
    Mode,
    Reason,
    Request,
    Result,
    RoundRecord,
)

FOLDER = Path(__file__).parents[1] / "vectors" / "protocol"

Entry = dict[str, Any]


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def named(entries: list[Entry]) -> dict[str, Any]:
    """Arguments of `parametrize` for entries with a name."""
    return {"argvalues": entries, "ids": [entry["name"].replace(" ", "-") for entry in entries]}


def request_from(requester: str, params: Entry) -> Request:
    return Request(
        requester=requester,
        relayer=params["relayer"],
        model_id=params["modelId"],
        prompt_hash=params["promptHash"],
        salt=int(params["salt"]),
        deadline_s=params["deadline"],
        prompt_bytes=params["promptBytes"],
        max_output_tokens=params["maxOutputTokens"],
        callback_gas=params["callbackGas"],
        lane=Lane(params["lane"]),
        batchable=params["batchable"],
        inline_result=params["inlineResult"],
        mode=Mode(params["mode"]),
        k=params["k"],
        n=params["n"],
        verifier=params["verifier"],
        max_reward_wei=int(params["maxReward"]),
        gas_budget_wei=int(params["gasBudget"]),
        priority_fee_wei=int(params["priorityFee"]),
    )


def decision_from(entry: Entry) -> Decision:
    return Decision(
        request_id=entry["requestId"],
        node=entry["node"],
        kind=DecisionKind(entry["kind"]),
        reason=Reason(entry["reason"]),
        reward_wei=int(entry["reward"]),
        supersedes_round=int(entry["supersedesRound"]),
    )


def record_from(entry: Entry) -> RoundRecord:
    return RoundRecord(
        round=int(entry["round"]),
        decisions_root=entry["decisionsRoot"],
        snapshot_hash=entry["snapshotHash"],
        policy_hash=entry["policyHash"],
        anchor_block=int(entry["anchorBlock"]),
        anchor_hash=entry["anchorHash"],
        assigned=entry["assigned"],
        skipped=entry["skipped"],
        too_late=entry["tooLate"],
    )


def result_from(entry: Entry) -> Result:
    return Result(
        request_id=entry["requestId"],
        result_hash=entry["resultHash"],
        reward_wei=int(entry["reward"]),
        relayer=entry["relayer"],
        round=int(entry["round"]),
    )


def assignment_from(entry: Entry) -> Assignment:
    return Assignment(
        request_id=entry["requestId"],
        relayer=entry["relayer"],
        node=entry["node"],
        round=int(entry["round"]),
        reward_wei=int(entry["reward"]),
        deadline_s=entry["deadline"],
    )


def terms_from(entry: Entry) -> MarketTerms:
    return MarketTerms(**{name: int(value) for name, value in entry.items()})
