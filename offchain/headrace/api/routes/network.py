"""What there is: the chain, the contracts, the models."""

from __future__ import annotations

from fastapi import APIRouter

import headrace
from headrace.api import schemas
from headrace.api.chain_facts import ChainFacts
from headrace.api.context import ApiContext
from headrace.api.dependencies import Context, Facts
from headrace.api.documenting import errors
from headrace.api.routing import GuardedRoute
from headrace.api.views import model_view
from headrace.core.errors import Unavailable
from headrace.core.snapshot import policy_hash

API_VERSION = 1
LINK_PROTOCOL_VERSION = 1

router = APIRouter(prefix="/v1", route_class=GuardedRoute, tags=["network"])


@router.get("/network", summary="Chain, contracts, terms, policy and models", responses=errors(503))
async def get_network(context: Context, facts: Facts) -> schemas.NetworkView:
    """All that a client needs to post a request here and to check what comes back."""
    terms = await facts.terms()
    policy = context.policy
    return schemas.NetworkView(
        chain_id=context.chain.chain_id,
        contracts=schemas.ContractsView(
            inference_market=context.chain.market,
            schedule_log=context.chain.schedule_log,
            stake_manager=context.chain.stake_manager,
            model_registry=context.contracts.model_registry,
        ),
        relayer=context.relayer,
        terms=schemas.TermsView(
            grace_s=terms.grace_s,
            min_ttl_s=terms.min_ttl_s,
            max_ttl_s=terms.max_ttl_s,
            max_inline_prompt_bytes=terms.max_inline_prompt_bytes,
            max_callback_gas=terms.max_callback_gas,
            verifier_gas=terms.verifier_gas,
            tip_cap_wei=str(terms.tip_cap_wei),
            fixed_gas=terms.fixed_gas,
            item_gas=terms.item_gas,
            node_gas=terms.node_gas,
            assigned_gas=terms.assigned_gas,
            gas_per_result_byte=terms.gas_per_result_byte,
            relayer_fee_share_bps=terms.relayer_fee_share_bps,
            relayer_saving_share_bps=terms.relayer_saving_share_bps,
            probation_max_reward_wei=str(terms.probation_max_reward_wei),
            probation_settled_count=terms.probation_settled_count,
            probation_duration_s=terms.probation_duration_s,
        ),
        policy=schemas.PolicyView(
            name=policy.name,
            policy_hash=policy_hash(policy),
            realtime_fee_floor_wei=str(policy.realtime_fee_floor_wei),
            expected_batch_size=policy.expected_batch_size,
            max_assignments=policy.max_assignments,
        ),
        limits=schemas.LimitsView(
            payload_bytes=context.limits.payload_bytes, max_output_tokens=context.limits.max_output_tokens
        ),
        gasless=await _gasless(context, facts),
        confirmations=context.confirmations,
        models=[model_view(model) for model in await facts.models()],
        link_url=context.link_url,
        api_version=API_VERSION,
        link_protocol_version=LINK_PROTOCOL_VERSION,
        package_version=headrace.__version__,
    )


async def _gasless(context: ApiContext, facts: ChainFacts) -> schemas.GaslessView | None:
    intake = context.gasless
    if intake is None:
        return None
    try:
        floor_wei = str(intake.fee_floor_wei(await facts.gas_quote()))
    except Unavailable:
        # All else here can be told without the chain.
        floor_wei = None
    return schemas.GaslessView(
        relayer_fee_floor_wei=floor_wei,
        fee_margin_bps=intake.settings.fee_margin_bps,
        max_open=intake.settings.max_open,
        max_open_per_requester=intake.settings.max_open_per_requester,
    )


@router.get("/models", summary="The registered models", responses=errors(503))
async def get_models(facts: Facts) -> list[schemas.ModelView]:
    """The models of the registry; whether a node serves one now is at /v1/nodes."""
    return [model_view(model) for model in await facts.models()]
