"""Takes requests that their requesters signed: checks, cheapest first, that posting one pays and would succeed, and
stores it for the poster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from headrace.core.calls import request_inference_for_data
from headrace.core.errors import NotBonded, QueueFull
from headrace.core.fees import posting_gas
from headrace.core.lifecycle import RequestState
from headrace.core.postings import (
    NotOffered,
    PostingState,
    PromptMissing,
    RequestExists,
    SignedRequest,
    WrongRelayer,
    fee_floor_wei,
    is_signed_by_key,
    refusal_of,
    require_credit,
    require_fee,
    require_in_time,
    require_prompt,
)
from headrace.core.requests import request_id
from headrace.core.typed_data import Domain
from headrace.core.types import Address, GasQuote, Hash32, MarketTerms
from headrace.ports import Call, Chain, Clock, Metrics, Store, StoredPosting

log = structlog.get_logger(__name__)

# A requester that can make posted transactions fail costs the relayer their gas; for so long it is remembered.
REVERTS_COUNT_FOR_MS = 3_600_000
MAX_CHECKS = 8


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """What a relayer takes.

    Args:
        fee_margin_bps: the least fee, of what posting costs in gas; 10,000 = just that.
        max_open: postings that wait to be in a block, of all requesters together; 0 = none is taken.
        max_open_per_requester: of one requester, with its transactions that failed within the last hour.
    """

    fee_margin_bps: int = 12_000
    max_open: int = 200
    max_open_per_requester: int = 8


@dataclass(frozen=True, slots=True)
class HandedIn:
    """What comes in at the door. `payload`: the prompt's bytes, or None when they were handed in before. `publish`:
    whether they go on-chain."""

    signed: SignedRequest
    payload: bytes | None
    publish: bool


class Intake:
    """The door for gasless requests. Safe to call at once for any number of them."""

    def __init__(
        self,
        chain: Chain,
        store: Store,
        clock: Clock,
        metrics: Metrics,
        relayer: Address,
        terms: MarketTerms,
        on_taken: Callable[[], None],
        settings: IntakeSettings | None = None,
        *,
        has_bond: Callable[[], bool] = lambda: True,
    ) -> None:
        self.settings = settings or IntakeSettings()
        self._chain = chain
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._relayer = relayer
        self._terms = terms
        self._on_taken = on_taken
        self._has_bond = has_bond
        self._domain = Domain(chain.chain_id, chain.market)
        self._checks = asyncio.Semaphore(MAX_CHECKS)
        # From the last look at bounds and credit to the row that counts for the next one.
        self._adding = asyncio.Lock()

    def fee_floor_wei(self, quote: GasQuote, published_bytes: int = 0) -> int:
        """The least fee for which a request is taken now.

        Args:
            quote: what gas costs now.
            published_bytes: of a prompt that is published on-chain.
        """
        return fee_floor_wei(quote, posting_gas(published_bytes), self.settings.fee_margin_bps)

    async def take(self, handed: HandedIn) -> StoredPosting:
        """Check a request and store it to be posted. The same request again is the same posting.

        Raises:
            InvalidInput, Refused: it is not taken; the message says what to do.
            QueueFull: too many wait already.
            Unavailable: the chain does not answer.
        """
        request = handed.signed.request
        id_ = request_id(request, self._chain.chain_id, self._chain.market)
        known = await self._store.posting(id_)
        if known is not None and known.state is not PostingState.UNPOSTED:
            return known
        if self.settings.max_open == 0:
            raise NotOffered
        if request.relayer != self._relayer:
            raise WrongRelayer(f"the request names the relayer {request.relayer}, and this one is {self._relayer}")
        if not self._has_bond():
            raise NotBonded(self._relayer)
        await self._require_new(id_)
        require_in_time(request.deadline_s, handed.signed.valid_until_s, self._terms, self._clock.now_ms() // 1000)
        payload = await self._payload(handed)
        await self._require_room(request.requester)
        data = _data(handed, payload)
        await self._require_worth_posting(handed, data, len(payload) if handed.publish else 0)
        return await self._add(id_, handed, data)

    async def _require_new(self, id_: Hash32) -> None:
        stored = await self._store.request(id_)
        if stored is not None and stored.state is not RequestState.WITHDRAWN:
            raise RequestExists(f"the request {id_} was posted before: nothing is paid twice")

    async def _payload(self, handed: HandedIn) -> bytes:
        """The prompt, which must be there before a node can be given it."""
        request, payload = handed.signed.request, handed.payload
        if payload is None:
            prompt = (request.prompt_hash, request.requester)
            if await self._store.held_prompts({prompt}):
                payload = await self._store.payload(request.prompt_hash)
        if payload is None:
            raise PromptMissing(
                f"the bytes of the prompt {request.prompt_hash} were not handed in for {request.requester}: send them "
                "with the request"
            )
        require_prompt(request, payload)
        return payload

    async def _require_room(self, requester: Address) -> None:
        waiting = await self._store.postings(PostingState.SUBMITTED, limit=self.settings.max_open)
        if len(waiting) >= self.settings.max_open:
            raise QueueFull(f"{len(waiting)} requests wait to be posted, as many as may: try again later")
        own = sum(1 for each in waiting if each.request.requester == requester)
        since_ms = self._clock.now_ms() - REVERTS_COUNT_FOR_MS
        reverted = await self._store.reverted_postings(requester, since_ms)
        most = self.settings.max_open_per_requester
        if own + reverted >= most:
            raise QueueFull(
                f"{own + reverted} of the {most} places of {requester} are taken, by requests that wait to be posted "
                "and by transactions that failed within an hour: try again later, or send the transaction from the "
                "account itself"
            )

    async def _require_worth_posting(self, handed: HandedIn, data: bytes, published_bytes: int) -> None:
        """That the fee pays for the gas, the credit for all of it, and that the market would take it now."""
        signed = handed.signed
        by_key = is_signed_by_key(signed, self._domain)
        if self._checks.locked():
            raise QueueFull(f"{MAX_CHECKS} requests are being checked now: try again later")
        async with self._checks:
            quote = await self._chain.gas_quote()
            require_fee(signed, self.fee_floor_wei(quote, published_bytes))
            await self._require_credit(signed)
            (outcome,) = await self._chain.simulate(self._relayer, [Call(self._chain.market, data)])
        if not outcome.succeeded:
            raise refusal_of(outcome.error)
        if not by_key:
            # What a contract's own check of the signature costs, only its simulation tells.
            require_fee(signed, fee_floor_wei(quote, outcome.gas_used, self.settings.fee_margin_bps))

    async def _require_credit(self, signed: SignedRequest) -> None:
        requester = signed.request.requester
        others = await self._store.postings(PostingState.SUBMITTED, requester=requester)
        credit_wei = await self._chain.credit_wei(requester)
        require_credit(requester, credit_wei, sum(each.cost_wei for each in others), signed.cost_wei)

    async def _add(self, id_: Hash32, handed: HandedIn, data: bytes) -> StoredPosting:
        signed = handed.signed
        posting = StoredPosting(
            request_id=id_,
            request=signed.request,
            relayer_fee_wei=signed.relayer_fee_wei,
            valid_until_s=signed.valid_until_s,
            data=data,
            submitted_at_ms=self._clock.now_ms(),
        )
        async with self._adding:
            await self._require_room(signed.request.requester)
            await self._require_credit(signed)
            stored = await self._store.add_posting(posting, handed.payload)
        log.info("request_taken", requestId=id_, requester=signed.request.requester)
        self._metrics.count("headrace_postings_total", outcome="taken")
        self._on_taken()
        return stored


def _data(handed: HandedIn, payload: bytes) -> bytes:
    signed = handed.signed
    prompt = payload if handed.publish else b""
    return request_inference_for_data(
        signed.request, prompt, signed.relayer_fee_wei, signed.valid_until_s, signed.signature
    )
