"""Reading the chain: blocks, events, accounts and the contracts' state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import median_low
from typing import Any

from headrace.adapters.bloom import HeaderBlooms
from headrace.adapters.deployment import Deployment
from headrace.adapters.json_rpc import JsonRpc, RpcError
from headrace.adapters.rollup_gas import RollupGas
from headrace.adapters.web3_part import ChainPart, b32, bytes_of
from headrace.core.cycle import Offer
from headrace.core.errors import ChainUnavailable
from headrace.core.events import BlockRef, ChainEvent
from headrace.core.types import (
    ZERO_ADDRESS,
    Address,
    GasQuote,
    Hash32,
    MarketTerms,
    Pending,
    Price,
    ResultRef,
    Status,
)
from headrace.ports import ModelFacts, NodeFacts

_GWEI = 10**9
_FEE_HISTORY_BLOCKS = 10
_HEADERS_A_BATCH = 100
_TERMS = {
    "grace_s": "GRACE",
    "min_ttl_s": "MIN_TTL",
    "max_ttl_s": "MAX_TTL",
    "max_inline_prompt_bytes": "MAX_INLINE_PROMPT",
    "max_callback_gas": "MAX_CALLBACK_GAS",
    "verifier_gas": "VERIFIER_GAS",
    "tip_cap_wei": "TIP_CAP",
    "fixed_gas": "FIXED_GAS",
    "item_gas": "ITEM_GAS",
    "node_gas": "NODE_GAS",
    "assigned_gas": "ASSIGNED_GAS",
    "gas_per_result_byte": "GAS_PER_RESULT_BYTE",
    "relayer_fee_share_bps": "RELAYER_FEE_SHARE_BPS",
    "relayer_saving_share_bps": "RELAYER_SAVING_SHARE_BPS",
    "probation_max_reward_wei": "PROBATION_MAX_REWARD",
    "probation_settled_count": "PROBATION_SETTLED_COUNT",
    "probation_duration_s": "PROBATION_DURATION",
}


class ChainReader(ChainPart):
    """What the chain says."""

    def __init__(self, rpc: JsonRpc, deployment: Deployment) -> None:
        super().__init__(rpc, deployment)
        self._blooms = HeaderBlooms(self._events.addresses, self._events.topics)
        self._model_names: dict[Hash32, str] = {}

    async def head(self) -> BlockRef:
        return self._block_of(await self._latest())

    async def block(self, number: int) -> BlockRef | None:
        header = await self._ask("eth_getBlockByNumber", hex(number), False)
        return self._block_of(header) if header else None

    async def blocks(self, from_block: int, to_block: int) -> list[BlockRef]:
        found: list[BlockRef] = []
        for start in range(from_block, to_block + 1, _HEADERS_A_BATCH):
            numbers = range(start, min(start + _HEADERS_A_BATCH, to_block + 1))
            headers = await self._headers(numbers)
            found += [self._block_of(header) for header in headers if header]
            if None in headers:
                break
        return found

    async def events(self, from_block: int, to_block: int) -> list[ChainEvent]:
        logs = await self._logs(from_block, to_block)
        present = {int(log["blockNumber"], 16) for log in logs}
        for number, hash_ in self._blooms.suspects(from_block, to_block, present):
            # Nodes have been seen to leave logs out of ranges; by its hash a block's logs are all there or unknown.
            if self._events.decode_all(await self._ask("eth_getLogs", {"blockHash": hash_, **self._filter()})):
                raise ChainUnavailable(f"{self._rpc.endpoint} left out logs of block {number}")
        return self._events.decode_all(logs)

    async def gas_quote(self) -> GasQuote:
        history = await self._ask("eth_feeHistory", hex(_FEE_HISTORY_BLOCKS), "latest", [50])
        ratios, rewards = history.get("gasUsedRatio", []), history.get("reward") or []
        # An empty block shows no tip at all, not a tip of nothing.
        paid = [int(row[0], 16) for ratio, row in zip(ratios, rewards, strict=False) if ratio > 0 and row]
        tip_wei = max(median_low(paid), 1) if paid else _GWEI
        data_byte_wei = (await self._rollup.model()).byte_fee_wei()
        return GasQuote(int(history["baseFeePerGas"][-1], 16), tip_wei, data_byte_wei)

    @cached_property
    def _rollup(self) -> RollupGas:
        return RollupGas(self._ask)

    async def balance_wei(self, account: Address) -> int:
        return int(await self._ask("eth_getBalance", account, "latest"), 16)

    async def has_code(self, account: Address) -> bool:
        return bool(bytes_of(await self._ask("eth_getCode", account, "latest")))

    async def credit_wei(self, account: Address) -> int:
        balance, _ = await self._read(self._market, self.market, "accountOf", account)
        return int(balance)

    async def market_terms(self) -> MarketTerms:
        values = await asyncio.gather(*(self._read(self._market, self.market, name) for name in _TERMS.values()))
        return MarketTerms(**{field: value for field, (value,) in zip(_TERMS, values, strict=True)})

    async def statuses(self, request_ids: Sequence[Hash32]) -> list[Status]:
        (found,) = await self._read(self._market, self.market, "statusOf", [b32(each) for each in request_ids])
        return [Status(each) for each in found]

    async def pending(self, request_ids: Sequence[Hash32]) -> list[Pending | None]:
        found = await asyncio.gather(
            *(self._read(self._market, self.market, "pendingOf", b32(each)) for each in request_ids)
        )
        # No open request has a deadline of zero.
        return [Pending(added_wei, deadline_s) if deadline_s else None for added_wei, deadline_s in found]

    async def verify_result(self, request_id: Hash32, ref: ResultRef, payload: bytes) -> bool:
        preimage = (b32(ref.result_hash), ref.relayer, ref.round, list(ref.nodes), ref.settled_at_s)
        (settled,) = await self._read(self._market, self.market, "verifyResult", b32(request_id), preimage, payload)
        return bool(settled)

    async def node_facts(self, key: Address) -> NodeFacts:
        at = hex((await self.head()).number)
        (node,), (is_active,), (retired_at_s,), (payee, joined_at_s) = await asyncio.gather(
            self._read(self._stakes, self.stake_manager, "nodeOf", key, at=at),
            self._read(self._stakes, self.stake_manager, "isActive", key, at=at),
            self._read(self._stakes, self.stake_manager, "retiredAt", key, at=at),
            self._read(self._stakes, self.stake_manager, "membershipOf", key, self.market, at=at),
        )
        settled_count = 0
        if payee != ZERO_ADDRESS:
            _, settled_count = await self._read(self._market, self.market, "accountOf", payee, at=at)
        return NodeFacts(
            key=key,
            owner=node["owner"],
            stake_wei=node["stake"],
            unbonding_wei=node["unbonding"],
            is_active=is_active and retired_at_s == 0,
            payee=payee,
            joined_at_s=joined_at_s,
            settled_count=settled_count,
            misses=node["misses"],
            faults=node["faults"],
            retired_at_s=retired_at_s,
        )

    async def offers(self, key: Address, model_ids: Sequence[Hash32]) -> list[Offer]:
        prices = await asyncio.gather(
            *(self._read(self._stakes, self.stake_manager, "priceOf", key, b32(each)) for each in model_ids)
        )
        found = []
        for model_id, (offered, per_prompt_kib, per_thousand_tokens) in zip(model_ids, prices, strict=True):
            if offered:
                name = await self._model_name(model_id)
                found.append(Offer(model_id, name, Price(per_prompt_kib, per_thousand_tokens)))
        return found

    async def is_bonded(self, relayer: Address) -> bool:
        (bonded,) = await self._read(self._stakes, self.stake_manager, "isBonded", relayer)
        return bool(bonded)

    async def models(self) -> list[ModelFacts]:
        registry = self._deployment.address_of("ModelRegistry")
        (count,) = await self._read(self._registry, registry, "count")
        ids = await asyncio.gather(
            *(self._read(self._registry, registry, "modelIdAt", index) for index in range(count))
        )
        return list(await asyncio.gather(*(self._model(model_id) for (model_id,) in ids)))

    async def recorded_at_s(self, relayer: Address, round_: int) -> int:
        (recorded_at_s,) = await self._read(self._log, self.schedule_log, "recordedAt", relayer, round_)
        return int(recorded_at_s)

    async def next_round(self, relayer: Address) -> int:
        (round_,) = await self._read(self._log, self.schedule_log, "nextRound", relayer)
        return int(round_)

    async def _headers(self, numbers: range) -> list[Any]:
        try:
            return await self._rpc.batch("eth_getBlockByNumber", [(hex(number), False) for number in numbers])
        except (RpcError, NotImplementedError):
            # Some endpoints do not take batches.
            return [await self._ask("eth_getBlockByNumber", hex(number), False) for number in numbers]

    def _block_of(self, header: Any) -> BlockRef:
        block = BlockRef(
            number=int(header["number"], 16),
            hash=header["hash"],
            parent_hash=header["parentHash"],
            timestamp_s=int(header["timestamp"], 16),
        )
        self._blooms.remember(block.number, block.hash, header.get("logsBloom") or "0x0")
        return block

    def _filter(self) -> dict[str, Any]:
        return {"address": list(self._events.addresses)}

    async def _logs(self, from_block: int, to_block: int, wanted: Mapping[str, Any] | None = None) -> list[Any]:
        """Logs of a range, in parts when the node refuses it whole."""
        wanted = wanted or self._filter()
        span = {"fromBlock": hex(from_block), "toBlock": hex(to_block)}
        try:
            return list(await self._rpc.call("eth_getLogs", {**span, **wanted}))
        except RpcError as exc:
            if from_block >= to_block:
                raise ChainUnavailable(f"{self._rpc.endpoint} answered eth_getLogs with: {exc.message}") from exc
        middle = (from_block + to_block) // 2
        return [*await self._logs(from_block, middle, wanted), *await self._logs(middle + 1, to_block, wanted)]

    async def _model(self, model_id: Hash32) -> ModelFacts:
        registry = self._deployment.address_of("ModelRegistry")
        (model,) = await self._read(self._registry, registry, "modelOf", b32(model_id))
        self._model_names[model_id] = model["name"]
        return ModelFacts(
            model_id=model_id,
            name=model["name"],
            revision=model["revision"],
            weights_hash=model["weightsHash"],
            quantisation=model["quantisation"],
            memory_mb=model["memoryMb"],
            memory_per_token_bytes=model["memoryPerTokenBytes"],
            complexity_milli=model["complexityMilli"],
            unit=model["unit"],
        )

    async def _model_name(self, model_id: Hash32) -> str:
        if model_id not in self._model_names:
            await self._model(model_id)
        return self._model_names[model_id]
