"""Sending transactions: their data, what they would do, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.adapters.json_rpc import AnswerLost, RpcError
from headrace.adapters.web3_part import ChainPart, b32, bytes_of, hex_of
from headrace.core.errors import ChainUnavailable, ConfigurationError, Refused, Unknown
from headrace.core.keccak import keccak
from headrace.core.requests import pack
from headrace.core.types import Address, Assignment, Hash32, Request, RoundRecord
from headrace.ports import Call, CallOutcome, Receipt, ResultSetCall

_GWEI = 10**9
# EIP-7825: no transaction may have more.
_MAX_TRANSACTION_GAS = 1 << 24
_METHOD_NOT_FOUND = -32601
_LENT_WEI = 10**30  # more than there is of any chain's coin
_KNOWN = ("already known", "already imported", "known transaction")


class ChainSender(ChainPart):
    """What is sent to the chain."""

    def record_round_call(self, relayer: Address, record: RoundRecord, signature: bytes = b"") -> Call:
        fields = (
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
        return Call(self.schedule_log, self._log.call("recordRound", relayer, fields, signature))

    def submit_results_call(self, relayer: Address, sets: Sequence[ResultSetCall]) -> Call:
        return Call(self.market, self._market.call("submitResults", relayer, [_encoded(each) for each in sets]))

    def submit_results_for_call(
        self, relayer: Address, sets: Sequence[ResultSetCall], valid_until_s: int, signature: bytes
    ) -> Call:
        encoded = [_encoded(each) for each in sets]
        return Call(self.market, self._market.call("submitResultsFor", relayer, encoded, valid_until_s, signature))

    def submit_assigned_call(self, assignment: Assignment, signature: bytes, result_set: ResultSetCall) -> Call:
        fields = (
            b32(assignment.request_id),
            assignment.relayer,
            assignment.node,
            assignment.round,
            assignment.reward_wei,
            assignment.deadline_s,
        )
        return Call(self.market, self._market.call("submitAssigned", fields, signature, _encoded(result_set)))

    def expire_call(self, requests: Sequence[Request]) -> Call:
        return Call(self.market, self._market.call("expire", [pack(request) for request in requests]))

    async def simulate(self, sender: Address, calls: Sequence[Call]) -> list[CallOutcome]:
        if not calls:
            return []
        latest = await self._latest()
        price_wei = 2 * int(latest["baseFeePerGas"], 16) + _GWEI
        gas_limit = min(_MAX_TRANSACTION_GAS, int(latest["gasLimit"], 16))
        # By its hash: at the same height, another node of the endpoint may have another block.
        pinned = {"blockHash": latest["hash"], "requireCanonical": True}
        # The price is not zero, since what is paid by it decides which slots are written. The sender is lent what the
        # limits, which are far above what is used, would need: whether it can pay is the guard's question.
        block = {
            "stateOverrides": {sender: {"balance": hex(_LENT_WEI)}},
            "calls": [
                {
                    "from": sender,
                    "to": call.to,
                    "data": hex_of(call.data),
                    "value": hex(call.value_wei),
                    "gas": hex(gas_limit),
                    "maxFeePerGas": hex(price_wei),
                    "maxPriorityFeePerGas": hex(_GWEI),
                }
                for call in calls
            ],
        }
        try:
            simulated = await self._rpc.call(
                "eth_simulateV1", {"blockStateCalls": [block], "validation": False}, pinned
            )
        except RpcError as exc:
            if exc.code == _METHOD_NOT_FOUND:
                raise ConfigurationError(
                    f"{self._rpc.endpoint} does not have eth_simulateV1; use a node that has it"
                ) from exc
            await self._require_canonical(latest)
            # The sequence as a whole was refused.
            return [CallOutcome(False, 0, (), self._worded(exc)) for _ in calls]
        return [self._outcome(each) for each in simulated[0]["calls"]]

    async def _require_canonical(self, header: Any) -> None:
        """Raises ChainUnavailable when the node has another block in the place of one that was the last."""
        there = await self._ask("eth_getBlockByNumber", header["number"], False)
        if not there or there["hash"] != header["hash"]:
            raise ChainUnavailable(f"{self._rpc.endpoint} left block {header['hash']} during a simulation on it")

    async def transaction_count(self, account: Address) -> int:
        return int(await self._ask("eth_getTransactionCount", account, "latest"), 16)

    async def send_raw(self, raw: bytes) -> None:
        transaction_hash = hex_of(keccak(raw))
        try:
            await self._rpc.call("eth_sendRawTransaction", hex_of(raw))
        except AnswerLost as exc:
            raise Unknown(f"whether transaction {transaction_hash} was taken is not known: {exc}") from exc
        except RpcError as exc:
            # "Nonce too low" is said of a transaction that was mined before as well as of one that never can be.
            message = self._worded(exc)
            if any(known in message.lower() for known in _KNOWN) or await self._knows(transaction_hash, message):
                return
            raise Refused(message) from exc

    async def receipt(self, transaction_hash: Hash32) -> Receipt | None:
        found = await self._ask("eth_getTransactionReceipt", transaction_hash)
        if not found or not found.get("blockNumber"):
            return None
        return Receipt(
            transaction_hash=transaction_hash,
            block_number=int(found["blockNumber"], 16),
            block_hash=found["blockHash"],
            succeeded=int(found["status"], 16) == 1,
            gas_used=int(found["gasUsed"], 16),
            effective_gas_price_wei=int(found["effectiveGasPrice"], 16),
            events=tuple(self._events.decode_all(found["logs"])),
        )

    def _outcome(self, simulated: Any) -> CallOutcome:
        succeeded = int(simulated["status"], 16) == 1
        return CallOutcome(
            succeeded=succeeded,
            gas_used=int(simulated["gasUsed"], 16),
            events=tuple(self._events.decode_all(simulated.get("logs") or [])),
            error="" if succeeded else self._failure(simulated),
        )

    def _failure(self, simulated: Any) -> str:
        """The custom error of a failed call, or the node's message when it failed by itself (out of gas)."""
        error = simulated.get("error") or {}
        data = bytes_of(simulated.get("returnData")) or bytes_of(error.get("data"))
        return self._errors.decode(data) if data else str(error.get("message") or self._errors.decode(b""))

    def _worded(self, error: RpcError) -> str:
        data = bytes_of(error.data)
        return self._errors.decode(data) if data else error.message

    async def _knows(self, transaction_hash: Hash32, refusal: str) -> bool:
        """Whether the node has a transaction that it just refused."""
        try:
            return await self._rpc.call("eth_getTransactionByHash", transaction_hash) is not None
        except (RpcError, ChainUnavailable) as exc:
            raise Unknown(
                f"{self._rpc.endpoint} said '{refusal}', and whether it has {transaction_hash} cannot be found: {exc}"
            ) from exc


def _encoded(result_set: ResultSetCall) -> tuple[Any, ...]:
    """`ResultSet`, as the ABI has it."""
    items = [(pack(request), result.reward_wei, b32(result.result_hash)) for request, result in result_set.items]
    lists = (list(result_set.payloads), list(result_set.proofs))
    return (result_set.round, list(result_set.nodes), list(result_set.signatures), items, *lists)
