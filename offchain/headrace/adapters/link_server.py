"""The relayer's end of the links: a WebSocket server that nodes connect to.

A node is linked once it has signed the relayer's challenge and the relayer's services admit it. Everything that a node
can make grow has a bound: connections, frames, their rate, what waits for it and what waits from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket as sockets
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NoReturn, TypeVar

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from headrace.core.errors import HeadraceError, InvalidInput, NotAllowed, SignatureMismatch, Unavailable, Unknown
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
    heartbeat_digest,
    hello_digest,
    parse_node_message,
    require_version,
    short,
)
from headrace.core.tasks import Accept, Heartbeat, LinkedNode, Refusal, RefusalReason, Task
from headrace.core.typed_data import Domain, digest, hash_result, hash_result_set, require_signer
from headrace.core.types import Address, Hash32, Result
from headrace.ports import Clock, LinkEvents

log = structlog.get_logger(__name__)

LINK_PATH = "/link"
_MAX_CLOCK_SKEW_MS = 60_000
_MEMORY_STEP_MB = 256  # a smaller change of free memory is no reason to plan again
_OUTBOX = 256
_OUTBOX_CHARS = 32 * 1024 * 1024
_DELIVERIES_AT_ONCE = 16
_WRITE_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 2.0
_K = TypeVar("_K")
_V = TypeVar("_V")


class _Close(Exception):
    """A link must end, and this is the last word."""

    def __init__(self, code: RejectionCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class LinkServer:
    """The `NodeLink` of a relayer. `run` serves it; before and after, no node is linked.

    Args:
        relayer: the relayer's address; the link itself signs nothing.
        domain: the market's, under which nodes sign.
        clock: wall-clock time.
        host: where to listen.
        port: 0 = any free one; see `port` once `started` is set.
        listener: a socket that listens already, instead of `host` and `port`.
        heartbeat_timeout_s: a node that is silent for longer is dropped.
        handshake_timeout_s: for the whole of the opening.
        max_links: connections at once, those that are still opening included.
        frames_per_s: sustained rate of one node's frames; a node that sends more is read more slowly.
        new_challenge: gives 32 random bytes.
    """

    def __init__(
        self,
        relayer: Address,
        domain: Domain,
        clock: Clock,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        listener: sockets.socket | None = None,
        heartbeat_timeout_s: float = 15.0,
        handshake_timeout_s: float = 10.0,
        max_links: int = 1_024,
        frames_per_s: float = 1_000.0,
        new_challenge: Callable[[], bytes] = lambda: secrets.token_bytes(32),
    ) -> None:
        self.started = asyncio.Event()
        self._relayer = relayer
        self._domain = domain
        self._clock = clock
        self._host = host
        self._port = port
        self._listener = listener
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._handshake_timeout_s = handshake_timeout_s
        self._max_links = max_links
        self._frames_per_s = frames_per_s
        self._new_challenge = new_challenge
        self._links: dict[Address, _Link] = {}
        self._connections = 0
        self._stopping = False
        self._events: LinkEvents | None = None

    @property
    def port(self) -> int:
        """The port that it listens on, once started."""
        return self._port

    async def run(self, events: LinkEvents) -> NoReturn:
        """Serve until cancelled, then tell every node and close.

        Args:
            events: hears what nodes say.

        Raises:
            OSError: the port cannot be had.
        """
        self._events = events
        self._stopping = False
        application = web.Application()
        application.router.add_get(LINK_PATH, self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=_CLOSE_TIMEOUT_S)
        await runner.setup()
        try:
            site: web.BaseSite = (
                web.SockSite(runner, self._listener)
                if self._listener is not None
                else web.TCPSite(runner, self._host, self._port)
            )
            await site.start()
            self._port = runner.addresses[0][1]
            log.info("link_listening", host=self._host, port=self._port)
            self.started.set()
            while True:
                await asyncio.Event().wait()
        finally:
            self.started.clear()
            self._stopping = True
            for link in list(self._links.values()):
                link.end(RejectionCode.SHUTTING_DOWN, "the relayer is shutting down")
            await runner.cleanup()

    # NodeLink

    def linked(self) -> Sequence[LinkedNode]:
        return [link.last for _, link in sorted(self._links.items()) if link.last is not None]

    async def dispatch(self, task: Task, timeout_s: float) -> Accept | Refusal:
        identity, round_, node = task.assignment.request_id, task.assignment.round, task.assignment.node
        link = self._links.get(node)
        if link is None:
            raise Unavailable(f"the node {node} is not linked")
        try:
            message = TaskMessage.of(task)
        except InvalidInput as exc:
            # No node can ever get it over this link.
            return Refusal(identity, round_, RefusalReason.BAD_PROMPT, str(exc))
        if not link.send(message):
            raise Unavailable(f"the node {node} does not read what it is sent")
        answer = await link.answers.wait((identity, round_), timeout_s)
        if answer is None:
            raise Unknown(f"the node {node} did not answer the task {identity} within {timeout_s} s")
        return answer

    async def sign_set(self, node: Address, round_: int, results: Sequence[Result], timeout_s: float) -> bytes | None:
        link = self._links.get(node)
        if link is None:
            return None
        struct_hash = hash_result_set(self._relayer, round_, [hash_result(result) for result in results])
        set_hash = "0x" + struct_hash.hex()
        if not link.send(SignSet.of(set_hash, round_, results)):
            return None
        try:
            answer = await link.signatures.wait(set_hash, timeout_s)
        except Unknown:
            return None
        if answer is None:
            return None
        signature = answer.signature_bytes()
        try:
            if signature is None:
                raise InvalidInput(answer.message)
            require_signer(node, digest(self._domain, struct_hash), signature, "result set")
        except InvalidInput as exc:
            log.warning("set_not_signed", node=node, round=round_, reason=str(exc))
            return None
        return signature

    # One connection

    async def _handle(self, http_request: web.Request) -> web.StreamResponse:
        if self._stopping or self._connections >= self._max_links:
            raise web.HTTPServiceUnavailable(text="the relayer takes no more links now", headers={"Retry-After": "5"})
        socket = web.WebSocketResponse(max_msg_size=MAX_FRAME_BYTES, compress=False, timeout=_CLOSE_TIMEOUT_S)
        if not socket.can_prepare(http_request):
            raise web.HTTPUpgradeRequired(
                text="this is the nodes' link: connect with a WebSocket", headers={"Upgrade": "websocket"}
            )
        self._connections += 1
        try:
            await socket.prepare(http_request)
            await self._serve(socket)
        finally:
            self._connections -= 1
        return socket

    async def _serve(self, socket: web.WebSocketResponse) -> None:
        try:
            try:
                async with asyncio.timeout(self._handshake_timeout_s):
                    node = await self._open(socket)
            except TimeoutError:
                raise _Close(RejectionCode.SILENT, "the node did not open its link in time") from None
            link = _Link(self, socket, node)
            older = self._links.get(node)
            self._links[node] = link
            if older is not None:
                older.end(RejectionCode.REPLACED, "a newer link of this node took its place")
            log.info("node_linked", node=node)
            try:
                await link.run()
            finally:
                if self._links.get(node) is link:
                    del self._links[node]
                    log.info("node_unlinked", node=node)
                link.forget()
                self.events.changed()
        except _Close as close:
            log.info("link_rejected", code=close.code, message=str(close))
            await _last_word(socket, close)
        except (ConnectionError, Unavailable) as exc:
            log.debug("link_ended", reason=str(exc))

    async def _open(self, socket: web.WebSocketResponse) -> Address:
        """Have the node prove its key, and the relayer's services admit it."""
        challenge = "0x" + self._new_challenge().hex()
        opening = Challenge(
            challenge=challenge,
            relayer=self._relayer,
            chain_id=self._domain.chain_id,
            market=self._domain.verifying_contract,
        )
        await socket.send_str(encode(opening))
        hello = await receive(socket)
        if not isinstance(hello, Hello):
            raise _Close(RejectionCode.MALFORMED, f"a link opens with a hello, not with {hello.type}")
        try:
            require_version(hello)
            proof = hello_digest(self._domain, hello.node, self._relayer, challenge)
            require_signer(hello.node, proof, bytes.fromhex(hello.signature[2:]), "hello")
            await self.events.admit(hello.node)
        except ProtocolMismatch as exc:
            raise _Close(RejectionCode.PROTOCOL_MISMATCH, str(exc)) from None
        except SignatureMismatch as exc:
            raise _Close(RejectionCode.BAD_SIGNATURE, str(exc)) from None
        except NotAllowed as exc:
            raise _Close(RejectionCode.NOT_ALLOWED, str(exc)) from None
        except HeadraceError as exc:
            log.warning("admission_failed", node=hello.node, error=str(exc))
            raise _Close(RejectionCode.UNAVAILABLE, "the relayer cannot check the node now; try again") from None
        await socket.send_str(encode(Welcome()))
        return hello.node

    # For links

    @property
    def events(self) -> LinkEvents:
        """Who hears what nodes say."""
        if self._events is None:
            raise HeadraceError("the link server is not running")
        return self._events

    @property
    def heartbeat_timeout_s(self) -> float:
        """How long a node may be silent."""
        return self._heartbeat_timeout_s

    @property
    def frames_per_s(self) -> float:
        """How fast one node may send."""
        return self._frames_per_s

    def verified(self, message: HeartbeatMessage, node: Address, last: Heartbeat | None) -> LinkedNode:
        """A heartbeat that its node signed and that makes sense after the one before."""
        try:
            heartbeat = message.heartbeat()
            if heartbeat.node != node:
                raise InvalidInput(f"it is of the node {heartbeat.node}")
            if last is not None and heartbeat.sequence <= last.sequence:
                raise InvalidInput(f"its sequence {heartbeat.sequence} does not come after {last.sequence}")
            now_ms = self._clock.now_ms()
            if abs(now_ms - heartbeat.sent_at_ms) > _MAX_CLOCK_SKEW_MS:
                raise InvalidInput(
                    f"the node's clock is {(heartbeat.sent_at_ms - now_ms) / 1000:+.0f} s off the relayer's: set it"
                )
            signature = message.signature_bytes()
            require_signer(node, heartbeat_digest(self._domain, self._relayer, heartbeat), signature, "heartbeat")
        except InvalidInput as exc:
            raise _Close(RejectionCode.BAD_HEARTBEAT, f"the heartbeat is refused: {exc}") from None
        return LinkedNode(node, heartbeat, signature, now_ms)


class _Waiters(Generic[_K, _V]):
    """Who waits for which answer."""

    def __init__(self) -> None:
        self._waiting: defaultdict[_K, list[asyncio.Future[_V]]] = defaultdict(list)

    async def wait(self, key: _K, timeout_s: float) -> _V | None:
        """The answer, or None when it did not come in time.

        Raises:
            Unknown: the link broke.
        """
        future: asyncio.Future[_V] = asyncio.get_running_loop().create_future()
        self._waiting[key].append(future)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return None
        finally:
            self._waiting[key].remove(future)
            if not self._waiting[key]:
                del self._waiting[key]

    def answer(self, key: _K, value: _V) -> None:
        """Give an answer to all who wait for it; one that came too late is dropped."""
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_result(value)

    def break_off(self, message: str) -> None:
        """Tell all who wait that no answer will come."""
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(Unknown(message))


class _Link:
    """A node that is linked."""

    def __init__(self, server: LinkServer, socket: web.WebSocketResponse, node: Address) -> None:
        self.last: LinkedNode | None = None
        self.answers: _Waiters[tuple[Hash32, int], Accept | Refusal] = _Waiters()
        self.signatures: _Waiters[Hash32, SetSignature] = _Waiters()
        self._server = server
        self._socket = socket
        self._node = node
        self._outbox: asyncio.Queue[str] = asyncio.Queue(_OUTBOX)
        self._outbox_chars = 0
        self._slots = asyncio.Semaphore(_DELIVERIES_AT_ONCE)
        self._ending: asyncio.Future[_Close] = asyncio.get_running_loop().create_future()
        self._silent_at_s = asyncio.get_running_loop().time() + server.heartbeat_timeout_s
        self._frames = _Rate(server.frames_per_s)

    async def run(self) -> None:
        """Serve the link until it is over; what ends it is raised."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(), name=f"write {self._node}")
                group.create_task(self._wait_for_end(), name=f"end {self._node}")
                await self._read(group)
        except BaseExceptionGroup as errors:
            raise _simplest(errors) from None

    def send(self, message: RelayerMessage) -> bool:
        """Put a message in line. False when too much waits there already."""
        frame = encode(message)
        if self._ending.done() or self._outbox_chars + len(frame) > _OUTBOX_CHARS:
            return False
        try:
            self._outbox.put_nowait(frame)
        except asyncio.QueueFull:
            return False
        self._outbox_chars += len(frame)
        return True

    def end(self, code: RejectionCode, message: str) -> None:
        """End the link with this last word."""
        if not self._ending.done():
            self._ending.set_result(_Close(code, message))

    def forget(self) -> None:
        """Leave nobody waiting."""
        self._ending.cancel()
        for waiters in (self.answers, self.signatures):
            waiters.break_off(f"the link of the node {self._node} broke before it answered")

    async def _wait_for_end(self) -> NoReturn:
        raise await self._ending

    async def _write(self) -> NoReturn:
        while True:
            frame = await self._outbox.get()
            self._outbox_chars -= len(frame)
            try:
                async with asyncio.timeout(_WRITE_TIMEOUT_S):
                    await self._socket.send_str(frame)
            except TimeoutError:
                raise _Close(RejectionCode.SLOW, "the node does not read what it is sent") from None

    async def _read(self, group: asyncio.TaskGroup) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            message = None
            # A frame that is there already is read without a wait, so the time is looked at as well.
            if loop.time() < self._silent_at_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self._silent_at_s):
                        message = await receive(self._socket)
            if message is None:
                raise _Close(RejectionCode.SILENT, f"no heartbeat came for {self._server.heartbeat_timeout_s:g} s")
            await self._frames.admit()
            await self._take(message, group)

    async def _take(self, message: NodeMessage, group: asyncio.TaskGroup) -> None:
        match message:
            case HeartbeatMessage():
                self._beat(message)
            case AcceptMessage():
                self.answers.answer((message.request_id, message.round), message.accept())
            case RefusalMessage():
                self.answers.answer((message.request_id, message.round), message.refusal())
            case SetSignature():
                self.signatures.answer(message.set_hash, message)
            case DeliveryMessage() | GaveUp():
                waits_since_s = asyncio.get_running_loop().time()
                await self._slots.acquire()
                # It is the relayer that is slow here: meanwhile the node is not silent.
                self._silent_at_s += asyncio.get_running_loop().time() - waits_since_s
                work = self._deliver(message) if isinstance(message, DeliveryMessage) else self._gave_up(message)
                group.create_task(work).add_done_callback(lambda _: self._slots.release())
            case Hello():
                raise _Close(RejectionCode.MALFORMED, "the link is open already")

    def _beat(self, message: HeartbeatMessage) -> None:
        before = None if self.last is None else self.last.heartbeat
        self.last = self._server.verified(message, self._node, before)
        self._silent_at_s = asyncio.get_running_loop().time() + self._server.heartbeat_timeout_s
        if before is None or _matters(before) != _matters(self.last.heartbeat):
            self._server.events.changed()

    async def _deliver(self, message: DeliveryMessage) -> None:
        identity, round_ = message.result.request_id, message.result.round
        reply: RelayerMessage = Delivered(request_id=identity, round=round_)
        try:
            await self._server.events.delivered(message.delivery(self._node))
        except InvalidInput as exc:
            log.warning("delivery_rejected", requestId=identity, node=self._node, error=str(exc))
            reply = DeliveryRejected(request_id=identity, round=round_, code=exc.code, message=short(str(exc)))
        except Exception:
            # Not stored, as far as is known: without an answer the node sends it again.
            log.exception("delivery_not_stored", requestId=identity, node=self._node)
            return
        if not self.send(reply):
            self.end(RejectionCode.SLOW, "the node does not read what it is sent")

    async def _gave_up(self, message: GaveUp) -> None:
        try:
            await self._server.events.gave_up(self._node, message.refusal())
        except Exception:
            # The lease of the assignment will say the same, later.
            log.exception("gave_up_not_noted", requestId=message.request_id, node=self._node)


class _Rate:
    """Lets frames through at a sustained rate, two seconds' worth at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = 2 * per_s
        self._at_s = asyncio.get_running_loop().time()

    async def admit(self) -> None:
        """Wait until one more may pass."""
        now_s = asyncio.get_running_loop().time()
        self._left = min(2 * self._per_s, self._left + (now_s - self._at_s) * self._per_s) - 1
        self._at_s = now_s
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_s)


async def receive(socket: web.WebSocketResponse) -> NodeMessage:
    """The node's next message; raises what ends the link when there is none."""
    frame = await socket.receive()
    if frame.type is WSMsgType.TEXT:
        try:
            return parse_node_message(frame.data)
        except ProtocolMismatch as exc:
            raise _Close(RejectionCode.PROTOCOL_MISMATCH, str(exc)) from None
        except InvalidInput as exc:
            raise _Close(RejectionCode.MALFORMED, str(exc)) from None
    if frame.type is WSMsgType.BINARY:
        raise _Close(RejectionCode.MALFORMED, "the link takes text frames only")
    raise Unavailable(f"the node closed its link ({socket.close_code})")


async def _last_word(socket: web.WebSocketResponse, close: _Close) -> None:
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await socket.send_str(encode(Rejected(code=close.code, message=short(str(close)))))
        await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=close.code.encode())
    except (ConnectionError, TimeoutError):
        log.debug("last_word_unheard", code=close.code)


def _matters(heartbeat: Heartbeat) -> tuple[object, ...]:
    """What of a heartbeat may change a plan."""
    return (
        heartbeat.models,
        heartbeat.warm_models,
        heartbeat.in_flight,
        heartbeat.max_in_flight,
        heartbeat.avg_latency_ms,
        heartbeat.region,
        heartbeat.free_memory_mb // _MEMORY_STEP_MB,
    )


def _simplest(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of several ends of one link, the one with a last word; what is not an end at all goes out as it is."""
    _, unknown = errors.split((_Close, ConnectionError, Unavailable))
    if unknown is not None:
        return errors
    ends = list(_leaves(errors))
    return next((end for end in ends if isinstance(end, _Close)), ends[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
