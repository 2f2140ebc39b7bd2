"""Asks the chain, before the node gives its word on a task, whether the answer would be paid.

What is not known is not accepted. A request that is not there yet is waited for, since the chain's node that this one
reads may be some blocks behind the relayer's, and a node that refused a request does not get it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from headrace.core.errors import ChainUnavailable, HeadraceError
from headrace.core.gas import counted_verifier_gas
from headrace.core.payability import Standing, why_unpaid
from headrace.core.self_settlement import SelfSettlementPolicy
from headrace.core.tasks import RefusalReason, Task
from headrace.core.types import Address, Hash32, MarketTerms, Pending, Status
from headrace.node.refusing import TaskRefused
from headrace.ports import Chain, Clock

log = structlog.get_logger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PayabilitySettings:
    """Waits, and how old what was read may be."""

    standing_ttl_ms: int = 5_000  # as old as the relayer's own facts of its nodes
    read_timeout_s: float = 2.0
    posting_wait_s: float = 10.0  # for a request that is not on the chain yet
    poll_s: float = 0.5


class Payability:
    """What the chain says of tasks. Safe to ask for any number of tasks at once.

    Args:
        chain: where the market is.
        clock: wall-clock time.
        node: the node's key.
        terms: the market's numbers.
        policy: for what the node settles by itself; None = it never does.
        settings: waits.
    """

    def __init__(
        self,
        chain: Chain,
        clock: Clock,
        node: Address,
        terms: MarketTerms,
        policy: SelfSettlementPolicy | None,
        settings: PayabilitySettings | None = None,
    ) -> None:
        self._chain = chain
        self._clock = clock
        self._node = node
        self._terms = terms
        self._policy = policy
        self._settings = settings or PayabilitySettings()
        self._known: tuple[Address, Standing, int] | None = None  # of which relayer, and when it was read
        self._reading = asyncio.Lock()
        self._answers = True

    @property
    def chain_answers(self) -> bool:
        """Whether the chain answered last time."""
        return self._answers

    async def require_paid(self, task: Task) -> None:
        """Refuse a task whose answer would not be paid.

        Raises:
            TaskRefused: it would not, or the chain does not tell.
        """
        now_ms = self._clock.now_ms()
        try:
            pending = await self._pending(task.assignment.request_id)
            why = await self._why_unpaid(task, pending, now_ms - self._settings.standing_ttl_ms)
            if why:
                # What was read before may be older than what the relayer knew when it decided.
                why = await self._why_unpaid(task, pending, now_ms)
        except HeadraceError as exc:
            raise TaskRefused(
                RefusalReason.CHAIN_UNAVAILABLE, f"whether it would be paid is not known: {exc}"
            ) from None
        if why:
            raise TaskRefused(RefusalReason.UNPAYABLE, why)

    async def probe(self) -> None:
        """See whether a chain that did not answer does again."""
        try:
            await self._read(self._chain.head())
        except HeadraceError as exc:
            log.debug("chain_still_down", error=str(exc))

    async def _why_unpaid(self, task: Task, pending: Pending, least_ms: int) -> str:
        word, request = task.assignment, task.request
        standing = await self._standing(word.relayer, least_ms)
        verifier_gas = counted_verifier_gas(request.verifier, self._chain.attested_key_verifier, self._terms)
        return why_unpaid(self._terms, self._policy, word, request, standing, pending, verifier_gas)

    async def _standing(self, relayer: Address, least_ms: int) -> Standing:
        """As it was read after `least_ms`: a read that is under way serves all who wait for it."""
        async with self._reading:
            if self._known is not None:
                of_relayer, standing, read_at_ms = self._known
                if of_relayer == relayer and read_at_ms > least_ms:
                    return standing
            now_ms = self._clock.now_ms()
            standing = await self._read(self._ask(relayer))
            self._known = (relayer, standing, now_ms)
            return standing

    async def _ask(self, relayer: Address) -> Standing:
        head, facts, is_bonded, gas = await asyncio.gather(
            self._chain.head(),
            self._chain.node_facts(self._node),
            self._chain.is_bonded(relayer),
            self._chain.gas_quote(),
        )
        return Standing(
            payee=facts.payee,
            joined_at_s=facts.joined_at_s,
            settled_count=facts.settled_count,
            relayer_is_bonded=is_bonded,
            gas=gas,
            block_time_s=head.timestamp_s,
        )

    async def _pending(self, request_id: Hash32) -> Pending:
        """What the market keeps of a request; one that it does not know is waited for.

        Raises:
            TaskRefused: it is not pending, or does not come.
        """
        wait_s = self._settings.posting_wait_s
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    (pending,) = await self._read(self._chain.pending([request_id]))
                    if pending is not None:
                        return pending
                    (status,) = await self._read(self._chain.statuses([request_id]))
                    if status not in (Status.NONE, Status.PENDING):
                        problem = f"the market says that the request is {status.name.lower()}"
                        raise TaskRefused(RefusalReason.UNPAYABLE, problem)
                    await asyncio.sleep(self._settings.poll_s)
        except TimeoutError:
            problem = f"the request is not on the chain, and did not come within {wait_s:g} s"
            raise TaskRefused(RefusalReason.UNPAYABLE, problem) from None

    async def _read(self, asked: Awaitable[_T]) -> _T:
        """An answer of the chain, in time, and note of whether there was one."""
        try:
            async with asyncio.timeout(self._settings.read_timeout_s):
                found = await asked
        except TimeoutError:
            self._note(answers=False)
            raise ChainUnavailable(f"the chain did not answer within {self._settings.read_timeout_s:g} s") from None
        except HeadraceError:
            self._note(answers=False)
            raise
        self._note(answers=True)
        return found

    def _note(self, *, answers: bool) -> None:
        if answers and not self._answers:
            log.info("chain_answers_again")
        elif self._answers and not answers:
            log.warning("chain_does_not_answer", hint="no task is taken until it does: check HEADRACE_CHAIN__RPC_URL")
        self._answers = answers
