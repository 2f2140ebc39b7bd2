"""Hands assignments to nodes and writes down what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from headrace.core import typed_data
from headrace.core.errors import HeadraceError, IllegalTransition, SignatureMismatch, Unavailable, Unknown
from headrace.core.lifecycle import Cause
from headrace.core.tasks import Accept, Refusal, Task
from headrace.core.types import Address, Hash32
from headrace.ports import Clock, Metrics, NodeLink, Store, StoredAssignment

log = structlog.get_logger(__name__)

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 5_000, 60_000
"""Until a node that could not take a task then is asked again."""


class Dispatcher:
    """Sends tasks over the link, each at most once at a time, at most `max_concurrent` at once and `max_per_node` to
    one node: what a node has not answered yet waits in its memory, and of more it refuses some.

    An assignment whose answer is lost stays open until its lease ends, and is sent again meanwhile: the node knows it
    by its request id.
    """

    def __init__(
        self,
        store: Store,
        link: NodeLink,
        clock: Clock,
        metrics: Metrics,
        domain: typed_data.Domain,
        model_names: Mapping[Hash32, str],
        on_freed: Callable[[], None],
        *,
        timeout_s: float = 5.0,
        max_concurrent: int = 256,
        max_per_node: int = 32,
    ) -> None:
        self._store = store
        self._link = link
        self._clock = clock
        self._metrics = metrics
        self._domain = domain
        self._model_names = model_names
        self._on_freed = on_freed
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(max_concurrent)
        self._max_per_node = max_per_node
        self._slots_of: dict[Address, asyncio.Semaphore] = {}
        self._in_hand: set[tuple[Hash32, int]] = set()

    def start(self, group: asyncio.TaskGroup, assignment: StoredAssignment) -> None:
        """Send an assignment in the background of `group`, unless it is being sent already."""
        key = (assignment.request_id, assignment.attempt)
        if key not in self._in_hand:
            self._in_hand.add(key)
            group.create_task(self._run(assignment), name=f"dispatch {assignment.request_id}")

    async def _run(self, stored: StoredAssignment) -> None:
        with structlog.contextvars.bound_contextvars(requestId=stored.request_id):
            try:
                # The node's first: a slow one must not keep all the others' slots.
                async with self._slot_of(stored.assignment.node), self._slots:
                    await self.send(stored)
            except (HeadraceError, OSError) as exc:
                # The assignment stays open: its lease, not this task, decides when to give up.
                log.warning("dispatch_failed", node=stored.assignment.node, error=str(exc))
            finally:
                self._in_hand.discard((stored.request_id, stored.attempt))

    def _slot_of(self, node: Address) -> asyncio.Semaphore:
        if node not in self._slots_of:
            self._slots_of[node] = asyncio.Semaphore(self._max_per_node)
        return self._slots_of[node]

    async def send(self, stored: StoredAssignment) -> None:
        """Send one assignment and record the answer."""
        task = await self._task(stored)
        try:
            answer = await self._link.dispatch(task, self._timeout_s)
        except Unknown as exc:
            log.info("dispatch_unanswered", node=stored.assignment.node, error=str(exc))
            return
        except Unavailable as exc:
            # It was never handed over, so another node may have it at once, and this one when it is back.
            await self._put_off(stored, f"not linked: {exc}")
            return
        if isinstance(answer, Accept):
            await self._accepted(stored, answer)
        else:
            await self._refused(stored, answer)

    async def _task(self, stored: StoredAssignment) -> Task:
        request = await self._store.request(stored.request_id)
        prompt = await self._store.payload(request.request.prompt_hash) if request else None
        if request is None or prompt is None:
            raise Unavailable(f"the prompt of {stored.request_id} is not in the store")
        return Task(
            assignment=stored.assignment,
            assignment_signature=stored.signature,
            request=request.request,
            model_name=self._model_names[request.request.model_id],
            prompt=prompt,
        )

    async def _accepted(self, stored: StoredAssignment, accept: Accept) -> None:
        word = stored.assignment
        struct_hash = typed_data.hash_accept(word.request_id, word.relayer, word.round, word.deadline_s)
        digest = typed_data.digest(self._domain, struct_hash)
        try:
            typed_data.require_signer(word.node, digest, accept.signature, "accept")
        except SignatureMismatch as exc:
            await self._end(stored, Cause.REFUSED, str(exc))
            return
        await self._end(stored, Cause.ACCEPTED, "", accept.signature)

    async def _refused(self, stored: StoredAssignment, refusal: Refusal) -> None:
        log.info("task_refused", node=stored.assignment.node, reason=refusal.reason, message=refusal.message)
        detail = f"{refusal.reason}: {refusal.message}"
        if refusal.reason.passes:
            await self._put_off(stored, detail)
        else:
            await self._end(stored, Cause.REFUSED, detail)

    async def _put_off(self, stored: StoredAssignment, detail: str) -> None:
        """Let another node have it, and this one again after a while, which grows with the attempts."""
        pause_ms = min(FIRST_PAUSE_MS * stored.attempt, LONGEST_PAUSE_MS)
        await self._end(stored, Cause.REFUSED, detail, again_at_ms=self._clock.now_ms() + pause_ms)

    async def _end(
        self, stored: StoredAssignment, cause: Cause, detail: str, signature: bytes = b"", again_at_ms: int = 0
    ) -> None:
        try:
            await self._store.end_assignment(
                stored.request_id, stored.attempt, cause, self._clock.now_ms(), detail, signature, again_at_ms
            )
        except IllegalTransition:
            # The result, or the chain, was faster than the answer.
            log.debug("dispatch_overtaken", cause=cause)
            return
        self._metrics.count("headrace_assignments_total", outcome=cause)
        if cause is not Cause.ACCEPTED:
            self._on_freed()
