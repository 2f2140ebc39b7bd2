"""Links and nodes on loopback: server and daemon are real, the backend and the services are scripted."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.adapters.link_server import LinkServer
from headrace.adapters.node_journal import SqlNodeJournal
from headrace.core.envelope import hash_payload
from headrace.core.errors import BackendUnavailable
from headrace.core.requests import request_id
from headrace.core.self_settlement import SelfSettlementPolicy
from headrace.core.tasks import Delivery, LinkedNode, Refusal, Task
from headrace.core.typed_data import Domain, digest, hash_assignment
from headrace.core.types import ZERO_ADDRESS, Address, Assignment, Hash32, Pending, Price, Request, Status
from headrace.node.attester import Attester
from headrace.node.daemon import NodeDaemon
from headrace.node.options import NodeOptions, OfferedModel
from headrace.node.payability import Payability, PayabilitySettings
from headrace.node.vitals import Vitals
from headrace.ports import Generation, NodeFacts
from tests.fakes import MARKET, MODEL_ID, START_S, FakeChain, FakeClock, FakeSigner, make_request

CHAIN_ID = 31337
DEADLINE_S = 30.0
MODEL = OfferedModel(MODEL_ID, "smol", 500, Price(per_prompt_kib_wei=10**12, per_thousand_tokens_wei=10**12))
RELAYER_KEY = FakeSigner(11)
NODE_KEY = FakeSigner(22)
OWNER: Address = "0x" + "0d" * 20
DOMAIN = Domain(CHAIN_ID, MARKET)


class Bell:
    """Rings when anything happened, so that a test waits for what it wants and for nothing else."""

    def __init__(self) -> None:
        self._condition = asyncio.Event()

    def ring(self) -> None:
        self._condition.set()

    async def until(self, holds: Callable[[], Any], what: str = "") -> Any:
        """Wait until it holds; what it says is returned."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not (value := holds()):
                    self._condition.clear()
                    await self._condition.wait()
        except TimeoutError:
            raise AssertionError(f"it did not happen within {DEADLINE_S} s: {what or holds}") from None
        return value


class ScriptedBackend:
    """Says what it is told to, when it is told to."""

    def __init__(self, bell: Bell) -> None:
        self.calls: list[tuple[str, Mapping[str, Any], int]] = []
        self.text = "Rayleigh scattering."
        self.error: Exception | None = None
        self.check_error: Exception | None = None
        self.checks = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.compute_ms = 40
        self.contexts: dict[str, int] = {}
        self.prompt_tokens: int | None = 5
        self.count_error: Exception | None = None
        self.count_gate = asyncio.Event()
        self.count_gate.set()
        self.counts: list[Mapping[str, Any]] = []
        self._bell = bell

    @property
    def model_names(self) -> Sequence[str]:
        return ("smol",)

    def context_tokens(self, model_name: str) -> int | None:
        return self.contexts.get(model_name)

    async def count_prompt_tokens(self, model_name: str, body: Mapping[str, Any]) -> int | None:
        self.counts.append(body)
        self._bell.ring()
        await self.count_gate.wait()
        if self.count_error is not None:
            raise self.count_error
        return self.prompt_tokens

    async def generate(self, model_name: str, body: Mapping[str, Any], max_output_tokens: int) -> Generation:
        self.calls.append((model_name, body, max_output_tokens))
        self._bell.ring()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return Generation(self.text, "stop", 5, 3, self.compute_ms)

    async def check(self) -> None:
        self.checks += 1
        self._bell.ring()
        if self.check_error is not None:
            raise self.check_error

    async def close(self) -> None:
        pass

    def fail(self) -> None:
        """Be down from now on."""
        self.error = self.check_error = BackendUnavailable("the scripted server is down; start it")

    def recover(self) -> None:
        self.error = self.check_error = None


class ScriptedEvents:
    """The relayer's services: they remember what they heard, and answer what they are told to."""

    def __init__(self, bell: Bell) -> None:
        self.admitted: list[Address] = []
        self.admit_error: Exception | None = None
        self.deliveries: list[Delivery] = []
        self.delivered_error: Exception | None = None
        self.gave_ups: list[tuple[Address, Refusal]] = []
        self.changes = 0
        self._bell = bell

    async def admit(self, node: Address) -> None:
        self.admitted.append(node)
        self._bell.ring()
        if self.admit_error is not None:
            raise self.admit_error

    async def delivered(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self._bell.ring()
        if self.delivered_error is not None:
            raise self.delivered_error

    async def gave_up(self, node: Address, refusal: Refusal) -> None:
        self.gave_ups.append((node, refusal))
        self._bell.ring()

    def changed(self) -> None:
        self.changes += 1
        self._bell.ring()


class PostedChain(FakeChain):
    """A chain on which every request is pending, but for those that a test names; with the two registered."""

    def __init__(self, clock: FakeClock, bell: Bell) -> None:
        super().__init__(clock)
        self._bell = bell
        self.bonded = {RELAYER_KEY.address}
        self.not_pending: dict[Hash32, Status] = {}
        self.effective_deadlines: dict[Hash32, int] = {}

    async def pending(self, request_ids: Sequence[Hash32]) -> list[Pending | None]:
        self._enter("pending")
        self._bell.ring()
        return [
            None if each in self.not_pending else Pending(0, self.effective_deadlines.get(each, 2**40 - 1))
            for each in request_ids
        ]

    async def node_facts(self, key: Address) -> NodeFacts:
        self._enter("node_facts")
        return self.facts.get(key, member(key))

    async def statuses(self, request_ids: Sequence[Hash32]) -> list[Status]:
        self._enter("statuses")
        return [self.not_pending.get(each, Status.PENDING) for each in request_ids]


def member(key: Address, **changes: Any) -> NodeFacts:
    """A node of the market that is past its probation."""
    facts = NodeFacts(key, OWNER, 10**18, 0, True, OWNER, START_S - 10**6, 100, 0, 0)
    return dataclasses.replace(facts, **changes)


class World:
    """One relayer, and what its nodes need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bell = Bell()
        self.clock = FakeClock()
        self.events = ScriptedEvents(self.bell)
        self.backend = ScriptedBackend(self.bell)
        self.chain = PostedChain(self.clock, self.bell)
        self.payability = PayabilitySettings(posting_wait_s=0.2, poll_s=0.005)
        self.link = self.new_link()

    def new_link(self, **changes: Any) -> LinkServer:
        return LinkServer(RELAYER_KEY.address, DOMAIN, self.clock, **changes)

    @contextlib.asynccontextmanager
    async def serving(self, **changes: Any) -> AsyncIterator[LinkServer]:
        """The link server, on a port of its own unless one is given."""
        self.link = self.new_link(**changes)
        serving = asyncio.ensure_future(self.link.run(self.events))
        started = asyncio.ensure_future(self.link.started.wait())
        try:
            await asyncio.wait({serving, started}, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
            assert started.done()
            yield self.link
        finally:
            started.cancel()
            await _cancel(serving)

    def options(self, **changes: Any) -> NodeOptions:
        options = NodeOptions(
            link_url=f"ws://127.0.0.1:{self.link.port}",
            chain_id=CHAIN_ID,
            market=MARKET,
            models=(MODEL,),
            relayer=RELAYER_KEY.address,
            heartbeat_interval_s=0.2,
            probe_interval_s=0.02,
            redeliver_after_s=0.2,
            backoff_base_s=0.01,
            backoff_cap_s=0.05,
            drain_timeout_s=DEADLINE_S,
        )
        return dataclasses.replace(options, **changes)

    def daemon(
        self,
        journal: SqlNodeJournal,
        *,
        signer: FakeSigner = NODE_KEY,
        attester: Attester | None = None,
        **changes: Any,
    ) -> NodeDaemon:
        return NodeDaemon(
            self.options(**changes),
            signer,
            journal,
            self.backend,
            self.clock,
            Payability(
                self.chain, self.clock, signer.address, self.chain.terms, SelfSettlementPolicy(), self.payability
            ),
            rng=random.Random(1),
            random_bytes=random.Random(2).randbytes,
            vitals=lambda: Vitals(4096, 100),
            attester=attester,
        )

    @contextlib.asynccontextmanager
    async def node(self, *, signer: FakeSigner = NODE_KEY, **changes: Any) -> AsyncIterator[RunningNode]:
        """A node that runs until it is killed at the end of the block."""
        async with SqlNodeJournal(self.folder / f"{signer.address}.db") as journal:
            daemon = self.daemon(journal, signer=signer, **changes)
            running = asyncio.ensure_future(daemon.run())
            running.add_done_callback(lambda _: self.bell.ring())
            try:
                yield RunningNode(daemon, journal, running)
            finally:
                await _cancel(running)

    async def linked(self, node: Address = NODE_KEY.address) -> LinkedNode:
        """Wait for a node's first heartbeat on a link."""
        return await self.bell.until(lambda: self.linked_now(node), "the node is linked")  # type: ignore[no-any-return]

    def linked_now(self, node: Address = NODE_KEY.address) -> LinkedNode | None:
        return next((linked for linked in self.link.linked() if linked.node == node), None)

    async def delivered(self, count: int = 1) -> Delivery:
        """Wait for that many deliveries; the last is returned."""
        await self.bell.until(lambda: len(self.events.deliveries) >= count, f"{count} deliveries")
        return self.events.deliveries[count - 1]


@dataclasses.dataclass
class RunningNode:
    """A node in a task of the test."""

    daemon: NodeDaemon
    journal: SqlNodeJournal
    running: asyncio.Future[None]

    async def result(self) -> None:
        """Wait until `run` has returned; what it raised is raised."""
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.shield(self.running)


def make_task(
    *,
    prompt: bytes = b"Why is the sky blue?",
    relayer: FakeSigner = RELAYER_KEY,
    word: Mapping[str, Any] | None = None,
    model_name: str = "smol",
    given_prompt: bytes | None = None,
    is_open: bool = False,
    **request_changes: Any,
) -> Task:
    """A task as the relayer hands it out; name what a test is about."""
    named = ZERO_ADDRESS if is_open else relayer.address
    fields = {"relayer": named, "prompt_hash": hash_payload(prompt), "prompt_bytes": len(prompt)}
    request: Request = make_request(**{**fields, "deadline_s": START_S + 3600, **request_changes})
    assignment = dataclasses.replace(
        Assignment(
            request_id=request_id(request, CHAIN_ID, MARKET),
            relayer=relayer.address,
            node=NODE_KEY.address,
            round=3,
            reward_wei=10**14,
            deadline_s=request.deadline_s,
        ),
        **(word or {}),
    )
    signature = relayer.sign_digest(digest(DOMAIN, hash_assignment(assignment)))
    return Task(assignment, signature, request, model_name, prompt if given_prompt is None else given_prompt)


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
