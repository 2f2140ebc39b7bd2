"""Posts what the intake took: simulates postings in a row, sends those that would succeed, and gives up, with a
reason, those that never will."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from headrace.core.errors import ChainUnavailable, ExpiredContext, InvalidInput, Refused, SignerUnavailable, sentence
from headrace.core.fees import BPS
from headrace.core.postings import (
    WORDS,
    PostingState,
    fee_floor_wei,
    require_in_time,
    why_never,
)
from headrace.core.refusals import name_of, worded
from headrace.core.types import Address, Hash32, MarketTerms
from headrace.ports import Call, CallOutcome, Chain, Clock, Metrics, Store, StoredPosting
from headrace.services.sender import Draft, Sender
from headrace.services.wake import Wake

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PosterSettings:
    """Waits and bounds of the poster."""

    poll_ms: int = 1_000
    max_at_once: int = 20
    least_fee_bps: int = BPS  # of the gas, below which a request waits for gas to become cheaper
    max_wait_s: int = 600  # after which one that could not be sent makes room for others


class Poster:
    """The posting loop. `wake.ring()` says that there is a new posting; `payer` sends its transactions."""

    def __init__(
        self,
        chain: Chain,
        store: Store,
        sender: Sender,
        clock: Clock,
        metrics: Metrics,
        payer: Address,
        terms: MarketTerms,
        settings: PosterSettings | None = None,
        *,
        has_bond: Callable[[], bool] = lambda: True,
    ) -> None:
        self.wake = Wake()
        self._chain = chain
        self._store = store
        self._sender = sender
        self._clock = clock
        self._metrics = metrics
        self._payer = payer
        self._terms = terms
        self._settings = settings or PosterSettings()
        self._has_bond = has_bond
        self._held_up: dict[Hash32, str] = {}  # why it is not sent yet

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            try:
                await self.step()
            except (ChainUnavailable, SignerUnavailable, ExpiredContext) as exc:
                log.warning("posting_postponed", error=str(exc))
            await self.wake.wait(self._settings.poll_ms / 1000)

    async def step(self) -> int:
        """Send what waits and would succeed. Returns how many."""
        submitted = (await self._store.postings(PostingState.SUBMITTED))[::-1]
        last = await self._store.last_block()
        for each in submitted:
            # Before its block is indexed, a reorg may still make something else of it.
            if each.intent_state == "reverted" and last is not None and each.intent_block <= last.number:
                await self._end_reverted(each)
        waiting = [each for each in submitted if not each.intent_state and not await self._is_late(each)]
        if not self._has_bond():
            # It could not serve what it would have paid for.
            self._held_up |= dict.fromkeys((each.request_id for each in waiting), "the relayer's bond does not count")
            return 0
        # What could not be sent the last time must not keep others from it.
        waiting.sort(key=lambda each: each.request_id in self._held_up)
        drafts = await self._drafts(
            [each for each in submitted if each.intent_state == "open"], waiting[: self._settings.max_at_once]
        )
        if drafts:
            await self._sender.submit(drafts)
            self._metrics.count("headrace_postings_total", len(drafts), outcome="sent")
        return len(drafts)

    async def _drafts(self, sent: Sequence[StoredPosting], waiting: Sequence[StoredPosting]) -> list[Draft]:
        """Transactions of those that a simulation found good after all that are on their way."""
        if not waiting:
            return []
        quote = await self._chain.gas_quote()
        calls = [Call(self._chain.market, each.data) for each in (*sent, *waiting)]
        outcomes = (await self._chain.simulate(self._payer, calls))[len(sent) :]
        drafts = []
        for each, call, outcome in zip(waiting, calls[len(sent) :], outcomes, strict=True):
            if not outcome.succeeded:
                await self._refused(each, outcome)
            elif each.relayer_fee_wei < fee_floor_wei(quote, outcome.gas_used, self._settings.least_fee_bps):
                self._held_up[each.request_id] = "gas is dearer than the fee pays for"
            else:
                self._held_up.pop(each.request_id, None)
                detail = {"request_id": each.request_id, "requester": each.request.requester}
                until_s = min(each.valid_until_s, each.request.deadline_s - self._terms.min_ttl_s)
                key = f"request_for:{each.request_id}"
                drafts.append(Draft("request_for", key, detail, call, outcome.gas_used, until_s=until_s))
        return drafts

    async def _refused(self, posting: StoredPosting, outcome: CallOutcome) -> None:
        """What the market would not take: for good, or not now."""
        if name_of(outcome.error) == "RequestExists":
            # Whoever sent it, the chain has it, and the indexer finds it there.
            await self._end(posting, PostingState.POSTED, "")
        elif reason := why_never(outcome.error):
            await self._end(posting, PostingState.UNPOSTED, reason)
        else:
            self._held_up[posting.request_id] = worded(outcome.error, WORDS) or outcome.error
            log.warning("posting_held_up", requestId=posting.request_id, error=outcome.error)

    async def _end_reverted(self, posting: StoredPosting) -> None:
        """A transaction was spent in vain: it is not tried again, since whoever made it fail can do so again."""
        (outcome,) = await self._chain.simulate(self._payer, [Call(self._chain.market, posting.data)])
        if name_of(outcome.error) == "RequestExists":
            await self._end(posting, PostingState.POSTED, "")
            return
        reason = why_never(outcome.error) or "the market refused it in the block that it was put into"
        await self._end(posting, PostingState.UNPOSTED, reason)

    async def _is_late(self, posting: StoredPosting) -> bool:
        """Whether one that waits can no longer be posted in time, or has waited for too long; then it ends."""
        now_s, waited_from_s = self._clock.now_ms() // 1000, posting.submitted_at_ms // 1000
        held_up = self._held_up.get(posting.request_id, "")
        try:
            require_in_time(posting.request.deadline_s, posting.valid_until_s, self._terms, now_s)
        except (InvalidInput, Refused) as exc:
            why = f"; it was not posted before, since {held_up}" if held_up else ""
            await self._end(posting, PostingState.UNPOSTED, f"{exc}{why}")
            return True
        if now_s - waited_from_s <= self._settings.max_wait_s:
            return False
        why = f", since {held_up}" if held_up else ""
        waited = f"it could not be posted within {self._settings.max_wait_s} seconds{why}: hand it in again"
        await self._end(posting, PostingState.UNPOSTED, waited)
        return True

    async def _end(self, posting: StoredPosting, state: PostingState, reason: str) -> None:
        self._held_up.pop(posting.request_id, None)
        reason = sentence(reason) if reason else ""
        await self._store.end_posting(posting.request_id, state, reason, self._clock.now_ms())
        self._metrics.count("headrace_postings_total", outcome=str(state))
        log.info("posting_ended", requestId=posting.request_id, state=str(state), reason=reason)
