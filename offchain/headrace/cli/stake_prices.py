"""`headrace stake prices` and `withdraw-models`: what a node asks for models, and which it offers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli.amounts import parse_wei
from headrace.cli.holdings import change, show_change
from headrace.cli.options import Json, address
from headrace.cli.session import OpenChain, Session, session_of
from headrace.cli.stake_screens import price_document, price_text
from headrace.core.errors import InvalidInput, Refused, UnknownModel
from headrace.core.refusals import moment
from headrace.core.types import Address, Hash32, Price
from headrace.ports import PostedPrice

MAX_PRICE_WEI = 2**80 - 1

Models = Annotated[list[str], typer.Option("--model", metavar="NAME", help="A registered model; may be repeated.")]


def set_prices(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The address of a key of the node.")],
    models: Models,
    per_prompt_kib: Annotated[
        list[str],
        typer.Option(
            "--price-per-prompt-kib",
            metavar="AMOUNT",
            help="Per started KiB of prompt, such as 20000gwei: once for all models, or once for each.",
        ),
    ],
    per_thousand_tokens: Annotated[
        list[str],
        typer.Option(
            "--price-per-thousand-tokens",
            metavar="AMOUNT",
            help="Per started thousand output tokens: once for all models, or once for each.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Offer models at prices. What is new or lower holds at once, what is raised after the notice."""
    node = address(key)
    kib = _column(per_prompt_kib, len(models), "--price-per-prompt-kib")
    tokens = _column(per_thousand_tokens, len(models), "--price-per-thousand-tokens")
    wanted = {name: Price(*pair) for name, pair in zip(models, zip(kib, tokens, strict=True), strict=True)}
    if len(wanted) != len(models):
        raise InvalidInput("a model is named twice: give --model once for each")
    asyncio.run(_set(session_of(context), node, wanted, as_json=as_json))


def withdraw_models(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The address of a key of the node.")],
    models: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME", help="A model; may be repeated [default: all that are offered]."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Stop offering models, at once. What is assigned already is served and paid as it was."""
    asyncio.run(_withdraw(session_of(context), address(key), models, as_json=as_json))


async def _set(session: Session, node: Address, wanted: dict[str, Price], *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        ids = await _ids(opened, list(wanted))
        columns = (
            [_b32(each) for each in ids],
            [price.per_prompt_kib_wei for price in wanted.values()],
            [price.per_thousand_tokens_wei for price in wanted.values()],
        )
        call = opened.holdings.call("StakeManager", "setPrices", node, *columns)
        receipt = await change(session, opened, "owner", call, f"`headrace stake show {node}`")
        posted = [each for each in await opened.holdings.posted_prices(node) if each.offer.model_id in ids]
    facts = {"key": node, "prices": [price_document(each) for each in posted]}
    show_change(session, receipt, facts, [("key", node), *(_row(each) for each in posted)], as_json=as_json)


async def _withdraw(session: Session, node: Address, models: Sequence[str] | None, *, as_json: bool) -> None:
    async with session.open_chain(session.settings) as opened:
        offered = {each.offer.model_name: each.offer.model_id for each in await opened.holdings.posted_prices(node)}
        names = list(offered) if models is None else list(models)
        if not names:
            raise Refused(f"the node of {node} offers no model: nothing is to be withdrawn")
        if missing := [name for name in names if name not in offered]:
            raise Refused(f"the node of {node} does not offer {', '.join(missing)}: it offers {_listed(offered)}")
        call = opened.holdings.call("StakeManager", "withdrawModels", node, [_b32(offered[name]) for name in names])
        receipt = await change(session, opened, "owner", call, f"`headrace stake show {node}`")
    facts = {"key": node, "withdrawn": names}
    show_change(session, receipt, facts, [("key", node), ("withdrawn", ", ".join(names))], as_json=as_json)


def _row(posted: PostedPrice) -> tuple[str, str]:
    name, now = posted.offer.model_name, price_text(posted.offer.price)
    if posted.raised is None:
        return "offers", f"{name} at {now}"
    raised = f"{price_text(posted.raised)} from {moment(posted.raised_at_s)}"
    return "offers", f"{name} at {raised}; until then, since a raise needs notice, at {now}"


async def _ids(opened: OpenChain, names: Sequence[str]) -> list[Hash32]:
    registered = {model.name: model.model_id for model in await opened.chain.models()}
    for name in names:
        if name not in registered:
            raise UnknownModel(f"there is no model {name} in the registry; there are: {_listed(registered)}")
    return [registered[name] for name in names]


def _column(texts: Sequence[str], count: int, option: str) -> list[int]:
    """Amounts, one for each model."""
    if len(texts) not in (1, count):
        raise InvalidInput(f"give {option} once for all models, or once for each --model")
    prices = [parse_wei(text, option) for text in texts]
    if max(prices) > MAX_PRICE_WEI:
        raise InvalidInput(f"{option} is {max(prices)} wei, and may be at most {MAX_PRICE_WEI} wei")
    return prices if len(prices) == count else prices * count


def _listed(names: Sequence[str] | dict[str, Hash32]) -> str:
    return ", ".join(sorted(names)) or "none"


def _b32(hash_: Hash32) -> bytes:
    return bytes.fromhex(hash_[2:])
