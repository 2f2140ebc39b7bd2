"""A whole world from one seed: requesters, nodes, a chain and a relayer, and all that goes wrong between them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from sqlalchemy.exc import OperationalError

from headrace.core import typed_data
from headrace.core.envelope import hash_payload
from headrace.core.errors import NotFound
from headrace.core.keccak import keccak
from headrace.core.scheduling import BALANCED, SHARED, Offer, Policy
from headrace.core.types import Mode, Request, Status
from headrace.ports import NodeFacts
from tests.fakes import GWEI, MODEL_ID, REQUESTER, FakeClock, FakeSigner, make_request
from tests.services.world import MODEL, PRICE, PROMPT, FakeNode
from tests.simulation.chain import Rpc, SimChain, Wish
from tests.simulation.database import Witness, copy_empty, make_empty, open_store
from tests.simulation.faults import Killed, Rates, Weather
from tests.simulation.nodes import Job, SimLink
from tests.simulation.relayer import MortalSigner, Relayer
from tests.simulation.verdict import Verdict, judge

_HOUR_MS = 3_600_000
_BLOCK_MS = 2_000
_NODES = 4
_FIRST_BLOCKS = 3  # that no reorg takes: the contracts are deployed in them
_MOST_QUIET_ROUNDS = 200
_ROUNDS_OF_THE_BROKEN = 20
_TICKS_OF_A_REQUEST = 20  # that it waits for an answer, about
_GAS_CALM, _GAS_WILD = GWEI, 30 * GWEI


@dataclass(frozen=True, slots=True)
class Length:
    """How much happens in a run. `ticks`: for how long there are faults, in steps of about a second."""

    requests: int = 60
    ticks: int = 240


SHORT = Length(requests=6, ticks=24)


class SkewedClock(FakeClock):
    """The relayer's clock: the true one, and what it is off by."""

    def __init__(self, true: FakeClock) -> None:
        super().__init__()
        self._true = true
        self.offset_ms = 0

    def now_ms(self) -> int:
        return self._true.now_ms() + self.offset_ms


class Simulation:
    """One run. `sabotage` breaks a piece of each relayer that is started."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        length: Length = SHORT,
        rates: Rates | None = None,
        sabotage: Callable[[Relayer], None] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.length = length
        self.rng = random.Random(seed)
        self.weather = Weather(self.rng, rates or Rates())
        self.clock = FakeClock()
        self.skewed = SkewedClock(self.clock)
        self.chain = SimChain(self.clock)
        self.link = SimLink(self.clock, self.skewed, self.weather)
        self.signer = MortalSigner(1, self.weather)
        self.objections: list[str] = []
        self._file = folder / f"{seed}.db"
        copy_empty(folder / "empty.db", self._file)
        self.witness = Witness(self._file)
        self._digest = hashlib.sha256()
        self._on_line = on_line
        self._sabotage = sabotage
        self._relayer: Relayer | None = None
        self._down_until_ms = 0
        self._next_block_ms = self.clock.now_ms() + _BLOCK_MS
        self._calm_at_ms = 0  # when the base fee falls again
        self._in_step_at_ms = 0  # when the chain's node has caught up
        self._salt = 0
        self._policy = self.rng.choice((Policy(name=BALANCED, lanes=SHARED), Policy()))
        self._start_ms = self.clock.now_ms()

    async def run(self) -> Verdict:
        """Live through all faults, then until quiet, and judge."""
        try:
            await self._begin()
            for tick in range(self.length.ticks):
                await self._tick(tick)
            await self._calm_down()
            return await judge(self)
        finally:
            await self._end_process()
            self.witness.close()
            for suffix in ("", "-wal", "-shm"):
                self._file.with_name(self._file.name + suffix).unlink(missing_ok=True)

    @property
    def digest(self) -> str:
        """Of the whole story: two runs of a seed tell the same."""
        return self._digest.hexdigest()

    @property
    def relayer(self) -> Relayer:
        assert self._relayer is not None
        return self._relayer

    def tell(self, text: str) -> None:
        """A line of the story."""
        line = f"{(self.clock.now_ms() - self._start_ms) / 1000:8.1f}  {text}"
        self._digest.update(line.encode() + b"\n")
        if self._on_line:
            self._on_line(line)

    def object_to(self, why: str) -> None:
        """Something that must never be."""
        self.tell(f"!! {why}")
        self.objections.append(why)

    # The beginning

    async def _begin(self) -> None:
        self.chain.bonded.add(self.signer.address)
        self.chain.registered_models.append(MODEL)
        domain = typed_data.Domain(self.chain.chain_id, self.chain.market)
        for number in range(_NODES):
            node = FakeNode(FakeSigner(100 + number), domain, self.signer.address)
            self.link.nodes[node.key] = node
            owner = "0x" + f"{number + 1:040x}"
            self.chain.facts[node.key] = NodeFacts(node.key, owner, 10**18, 0, True, owner, 1, 100, 0, 0)
            self.chain.node_offers[node.key] = [Offer(MODEL_ID, "gpt-2", PRICE)]
        for _ in range(_FIRST_BLOCKS):
            self.chain.mine_block([])
        self._start_process()
        was_on, self.weather.is_on = self.weather.is_on, False
        await self.relayer.store.put_prompt(PROMPT, REQUESTER, self.clock.now_ms())
        self.weather.is_on = was_on

    def _start_process(self) -> None:
        self.weather.reborn()
        store = open_store(self._file, self.skewed, self.weather)
        rpc = Rpc(self.chain, self.weather, self._see_raw)
        first_round = self.chain.world().next_round[self.signer.address]
        self._relayer = Relayer(rpc, store, self.link, self.skewed, self.signer, first_round, self._policy)
        if self._sabotage:
            self._sabotage(self._relayer)

    async def _end_process(self) -> None:
        if self._relayer is not None:
            await self._relayer.store.close()
            self._relayer = None

    def _see_raw(self, raw: bytes) -> None:
        hash_ = "0x" + keccak(raw).hex()
        self.tell(f"sends {hash_[:10]}")
        if why := self.witness.objection(hash_):
            self.object_to(why)

    # A tick

    async def _tick(self, tick: int) -> None:
        self.clock.advance(self.rng.randrange(200, 1_800))
        self._change_weather()
        self._post(tick)
        await self._ask_for_releases()
        if self.clock.now_ms() >= self._next_block_ms:
            self._next_block_ms = self.clock.now_ms() + _BLOCK_MS
            self._block()
        if self._relayer is None and self.clock.now_ms() >= self._down_until_ms:
            self._start_process()
            self.tell("the relayer starts")
        if self._relayer is not None:
            await self._relayers_turn()
            self._look()

    async def _relayers_turn(self) -> None:
        """A few of its loops and of its nodes' words, all at once."""
        chances = {"indexer": 0.8, "scheduler": 0.5, "settler": 0.5, "reaper": 0.1, "bonding": 0.05}
        names = [name for name, chance in chances.items() if self.rng.random() < chance * self._interest(name)]
        jobs = self.link.due()
        for name in names:
            self.weather.counts["steps"] += 1
            if self.weather.begin_step():
                for job in jobs:
                    self.link.repeat(job)
                await self._die(f"before a step of {name}")
                return
        self.rng.shuffle(names)
        await self._run_together(names, jobs)
        if self._relayer is not None and self.weather.end_step():
            await self._die("after a step")

    def _interest(self, name: str) -> float:
        """How likely a loop has something to do. One that has nothing seldom runs, to save the machine's time."""
        states, is_sending = set(self.witness.states().values()), bool(self.witness.open_intents())
        match name:
            case "scheduler":
                is_busy = not states.isdisjoint({"eligible", "assigned", "computing"})
            case "settler":
                is_busy = is_sending or not states.isdisjoint({"assigned", "computing", "signed"})
            case _:
                return 1.0
        return 1.0 if is_busy else 0.1

    async def _run_together(self, names: Sequence[str], jobs: Sequence[Job]) -> None:
        relayer = self.relayer
        try:
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(self._say(relayer, job))
                for name in names:
                    group.create_task(relayer.step(name, group))
        except BaseExceptionGroup as group_of_them:
            await self._fail(list(_leaves(group_of_them)))

    async def _say(self, relayer: Relayer, job: Job) -> None:
        """A node's word. An error of the relayer's ends nothing but the node's call; the node says it again."""
        try:
            await self.link.say(relayer.aggregator, job, self.tell)
        except OperationalError:
            self.tell("a node's word meets a fault of the store")

    async def _fail(self, errors: list[BaseException]) -> None:
        """The process ends: it was killed, or by an error that its loops do not expect. Only those of the store may
        come."""
        for error in errors:
            if isinstance(error, (Killed, OperationalError)):
                continue
            where = traceback.format_exception(error)[-4:]
            self.object_to(f"{type(error).__name__}: {error} {''.join(where)}")
        killed = any(isinstance(error, Killed) for error in errors)
        if not killed:
            self.weather.counts["crashes"] += 1
        await self._die("killed inside a step" if killed else f"crashed: {errors[0]}"[:80])

    async def _die(self, why: str) -> None:
        self.tell(f"the relayer ends: {why}")
        await self._end_process()
        self._down_until_ms = self.clock.now_ms() + self.rng.choice([0, 0, 2_000, 10_000])

    def _look(self) -> None:
        """What must hold at any time, cheaply."""
        cursor = self.witness.cursor()
        if cursor is not None and cursor not in self.chain.ever:
            self.object_to(f"the indexer's cursor {cursor} was never on the chain")

    # What goes wrong with the chain, the clock and the nodes

    def _change_weather(self) -> None:
        weather, rates, now_ms = self.weather, self.weather.rates, self.clock.now_ms()
        if weather.strikes(rates.clock_jump):
            others = [offset for offset in (-_HOUR_MS, 0, _HOUR_MS) if offset != self.skewed.offset_ms]
            self.skewed.offset_ms = self.rng.choice(others)
            weather.counts["clock_jumps"] += 1
            self.tell(f"the relayer's clock is off by {self.skewed.offset_ms // 1000} s")
        if weather.strikes(rates.fee_spike):
            self._calm_at_ms = now_ms + self.rng.randrange(4_000, 30_000)
            weather.counts["fee_spikes"] += 1
            self._set_base_fee(self.rng.randrange(3 * GWEI, _GAS_WILD))
        elif now_ms >= self._calm_at_ms:
            self._set_base_fee(_GAS_CALM)
        if weather.strikes(rates.dropped_pool):
            weather.counts["dropped_pools"] += 1
            self.chain.drop_pool()
            self.tell("the pool is dropped")
        if weather.strikes(rates.lagging_node):
            weather.counts["lags"] += 1
            self._in_step_at_ms = now_ms + self.rng.randrange(2_000, 8_000)
            self.chain.lag = self.rng.randrange(1, 3)
        elif now_ms >= self._in_step_at_ms:
            self.chain.lag = 0
        if weather.strikes(rates.unlinked):
            self.link.send_away()

    def _set_base_fee(self, wei: int) -> None:
        if self.chain.gas.base_fee_wei != wei:
            self.tell(f"the base fee is {wei / GWEI:.1f} gwei")
            self.chain.gas = replace(self.chain.gas, base_fee_wei=wei)

    def _block(self) -> None:
        weather, rates = self.weather, self.weather.rates
        weather.counts["blocks"] += 1
        is_deep = weather.strikes(rates.deep_reorg)
        height = len(self.chain.all_blocks()) - 1 - _FIRST_BLOCKS
        if is_deep or weather.strikes(rates.reorg):
            depth = min(height, self.rng.randrange(3, 8) if is_deep else self.rng.randrange(1, 3))
            if depth:
                self._reorg(depth, is_deep=is_deep)
        granted = [wish for wish in self.chain.wishes if not self.weather.is_on or self.rng.random() < 0.8]
        self.chain.wishes = [wish for wish in self.chain.wishes if wish not in granted]
        self.chain.mine_block(granted, is_full=weather.strikes(rates.full_block))

    def _reorg(self, depth: int, *, is_deep: bool) -> None:
        weather = self.weather
        weather.counts["deep_reorgs" if is_deep else "shallow_reorgs"] += 1
        weather.counts["reorgs"] += 1
        refill = self.rng.random() < 0.5
        self.tell(f"reorg of {depth} blocks, transactions {'wait again' if refill else 'are gone'}")
        wishes = self.chain.fork(depth, refill=refill)
        wishes = [wish for wish in wishes if not weather.strikes(weather.rates.withdrawn)]
        # The other branch has about as many blocks, and who was in which may differ.
        for _ in range(depth - self.rng.randrange(2)):
            granted = [wish for wish in wishes if self.rng.random() < 0.5]
            wishes = [wish for wish in wishes if wish not in granted]
            self.chain.mine_block(granted, is_full=self.rng.random() < 0.3)
        self.chain.wishes = wishes + self.chain.wishes

    # Requesters

    def _post(self, tick: int) -> None:
        posting_ticks = max(1, self.length.ticks * 2 // 3)
        due = min(self.length.requests, (tick + 1) * self.length.requests // posting_ticks)
        while self._salt < due:
            self._salt += 1
            request = self._request(self._salt)
            self.chain.wishes.append(Wish("post", request))
        self._change_minds()

    def _request(self, salt: int) -> Request:
        weather, rates = self.weather, self.weather.rates
        ttl_s = self.rng.randrange(12, 60) if weather.strikes(rates.short) else self.rng.randrange(300, 1_200)
        fields = {"mode": Mode.QUORUM, "k": 2, "n": 3} if weather.strikes(rates.quorum) else {}
        weather.counts["quorums"] += bool(fields)
        return make_request(
            relayer=self.signer.address,
            prompt_hash=hash_payload(PROMPT),
            prompt_bytes=len(PROMPT),
            salt=salt,
            deadline_s=self.clock.now_ms() // 1000 + ttl_s,
            priority_fee_wei=self.rng.randrange(1, 10) * 10**13,
            **fields,
        )

    def _change_minds(self) -> None:
        """Requesters of what is on the chain raise, cancel, or ask for a release, at some time while it is there."""
        rates, weather = self.weather.rates, self.weather
        for request in list(self.chain.posted.values()):
            if weather.strikes(rates.raised / _TICKS_OF_A_REQUEST):
                self.chain.wishes.append(Wish("raise", request, self.rng.randrange(1, 10) * 10**12))
                weather.counts["raises"] += 1
            if weather.strikes(rates.cancelled / _TICKS_OF_A_REQUEST):
                self.chain.wishes.append(Wish("cancel", request))
                weather.counts["cancels"] += 1

    async def _ask_for_releases(self) -> None:
        """A requester asks the relayer for its word that it will not assign a request, and cancels with it."""
        for request in list(self.chain.posted.values()):
            if not self.weather.strikes(self.weather.rates.released / _TICKS_OF_A_REQUEST) or self._relayer is None:
                continue
            until_ms = self.skewed.now_ms() + 60_000
            try:
                holds = await self.relayer.scheduler.hold(self.chain.id_of(request), until_ms)
            except (OperationalError, NotFound):
                continue  # the API says that it went wrong, or that it knows of no such request
            if holds:
                self.weather.counts["releases"] += 1
                self.chain.wishes.append(Wish("release", request, until_ms // 1000))

    # The end

    async def _calm_down(self) -> None:
        """No more faults: go on until nothing happens any more."""
        self.tell("the faults are over")
        self.weather.is_on = False
        self.skewed.offset_ms, self.chain.lag, self._calm_at_ms = 0, 0, 0
        self._set_base_fee(_GAS_CALM)
        idle, before = 0, ""
        for number in range(_MOST_QUIET_ROUNDS):
            await self._quiet_round()
            # What is broken may go on for ever, and it is known to be broken.
            if self._is_quiet() or (self.objections and number > _ROUNDS_OF_THE_BROKEN):
                return
            state = self._sketch()
            idle = idle + 1 if state == before and self.link.is_idle else 0
            before = state
            # While nothing happens, only time can end what waits.
            self.clock.advance(120_000 if idle > 1 else 3_000)
        self.object_to("the world does not become quiet")

    async def _quiet_round(self) -> None:
        if self._relayer is None:
            self._start_process()
        self._block()
        await self._run_together([], self.link.due())
        for name in ("indexer", "indexer", "scheduler", "settler", "reaper"):
            if self._relayer is not None and self._interest(name) == 1:
                await self._run_together([name], [])
        if self._relayer is not None:
            self._look()

    def _is_quiet(self) -> bool:
        if self._relayer is None or self.chain.wishes or not self.link.is_idle or self.witness.open_intents():
            return False
        if self.witness.cursor() != self.chain.all_blocks()[-1].hash:
            return False
        return Status.PENDING not in self.chain.world().statuses.values()

    def _sketch(self) -> str:
        """What changes while something happens."""
        events = len(self.chain.all_events())
        return f"{self.witness.states()} {self.witness.open_intents()} {events} {self.chain.wishes}"


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def silence() -> None:
    """No log lines: thousands of runs would write millions."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
    )


def a_folder() -> tempfile.TemporaryDirectory[str]:
    """Where the stores of runs are."""
    return tempfile.TemporaryDirectory(prefix="headrace-simulation-")


async def prepare(folder: Path) -> None:
    """The store that all runs start with."""
    await make_empty(folder / "empty.db")
