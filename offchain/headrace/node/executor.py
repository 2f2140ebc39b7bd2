"""Does each task once: checks it, gives the node's word, runs the model, fixes the answer, signs it.

The journal is written before anything leaves: before the accept, so that a restart knows what was promised; before the
signature, so that only an answer that is on the disk is ever signed, and never a second one.

A quorum may be listed again in a newer round. The node then gives its word anew, and signs the answer that it has, or
is at work on, for that round: no second inference, and no other hash.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import structlog

from headrace.core.chat_bodies import read_prompt
from headrace.core.envelope import OVERHEAD_BYTES, SALT_BYTES, content_of, hash_payload, quorum_salt, seal
from headrace.core.errors import BackendUnavailable, HeadraceError, IllegalTransition, InvalidInput, SignerUnavailable
from headrace.core.fees import reward_wei
from headrace.core.gas import fits_alone, required_answer_bytes
from headrace.core.journal import JournalEntry, TaskState
from headrace.core.link_messages import MAX_PAYLOAD_BYTES, TaskMessage, encode, read_task
from headrace.core.prompts import why_not_deterministic
from headrace.core.requests import request_id
from headrace.core.tasks import Accept, Delivery, Refusal, RefusalReason, Task
from headrace.core.typed_data import (
    Domain,
    digest,
    hash_accept,
    hash_assignment,
    hash_result,
    hash_result_set,
    require_signer,
)
from headrace.core.types import ZERO_ADDRESS, Address, Hash32, Mode, Price, Request, Result
from headrace.node.attester import Attester
from headrace.node.context import ContextCheck
from headrace.node.journal import NodeJournal
from headrace.node.options import NodeOptions, OfferedModel
from headrace.node.payability import Payability
from headrace.node.prompt import result_content
from headrace.node.refusing import TaskRefused
from headrace.ports import Backend, Clock, Generation, Signer

log = structlog.get_logger(__name__)

_REMEMBERED_TIMES = 32
_COMPLEXITY_7B_MILLI = 1_000
_FAILURES_OF_A_SERVER = 3  # of as many requests in a row: one alone may be made to fail by its prompt


class Executor:
    """A node's tasks. Computations live in the task group that is given with `start`.

    Args:
        options: the operator's.
        signer: the node's key.
        journal: where tasks are written down.
        backend: runs the models.
        clock: wall-clock time.
        random_bytes: gives that many, for the salts of envelopes.
        payability: tells whether an answer would be paid.
        on_load: called when what a heartbeat says has changed.
        on_result: called when there is something to deliver.
        on_gave_up: called with what the relayer must hear when an accepted task will not be finished.
        attester: proves answers to its verifier; without it, requests that name a verifier are refused.
    """

    def __init__(
        self,
        options: NodeOptions,
        signer: Signer,
        journal: NodeJournal,
        backend: Backend,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        payability: Payability,
        *,
        on_load: Callable[[], None],
        on_result: Callable[[], None],
        on_gave_up: Callable[[Refusal], None],
        attester: Attester | None = None,
    ) -> None:
        self._options = options
        self._signer = signer
        self._journal = journal
        self._backend = backend
        self._clock = clock
        self._random_bytes = random_bytes
        self._payability = payability
        self._on_load = on_load
        self._on_result = on_result
        self._on_gave_up = on_gave_up
        self._attester = attester
        self._domain = Domain(options.chain_id, options.market)
        self._models: Mapping[Hash32, OfferedModel] = {model.model_id: model for model in options.models}
        self._prices: dict[Hash32, Price] = {model.model_id: model.price for model in options.models}
        self._times_ms: dict[Hash32, deque[int]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._slots = asyncio.Semaphore(options.max_in_flight)
        self._running: dict[Hash32, asyncio.Task[None]] = {}
        # Held while the round of an answer is looked up and the answer fixed for it, or the round changed.
        self._turn = asyncio.Lock()
        # Held from the last look at what the node is at until its word is in the journal.
        self._taking = asyncio.Lock()
        self._context = ContextCheck(backend, options.context_tokens, options.count_timeout_s)
        self._stopping = False
        self._backend_up = True
        self._failed_in_a_row: set[Hash32] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    # What a heartbeat says

    @property
    def in_flight(self) -> int:
        """Tasks that are accepted and not computed."""
        return len(self._running)

    @property
    def offered(self) -> tuple[Hash32, ...]:
        """Ids of the models that it takes tasks for now."""
        if self._stopping or not self._backend_up or not self._payability.chain_answers:
            return ()
        served = set(self._backend.model_names)
        return tuple(sorted(model.model_id for model in self._options.models if model.name in served))

    @property
    def avg_latency_ms(self) -> int:
        """Time of a 7B-class answer: what was measured, over the complexity of the model it was measured on."""
        normalised = [
            time_ms * _COMPLEXITY_7B_MILLI / max(1, self._models[model_id].complexity_milli)
            for model_id, times_ms in self._times_ms.items()
            for time_ms in times_ms
        ]
        return round(sum(normalised) / len(normalised)) if normalised else self._options.initial_latency_ms

    @property
    def backend_up(self) -> bool:
        """Whether the backend answered last time."""
        return self._backend_up

    def set_backend_up(self, up: bool) -> None:
        """Note what a probe found."""
        if up != self._backend_up:
            self._backend_up = up
            self._failed_in_a_row.clear()
            self._on_load()

    # Life

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Go on with what was promised before a restart. Computations run in `group` from here on."""
        self._group = group
        for entry in await self._journal.accepted():
            try:
                task = read_task(entry.task)
            except InvalidInput as exc:
                await self._give_up(entry, RefusalReason.BACKEND_FAILED, f"its journal is damaged: {exc}")
                continue
            log.info("task_resumed", requestId=entry.request_id)
            self._begin(task, entry)

    def stop_taking(self) -> None:
        """Refuse new tasks from now on."""
        self._stopping = True
        self._on_load()

    async def drained(self) -> None:
        """Wait until nothing is being computed."""
        await self._idle.wait()

    async def abandon(self) -> None:
        """Stop what is being computed, for good, and tell the relayer."""
        for identity, running in list(self._running.items()):
            running.cancel()
            await asyncio.wait([running])
            entry = await self._journal.entry(identity)
            if entry is not None and entry.state is TaskState.ACCEPTED:
                await self._give_up(entry, RefusalReason.SHUTTING_DOWN, "the node is shutting down")

    # Tasks

    async def take(self, task: Task, relayer: Address, reply: Callable[[Accept | Refusal], None]) -> None:
        """Answer a task, and begin it if the answer is yes. Calls may overlap: what only others know is asked for many
        at once, and the word is given to one at a time.

        Args:
            task: what came over the link.
            relayer: who is at the other end of the link.
            reply: takes the answer; it is given before the computation starts.
        """
        try:
            await self._ask_around(task, relayer)
            async with self._taking:
                await self._give_word(task, relayer, reply)
        except TaskRefused as refused:
            async with self._taking:
                await self._refuse(task, refused, reply)
            if refused.reason is RefusalReason.CHAIN_UNAVAILABLE:
                self._on_load()

    async def _ask_around(self, task: Task, relayer: Address) -> None:
        """What only others can tell of a task that is new, after all that the node knows by itself."""
        entry = await self._journal.entry(task.assignment.request_id)
        if not _is_promised(entry):
            self._check(task, relayer)
            await self._context.require_fit(task.model_name, read_prompt(task.prompt, task.request.max_output_tokens))
            await self._payability.require_paid(task)
        elif entry is not None and entry.task and read_task(entry.task).assignment != task.assignment:
            # Another reward, and another round that must be recorded.
            self._require_newer_round(task, relayer, entry)
            await self._payability.require_paid(task)

    async def _give_word(self, task: Task, relayer: Address, reply: Callable[[Accept | Refusal], None]) -> None:
        identity = task.assignment.request_id
        entry = await self._journal.entry(identity)
        if entry is not None and _is_promised(entry):
            await self._repeat(task, relayer, entry, reply)
            return
        promise = await self._promise(task)
        self._check(task, relayer)  # again: asking and signing took time
        entry = self._entry(task, TaskState.ACCEPTED, promise, "")
        await self._journal.put(entry)
        log.info("task_accepted", requestId=identity, round=entry.round, model=task.model_name)
        reply(Accept(identity, entry.round, entry.accept_signature))
        self._begin(task, entry)

    async def _refuse(self, task: Task, refused: TaskRefused, reply: Callable[[Accept | Refusal], None]) -> None:
        identity, reason = task.assignment.request_id, refused.reason
        log.info("task_refused", requestId=identity, reason=reason, message=str(refused))
        if not _is_promised(await self._journal.entry(identity)):
            await self._journal.put(self._entry(task, TaskState.REFUSED, b"", f"{reason}: {refused}"))
        reply(Refusal(identity, task.assignment.round, reason, str(refused)))

    async def _promise(self, task: Task) -> bytes:
        word = task.assignment
        struct_hash = hash_accept(word.request_id, word.relayer, word.round, word.deadline_s)
        try:
            return await self._signer.sign_typed(self._domain, struct_hash)
        except SignerUnavailable as exc:
            # No word of its own in the link's protocol: to the relayer it is a part of the node that is out.
            raise TaskRefused(RefusalReason.BACKEND_UNAVAILABLE, str(exc)) from None

    async def _repeat(
        self, task: Task, relayer: Address, entry: JournalEntry, reply: Callable[[Accept | Refusal], None]
    ) -> None:
        """The same task again: the same word again, and the same answer if it is there."""
        if entry.task == "":
            raise TaskRefused(
                RefusalReason.BAD_ASSIGNMENT, "it was answered long ago, and the answer is not kept any more"
            )
        if entry.state is TaskState.FAILED:
            raise TaskRefused(RefusalReason.BAD_ASSIGNMENT, f"its answer was rejected: {entry.detail}")
        if read_task(entry.task).assignment != task.assignment:
            entry = await self._move_to_newer_round(task, relayer, entry)
        reply(Accept(entry.request_id, entry.round, entry.accept_signature))
        if entry.state is TaskState.ACCEPTED and entry.request_id not in self._running:
            # It ended while this was read, or its link broke before it began.
            entry = await self._journal.entry(entry.request_id) or entry
            if entry.state is TaskState.ACCEPTED:
                self._begin(task, entry)
        if entry.state is TaskState.ACKNOWLEDGED:
            await self._journal.set_state(entry.request_id, TaskState.COMPUTED, "", self._clock.now_ms())
        if entry.state is not TaskState.ACCEPTED:
            self._on_result()

    async def _move_to_newer_round(self, task: Task, relayer: Address, entry: JournalEntry) -> JournalEntry:
        """A quorum is listed again: the same request of the same relayer, in a newer round. What is computed stays."""
        self._require_newer_round(task, relayer, entry)
        word = task.assignment
        frame, promise = encode(TaskMessage.of(task)), await self._promise(task)
        now_ms = self._clock.now_ms()
        try:
            async with self._turn:
                moved = await self._journal.move_to_round(
                    entry.request_id, word.round, frame, promise, word.reward_wei, now_ms
                )
        except IllegalTransition as exc:
            raise TaskRefused(RefusalReason.BACKEND_FAILED, f"its computation ended without an answer: {exc}") from None
        log.info("task_listed_again", requestId=entry.request_id, round=word.round, before=entry.round)
        return moved

    def _require_newer_round(self, task: Task, relayer: Address, entry: JournalEntry) -> None:
        before, word = read_task(entry.task).assignment, task.assignment
        is_newer = word.round > before.round and word.relayer == before.relayer
        if task.request.mode is not Mode.QUORUM or not is_newer:
            raise TaskRefused(
                RefusalReason.BAD_ASSIGNMENT, f"the node has this request already, from round {entry.round}, as another"
            )
        self._check_assignment(task, relayer)
        self._check_prompt(task)
        self._check_price(task, self._model_of(task))
        if self._left_s(task) <= 0:
            raise TaskRefused(RefusalReason.DEADLINE_INFEASIBLE, "its deadline has passed")

    def reprice(self, model_id: Hash32, price: Price) -> None:
        """Ask another price for a model from now on. What was accepted before stays accepted."""
        if self._prices.get(model_id) not in (None, price):
            log.info("repriced", model=self._models[model_id].name)
            self._prices[model_id] = price

    def _check(self, task: Task, relayer: Address) -> None:
        if self._stopping:
            raise TaskRefused(RefusalReason.SHUTTING_DOWN, "the node is shutting down")
        self._check_assignment(task, relayer)
        model = self._model_of(task)
        self._check_prompt(task)
        self._check_price(task, model)
        if not self._backend_up or model.name not in self._backend.model_names:
            raise TaskRefused(RefusalReason.BACKEND_UNAVAILABLE, "the model server does not answer")
        times_ms = self._times_ms.get(model.model_id)
        expected_ms = round(median(times_ms)) if times_ms else 0
        if self._left_s(task) * 1000 <= expected_ms:
            raise TaskRefused(
                RefusalReason.DEADLINE_INFEASIBLE,
                f"{max(0.0, self._left_s(task)):.1f} s are left, and it takes about {expected_ms / 1000:.1f} s",
            )
        if self.in_flight >= self._options.max_in_flight:
            raise TaskRefused(RefusalReason.BUSY, f"the node computes {self.in_flight} tasks, its most")

    def _model_of(self, task: Task) -> OfferedModel:
        model = self._models.get(task.request.model_id)
        if model is None or model.name != task.model_name:
            raise TaskRefused(RefusalReason.UNKNOWN_MODEL, f"the node does not serve {task.model_name}")
        return model

    def _check_price(self, task: Task, model: OfferedModel) -> None:
        price_wei = reward_wei(self._prices[model.model_id], task.request.prompt_bytes, task.request.max_output_tokens)
        if task.assignment.reward_wei < price_wei:
            raise TaskRefused(
                RefusalReason.REWARD_TOO_LOW,
                f"the reward is {task.assignment.reward_wei} wei, and the node asks for {price_wei}",
            )

    def _check_assignment(self, task: Task, relayer: Address) -> None:
        word, request = task.assignment, task.request
        problem = ""
        if word.node != self._signer.address:
            problem = f"it is for the node {word.node}"
        elif word.relayer != relayer:
            problem = f"it is from the relayer {word.relayer}, and the link is {relayer}'s"
        elif request.relayer not in (ZERO_ADDRESS, word.relayer):
            problem = f"the request may only be served by the relayer {request.relayer}"
        elif request_id(request, self._options.chain_id, self._options.market) != word.request_id:
            problem = "the request is not the one that is assigned"
        elif word.deadline_s > request.deadline_s:
            problem = "its deadline is after the request's"
        elif word.reward_wei * max(1, request.k) > request.max_reward_wei:
            problem = "its reward is more than the request pays"
        elif request.mode is Mode.VERIFIER and (self._attester is None or self._attester.verifier != request.verifier):
            problem = f"the node cannot prove its answer to the verifier {request.verifier}"
        elif not fits_alone(request.callback_gas, 0, required_answer_bytes(request), max(1, request.k)):
            problem = "the answer that its callback needs may be too long for a transaction"
        if not problem:
            try:
                signed = digest(self._domain, hash_assignment(word))
                require_signer(relayer, signed, task.assignment_signature, "assignment")
            except InvalidInput as exc:
                problem = str(exc)
        if problem:
            raise TaskRefused(RefusalReason.BAD_ASSIGNMENT, problem)

    def _check_prompt(self, task: Task) -> None:
        if len(task.prompt) != task.request.prompt_bytes:
            raise TaskRefused(
                RefusalReason.BAD_PROMPT,
                f"the prompt has {len(task.prompt)} bytes, the request says {task.request.prompt_bytes}",
            )
        if hash_payload(task.prompt) != task.request.prompt_hash:
            raise TaskRefused(RefusalReason.BAD_PROMPT, "the prompt does not have the hash that the request names")
        try:
            read_prompt(task.prompt, task.request.max_output_tokens)
        except InvalidInput as exc:
            raise TaskRefused(RefusalReason.BAD_PROMPT, str(exc)) from None
        if task.request.mode is Mode.QUORUM and (why := why_not_deterministic(content_of(task.prompt))):
            raise TaskRefused(RefusalReason.BAD_PROMPT, f"a quorum cannot agree on its answer: {why}")

    # Computing

    def _begin(self, task: Task, entry: JournalEntry) -> None:
        assert self._group is not None, "start comes first"
        running = self._group.create_task(self._compute(task, entry), name=f"compute {entry.request_id}")
        self._running[entry.request_id] = running
        self._idle.clear()
        running.add_done_callback(lambda _: self._ended(entry.request_id))
        self._on_load()

    def _ended(self, identity: Hash32) -> None:
        self._running.pop(identity, None)
        if not self._running:
            self._idle.set()
        self._on_load()

    async def _compute(self, task: Task, entry: JournalEntry) -> None:
        """Run the model, and fix what it said. Every way out but a cancellation ends in the journal."""
        with structlog.contextvars.bound_contextvars(requestId=entry.request_id):
            try:
                async with self._slots:
                    await self._answer(task, entry)
            except TimeoutError:
                await self._give_up(entry, RefusalReason.DEADLINE_INFEASIBLE, "it was not computed by the deadline")
            except BackendUnavailable as exc:
                await self._note_failure(entry.request_id)
                await self._give_up(entry, RefusalReason.BACKEND_UNAVAILABLE, str(exc))
            except InvalidInput as exc:
                await self._give_up(entry, RefusalReason.BACKEND_FAILED, str(exc))
            except IllegalTransition as exc:
                # Something else settled it in the journal meanwhile; that stands.
                log.error("task_overtaken", error=str(exc))
            except Exception as exc:
                # A backend's bug costs one task, not the node.
                log.exception("task_broke")
                await self._give_up(entry, RefusalReason.BACKEND_FAILED, f"{type(exc).__name__} in the node")

    async def _note_failure(self, identity: Hash32) -> None:
        """One request that fails says little of the server, which others' prompts may be made for; several do, and a
        server that does not answer a check."""
        self._failed_in_a_row.add(identity)
        if len(self._failed_in_a_row) >= _FAILURES_OF_A_SERVER:
            self.set_backend_up(False)
            return
        try:
            await self._backend.check()
        except BackendUnavailable as exc:
            log.error("backend_down", error=str(exc))
            self.set_backend_up(False)

    async def _answer(self, task: Task, entry: JournalEntry) -> None:
        prompt = read_prompt(task.prompt, task.request.max_output_tokens)
        async with asyncio.timeout(max(0.0, self._left_s(task))):
            generation = await self._backend.generate(task.model_name, prompt.body, prompt.max_output_tokens)
        self._failed_in_a_row.clear()
        self.set_backend_up(True)
        content = result_content(
            prompt, generation, required_answer_bytes(task.request) or MAX_PAYLOAD_BYTES - OVERHEAD_BYTES
        )
        payload = content if task.request.inline_result else seal(content, self._salt(task))
        times_ms = self._times_ms.setdefault(task.request.model_id, deque(maxlen=_REMEMBERED_TIMES))
        times_ms.append(generation.compute_ms)
        await self._fix(entry.request_id, payload, generation)
        log.info("task_computed", tokens=generation.output_tokens, compute_ms=generation.compute_ms)
        self._on_result()

    def _salt(self, task: Task) -> bytes:
        """All nodes of a quorum must come to the same bytes."""
        if task.request.mode is Mode.QUORUM:
            return quorum_salt(task.assignment.request_id, task.prompt)
        return self._random_bytes(SALT_BYTES)

    async def _fix(self, identity: Hash32, payload: bytes, generation: Generation) -> None:
        """Fix an answer, for the round that the request is assigned in by now."""
        async with self._turn:
            entry = await self._journal.entry(identity)
            if entry is None or entry.state is not TaskState.ACCEPTED:
                raise IllegalTransition(f"{identity} is not waiting for a result")
            task = read_task(entry.task)
            word = task.assignment
            result = Result(identity, hash_payload(payload), word.reward_wei, word.relayer, word.round)
            await self._journal.add_result(
                identity,
                result,
                payload,
                generation.output_tokens,
                generation.compute_ms,
                self._clock.now_ms(),
                word.deadline_s,
                await self._proof(task.request, result),
            )

    async def _proof(self, request: Request, result: Result) -> bytes:
        if request.mode is not Mode.VERIFIER or self._attester is None:
            return b""
        return await self._attester.prove(result.request_id, self._signer.address, result.result_hash)

    async def _give_up(self, entry: JournalEntry, reason: RefusalReason, message: str) -> None:
        log.warning("task_given_up", requestId=entry.request_id, reason=reason, message=message)
        detail = f"{reason}: {message}"
        async with self._turn:
            entry = await self._journal.entry(entry.request_id) or entry
            await self._journal.set_state(entry.request_id, TaskState.FAILED, detail, self._clock.now_ms())
        self._on_gave_up(Refusal(entry.request_id, entry.round, reason, message))

    # Results

    async def undelivered(self, relayer: Address, limit: int) -> list[Delivery]:
        """Answers that this relayer does not have yet, signed."""
        return [await self._delivery(entry) for entry in await self._journal.undelivered(relayer, limit)]

    async def acknowledged(self, identity: Hash32, round_: int) -> None:
        """The relayer has it."""
        await self._end_delivery(identity, round_, TaskState.ACKNOWLEDGED, "")

    async def rejected(self, identity: Hash32, round_: int, message: str) -> None:
        """The relayer will never take it."""
        log.error("delivery_rejected", requestId=identity, message=message)
        await self._end_delivery(identity, round_, TaskState.FAILED, message)

    async def sign_set(self, set_hash: Hash32, round_: int, results: Sequence[Result], relayer: Address) -> bytes:
        """Sign a set of results that this node fixed before, for this relayer and round.

        Raises:
            InvalidInput: one of them is not, or the hash is of another set; the message says which.
        """
        own = await self._journal.results([result.request_id for result in results])
        for result in results:
            if own.get(result.request_id) != result:
                raise InvalidInput(f"the set has a result of {result.request_id} that is not this node's")
            if (result.relayer, result.round) != (relayer, round_):
                raise InvalidInput(f"the set has {result.request_id}, which is of another relayer or round")
        if len(own) != len(results):
            raise InvalidInput("the set has a result twice")
        struct_hash = hash_result_set(relayer, round_, [hash_result(result) for result in results])
        if "0x" + struct_hash.hex() != set_hash:
            raise InvalidInput("the set does not have the hash that it is called by")
        return await self._signer.sign_typed(self._domain, struct_hash)

    async def prune(self) -> None:
        """Let go of what is finished and old."""
        await self._journal.prune(self._clock.now_ms() - self._options.keep_ms)

    async def _end_delivery(self, identity: Hash32, round_: int, state: TaskState, detail: str) -> None:
        await self._journal.end_delivery(identity, round_, state, detail, self._clock.now_ms())

    async def _delivery(self, entry: JournalEntry) -> Delivery:
        """Sign what the journal holds. Only the self-settler signs results too, and the same ones."""
        if entry.result is None:
            raise HeadraceError(f"the journal has no result of {entry.request_id}")
        return Delivery(
            node=self._signer.address,
            result=entry.result,
            signature=await self._signer.sign_typed(self._domain, hash_result(entry.result)),
            payload=entry.payload,
            output_tokens=entry.output_tokens,
            compute_ms=entry.compute_ms,
            proof=entry.proof,
        )

    def _entry(self, task: Task, state: TaskState, accept_signature: bytes, detail: str) -> JournalEntry:
        now_ms = self._clock.now_ms()
        return JournalEntry(
            request_id=task.assignment.request_id,
            round=task.assignment.round,
            state=state,
            task=encode(TaskMessage.of(task)) if state is TaskState.ACCEPTED else "",
            accept_signature=accept_signature,
            result=None,
            payload=b"",
            output_tokens=0,
            compute_ms=0,
            detail=detail,
            received_at_ms=now_ms,
            changed_at_ms=now_ms,
        )

    def _left_s(self, task: Task) -> float:
        return task.assignment.deadline_s - self._clock.now_ms() / 1000


def _is_promised(entry: JournalEntry | None) -> bool:
    """Whether the node has given its word on a request, and not taken it back."""
    return entry is not None and (entry.result is not None or entry.state is TaskState.ACCEPTED)
