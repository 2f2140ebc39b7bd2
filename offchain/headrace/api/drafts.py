"""Makes a request that can be sent from what a person asks for: payload, deadline, prices."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from headrace.api.chain_facts import ChainFacts
from headrace.api.context import ApiContext
from headrace.api.errors import DeadlineOutOfRange, NoNodeForModel, PromptTooLong
from headrace.api.schemas import DraftRequest
from headrace.core.calls import request_inference_data
from headrace.core.chat_bodies import read_prompt
from headrace.core.cycle import Offer
from headrace.core.envelope import SALT_BYTES, content_of, hash_payload, seal
from headrace.core.errors import ChainUnavailable, InvalidInput, NotBonded
from headrace.core.fees import charged_gas, charged_gas_price_wei, reward_wei
from headrace.core.gas import (
    answer_bytes,
    call_out_gas,
    counted_verifier_gas,
    fits_alone,
    required_answer_bytes,
    result_bytes,
)
from headrace.core.prompts import prompt_content, why_not_deterministic
from headrace.core.requests import request_id
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Address, Hash32, Lane, MarketTerms, Mode, Request
from headrace.ports import Call, ModelFacts

DEFAULT_TTL_S = 300
# How long a requester's signature counts that has a relayer post its request.
SIGNATURE_S = 300
# A fee is signed now and paid later: two full blocks raise the base fee by a quarter.
FEE_HEADROOM_PERCENT = 125
# Between now and the block that the transaction lands in.
SENDING_MARGIN_S = 5
# Bytes of an inline answer that are paid for, per output token: English text is near four.
BYTES_PER_TOKEN = 5
# The base fee may rise until settlement; what is left of the budget comes back, but for the relayer's saving share.
GAS_HEADROOM_PERCENT = 150
# The least that a budget should have of what is charged now: two full blocks raise the base fee by a quarter.
GAS_MARGIN_PERCENT = 125


@dataclass(frozen=True, slots=True)
class Signing:
    """What the requester may sign instead of sending a transaction."""

    relayer_fee_wei: int
    valid_until_s: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a linked node asks for a request."""

    owner: Address
    reward_wei: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A request with its id and the transaction that posts it. `signing`: None when this relayer posts for nobody."""

    request: Request
    request_id: Hash32
    payload: bytes
    call: Call
    signing: Signing | None
    obstacles: tuple[str, ...]
    warnings: tuple[str, ...]


class Drafter:
    """Drafts requests at the current prices."""

    def __init__(self, context: ApiContext, facts: ChainFacts) -> None:
        self._context = context
        self._facts = facts

    async def draft(self, wanted: DraftRequest) -> Draft:
        """Draft a request and store its payload.

        Raises:
            UnknownModel: no registered model has the name or id.
            DeadlineOutOfRange: the market would refuse the deadline.
            PromptTooLong: the prompt does not fit.
            NoNodeForModel: no linked node offers the model.
            InvalidInput: an amount is larger than the market takes, or a quorum cannot agree on the prompt.
            NotBonded: this relayer takes nothing new.
        """
        if not self._context.has_bond():
            raise NotBonded(self._context.relayer)
        if wanted.max_output_tokens > self._context.limits.max_output_tokens:
            raise InvalidInput(f"max_output_tokens may be at most {self._context.limits.max_output_tokens}")
        model = await self._facts.model(wanted.model)
        terms = await self._facts.terms()
        _require_settleable(wanted, terms)
        deadline_s = self._deadline_s(wanted, terms)
        payload = self._payload(wanted, terms)
        if wanted.k:
            _require_deterministic(model, payload)
        asked = await self._asked(model, len(payload), wanted.max_output_tokens, wanted.verifier)
        lane = Lane.REALTIME if wanted.lane == "realtime" else Lane.BULK
        request = Request(
            requester=wanted.requester,
            relayer=self._context.relayer,
            model_id=model.model_id,
            prompt_hash=hash_payload(payload),
            salt=int(wanted.salt) if wanted.salt is not None else secrets.randbits(64),
            deadline_s=deadline_s,
            prompt_bytes=len(payload),
            max_output_tokens=wanted.max_output_tokens,
            callback_gas=wanted.callback_gas,
            lane=lane,
            batchable=wanted.batchable,
            inline_result=wanted.public,
            mode=_mode_of(wanted),
            k=wanted.k or 0,
            n=wanted.n or 0,
            verifier=wanted.verifier or ZERO_ADDRESS,
            max_reward_wei=_amount(wanted.max_reward_wei, _fair_cap_wei(wanted, asked)),
            gas_budget_wei=_amount(wanted.gas_budget_wei, await self._gas_budget_wei(wanted, terms)),
            priority_fee_wei=_amount(wanted.priority_fee_wei, self._priority_fee_wei(lane)),
        )
        id_ = request_id(request, self._context.chain.chain_id, self._context.chain.market)
        data = request_inference_data(request, payload if wanted.public else b"")
        call = Call(self._context.chain.market, data, request.escrow_wei)
        obstacles = tuple(await self._obstacles(request, asked, terms))
        warnings = (*obstacles, *self._warnings(request, asked))
        self._context.room(len(payload))
        await self._context.store.put_prompt(payload, request.requester, self._context.clock.now_ms())
        signing = await self._signing(request, len(payload) if wanted.public else 0, terms)
        return Draft(request, id_, payload, call, signing, obstacles, warnings)

    def _deadline_s(self, wanted: DraftRequest, terms: MarketTerms) -> int:
        now_s = self._context.clock.now_ms() // 1000
        deadline_s = wanted.deadline_s or now_s + (wanted.ttl_s or DEFAULT_TTL_S)
        earliest, latest = now_s + terms.min_ttl_s + SENDING_MARGIN_S, now_s + terms.max_ttl_s - SENDING_MARGIN_S
        if not earliest <= deadline_s <= latest:
            raise DeadlineOutOfRange(
                f"the deadline must be {earliest - now_s} to {latest - now_s} seconds from now, "
                f"not {deadline_s - now_s}"
            )
        return deadline_s

    def _payload(self, wanted: DraftRequest, terms: MarketTerms) -> bytes:
        messages = [message.model_dump() for message in wanted.messages] if wanted.messages else None
        content = prompt_content(wanted.prompt, messages, wanted.options())
        payload = content if wanted.public else seal(content, secrets.token_bytes(SALT_BYTES))
        most = terms.max_inline_prompt_bytes if wanted.public else self._context.limits.payload_bytes
        if len(payload) > most:
            where = "on-chain" if wanted.public else "off-chain"
            raise PromptTooLong(f"the prompt has {len(payload)} bytes; {where} it may have at most {most}")
        # What every node refuses, such as images by their URL, is not worth an escrow.
        read_prompt(payload, wanted.max_output_tokens)
        return payload

    async def _asked(
        self, model: ModelFacts, prompt_bytes: int, max_output_tokens: int, verifier: Address | None
    ) -> list[_Asked]:
        """What the linked nodes that serve the model, and can prove it to the verifier, ask for it, at least one."""
        serving = [
            linked.node
            for linked in self._context.link.linked()
            if model.model_id in linked.heartbeat.models and verifier in (None, *linked.heartbeat.verifiers)
        ]
        # The scheduler knows the rest; a price needs no more than a good sample.
        answers = await asyncio.gather(*(self._offers(key) for key in serving[:50]), return_exceptions=True)
        offers = [each for answer in answers if not isinstance(answer, BaseException) for each in answer]
        unexpected = [each for each in answers if isinstance(each, BaseException)]
        if unexpected and (not offers or not all(isinstance(each, ChainUnavailable) for each in unexpected)):
            raise unexpected[0]
        asked = [
            _Asked(owner, reward_wei(offer.price, prompt_bytes, max_output_tokens))
            for owner, offer in offers
            if offer.model_id == model.model_id
        ]
        if not asked:
            proving = f" and can prove its answers to the verifier {verifier}" if verifier else ""
            raise NoNodeForModel(f"no node that is linked now offers {model.name}{proving}")
        return asked

    async def _offers(self, node: Address) -> list[tuple[Address, Offer]]:
        """A node's owner with each of its offers; nothing once its stake is on the way out, since no cycle would choose
        it."""
        facts = await self._facts.node(node)
        return [(facts.owner, offer) for offer in await self._facts.offers(node)] if facts.is_active else []

    async def _gas_budget_wei(self, wanted: DraftRequest, terms: MarketTerms) -> int:
        """Enough for a batch of one, the dearest, with headroom."""
        inline_bytes = wanted.max_output_tokens * BYTES_PER_TOKEN if wanted.public else 0
        if wanted.public and wanted.callback_gas:
            inline_bytes = answer_bytes(wanted.max_output_tokens)
        verifier_gas = self._verifier_gas(wanted.verifier or ZERO_ADDRESS, terms)
        gas = charged_gas(terms, 1, inline_bytes, wanted.nodes) + call_out_gas(wanted.callback_gas, verifier_gas)
        quote = await self._facts.gas_quote()
        data_wei = result_bytes(wanted.nodes, inline_bytes) * quote.data_byte_wei
        return -(-(gas * charged_gas_price_wei(terms, quote) + data_wei) * GAS_HEADROOM_PERCENT // 100)

    def _verifier_gas(self, verifier: Address, terms: MarketTerms) -> int:
        return counted_verifier_gas(verifier, self._context.chain.attested_key_verifier, terms)

    async def _signing(self, request: Request, published_bytes: int, terms: MarketTerms) -> Signing | None:
        if self._context.gasless is None:
            return None
        floor_wei = self._context.gasless.fee_floor_wei(await self._facts.gas_quote(), published_bytes)
        valid_until_s = min(self._context.clock.now_ms() // 1000 + SIGNATURE_S, request.deadline_s - terms.min_ttl_s)
        return Signing(-(-floor_wei * FEE_HEADROOM_PERCENT // 100), valid_until_s)

    def _priority_fee_wei(self, lane: Lane) -> int:
        return self._context.policy.realtime_fee_floor_wei if lane is Lane.REALTIME else 0

    async def _obstacles(self, request: Request, asked: list[_Asked], terms: MarketTerms) -> list[str]:
        """What keeps every node from it at today's prices."""
        obstacles = []
        rewards, nodes = _rewards_by_owner(asked), max(1, request.k)
        if len(rewards) < nodes:
            obstacles.append(f"Its quorum needs {nodes} nodes of different owners, and {len(rewards)} are linked.")
        elif request.max_reward_wei < (cheapest_wei := rewards[nodes - 1] * nodes):
            asks = (
                f"the cheapest {nodes} ask for {cheapest_wei} wei together"
                if request.k
                else f"the cheapest node asks for {cheapest_wei} wei"
            )
            obstacles.append(f"The maximum reward is {request.max_reward_wei} wei, and {asks}.")
        size = self._context.policy.expected_batch_size if request.batchable else 1
        gas = charged_gas(terms, size, required_answer_bytes(request), nodes)
        gas += call_out_gas(request.callback_gas, self._verifier_gas(request.verifier, terms))
        quote = await self._facts.gas_quote()
        data_wei = result_bytes(nodes, required_answer_bytes(request)) * quote.data_byte_wei
        charge_wei = gas * charged_gas_price_wei(terms, quote) + data_wei
        least_wei = charge_wei * GAS_MARGIN_PERCENT // 100
        if request.gas_budget_wei < least_wei:
            obstacles.append(
                f"The gas budget is {request.gas_budget_wei} wei; settlement would charge {charge_wei} wei now, and "
                f"{least_wei} wei is the least that allows for dearer gas."
            )
        return obstacles

    def _warnings(self, request: Request, asked: list[_Asked]) -> list[str]:
        warnings = []
        floor_wei = self._context.policy.realtime_fee_floor_wei
        if request.lane is Lane.REALTIME and request.priority_fee_wei < floor_wei:
            warnings.append(
                f"The realtime lane needs a priority fee of {floor_wei} wei; with less the request waits in the bulk "
                "lane."
            )
        owners = len({each.owner for each in asked})
        if request.k <= owners < request.n:
            warnings.append(
                f"Nodes of {owners} owners are linked, and the quorum may ask {request.n}: if one fails or disagrees, "
                "it waits for another to come."
            )
        return warnings


def _require_settleable(wanted: DraftRequest, terms: MarketTerms) -> None:
    if wanted.callback_gas > terms.max_callback_gas:
        raise InvalidInput(f"callback_gas may be at most {terms.max_callback_gas}")
    needed = answer_bytes(wanted.max_output_tokens) if wanted.public and wanted.callback_gas else 0
    if not fits_alone(wanted.callback_gas, terms.verifier_gas if wanted.verifier else 0, needed, wanted.nodes):
        raise InvalidInput(
            f"an answer of {wanted.max_output_tokens} tokens may be too long for a transaction, and the callback needs "
            "it there: ask for fewer max_output_tokens, or for a callback with the answer's hash only (not public)"
        )


def _require_deterministic(model: ModelFacts, payload: bytes) -> None:
    """Nodes of a quorum must come to one answer, byte for byte."""
    if model.weights_hash == ZERO_HASH:
        raise InvalidInput(
            f"the registry does not fix the weights of {model.name}, so a quorum cannot agree: choose another model"
        )
    if why := why_not_deterministic(content_of(payload)):
        raise InvalidInput(
            f"a quorum cannot agree on this prompt, since {why}: give temperature 0 and a seed, or plain text without "
            "options"
        )


def _mode_of(wanted: DraftRequest) -> Mode:
    if wanted.k:
        return Mode.QUORUM
    return Mode.VERIFIER if wanted.verifier else Mode.SIGNATURE


def _amount(wanted: str, automatic: int) -> int:
    return automatic if wanted == "auto" else int(wanted)


def _fair_cap_wei(wanted: DraftRequest, asked: list[_Asked]) -> int:
    """Twice the cheapest node's price, or the dearest's if that is less: a choice of nodes, but not at any price. Of a
    quorum, what k nodes get at the highest price of the n cheapest, since any of these may be asked."""
    rewards = _rewards_by_owner(asked)
    if wanted.k and wanted.n:
        return wanted.k * rewards[: wanted.n][-1]
    return min(2 * rewards[0], max(each.reward_wei for each in asked))


def _rewards_by_owner(asked: list[_Asked]) -> list[int]:
    """What the cheapest node of each owner asks, cheapest first."""
    cheapest: dict[Address, int] = {}
    for each in asked:
        cheapest[each.owner] = min(each.reward_wei, cheapest.get(each.owner, each.reward_wei))
    return sorted(cheapest.values())
