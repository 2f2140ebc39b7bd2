"""The parts of a relayer, put together."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass

from headrace.adapters.clock import SystemClock
from headrace.adapters.link_server import LinkServer
from headrace.adapters.prometheus import PrometheusMetrics
from headrace.adapters.sql.store import SqlStore
from headrace.adapters.web3_chain import Web3Chain
from headrace.api.context import ApiContext, ApiLimits, Contracts, OperatorDoor
from headrace.api.rates import RateLimits
from headrace.core.calls import fault_selectors, selectors
from headrace.core.cycle import Policy
from headrace.core.fees import BPS
from headrace.core.guard import MAX_FEE_CEILING_WEI, GuardPolicy
from headrace.core.performance import Performance
from headrace.core.typed_data import Domain
from headrace.core.types import Address, MarketTerms
from headrace.ports import Signer
from headrace.services.aggregator import Aggregator
from headrace.services.bonding import Bonding
from headrace.services.dispatcher import Dispatcher
from headrace.services.dossiers import Dossiers
from headrace.services.gauges import Gauges
from headrace.services.indexer import Indexer, IndexerSettings
from headrace.services.intake import Intake, IntakeSettings
from headrace.services.keeper import Keeper, KeeperSettings
from headrace.services.lanes import Lane
from headrace.services.policies import Policies
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
from headrace.settings import RelayerSettings, Settings

_HOLD_MARGIN_S = 30  # clocks and block times differ


@dataclass(frozen=True, slots=True)
class Given:
    """What a relayer is put together from. `further`: submitters beside the first."""

    settings: Settings
    chain: Web3Chain
    store: SqlStore
    signer: Signer
    submitter: Signer | None
    metrics: PrometheusMetrics
    further: tuple[Signer, ...] = ()

    @property
    def relayer(self) -> RelayerSettings:
        """The section of the relayer."""
        return self.settings.relayer

    @property
    def payer(self) -> Signer:
        """Who sends, and pays for gas."""
        return self.submitter or self.signer

    @property
    def named_submitter(self) -> Address | None:
        """The submitter, when it is not the relayer itself."""
        return self.submitter.address if self.submitter else None

    def sender(self, key: Signer, *, by_submitter: bool) -> Sender:
        """What sends with a key."""
        settings = SenderSettings(push=PushSettings(spending_limit_wei=self.relayer.spending_limit_wei))
        guard = _guard(self.chain, by_submitter=by_submitter)
        return Sender(self.chain, self.store, SystemClock(), key, self.metrics, guard, settings)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What several loops of one relayer share."""

    terms: MarketTerms
    policies: Policies
    link: LinkServer
    sender: Sender
    bonding: Bonding
    recovery: Recovery
    rounds: asyncio.Lock
    schedule: Wake
    performance: Performance


@dataclass(frozen=True, slots=True)
class Relayer:
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


async def wire_relayer(given: Given, door: socket.socket) -> Relayer:
    """Put a relayer's parts together. `door`: where its nodes connect."""
    shared = await _share(given, door)
    chain, store, signer, metrics = given.chain, given.store, given.signer, given.metrics
    scheduler = await _scheduler(given, shared)
    settler = await _settler(given, shared)
    gauges = Gauges(chain, shared.link, metrics, given.payer.address, *(each.address for each in given.further))
    indexer = _indexer(given, shared.schedule, settler)
    intake, poster = _posting(given, shared)
    keeper = _keeper(given)
    hold = shared.recovery.guarding(scheduler.hold)
    return Relayer(
        store=store,
        link=shared.link,
        indexer=indexer,
        recovery=shared.recovery,
        scheduler=scheduler,
        aggregator=_aggregator(given, shared, settler),
        settler=settler,
        reaper=Reaper(chain, store, shared.sender, signer, metrics, shared.terms, submitter=given.named_submitter),
        poster=poster,
        gauges=gauges,
        bonding=shared.bonding,
        watch=await _watch(given, shared.sender),
        keeper=keeper,
        reconciler=Reconciler(chain, store, metrics, signer.address, chain.deployment.first_block, shared.terms),
        api=_api_context(given, shared, indexer, hold, intake, gauges, keeper),
    )


async def _share(given: Given, door: socket.socket) -> _Shared:
    chain, signer, section = given.chain, given.signer, given.relayer
    policies, schedule = Policies(given.store, SystemClock(), section.policy.policy()), Wake()
    await policies.load()
    policy = policies.current
    link = LinkServer(
        signer.address,
        Domain(chain.chain_id, chain.market),
        SystemClock(),
        host=section.link_host,
        port=section.link_port,
        listener=door,
        heartbeat_timeout_s=policy.heartbeat_timeout_ms / 1000,
    )
    bonding = Bonding(chain, given.metrics, signer.address, schedule.ring)
    await bonding.step()
    return _Shared(
        terms=await chain.market_terms(),
        policies=policies,
        link=link,
        sender=given.sender(given.payer, by_submitter=given.submitter is not None),
        bonding=bonding,
        recovery=Recovery(chain, given.store, SystemClock(), signer.address, _hold_s(section, policy)),
        rounds=asyncio.Lock(),
        schedule=schedule,
        performance=Performance(),
    )


async def _scheduler(given: Given, shared: _Shared) -> Scheduler:
    chain, store, clock = given.chain, given.store, SystemClock()
    models = await chain.models()
    names = {model.model_id: model.name for model in models}
    domain = Domain(chain.chain_id, chain.market)
    dispatcher = Dispatcher(store, shared.link, clock, given.metrics, domain, names, shared.schedule.ring)
    scheduler = Scheduler(
        chain,
        store,
        shared.link,
        dispatcher,
        clock,
        given.signer,
        given.metrics,
        shared.terms,
        models,
        shared.policies.current,
        await chain.next_round(given.signer.address),
        shared.rounds,
        SchedulerSettings(lease_ms=given.relayer.lease_ms, confirmations=given.settings.chain.confirmations),
        shared.schedule,
        has_bond=lambda: shared.bonding.holds() and shared.recovery.may_assign(),
        performance=shared.performance,
    )
    shared.policies.tell(scheduler.use)
    return scheduler


def _aggregator(given: Given, shared: _Shared, settler: Settler) -> Aggregator:
    return Aggregator(
        given.chain,
        given.store,
        SystemClock(),
        given.metrics,
        shared.terms,
        shared.schedule.ring,
        settler.wake.ring,
        shared.performance,
    )


async def _settler(given: Given, shared: _Shared) -> Settler:
    chain = given.chain
    return Settler(
        chain,
        given.store,
        shared.link,
        shared.sender,
        SystemClock(),
        given.signer,
        given.metrics,
        shared.terms,
        given.relayer.batch.policy(),
        shared.rounds,
        shared.schedule.ring,
        submitter=given.named_submitter,
        further=[Lane(given.sender(key, by_submitter=True), key.address) for key in given.further],
        has_bond=shared.bonding.holds,
        bond_wei=(await chain.bond(given.signer.address)).bond_wei,
    )


def _indexer(given: Given, schedule: Wake, settler: Settler) -> Indexer:
    section, chain = given.settings.chain, given.chain

    def on_change() -> None:
        schedule.ring()
        settler.wake.ring()

    settings = IndexerSettings(
        poll_ms=section.poll_ms, confirmations=section.confirmations, max_rewind=section.max_rewind
    )
    first = chain.deployment.first_block
    return Indexer(chain, given.store, SystemClock(), given.metrics, given.signer.address, first, on_change, settings)


def _keeper(given: Given) -> Keeper:
    storage = given.relayer.storage
    keeping = KeeperSettings(storage.max_unused_prompt_mb * 1024**2, keep_ended_s=storage.keep_payloads_days * 86_400)
    return Keeper(given.store, SystemClock(), given.metrics, keeping)


async def _watch(given: Given, sender: Sender) -> Watch | None:
    """The relayer's watch over its nodes. What it proves is sent, and rewarded, as its other transactions are."""
    chain, store, metrics = given.chain, given.store, given.metrics
    section, confirmations = given.relayer.watch, given.settings.chain.confirmations
    if not section.enabled:
        return None
    proofs = RelayersProofs(store, sender, given.payer.address)
    proving = ProverSettings(section.min_return_bps, confirmations)
    prover = Prover(chain, store, SystemClock(), metrics, proofs, await chain.fault_terms(), proving)
    dossiers = Dossiers(chain, store, StoreWords(store), given.signer.address)
    watching = WatchSettings(is_relayers_own=True, confirmations=confirmations)
    return Watch(chain, store, SystemClock(), metrics, dossiers, prover, watching)


def _posting(given: Given, shared: _Shared) -> tuple[Intake, Poster]:
    chain, store, metrics, clock = given.chain, given.store, given.metrics, SystemClock()
    section, has_bond = given.relayer.gasless, shared.bonding.holds
    # Who takes less than the gas costs still waits for the gas to cost what it did then.
    least = PosterSettings(least_fee_bps=min(section.fee_margin_bps, BPS))
    payer = given.payer.address
    poster = Poster(chain, store, shared.sender, clock, metrics, payer, shared.terms, least, has_bond=has_bond)
    taken = IntakeSettings(section.fee_margin_bps, section.max_open, section.max_open_per_requester)
    relayer, ring = given.signer.address, poster.wake.ring
    return Intake(chain, store, clock, metrics, relayer, shared.terms, ring, taken, has_bond=has_bond), poster


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


def _why_not_ready(given: Given, shared: _Shared, indexer: Indexer, gauges: Gauges) -> list[str]:
    """What keeps the relayer from serving, beside what the API sees by itself."""
    least_wei, submitter = given.relayer.min_balance_wei, given.named_submitter
    reasons = [] if indexer.caught_up.is_set() else ["the indexer has not caught up with the chain yet"]
    reasons += [f"halted: {indexer.halted}"] if indexer.halted else []
    if submitter and gauges.balance_wei is not None and gauges.balance_wei < least_wei:
        needs = f"has {gauges.balance_wei} wei and needs {least_wei} for gas"
        reasons.append(f"The submitter {submitter} {needs}: send it some.")
    reasons += [f"{given.store.hold.problem}: make room"] if given.store.hold.problem else []
    return reasons + shared.recovery.why_not_ready()


def _api_context(
    given: Given, shared: _Shared, indexer: Indexer, hold: Hold, intake: Intake, gauges: Gauges, keeper: Keeper
) -> ApiContext:
    section, chain = given.relayer, given.chain
    return ApiContext(
        store=given.store,
        chain=chain,
        link=shared.link,
        clock=SystemClock(),
        signer=given.signer,
        policies=shared.policies,
        confirmations=given.settings.chain.confirmations,
        contracts=Contracts(model_registry=chain.deployment.address_of("ModelRegistry")),
        link_url=section.public_link_url or f"ws://{section.link_host}:{section.link_port}/link",
        metrics_text=given.metrics.text,
        metrics=given.metrics,
        hold=hold,
        intake=intake,
        has_bond=shared.bonding.holds,
        readiness=lambda: _why_not_ready(given, shared, indexer, gauges),
        room=keeper.take,
        cors_origins=section.cors_origins,
        # With a submitter, the relayer's own key needs no ether.
        limits=ApiLimits(min_balance_wei=0 if given.submitter else section.min_balance_wei),
        rates=RateLimits(
            section.api.writes_per_minute, section.api.heavy_reads_per_minute, section.api.trusted_proxies
        ),
        operator=_operator_door(section),
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
