"""Takes in what nodes say: admits them, verifies their results, hears when they give up."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from headrace.core import typed_data
from headrace.core.envelope import content_of, hash_payload
from headrace.core.errors import IllegalTransition, InvalidInput, NotAllowed
from headrace.core.faults import SignedResult, is_result_signed
from headrace.core.gas import required_answer_bytes
from headrace.core.lifecycle import TERMINAL, Cause
from headrace.core.performance import Performance
from headrace.core.tasks import Delivery, Refusal
from headrace.core.types import ZERO_ADDRESS, Address, MarketTerms, Mode
from headrace.ports import Chain, Clock, Metrics, NotedResult, Store, StoredAssignment, StoredRequest, StoredResult

log = structlog.get_logger(__name__)

MAX_RESULT_BYTES = 1 << 20


class Aggregator:
    """The relayer's `LinkEvents`."""

    def __init__(
        self,
        chain: Chain,
        store: Store,
        clock: Clock,
        metrics: Metrics,
        terms: MarketTerms,
        on_change: Callable[[], None],
        on_result: Callable[[], None],
        performance: Performance | None = None,
    ) -> None:
        self._chain = chain
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._terms = terms
        self._on_change = on_change
        self._on_result = on_result
        self._performance = performance or Performance()
        self._domain = typed_data.Domain(chain.chain_id, chain.market)

    async def admit(self, node: Address) -> None:
        """Admit nodes that are registered, staked and in the market. One whose key was rotated away may still deliver
        what it was assigned, for as long as the market pays the key.

        Raises:
            NotAllowed: the node is not; the message says what its owner must do.
        """
        facts = await self._chain.node_facts(node)
        if facts.owner == ZERO_ADDRESS:
            raise NotAllowed(
                f"{node} is not a registered node; its owner must register it with `ape run register_node`"
            )
        if facts.retired_at_s and facts.payee == ZERO_ADDRESS:
            raise NotAllowed(
                f"the key {node} was rotated away and is paid no more; start the node with the keystore of its new key"
            )
        if not facts.is_active and not facts.retired_at_s:
            raise NotAllowed(f"the stake of {node} that is not unbonding is too small; its owner must add stake")
        if facts.payee == ZERO_ADDRESS:
            raise NotAllowed(f"{node} has not joined the market {self._chain.market}; its owner must join it")
        log.info("node_admitted", node=node)

    async def delivered(self, delivery: Delivery) -> None:
        """Verify a result and store it. A second delivery of the same result is no error.

        Raises:
            InvalidInput: it is not what was assigned, asked for or signed.
        """
        with structlog.contextvars.bound_contextvars(requestId=delivery.result.request_id):
            stored = await self._known(delivery)
            await self._require_same(delivery)
            if stored.state in TERMINAL:
                log.info("delivered_after_close", node=delivery.node, state=stored.state)
                return
            assignment = await self._assignment(delivery, stored)
            self._verify(delivery, stored, assignment)
            await self._require_proof(delivery, stored, assignment)
            await self._keep(delivery, stored, assignment)

    async def gave_up(self, node: Address, refusal: Refusal) -> None:
        """Note that a node will not finish a task it accepted, so that another gets it."""
        for stored in await self._store.assignments(refusal.request_id):
            if stored.assignment.node == node and stored.assignment.round == refusal.round:
                await self._end(stored, f"{refusal.reason}: {refusal.message}")

    async def _end(self, stored: StoredAssignment, detail: str) -> None:
        """Let another node have it."""
        cause = Cause.FAILED if stored.state == "accepted" else Cause.REFUSED
        if cause is Cause.FAILED:
            self._performance.missed(stored.assignment.node)
        try:
            await self._store.end_assignment(stored.request_id, stored.attempt, cause, self._clock.now_ms(), detail)
        except IllegalTransition:
            return
        self._metrics.count("headrace_assignments_total", outcome=cause)
        log.warning("node_gave_up", requestId=stored.request_id, node=stored.assignment.node, detail=detail)
        self._on_change()

    def changed(self) -> None:
        """A node came, went or changed."""
        self._on_change()

    async def _known(self, delivery: Delivery) -> StoredRequest:
        stored = await self._store.request(delivery.result.request_id)
        if stored is None:
            raise InvalidInput(f"the request {delivery.result.request_id} is not known here")
        return stored

    async def _assignment(self, delivery: Delivery, stored: StoredRequest) -> StoredAssignment:
        """The assignment that a delivery answers: the last one, since a newer supersedes those before. A node of a
        quorum may answer for any round that listed it: its vote counts, though only those of the last round are paid.
        """
        tried = await self._store.assignments(delivery.result.request_id)
        if stored.request.k:
            own = [each for each in tried if each.assignment.node == delivery.node]
            answered = [each for each in own if each.assignment.round == delivery.result.round] or own[-1:]
        else:
            answered = [each for each in tried[-1:] if each.assignment.node == delivery.node]
        if not answered:
            raise InvalidInput(
                f"the request {delivery.result.request_id} is not assigned to {delivery.node} (any more)"
            )
        return answered[-1]

    def _verify(self, delivery: Delivery, stored: StoredRequest, assignment: StoredAssignment) -> None:
        result, word = delivery.result, assignment.assignment
        if (result.relayer, result.round, result.reward_wei) != (word.relayer, word.round, word.reward_wei):
            raise InvalidInput("the result names another relayer, round or reward than the assignment")
        if not delivery.payload or len(delivery.payload) > MAX_RESULT_BYTES:
            raise InvalidInput(f"the answer must have 1 to {MAX_RESULT_BYTES} bytes")
        if hash_payload(delivery.payload) != result.result_hash:
            raise InvalidInput("the answer's bytes do not have the hash that was signed")
        most = required_answer_bytes(stored.request)
        if most and len(delivery.payload) > most:
            raise InvalidInput(f"the answer has {len(delivery.payload)} bytes, and its callback is paid for {most}")
        content = content_of(delivery.payload)
        if not content or not _is_text(content):
            raise InvalidInput("the answer's content must be UTF-8 text, and not empty")
        is_bare = content == delivery.payload
        if is_bare != stored.request.inline_result:
            raise InvalidInput("an answer goes bare when the requester asked for inline delivery, else in an envelope")
        digest = typed_data.digest(self._domain, typed_data.hash_result(result))
        typed_data.require_signer(delivery.node, digest, delivery.signature, "result")

    async def _keep(self, delivery: Delivery, request: StoredRequest, assignment: StoredAssignment) -> None:
        now_ms = self._clock.now_ms()
        stored = StoredResult(
            node=delivery.node,
            result=delivery.result,
            signature=delivery.signature,
            payload_hash=delivery.result.result_hash,
            payload_bytes=len(delivery.payload),
            received_at_ms=now_ms,
            proof=delivery.proof,
        )
        detail = {
            "node": delivery.node,
            "result_hash": delivery.result.result_hash,
            "output_tokens": delivery.output_tokens,
            "compute_ms": delivery.compute_ms,
        }
        if await self._store.add_result(stored, delivery.payload, now_ms, detail):
            self._metrics.count("headrace_results_total")
            self._metrics.observe("headrace_compute_seconds", delivery.compute_ms / 1000)
            took_ms = now_ms - assignment.assigned_at_ms
            asked = request.request
            self._performance.answered(delivery.node, asked.model_id, asked.max_output_tokens, took_ms)
            log.info("result_verified", **detail)
        self._on_change()
        self._on_result()

    async def _require_proof(self, delivery: Delivery, stored: StoredRequest, assignment: StoredAssignment) -> None:
        """Refuse what the market would not pay, and let another node try. A chain that does not answer says nothing:
        the node delivers again."""
        request, result = stored.request, delivery.result
        if request.mode is not Mode.VERIFIER:
            if delivery.proof:
                raise InvalidInput("a proof is for requests that name a verifier")
            return
        if any(each.result == result for each in await self._store.results(result.request_id)):
            return
        if not await self._chain.is_verified(request, delivery.node, result.result_hash, delivery.proof):
            problem = f"the verifier {request.verifier} does not take the proof"
            await self._end(assignment, problem)
            raise InvalidInput(f"{problem}: have the node's attestation key vouched for, for this model")

    async def _require_same(self, delivery: Delivery) -> None:
        """Refuse a second answer of one node: it signs one hash of a request, for whatever round. Both are kept, as the
        evidence of its fault."""
        for first in await self._store.results(delivery.result.request_id):
            differs = first.result.result_hash != delivery.result.result_hash
            if first.node == delivery.node and differs:
                second = NotedResult(delivery.node, delivery.result, delivery.signature)
                if is_result_signed(SignedResult(second.node, second.result, second.signature), self._domain):
                    await self._store.note_results([NotedResult(first.node, first.result, first.signature), second])
                    log.error("equivocation", node=delivery.node, first=first.result.result_hash)
                raise InvalidInput("another result of this request was signed before; two are an equivocation")


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
