"""A node, put together and run."""

from __future__ import annotations

import asyncio
import random
import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NoReturn

import structlog

from headrace.adapters.clock import SystemClock
from headrace.adapters.llama_cpp import DEFAULT_CONTEXT_TOKENS, LlamaCppBackend
from headrace.adapters.node_journal import SqlNodeJournal
from headrace.adapters.openai_backend import OpenAiBackend
from headrace.adapters.web3_chain import Web3Chain
from headrace.core.calls import selectors
from headrace.core.errors import ConfigurationError, HeadraceError, InvalidInput, UnknownModel
from headrace.core.guard import MAX_FEE_CEILING_WEI, GuardPolicy
from headrace.core.types import ZERO_ADDRESS, Address, Price
from headrace.node.attester import Attester
from headrace.node.daemon import NodeDaemon
from headrace.node.options import NodeOptions, OfferedModel
from headrace.node.payability import Payability
from headrace.node.self_settler import SelfSettler
from headrace.ports import Backend, ModelFacts, NodeFacts, Signer
from headrace.settings import NodeSettings, Settings
from headrace.wiring import (
    open_chain,
    open_payer,
    open_signer,
    reached,
)

log = structlog.get_logger(__name__)

_PRICES_EVERY_S = 30.0


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
