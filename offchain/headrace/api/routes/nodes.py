"""Nodes: what they say of themselves and what the chain knows of them."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from headrace.api import schemas
from headrace.api.chain_facts import ChainFacts
from headrace.api.dependencies import AddressPath, Context, Facts
from headrace.api.documenting import errors
from headrace.api.routing import GuardedRoute
from headrace.api.views import facts_view, heartbeat_view, offer_view
from headrace.core.cycle import Offer
from headrace.core.errors import NotFound, Unavailable
from headrace.core.tasks import LinkedNode
from headrace.core.types import ZERO_ADDRESS, Address
from headrace.ports import NodeFacts

router = APIRouter(prefix="/v1/nodes", route_class=GuardedRoute, tags=["nodes"])

MOST_NODES = 200
CHAIN_READS_AT_ONCE = 8


@router.get("", summary="The nodes that are linked now", responses=errors())
async def list_nodes(context: Context, facts: Facts) -> schemas.NodeList:
    """The first nodes by key, with what the chain tells of them in time."""
    linked = list(context.link.linked())
    slots = asyncio.Semaphore(CHAIN_READS_AT_ONCE)

    async def view(node: LinkedNode) -> schemas.NodeView:
        async with slots:
            return await _view(node.node, node, facts)

    tasks = [asyncio.create_task(view(node)) for node in linked[:MOST_NODES]]
    try:
        # Whatever the chain has not told by then is null, so that one slow read does not hide all nodes.
        if tasks:
            await asyncio.wait(tasks, timeout=context.limits.chain_timeout_s)
        views = [
            task.result() if task.done() else _without_chain(node) for task, node in zip(tasks, linked, strict=False)
        ]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return schemas.NodeList(nodes=views, linked_count=len(linked))


@router.get("/{key}", summary="A node by its key", responses=errors(400, 404, 503))
async def get_node(key: AddressPath, context: Context, facts: Facts) -> schemas.NodeView:
    """A node that is linked here or registered on-chain."""
    linked = next((node for node in context.link.linked() if node.node == key), None)
    view = await _view(key, linked, facts)
    if linked is None and (view.facts is None or view.facts.owner == ZERO_ADDRESS):
        if view.facts is None:
            raise Unavailable("the chain does not tell whether there is such a node")
        raise NotFound(f"no node {key} is registered")
    return view


async def _view(key: Address, linked: LinkedNode | None, facts: ChainFacts) -> schemas.NodeView:
    known: NodeFacts | None = None
    offers: list[Offer] | None = None
    try:
        known = await facts.node(key)
        offers = await facts.offers(key)
    except Unavailable:
        pass  # the view says null
    return schemas.NodeView(
        key=key,
        linked=linked is not None,
        heartbeat=heartbeat_view(linked) if linked else None,
        facts=facts_view(known) if known else None,
        offers=None if offers is None else [offer_view(offer) for offer in offers],
    )


def _without_chain(node: LinkedNode) -> schemas.NodeView:
    return schemas.NodeView(key=node.node, linked=True, heartbeat=heartbeat_view(node), facts=None, offers=None)
