"""The node daemon: keeps a link to its relayer, says how it is, takes tasks, delivers answers until they are stored."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import structlog
from aiohttp import ClientWebSocketResponse, WSMsgType

from headrace.core.errors import (
    BackendUnavailable,
    ConfigurationError,
    HeadraceError,
    InvalidInput,
    NotAllowed,
    SignerUnavailable,
    Unavailable,
)
from headrace.core.link_messages import (
    MAX_FRAME_BYTES,
    AcceptMessage,
    Challenge,
    Delivered,
    DeliveryMessage,
    DeliveryRejected,
    GaveUp,
    HeartbeatMessage,
    Hello,
    NodeMessage,
    ProtocolMismatch,
    RefusalMessage,
    Rejected,
    RejectionCode,
    RelayerMessage,
    SetSignature,
    SignSet,
    TaskMessage,
    Welcome,
    encode,
    hash_beat,
    hash_hello,
    parse_relayer_message,
    require_version,
)
from headrace.core.tasks import Accept, Heartbeat, Refusal, RefusalReason
from headrace.core.typed_data import Domain
from headrace.core.types import Address, Hash32, Price
from headrace.node.attester import Attester
from headrace.node.executor import Executor
from headrace.node.journal import NodeJournal
from headrace.node.options import NodeOptions
from headrace.node.payability import Payability
from headrace.node.vitals import Vitals, read_vitals
from headrace.ports import Backend, Clock, Signer

log = structlog.get_logger(__name__)

LINK_PATH = "/link"
_OUTBOX = 256
_INBOX = 64
_DELIVERIES_AT_ONCE = 16
_TASKS_AT_ONCE = 16  # that are looked at: one that waits for what others say must not hold up the rest
_HEARTBEAT_GAP_S = 0.025  # a relayer plans at most this often
_LONG_SESSION_S = 10.0  # after one, the next attempt is made at once again
_CAP_OF_SEVERAL_S = 2.0  # of the pause when one of several relayers is about to take over from another
_PRUNE_INTERVAL_S = 3600.0
_FOREIGN = (RejectionCode.PROTOCOL_MISMATCH, RejectionCode.BAD_SIGNATURE)


class NodeDaemon:
    """A node. `run` it; `stop` ends it gently, cancelling `run` at once: either way the next start goes on from there.

    Args:
        options: the operator's.
        signer: the node's key.
        journal: an open journal, of this node alone.
        backend: runs the models. The caller closes it, and the journal, after `run`.
        clock: wall-clock time.
        payability: tells whether an answer would be paid.
        rng: spreads reconnections.
        random_bytes: gives that many, for the salts of envelopes.
        vitals: free memory and load.
        attester: proves answers to a verifier, if the node has a key for that.
    """

    def __init__(
        self,
        options: NodeOptions,
        signer: Signer,
        journal: NodeJournal,
        backend: Backend,
        clock: Clock,
        payability: Payability,
        *,
        rng: random.Random,
        random_bytes: Callable[[int], bytes],
        vitals: Callable[[], Vitals] = read_vitals,
        attester: Attester | None = None,
    ) -> None:
        self._options = options
        self._signer = signer
        self._backend = backend
        self._clock = clock
        self._payability = payability
        self._rng = rng
        self._vitals = vitals
        self._verifiers = () if attester is None else (attester.verifier,)
        self._urls = link_urls(options.link_url)
        self._url = self._urls[0]  # of the relayer that is tried, or linked to
        self._domain = Domain(options.chain_id, options.market)
        self._load_changed = asyncio.Event()
        self._result_ready = asyncio.Event()
        self._delivered_all = asyncio.Event()
        self._stopping = asyncio.Event()
        self._session: _Session | None = None
        # Rises across restarts too, so that an auditor can order what a node said.
        self._sequence = clock.now_ms()
        self._executor = Executor(
            options,
            signer,
            journal,
            backend,
            clock,
            random_bytes,
            payability,
            on_load=self._load_changed.set,
            on_result=self._on_result,
            on_gave_up=self._on_gave_up,
            attester=attester,
        )

    @property
    def address(self) -> Address:
        """The node's key."""
        return self._signer.address

    @property
    def is_linked(self) -> bool:
        """Whether a relayer has welcomed it on a link that stands."""
        return self._session is not None

    def reprice(self, model_id: Hash32, price: Price) -> None:
        """Ask another price for a model from now on."""
        self._executor.reprice(model_id, price)

    def stop(self) -> None:
        """Take no more tasks, finish what is being computed, deliver it, then return from `run`."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until stopped.

        Raises:
            BackendUnavailable: the model server does not answer at the start.
            ConfigurationError: the relayer will never take this node as it is set up.
        """
        await self._backend.check()
        missing = {model.name for model in self._options.models} - set(self._backend.model_names)
        if missing:
            raise ConfigurationError(f"the backend does not serve {', '.join(sorted(missing))}, which the node offers")
        try:
            async with asyncio.TaskGroup() as group:
                await self._executor.start(group)
                background = [
                    group.create_task(self._probe_backend(), name="probe"),
                    group.create_task(self._probe_chain(), name="probe of the chain"),
                    group.create_task(self._prune(), name="prune"),
                    group.create_task(self._keep_linked(), name="link"),
                ]
                await self._stopping.wait()
                await self._drain()
                for task in background:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise _simplest(errors, HeadraceError) from None

    # The link

    async def _keep_linked(self) -> None:
        """Link to one relayer after the other, in their order, until cancelled."""
        loop = asyncio.get_running_loop()
        failures = 0
        async with aiohttp.ClientSession(trace_configs=[_no_redirects()]) as http:
            for number in itertools.count():
                self._url = self._urls[number % len(self._urls)]
                started_s = loop.time()
                try:
                    await self._link(http)
                except (aiohttp.ClientError, OSError, TimeoutError, HeadraceError) as exc:
                    if isinstance(exc, ConfigurationError):
                        raise
                    log.warning("link_lost", relayer_url=self._url, reason=str(exc) or type(exc).__name__)
                failures = 0 if loop.time() - started_s >= _LONG_SESSION_S else failures + 1
                if failures % len(self._urls) == 0:
                    await asyncio.sleep(self._rng.uniform(0, self._longest_pause_s(failures // len(self._urls))))

    def _longest_pause_s(self, rounds: int) -> float:
        """After all relayers were tried in vain so often. A node waits for a part of it that is drawn: those that lost
        their relayer together do not come back together."""
        cap_s = self._options.backoff_cap_s if len(self._urls) == 1 else _CAP_OF_SEVERAL_S
        return min(cap_s, self._options.backoff_base_s * 2.0 ** min(rounds, 16))

    async def _link(self, http: aiohttp.ClientSession) -> None:
        """One connection, from the first word to the last. Returns or raises when it is over."""
        timeout = aiohttp.ClientWSTimeout(ws_receive=None, ws_close=2.0)
        connecting = http.ws_connect(
            self._url, max_msg_size=MAX_FRAME_BYTES, heartbeat=self._options.answer_timeout_s, timeout=timeout
        )
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(self._options.answer_timeout_s):
                socket = await stack.enter_async_context(connecting)
                relayer = await self._open(socket)
            log.info("linked", relayer=relayer, node=self.address)
            session = _Session(self, self._executor, self._options, socket, relayer)
            self._session = session
            try:
                await session.run()
            finally:
                self._session = None

    async def _open(self, socket: ClientWebSocketResponse) -> Address:
        """Prove the key. Returns the relayer's address."""
        challenge = await receive(socket)
        if isinstance(challenge, Rejected):
            raise _rejection(challenge)
        if not isinstance(challenge, Challenge):
            raise InvalidInput(f"the relayer opens with {challenge.type}, not with a challenge")
        require_version(challenge)
        here, there = (self._options.chain_id, self._options.market), (challenge.chain_id, challenge.market)
        if here != there:
            raise ConfigurationError(
                f"the relayer at {self._url} serves the market {there[1]} on chain {there[0]}, and this node is set up "
                f"for {here[1]} on chain {here[0]}"
            )
        if self._options.relayer is not None and challenge.relayer != self._options.relayer:
            raise ConfigurationError(
                f"the relayer at {self._url} is {challenge.relayer}, not {self._options.relayer} as configured"
            )
        struct_hash = hash_hello(self.address, challenge.relayer, challenge.challenge)
        proof = await self._signer.sign_typed(self._domain, struct_hash)
        hello = Hello(node=self.address, signature="0x" + proof.hex())
        await socket.send_str(encode(hello))
        answer = await receive(socket)
        if isinstance(answer, Rejected):
            raise _rejection(answer)
        if not isinstance(answer, Welcome):
            raise InvalidInput(f"the relayer answers {answer.type}, not with a welcome")
        return challenge.relayer

    # Around it

    async def next_heartbeat(self, relayer: Address) -> HeartbeatMessage:
        """What it says of itself now, signed."""
        vitals = self._vitals()
        offered = self._executor.offered
        self._sequence += 1
        heartbeat = Heartbeat(
            node=self.address,
            sequence=self._sequence,
            sent_at_ms=self._clock.now_ms(),
            free_memory_mb=vitals.free_memory_mb,
            in_flight=self._executor.in_flight,
            max_in_flight=self._options.max_in_flight,
            load_milli=vitals.load_milli,
            models=offered,
            warm_models=offered,
            avg_latency_ms=self._executor.avg_latency_ms,
            region=self._options.region,
            verifiers=self._verifiers,
        )
        signature = await self._signer.sign_typed(self._domain, hash_beat(relayer, heartbeat))
        return HeartbeatMessage.of(heartbeat, signature)

    async def wait_for_load(self) -> None:
        """Wait until a heartbeat would say something new, or is due."""
        try:
            async with asyncio.timeout(self._options.heartbeat_interval_s):
                await self._load_changed.wait()
        except TimeoutError:
            return
        self._load_changed.clear()

    async def wait_for_result(self) -> None:
        """Wait until there may be something to deliver."""
        try:
            async with asyncio.timeout(self._options.redeliver_after_s):
                await self._result_ready.wait()
        except TimeoutError:
            return
        self._result_ready.clear()

    def note_delivered_all(self, all_: bool) -> None:
        """Whether the relayer has all answers, as the deliveries of a session see it."""
        if all_:
            self._delivered_all.set()
        else:
            self._delivered_all.clear()

    def ring(self) -> None:
        """Look again for something to deliver."""
        self._result_ready.set()

    def _on_result(self) -> None:
        self._delivered_all.clear()
        self.ring()

    def _on_gave_up(self, refusal: Refusal) -> None:
        if self._session is not None:
            self._session.send_now(GaveUp.of(refusal))

    async def _probe_backend(self) -> None:
        while True:
            await asyncio.sleep(self._options.probe_interval_s)
            try:
                await self._backend.check()
            except BackendUnavailable as exc:
                if self._executor.backend_up:
                    log.error("backend_down", error=str(exc))
                self._executor.set_backend_up(False)
            else:
                if not self._executor.backend_up:
                    log.info("backend_recovered")
                self._executor.set_backend_up(True)

    async def _probe_chain(self) -> None:
        while True:
            await asyncio.sleep(self._options.probe_interval_s)
            if not self._payability.chain_answers:
                await self._payability.probe()
                self._load_changed.set()

    async def _prune(self) -> None:
        while True:
            await self._executor.prune()
            await asyncio.sleep(_PRUNE_INTERVAL_S)

    async def _drain(self) -> None:
        log.info("draining", in_flight=self._executor.in_flight)
        self._executor.stop_taking()
        try:
            async with asyncio.timeout(self._options.drain_timeout_s):
                await self._executor.drained()
                # What is computed is in the journal: without a link, the next start delivers it.
                if self._session is not None:
                    self._delivered_all.clear()
                    self._result_ready.set()
                    await self._session.settled(self._delivered_all)
        except TimeoutError:
            log.warning("drain_timed_out", in_flight=self._executor.in_flight)
            await self._executor.abandon()
        if self._session is not None:
            await self._session.finish()


class _Session:
    """One welcomed link."""

    def __init__(
        self,
        daemon: NodeDaemon,
        executor: Executor,
        options: NodeOptions,
        socket: ClientWebSocketResponse,
        relayer: Address,
    ) -> None:
        self._daemon = daemon
        self._executor = executor
        self._options = options
        self._socket = socket
        self._relayer = relayer
        self._outbox: asyncio.Queue[NodeMessage] = asyncio.Queue(_OUTBOX)
        self._tasks: asyncio.Queue[TaskMessage] = asyncio.Queue(_INBOX)
        self._controls: asyncio.Queue[Delivered | DeliveryRejected | SignSet] = asyncio.Queue(_INBOX)
        self._sent_at_s: dict[tuple[Hash32, int], float] = {}  # by request and round
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Serve the link until it is over."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(), name="write")
                group.create_task(self._beat(), name="heartbeat")
                group.create_task(self._deliver(), name="deliver")
                for _ in range(_TASKS_AT_ONCE):
                    group.create_task(self._take_tasks(), name="tasks")
                group.create_task(self._handle_controls(), name="controls")
                await self._read()
        except BaseExceptionGroup as errors:
            raise _simplest(errors, (HeadraceError, aiohttp.ClientError, OSError)) from None
        finally:
            self._over.set()

    def send_now(self, message: NodeMessage) -> None:
        """Put a message in line, or drop it when the relayer does not read: the lease covers that."""
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("outbox_full", dropped=message.type)

    async def settled(self, event: asyncio.Event) -> None:
        """Wait for an event, or for the end of the link."""
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._over.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def finish(self) -> None:
        """Send what is in line, then close."""
        try:
            async with asyncio.timeout(self._options.answer_timeout_s):
                flushed = asyncio.Event()
                joined = asyncio.ensure_future(self._outbox.join())
                joined.add_done_callback(lambda _: flushed.set())
                try:
                    await self.settled(flushed)
                finally:
                    joined.cancel()
                await self._socket.close(code=aiohttp.WSCloseCode.GOING_AWAY)
        except TimeoutError:
            log.warning("close_timed_out")

    async def _read(self) -> NoReturn:
        while True:
            message = await receive(self._socket)
            if isinstance(message, TaskMessage):
                try:
                    self._tasks.put_nowait(message)
                except asyncio.QueueFull:
                    self._refuse(message, RefusalReason.BUSY, "more tasks came at once than the node looks at")
            elif isinstance(message, Rejected):
                raise _rejection(message)
            elif isinstance(message, Delivered | DeliveryRejected | SignSet):
                await self._controls.put(message)
            else:
                raise InvalidInput(f"the relayer sent {message.type} on an open link")

    async def _write(self) -> None:
        while True:
            message = await self._outbox.get()
            async with asyncio.timeout(self._options.answer_timeout_s):
                await self._socket.send_str(encode(message))
            self._outbox.task_done()

    async def _beat(self) -> None:
        while True:
            try:
                await self._outbox.put(await self._daemon.next_heartbeat(self._relayer))
            except SignerUnavailable as exc:
                # Without heartbeats the relayer assigns nothing, and what is running goes on.
                log.warning("heartbeat_not_signed", reason=str(exc))
            await asyncio.sleep(min(_HEARTBEAT_GAP_S, self._options.heartbeat_interval_s))
            await self._daemon.wait_for_load()

    async def _take_tasks(self) -> None:
        while True:
            message = await self._tasks.get()
            try:
                task = message.task()
            except InvalidInput as exc:
                self._refuse(message, RefusalReason.BAD_ASSIGNMENT, str(exc))
                continue
            await self._executor.take(task, self._relayer, self._reply)

    def _reply(self, answer: Accept | Refusal) -> None:
        self.send_now(AcceptMessage.of(answer) if isinstance(answer, Accept) else RefusalMessage.of(answer))

    def _refuse(self, message: TaskMessage, reason: RefusalReason, text: str) -> None:
        self._reply(Refusal(message.assignment.request_id, message.assignment.round, reason, text))

    async def _handle_controls(self) -> None:
        while True:
            message = await self._controls.get()
            if isinstance(message, SignSet):
                await self._outbox.put(await self._sign_set(message))
                continue
            if isinstance(message, Delivered):
                await self._executor.acknowledged(message.request_id, message.round)
            else:
                await self._executor.rejected(message.request_id, message.round, f"{message.code}: {message.message}")
            self._daemon.ring()

    async def _sign_set(self, message: SignSet) -> SetSignature:
        try:
            results = message.core_results()
            signature = await self._executor.sign_set(message.set_hash, message.round, results, self._relayer)
        except (InvalidInput, SignerUnavailable) as exc:
            log.error("set_not_signed", round=message.round, reason=str(exc))
            return SetSignature.of(message.set_hash, None, str(exc))
        return SetSignature.of(message.set_hash, signature)

    async def _deliver(self) -> None:
        """Send what the relayer does not have, a few at a time, and again when it stays silent."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                waiting = await self._executor.undelivered(self._relayer, _DELIVERIES_AT_ONCE)
            except SignerUnavailable as exc:
                log.warning("results_not_signed", reason=str(exc))
                self._daemon.note_delivered_all(False)
                await asyncio.sleep(self._options.redeliver_after_s)
                continue
            self._daemon.note_delivered_all(not waiting)
            keys = {(delivery.result.request_id, delivery.result.round) for delivery in waiting}
            self._sent_at_s = {key: at_s for key, at_s in self._sent_at_s.items() if key in keys}
            for delivery in waiting:
                key = (delivery.result.request_id, delivery.result.round)
                sent_at_s = self._sent_at_s.get(key)
                if sent_at_s is None or loop.time() - sent_at_s >= self._options.redeliver_after_s:
                    self._sent_at_s[key] = loop.time()
                    await self._outbox.put(DeliveryMessage.of(delivery))
            await self._daemon.wait_for_result()


def link_urls(urls: str) -> list[str]:
    """The links' addresses at one relayer, or at several with commas between them."""
    return [link_url(url.strip()) for url in urls.split(",")]


def link_url(url: str) -> str:
    """The link's address at a relayer whose path may be left out."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=LINK_PATH)) if parts.path in ("", "/") else url


async def receive(socket: ClientWebSocketResponse) -> RelayerMessage:
    """The relayer's next message.

    Raises:
        Unavailable: the link is closed.
        InvalidInput: it is no message of the link.
    """
    frame = await socket.receive()
    if frame.type is WSMsgType.TEXT:
        try:
            return parse_relayer_message(frame.data)
        except ProtocolMismatch as exc:
            raise ConfigurationError(str(exc)) from None
    if frame.type is WSMsgType.BINARY:
        raise InvalidInput("the relayer sent a binary frame")
    raise Unavailable(f"the link was closed ({socket.close_code})")


def _rejection(rejected: Rejected) -> HeadraceError:
    log.warning("link_rejected", code=rejected.code, message=rejected.message)
    if rejected.code in _FOREIGN:
        return ConfigurationError(f"the relayer refuses the link: {rejected.message}")
    if rejected.code is RejectionCode.REPLACED:
        return ConfigurationError("another process has linked with this node's key: run each key once")
    if rejected.code is RejectionCode.NOT_ALLOWED:
        return NotAllowed(rejected.message)
    return Unavailable(f"{rejected.code}: {rejected.message}")


def _simplest(
    errors: BaseExceptionGroup[BaseException], expected: type[Exception] | tuple[type[Exception], ...]
) -> BaseException:
    """The first error of a group, when all are of the kinds that its caller knows; else the group as it is."""
    known, others = errors.split(expected)
    if known is None or others is not None:
        return errors
    error: BaseException = known
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _no_redirects() -> aiohttp.TraceConfig:
    """aiohttp's WebSocket follows redirects, so a relayer could have the node call any address of its own network."""

    async def refuse(
        _session: aiohttp.ClientSession, _context: object, found: aiohttp.TraceRequestRedirectParams
    ) -> None:
        raise ConnectionError(f"the relayer answers with status {found.response.status}, to be called elsewhere")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    return config
