"""Puts a relayer and a node together: the only module, besides the command line's, that names concrete classes."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import structlog

from headrace.adapters.clock import SystemClock
from headrace.adapters.file_lock import FileLock
from headrace.adapters.link_server import LinkServer
from headrace.adapters.llama_cpp import DEFAULT_CONTEXT_TOKENS, LlamaCppBackend
from headrace.adapters.node_journal import SqlNodeJournal
from headrace.adapters.openai_backend import OpenAiBackend
from headrace.adapters.prometheus import PrometheusMetrics
from headrace.adapters.sql.holding import patiently
from headrace.adapters.sql.store import SqlStore
from headrace.adapters.web3_chain import Web3Chain
from headrace.api.app import create_app
from headrace.api.context import ApiContext, ApiLimits, Contracts, OperatorDoor
from headrace.api.rates import RateLimits
from headrace.api.server import Front, bind, serve
from headrace.core.batching import BatchPolicy
from headrace.core.calls import fault_selectors, selectors
from headrace.core.errors import ConfigurationError, HeadraceError, InvalidInput, UnknownModel
from headrace.core.fees import BPS
from headrace.core.guard import MAX_FEE_CEILING_WEI, GuardPolicy
from headrace.core.scheduling import Policy
from headrace.core.typed_data import Domain
from headrace.core.types import ZERO_ADDRESS, Address, MarketTerms, Price
from headrace.node.attester import Attester
from headrace.node.daemon import NodeDaemon
from headrace.node.options import NodeOptions, OfferedModel
from headrace.node.payability import Payability
from headrace.node.self_settler import SelfSettler
from headrace.ports import Backend, ModelFacts, NodeFacts, Signer, Store
from headrace.services.aggregator import Aggregator
from headrace.services.bonding import Bonding
from headrace.services.dispatcher import Dispatcher
from headrace.services.dossiers import Dossiers
from headrace.services.gauges import Gauges
from headrace.services.indexer import Indexer, IndexerSettings
from headrace.services.intake import Intake, IntakeSettings
from headrace.services.keeper import Keeper, KeeperSettings
from headrace.services.lanes import Lane
from headrace.services.leading import Leading
from headrace.services.poster import Poster, PosterSettings
from headrace.services.prover import Prover, ProverSettings, RelayersProofs
from headrace.services.pushing import PushSettings
from headrace.services.reaper import Reaper
from headrace.services.reconciler import Reconciler
from headrace.services.recovery import Hold, Recovery
from headrace.services.scheduler import Scheduler, SchedulerSettings
from headrace.services.sender import Sender, SenderSettings
from headrace.services.settler import Settler
from headrace.services.wake import Wake
from headrace.services.watch import StoreWords, Watch, WatchSettings
from headrace.settings import GaslessSettings, NodeSettings, RelayerSettings, Settings
from headrace.wiring import (
    open_chain,
    open_further_submitters,
    open_payer,
    open_signer,
    open_submitter,
    reached,
)

log = structlog.get_logger(__name__)

DRAIN_TIMEOUT_S = 10.0
_DRAIN_POLL_S = 0.1
_PRICES_EVERY_S = 30.0
_STANDING_BY = "standby: another process leads this relayer, and this one takes over when it is gone."
_HOLD_MARGIN_S = 30  # clocks and block times differ


# The relayer


@dataclass(frozen=True, slots=True)
class _Relayer:
    """The parts of a relayer, wired."""

    store: SqlStore
    link: LinkServer
    indexer: Indexer
    recovery: Recovery
    scheduler: Scheduler
    aggregator: Aggregator
    settler: Settler
    reaper: Reaper
    poster: Poster
    gauges: Gauges
    bonding: Bonding
    reconciler: Reconciler
    keeper: Keeper
    watch: Watch | None
    api: ApiContext


async def run_relayer(settings: Settings) -> None:
    """Run a relayer until cancelled; then stop assigning, let what is in flight finish, and close.

    Raises:
        ConfigurationError: a key, a bond, a balance, a port or the deployment is missing or wrong.
        ChainUnavailable: the chain does not answer at the start.
        NotLeader: another process leads, or has taken over from this one.
    """
    signer, submitter = open_signer(settings, "relayer"), open_submitter(settings)
    further = open_further_submitters(settings)
    async with AsyncExitStack() as stack:
        listener = bind(settings.relayer.api_host, settings.relayer.api_port)
        stack.callback(listener.close)
        # Nodes are refused until this process leads, and so try the next of their relayers.
        door = bind(
            settings.relayer.link_host, settings.relayer.link_port, "HEADRACE_RELAYER__LINK_PORT", listens=False
        )
        stack.callback(door.close)
        chain = await stack.enter_async_context(open_chain(settings))
        await _require_fit(chain, signer, submitter, settings.relayer.min_balance_wei, further)
        settings.relayer.database.parent.mkdir(parents=True, exist_ok=True)
        metrics = PrometheusMetrics()
        await stack.enter_async_context(reached(signer, submitter, *further, metrics=metrics))
        store, leading = await _open_store(stack, settings.relayer, metrics)
        await require_own(store, signer.address, settings.relayer.database)
        store.hold.on_change = lambda problem: metrics.gauge("headrace_store_held", int(bool(problem)))
        named = {"submitter": submitter.address} if submitter else {}

        async def wire() -> _Relayer:
            return await _wire(settings, chain, store, signer, submitter, door, metrics, further)

        async with asyncio.TaskGroup() as group:
            front = await _stand_by(group, settings.relayer, leading, wire, listener)
            lead = group.create_task(patiently(leading.run()), name="lead")
            try:
                relayer = await wire()
                front.show(relayer.api)
                log.info("relayer_started", relayer=signer.address, chain=chain.chain_id, market=chain.market, **named)
                await _serve(relayer, leading)
            finally:
                lead.cancel()
                front.close()


class _Front:
    """The API's port, from when there is something to show: of a relayer that stands by, then of one that leads."""

    def __init__(self, group: asyncio.TaskGroup, listener: socket.socket) -> None:
        self._group = group
        self._listener = listener
        self._front: Front | None = None
        self._serving: asyncio.Task[None] | None = None

    def show(self, context: ApiContext) -> None:
        """Serve this from now on."""
        app = create_app(context)
        if self._front is not None:
            self._front.app = app
            return
        self._front = Front(app)
        self._serving = self._group.create_task(serve(self._front, self._listener), name="api")

    def close(self) -> None:
        """Let calls that are running finish, and take no more."""
        if self._serving is not None:
            self._serving.cancel()


async def _open_store(
    stack: AsyncExitStack, settings: RelayerSettings, metrics: PrometheusMetrics
) -> tuple[SqlStore, Leading]:
    """The relayer's store, which takes no write before this process leads."""
    lock = FileLock(settings.database)
    stack.callback(lock.free)
    has_lock = _take_lock(lock, settings)
    url = f"sqlite:///{settings.database}"
    store = await SqlStore.open(url, SystemClock(), is_fenced=True, migrate=has_lock)
    stack.push_async_callback(store.close)
    leading = Leading(store, lock, f"process {os.getpid()} on {socket.gethostname()}", metrics)
    stack.push_async_callback(leading.give_back)
    return store, leading


async def require_own(store: Store, relayer: Address, database: Path) -> None:
    """Raises ConfigurationError when a store is another relayer's: under a new key it would take part in its rounds."""
    whose = await store.relayer()
    if whose not in (None, relayer):
        raise ConfigurationError(
            f"{database} is the store of the relayer {whose}, and the key is of {relayer}: a new key is a new relayer, "
            "so give it its own HEADRACE_RELAYER__DATABASE, and let the old key finish what it owes"
        )


def _take_lock(lock: FileLock, settings: RelayerSettings) -> bool:
    try:
        has_lock = lock.take()
    except OSError as exc:
        raise ConfigurationError(
            f"nothing can be written beside {settings.database} ({exc.strerror}): correct HEADRACE_RELAYER__DATABASE"
        ) from exc
    if not has_lock and not settings.standby:
        raise ConfigurationError(
            f"another relayer (process {lock.other}) works with {settings.database}: stop it, start this one with "
            "--standby to follow it, or give this one its own HEADRACE_RELAYER__DATABASE and key"
        )
    return has_lock


async def _stand_by(
    group: asyncio.TaskGroup,
    settings: RelayerSettings,
    leading: Leading,
    wire: Callable[[], Awaitable[_Relayer]],
    listener: socket.socket,
) -> _Front:
    """Wait until this process leads; one that is to stand by shows what is in the store meanwhile.

    Raises:
        NotLeader: another process leads, and this one is not to stand by.
    """
    front = _Front(group, listener)
    if not settings.standby:
        await leading.take_unless_led()
    elif not await leading.take():
        try:
            front.show(replace((await wire()).api, readiness=lambda: [_STANDING_BY]))
            log.info("standing_by", database=str(settings.database))
            await patiently(leading.wait())
        except BaseException:
            front.close()
            raise
    return front


async def _require_fit(
    chain: Web3Chain,
    signer: Signer,
    submitter: Signer | None,
    min_balance_wei: int,
    further: Sequence[Signer] = (),
) -> None:
    """Raises ConfigurationError unless the relayer is registered, and it or a submitter of it can pay for gas. One
    whose bond does not count any more starts, to settle what it owes."""
    if not (await chain.bond(signer.address)).registered_at_s:
        raise ConfigurationError(
            f"the relayer {signer.address} has no bond on chain {chain.chain_id}: run `ape run register_relayer`"
        )
    payer, role = (submitter, "submitter") if submitter else (signer, "relayer")
    balance_wei = await chain.balance_wei(payer.address)
    others_wei = [await chain.balance_wei(each.address) for each in further]
    for address, wei in zip((each.address for each in (payer, *further)), (balance_wei, *others_wei), strict=True):
        if further and wei < min_balance_wei:
            log.warning("submitter_unfunded", submitter=address, balance_wei=str(wei), hint="the others send meanwhile")
    if max(balance_wei, *others_wei, 0) < min_balance_wei:
        raise ConfigurationError(
            f"the {role} {payer.address} has {balance_wei} wei, and needs {min_balance_wei} to pay for gas: "
            "send it ether, or lower HEADRACE_RELAYER__MIN_BALANCE_WEI"
        )


async def _wire(
    settings: Settings,
    chain: Web3Chain,
    store: SqlStore,
    signer: Signer,
    submitter: Signer | None,
    door: socket.socket,
    metrics: PrometheusMetrics,
    further: Sequence[Signer] = (),
) -> _Relayer:
    clock, rounds = SystemClock(), asyncio.Lock()
    terms, models = await chain.market_terms(), await chain.models()
    policy = settings.relayer.policy.policy()
    domain = Domain(chain.chain_id, chain.market)
    link = LinkServer(
        signer.address,
        domain,
        clock,
        host=settings.relayer.link_host,
        port=settings.relayer.link_port,
        listener=door,
        heartbeat_timeout_s=policy.heartbeat_timeout_ms / 1000,
    )
    payer = submitter or signer
    pushing = SenderSettings(push=PushSettings(spending_limit_wei=settings.relayer.spending_limit_wei))
    sender = Sender(chain, store, clock, payer, metrics, _guard(chain, by_submitter=submitter is not None), pushing)
    for_submitters = _guard(chain, by_submitter=True)
    lanes = [
        Lane(Sender(chain, store, clock, each, metrics, for_submitters, pushing), each.address) for each in further
    ]
    names = {model.model_id: model.name for model in models}
    schedule = Wake()
    bonding = Bonding(chain, metrics, signer.address, schedule.ring)
    await bonding.step()
    dispatcher = Dispatcher(store, link, clock, metrics, domain, names, schedule.ring)
    recovery = Recovery(chain, store, clock, signer.address, _hold_s(settings.relayer, policy))
    scheduler = Scheduler(
        chain,
        store,
        link,
        dispatcher,
        clock,
        signer,
        metrics,
        terms,
        models,
        policy,
        await chain.next_round(signer.address),
        rounds,
        SchedulerSettings(lease_ms=settings.relayer.lease_ms),
        schedule,
        has_bond=lambda: bonding.holds() and recovery.may_assign(),
    )
    batching = BatchPolicy(settings.relayer.batch.max_results, settings.relayer.batch.max_age_ms)
    named = submitter.address if submitter else None
    settler = Settler(
        chain,
        store,
        link,
        sender,
        clock,
        signer,
        metrics,
        terms,
        batching,
        rounds,
        scheduler.wake.ring,
        submitter=named,
        further=lanes,
        has_bond=bonding.holds,
        bond_wei=(await chain.bond(signer.address)).bond_wei,
    )
    gauges = Gauges(chain, link, metrics, payer.address, *(each.address for each in further))
    storage = settings.relayer.storage
    keeping = KeeperSettings(storage.max_unused_prompt_mb * 1024**2, keep_ended_s=storage.keep_payloads_days * 86_400)
    keeper = Keeper(store, clock, metrics, keeping)

    def on_change() -> None:
        schedule.ring()
        settler.wake.ring()

    indexer = Indexer(
        chain,
        store,
        clock,
        metrics,
        signer.address,
        chain.deployment.first_block,
        on_change,
        IndexerSettings(
            poll_ms=settings.chain.poll_ms,
            confirmations=settings.chain.confirmations,
            max_rewind=settings.chain.max_rewind,
        ),
    )
    intake, poster = _posting(
        settings.relayer.gasless, chain, store, sender, metrics, signer.address, payer.address, terms, bonding
    )
    return _Relayer(
        store=store,
        link=link,
        indexer=indexer,
        recovery=recovery,
        scheduler=scheduler,
        aggregator=Aggregator(chain, store, clock, metrics, terms, schedule.ring, settler.wake.ring),
        settler=settler,
        reaper=Reaper(chain, store, sender, signer, metrics, terms, submitter=named),
        poster=poster,
        gauges=gauges,
        bonding=bonding,
        watch=await _watch(settings, chain, store, sender, signer, payer, metrics),
        keeper=keeper,
        reconciler=Reconciler(chain, store, metrics, signer.address, chain.deployment.first_block, terms),
        api=_api_context(
            settings,
            chain,
            store,
            link,
            signer,
            policy,
            metrics,
            indexer,
            recovery,
            recovery.guarding(scheduler.hold),
            intake,
            named,
            gauges,
            bonding,
            keeper,
        ),
    )


async def _watch(
    settings: Settings,
    chain: Web3Chain,
    store: SqlStore,
    sender: Sender,
    signer: Signer,
    payer: Signer,
    metrics: PrometheusMetrics,
) -> Watch | None:
    """The relayer's watch over its nodes. What it proves is sent, and rewarded, as its other transactions are."""
    section, confirmations = settings.relayer.watch, settings.chain.confirmations
    if not section.enabled:
        return None
    proofs = RelayersProofs(store, sender, payer.address)
    proving = ProverSettings(section.min_return_bps, confirmations)
    prover = Prover(chain, store, SystemClock(), metrics, proofs, await chain.fault_terms(), proving)
    dossiers = Dossiers(chain, store, StoreWords(store), signer.address)
    watching = WatchSettings(is_relayers_own=True, confirmations=confirmations)
    return Watch(chain, store, SystemClock(), metrics, dossiers, prover, watching)


def _posting(
    settings: GaslessSettings,
    chain: Web3Chain,
    store: SqlStore,
    sender: Sender,
    metrics: PrometheusMetrics,
    relayer: Address,
    payer: Address,
    terms: MarketTerms,
    bonding: Bonding,
) -> tuple[Intake, Poster]:
    clock = SystemClock()
    # Who takes less than the gas costs still waits for the gas to cost what it did then.
    least = PosterSettings(least_fee_bps=min(settings.fee_margin_bps, BPS))
    poster = Poster(chain, store, sender, clock, metrics, payer, terms, least, has_bond=bonding.holds)
    taken = IntakeSettings(settings.fee_margin_bps, settings.max_open, settings.max_open_per_requester)
    ring = poster.wake.ring
    return Intake(chain, store, clock, metrics, relayer, terms, ring, taken, has_bond=bonding.holds), poster


def _hold_s(settings: RelayerSettings, policy: Policy) -> int:
    """How long a release or a lease may count that an old copy of the store knows nothing of."""
    leases_s = settings.lease_ms * policy.max_assignments // 1000
    return max(ApiLimits().release_s, leases_s) + _HOLD_MARGIN_S


def _guard(chain: Web3Chain, *, by_submitter: bool) -> GuardPolicy:
    allowed = selectors()
    submit = allowed["submitResultsFor" if by_submitter else "submitResults"]
    return GuardPolicy(
        selectors={
            chain.market: frozenset({submit, allowed["expire"], allowed["requestInferenceFor"]}),
            chain.schedule_log: frozenset({allowed["recordRound"]}),
            chain.deployment.address_of("Faults"): frozenset(fault_selectors().values()),
        },
        max_fee_ceiling_wei=MAX_FEE_CEILING_WEI,
    )


def _api_context(
    settings: Settings,
    chain: Web3Chain,
    store: SqlStore,
    link: LinkServer,
    signer: Signer,
    policy: Policy,
    metrics: PrometheusMetrics,
    indexer: Indexer,
    recovery: Recovery,
    hold: Hold,
    intake: Intake,
    submitter: Address | None,
    gauges: Gauges,
    bonding: Bonding,
    keeper: Keeper,
) -> ApiContext:
    min_balance_wei = settings.relayer.min_balance_wei

    def readiness() -> list[str]:
        reasons = [] if indexer.caught_up.is_set() else ["the indexer has not caught up with the chain yet"]
        reasons += [f"halted: {indexer.halted}"] if indexer.halted else []
        if submitter and gauges.balance_wei is not None and gauges.balance_wei < min_balance_wei:
            needs = f"has {gauges.balance_wei} wei and needs {min_balance_wei} for gas"
            reasons.append(f"The submitter {submitter} {needs}: send it some.")
        reasons += [f"{store.hold.problem}: make room"] if store.hold.problem else []
        return reasons + recovery.why_not_ready()

    return ApiContext(
        store=store,
        chain=chain,
        link=link,
        clock=SystemClock(),
        signer=signer,
        policy=policy,
        confirmations=settings.chain.confirmations,
        contracts=Contracts(model_registry=chain.deployment.address_of("ModelRegistry")),
        link_url=settings.relayer.public_link_url
        or f"ws://{settings.relayer.link_host}:{settings.relayer.link_port}/link",
        metrics_text=metrics.text,
        metrics=metrics,
        hold=hold,
        intake=intake,
        has_bond=bonding.holds,
        readiness=readiness,
        room=keeper.take,
        cors_origins=settings.relayer.cors_origins,
        # With a submitter, the relayer's own key needs no ether.
        limits=ApiLimits(min_balance_wei=0 if submitter else min_balance_wei),
        rates=RateLimits(
            settings.relayer.api.writes_per_minute,
            settings.relayer.api.heavy_reads_per_minute,
            settings.relayer.api.trusted_proxies,
        ),
        operator=_operator_door(settings.relayer),
    )


def _operator_door(settings: RelayerSettings) -> OperatorDoor:
    """Without a token everybody who reaches the API passes, as long as that is this machine only."""
    token = settings.api.operator_token
    is_private = _is_loopback(settings.api_host) and not settings.api.trusted_proxies
    return OperatorDoor(token.get_secret_value() if token else "", is_private)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _serve(relayer: _Relayer, leading: Leading) -> None:
    """Run all loops. When cancelled, scheduling and posting stop first and settling last; when a loop broke, or the
    lead is lost, all at once. When the indexer halts, what acts ends, and the doors stay."""
    acting: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as group:
        doors = [
            group.create_task(patiently(relayer.indexer.run_or_halt(acting)), name="indexer"),
            group.create_task(relayer.link.run(relayer.aggregator), name="link"),
            group.create_task(relayer.gauges.run(), name="gauges"),
            group.create_task(relayer.bonding.run(), name="bond"),
            group.create_task(patiently(relayer.reconciler.run()), name="reconciler"),
            group.create_task(patiently(relayer.keeper.run()), name="keeper"),
        ]
        # What looks eligible before may long be settled.
        await relayer.indexer.caught_up.wait()
        await patiently(relayer.recovery.run_once())
        if not relayer.indexer.halted:
            acting += _start_acting(group, relayer)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            for task in acting:
                if task.get_name() in _BEGINNING:
                    task.cancel()
            settling = [task for task in acting if task.get_name() not in _BEGINNING]
            if leading.token and not any(task.done() for task in (*settling, *doors)):
                await _drain(relayer)
            for task in (*settling, *doors):
                task.cancel()
            raise


_BEGINNING = ("scheduler", "poster")


def _start_acting(group: asyncio.TaskGroup, relayer: _Relayer) -> list[asyncio.Task[None]]:
    """Start the loops that act on what is stored."""
    loops = {
        "scheduler": relayer.scheduler.run,
        "poster": relayer.poster.run,
        "settler": relayer.settler.run,
        "reaper": relayer.reaper.run,
    }
    if relayer.watch is not None:
        loops["watch"] = relayer.watch.run
    return [group.create_task(patiently(run()), name=name) for name, run in loops.items()]


async def _drain(relayer: _Relayer) -> None:
    """Wait until nothing is computing, unsettled or unconfirmed; at most `DRAIN_TIMEOUT_S`. What is left is stored."""
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            # The store is what tells, and it has no bell.
            while await _is_busy(relayer.store):  # noqa: ASYNC110
                await asyncio.sleep(_DRAIN_POLL_S)
    except TimeoutError:
        log.warning("stopped_before_drained", seconds=DRAIN_TIMEOUT_S)


async def _is_busy(store: SqlStore) -> bool:
    return bool(await store.open_assignments() or await store.ready_results(1) or await store.open_intents())


# The node


async def run_node(settings: Settings) -> None:
    """Run a node until cancelled; then finish what it is computing and close.

    Raises:
        ConfigurationError: a key, a price, a model or the deployment is missing or wrong.
        BackendUnavailable: the model server does not answer.
    """
    signer = open_signer(settings, "node")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(reached(signer))
        options = await _node_options(settings, signer.address)
        settings.node.journal.parent.mkdir(parents=True, exist_ok=True)
        journal = await stack.enter_async_context(SqlNodeJournal(settings.node.journal))
        backend = _backend(settings.node)
        stack.push_async_callback(backend.close)
        if settings.node.self_settlement.enabled:
            settler = await _self_settler(stack, settings, journal, signer)
            settling = asyncio.create_task(settler.run(), name="self-settlement")
            stack.push_async_callback(_end, settling)
        daemon = NodeDaemon(
            options,
            signer,
            journal,
            backend,
            SystemClock(),
            await _payability(stack, settings, signer.address),
            rng=random.Random(),
            random_bytes=secrets.token_bytes,
            attester=await _attester(settings, options),
        )
        log.info("node_started", node=signer.address, models=[model.name for model in options.models])
        running = asyncio.create_task(daemon.run(), name="node")
        repricing = asyncio.create_task(_follow_prices(settings, daemon, options), name="prices")
        stack.callback(repricing.cancel)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            daemon.stop()
            await running
            raise


async def _attester(settings: Settings, options: NodeOptions) -> Attester | None:
    """The node's attestation key, when it has one. One that nobody vouches for yet is no error: it may be any time.

    Raises:
        ConfigurationError: a verifier is named without a key, or there is no such contract.
    """
    section = settings.attestation
    if section.key.keystore is None and settings.attestation_private_key is None:
        if section.verifier is not None:
            raise ConfigurationError(
                "HEADRACE_ATTESTATION__VERIFIER names a verifier, but there is no key to prove with: set "
                "HEADRACE_ATTESTATION__KEY__KEYSTORE"
            )
        return None
    signer = open_signer(settings, "attestation")
    async with open_chain(settings) as chain:
        verifier = section.verifier or chain.attested_key_verifier
        try:
            found = await chain.attestation_of(verifier, signer.address)
        except InvalidInput as exc:
            raise ConfigurationError(f"{exc}: correct HEADRACE_ATTESTATION__VERIFIER") from exc
    if (
        found.model_id not in {model.model_id for model in options.models}
        or found.valid_until_s * 1000 < SystemClock().now_ms()
    ):
        log.warning(
            "attestation_key_not_vouched_for",
            key=signer.address,
            verifier=verifier,
            hint=f"its registrar must run `headrace verifier attest {signer.address} --model NAME`",
        )
    return Attester(signer, options.chain_id, verifier)


async def _payability(stack: AsyncExitStack, settings: Settings, node: Address) -> Payability:
    chain = await stack.enter_async_context(open_chain(settings))
    section = settings.node.self_settlement
    policy = section.policy() if section.enabled else None
    return Payability(chain, SystemClock(), node, await chain.market_terms(), policy)


async def _self_settler(
    stack: AsyncExitStack, settings: Settings, journal: SqlNodeJournal, signer: Signer
) -> SelfSettler:
    payer = open_payer(settings) or signer
    if payer is not signer:
        await stack.enter_async_context(reached(payer))
    chain = await stack.enter_async_context(open_chain(settings))
    return SelfSettler(
        chain,
        journal,
        journal.settlements,
        SystemClock(),
        signer,
        payer,
        await chain.market_terms(),
        (await chain.fault_terms()).missed_wei,
        GuardPolicy({chain.market: frozenset({selectors()["submitAssigned"]})}, MAX_FEE_CEILING_WEI),
        settings.node.self_settlement.policy(),
    )


async def _end(task: asyncio.Task[NoReturn]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _follow_prices(settings: Settings, daemon: NodeDaemon, options: NodeOptions) -> NoReturn:
    """Ask what the owner has set on the chain, for the models that have no price of the operator's own."""
    followed = [model.model_id for model in options.models if model.name not in settings.node.prices]
    while True:
        await asyncio.sleep(_PRICES_EVERY_S)
        try:
            async with open_chain(settings) as chain:
                for offer in await chain.offers(daemon.address, followed):
                    daemon.reprice(offer.model_id, offer.price)
        except HeadraceError as exc:
            log.warning("prices_unknown", error=str(exc))


async def _node_options(settings: Settings, node: Address) -> NodeOptions:
    """The operator's settings, with what the chain says of the models.

    Raises:
        ConfigurationError: the node is not registered, or its key was rotated away and is paid no more. Later, when its
            stake is short, the link tells it so.
    """
    async with open_chain(settings) as chain:
        facts = await chain.node_facts(node)
        if facts.owner == ZERO_ADDRESS:
            raise ConfigurationError(
                f"{node} is not a registered node on chain {chain.chain_id}: its owner must run `ape run register_node`"
            )
        if facts.retired_at_s:
            await _require_still_paid(chain, facts)
        registered = {model.name: model for model in await chain.models()}
        models = [_registered(name, registered) for name in settings.node.models]
        offers = await chain.offers(node, [model.model_id for model in models])
        prices = {offer.model_id: offer.price for offer in offers}
        return NodeOptions(
            link_url=settings.node.relayer_link_url,
            chain_id=chain.chain_id,
            market=chain.market,
            models=tuple(_offered(model, prices.get(model.model_id), settings.node) for model in models),
            max_in_flight=settings.node.max_in_flight,
            context_tokens=settings.node.context_tokens,
            region=settings.node.region,
            relayer=settings.node.relayer,
        )


async def _require_still_paid(chain: Web3Chain, facts: NodeFacts) -> None:
    """A key that was rotated away is there to deliver what it was assigned, and nothing else.

    Raises:
        ConfigurationError: the market pays it no more.
    """
    new_key = (await chain.node_stake(facts.key)).signing_key
    if facts.payee == ZERO_ADDRESS:
        raise ConfigurationError(
            f"the key {facts.key} was rotated away and is paid no more: set HEADRACE_NODE__KEY__KEYSTORE to the "
            f"keystore of {new_key}, which signs for the node now"
        )
    log.warning("key_rotated_away", node=facts.key, new_key=new_key, detail="it delivers, and is assigned nothing new")


def _registered(name: str, registered: dict[str, ModelFacts]) -> ModelFacts:
    facts = registered.get(name)
    if facts is None:
        raise UnknownModel(f"there is no model {name} in the registry; there are: {', '.join(sorted(registered))}")
    return facts


def _offered(facts: ModelFacts, on_chain: Price | None, settings: NodeSettings) -> OfferedModel:
    """A model at the operator's price or, without one, at the price that the node has on the chain."""
    own = settings.prices.get(facts.name)
    price = Price(own.per_prompt_kib_wei, own.per_thousand_tokens_wei) if own else on_chain
    if price is None:
        raise ConfigurationError(
            f"the node has no price for {facts.name}: its owner offers the model with `ape run register_node --model "
            f"{facts.name} …`, or set HEADRACE_NODE__PRICES"
        )
    return OfferedModel(facts.model_id, facts.name, facts.complexity_milli, price)


def _backend(settings: NodeSettings) -> Backend:
    if settings.backend == "openai":
        if settings.openai_url is None:
            raise ConfigurationError("the backend is openai, but HEADRACE_NODE__OPENAI_URL is not set")
        key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else None
        return OpenAiBackend(settings.openai_url, {name: name for name in settings.models}, api_key=key)
    if len(settings.models) != 1:
        raise ConfigurationError(
            "the embedded backend serves one model: name one in HEADRACE_NODE__MODELS, or use the openai backend"
        )
    (name,) = settings.models
    path: Path | None = settings.model_files.get(name)
    context_tokens = settings.context_tokens.get(name, DEFAULT_CONTEXT_TOKENS)
    return LlamaCppBackend(name, path, context_tokens=context_tokens, parallel=settings.max_in_flight)
