"""The faults contract: what it says, and the calls that prove faults to it."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from headrace.adapters.abi_codec import ContractAbi
from headrace.adapters.web3_part import ChainPart, b32, bytes_of
from headrace.core.errors import InvalidInput
from headrace.core.faults import (
    Absence,
    AssignedUndecided,
    Contradicted,
    DoubleAssignment,
    Equivocation,
    Fault,
    FaultTerms,
    FoundFault,
    Missed,
    PaidUndecided,
    Proof,
    ProvenDecision,
    ReleasedAssignment,
    ReleasedDecision,
    SignedResult,
)
from headrace.core.requests import pack
from headrace.core.submissions import Submission, decode_submission
from headrace.core.types import (
    ZERO_ADDRESS,
    ZERO_HASH,
    Address,
    Assignment,
    Decision,
    DecisionKind,
    Hash32,
    Reason,
    ResultRef,
    RoundRecord,
)
from headrace.ports import Call

_TERMS = {
    "missed_wei": "MISSED_WEI",
    "equivocation_wei": "EQUIVOCATION_WEI",
    "relayer_wei": "RELAYER_WEI",
    "bounty_bps": "BOUNTY_BPS",
    "proof_gas": "PROOF_GAS",
    "tip_cap_wei": "TIP_CAP",
}
_NO_DECISION = Decision(ZERO_HASH, ZERO_ADDRESS, DecisionKind.ASSIGNED, Reason.NONE, 0, 0)


class FaultsReader(ChainPart):
    """What a watcher asks and sends."""

    async def fault_terms(self) -> FaultTerms:
        values = await asyncio.gather(*(self._read(_abi(), self._faults, name) for name in _TERMS.values()))
        return FaultTerms(**{field: value for field, (value,) in zip(_TERMS, values, strict=True)})

    async def held_wei(self, fault: Fault, culprit: Address) -> int:
        function, field = ("nodeOf", "stake") if fault.is_nodes else ("relayerOf", "bond")
        (facts,) = await self._read(self._stakes, self.stake_manager, function, culprit)
        return int(facts[field])

    async def is_proven(self, fault: Fault, culprit: Address, request_id: Hash32, node: Address, at_block: int) -> bool:
        at = hex(at_block)
        if fault.is_nodes:
            (culprit,) = await self._read(self._stakes, self.stake_manager, "canonicalNodeOf", culprit, at=at)
        key = (int(fault), culprit, b32(request_id), node)
        (proven,) = await self._read(_abi(), self._faults, "isProven", *key, at=at)
        return bool(proven)

    async def submitted(self, transaction_hash: Hash32) -> Submission | None:
        found = await self._ask("eth_getTransactionByHash", transaction_hash)
        if not found or (found.get("to") or "").lower() != self.market:
            return None
        try:
            return decode_submission(bytes_of(found["input"]), self.chain_id, self.market)
        except InvalidInput:
            return None

    def prove_call(self, found: FoundFault) -> Call:
        function, values = _arguments(found.proof)
        return Call(self._faults, _abi().call(function, pack(found.request), *values))

    @property
    def _faults(self) -> Address:
        return self._deployment.address_of("Faults")


@cache
def _abi() -> ContractAbi:
    return ContractAbi("Faults")


def _arguments(proof: Proof) -> tuple[str, tuple[Any, ...]]:
    """The function that a proof is for, and what it takes after the request."""
    match proof:
        case Missed(relayer, deadline_s, signature, assigned):
            return "proveMissed", (relayer, deadline_s, signature, _proven(assigned))
        case Equivocation(node, first, second):
            return "proveEquivocation", (node, (_result(first), _result(second)))
        case PaidUndecided(paid, node_index, absence):
            return "provePaidUndecided", (_ref(paid), node_index, _absence(absence))
        case AssignedUndecided(signed, absence):
            return "proveAssignedUndecided", (_assignment(signed.assignment), signed.signature, _absence(absence))
        case Contradicted(signed, decided):
            return "proveContradicted", (_assignment(signed.assignment), signed.signature, _proven(decided))
        case DoubleAssignment(relayer, first, second):
            return "proveDoubleAssignment", (relayer, _proven(first), _proven(second))
        case ReleasedAssignment(signed):
            return "proveReleasedAssignment", (_assignment(signed.assignment), signed.signature)
        case ReleasedDecision(assigned):
            return "proveReleasedDecision", (_proven(assigned),)


def _proven(proven: ProvenDecision) -> tuple[Any, ...]:
    proof = [b32(each) for each in proven.proof]
    return _record(proven.record), _decision(proven.decision), proven.index, proof


def _absence(absence: Absence) -> tuple[Any, ...]:
    return (
        _record(absence.record),
        absence.index,
        _decision(absence.left or _NO_DECISION),
        [b32(each) for each in absence.left_proof],
        _decision(absence.right or _NO_DECISION),
        [b32(each) for each in absence.right_proof],
    )


def _record(record: RoundRecord) -> tuple[Any, ...]:
    return (
        record.round,
        b32(record.decisions_root),
        b32(record.snapshot_hash),
        b32(record.policy_hash),
        record.anchor_block,
        b32(record.anchor_hash),
        record.assigned,
        record.skipped,
        record.too_late,
    )


def _decision(decision: Decision) -> tuple[Any, ...]:
    return (
        b32(decision.request_id),
        decision.node,
        int(decision.kind),
        int(decision.reason),
        decision.reward_wei,
        decision.supersedes_round,
    )


def _assignment(word: Assignment) -> tuple[Any, ...]:
    return b32(word.request_id), word.relayer, word.node, word.round, word.reward_wei, word.deadline_s


def _ref(paid: ResultRef) -> tuple[Any, ...]:
    return b32(paid.result_hash), paid.relayer, paid.round, list(paid.nodes), paid.settled_at_s


def _result(signed: SignedResult) -> tuple[Any, ...]:
    result = signed.result
    return (
        b32(result.result_hash),
        result.reward_wei,
        result.relayer,
        result.round,
        list(signed.set_hashes),
        signed.signature,
    )
