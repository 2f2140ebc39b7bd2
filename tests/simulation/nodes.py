"""Nodes that refuse, fail, fall silent, deliver late or twice, and the link to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.errors import InvalidInput, Unavailable, Unknown
from headrace.core.tasks import Accept, LinkedNode, Refusal, RefusalReason, Task
from headrace.core.types import Address, Hash32
from headrace.services.aggregator import Aggregator
from tests.fakes import FakeClock
from tests.services.world import LEASE_MS, FakeLink
from tests.simulation.faults import Weather

GOOD, OTHER = b"Rayleigh scattering.", b"Magic."
_AGAIN_MS = 3_000


@dataclass(slots=True, eq=False)
class Job:
    """What a node has to say, and when. `gives_up`: that it will not finish."""

    due_ms: int
    node: Address
    task: Task
    content: bytes
    gives_up: bool = False


class SimLink(FakeLink):
    """Linked nodes by a clock of their own. Each decides once about a request, and keeps its word."""

    def __init__(self, clock: FakeClock, relayers_clock: FakeClock, weather: Weather) -> None:
        super().__init__(relayers_clock)
        self.answered_at_s: dict[tuple[Hash32, Address], int] = {}  # when the relayer first took an answer
        self._true = clock
        self._weather = weather
        self._jobs: list[Job] = []
        self._plans: dict[tuple[Address, Hash32], str] = {}
        self._contents: dict[tuple[Address, Hash32], bytes] = {}
        self._away: dict[Address, int] = {}  # until when

    @property
    def is_idle(self) -> bool:
        """Whether no node has anything to say."""
        return not self._jobs

    def linked(self) -> list[LinkedNode]:
        return [each for each in super().linked() if not self._is_away(each.node)]

    def send_away(self) -> None:
        """A node loses its link for some time."""
        node = self._weather.rng.choice(sorted(self.nodes))
        self._away[node] = self._true.now_ms() + self._weather.rng.randrange(1_000, 20_000)
        self._weather.counts["unlinked"] += 1

    async def dispatch(self, task: Task, timeout_s: float) -> Accept | Refusal:
        self._weather.hazard()
        key, id_ = task.assignment.node, task.assignment.request_id
        if self._is_away(key):
            raise Unavailable("the node is not linked")
        node = self.nodes[key]
        plan = self._plan(key, id_, task)
        if plan == "refused" and self._weather.rng.random() < 0.5:
            del self._plans[key, id_]  # it may be otherwise when it is asked again
            return node.put_off(task)
        if plan == "refused":
            return node.refuse(task)
        self._begin(key, task, plan)
        if plan == "unanswered":
            raise Unknown("the link broke")
        return node.accept(task)

    def _plan(self, node: Address, id_: Hash32, task: Task) -> str:
        if (node, id_) not in self._plans:
            weather, rates = self._weather, self._weather.rates
            kinds = ("refused", "failed", "silent", "unanswered", "late")
            plan = next((kind for kind in kinds if weather.strikes(getattr(rates, kind))), "good")
            self._plans[node, id_] = plan
            weather.counts[f"node_{plan}"] += 1
            dissents = task.request.k and weather.strikes(rates.dissent)
            self._contents[node, id_] = OTHER if dissents else GOOD
        return self._plans[node, id_]

    def _begin(self, node: Address, task: Task, plan: str) -> None:
        word = task.assignment
        if plan == "silent" or any((job.node, job.task.assignment) == (node, word) for job in self._jobs):
            return
        rng, now_ms = self._weather.rng, self._true.now_ms()
        wait_ms = rng.randrange(LEASE_MS, 4 * LEASE_MS) if plan == "late" else rng.randrange(500, 8_000)
        content = self._contents[node, word.request_id]
        self._jobs.append(Job(now_ms + wait_ms, node, task, content, plan == "failed"))
        if self._weather.strikes(self._weather.rates.twice):
            self._weather.counts["delivered_twice"] += 1
            self._jobs.append(Job(now_ms + wait_ms + rng.randrange(5_000), node, task, content))

    def due(self) -> list[Job]:
        """Take what is to be said now, in order."""
        now_ms = self._true.now_ms()
        found = [job for job in self._jobs if job.due_ms <= now_ms and not self._is_away(job.node)]
        self._jobs = [job for job in self._jobs if job not in found]
        return sorted(found, key=lambda job: (job.due_ms, job.node, job.task.assignment.request_id))

    async def say(self, aggregator: Aggregator, job: Job, tell: Callable[[str], None]) -> None:
        """Say it. What is not taken is said again, unless it never will be."""
        id_, node = job.task.assignment.request_id, self.nodes[job.node]
        if job.gives_up:
            word = Refusal(id_, job.task.assignment.round, RefusalReason.BACKEND_FAILED, "out of memory")
            await aggregator.gave_up(job.node, word)
            return
        self.repeat(job)
        try:
            await aggregator.delivered(node.deliver(job.task, job.content))
        except InvalidInput as exc:
            self._jobs.remove(job)
            tell(f"answer of {id_[:10]} refused: {exc}")
            return
        self._jobs.remove(job)
        self.answered_at_s.setdefault((id_, job.node), self._true.now_ms() // 1000)
        tell(f"answer of {id_[:10]} by {job.node[:6]} taken")

    def repeat(self, job: Job) -> None:
        """It is to be said again after a while, unless it turns out to be taken."""
        job.due_ms = self._true.now_ms() + _AGAIN_MS
        self._jobs.append(job)

    def _is_away(self, node: Address) -> bool:
        return self._weather.is_on and self._away.get(node, 0) > self._true.now_ms()
