"""`headrace request`: post a prompt, follow it, read its answer."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import screens
from headrace.cli.amounts import show_wei
from headrace.cli.drafts import show_draft
from headrace.cli.options import Json, RequestId, address, request_id, wei
from headrace.cli.session import OpenChain, Session, require_included, session_of
from headrace.cli.stopping import INTERRUPTED
from headrace.cli.waiting import Progress, show_interrupted, shown
from headrace.client import Answer, Draft, HeadraceClient, Wanted, fair_fee_wei
from headrace.client.callbacks import require_callable
from headrace.core.errors import HeadraceError, InvalidInput, Refused
from headrace.core.lifecycle import RequestState
from headrace.core.requests import MAX_QUORUM
from headrace.core.types import Address, Hash32, Lane

app = typer.Typer(help="Post a prompt, follow it, read its answer, cancel it.", no_args_is_help=True)

# After the deadline a result may still be paid, and then the refund takes its transaction.
AFTER_DEADLINE_S = 330.0


PROMPTS_AT_ONCE = 8
# Of requests, and of postings that no block has.
STATES = (*(each.value for each in RequestState), "submitted", "unposted")


class LaneName(StrEnum):
    """Which queue."""

    REALTIME = "realtime"
    BULK = "bulk"


class ModeName(StrEnum):
    """How an answer earns its pay."""

    SIGNATURE = "signature"
    QUORUM = "quorum"
    VERIFIER = "verifier"


@app.command("new")
def new_request(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from stdin.")] = None,
    chat: Annotated[Path | None, typer.Option(help="A JSON file: an OpenAI chat body, or its messages.")] = None,
    model: Annotated[str | None, typer.Option(help="Name or id [default: one that is offered].")] = None,
    lane: Annotated[LaneName, typer.Option(help="Which queue.")] = LaneName.BULK,
    ttl: Annotated[int, typer.Option(help="Seconds until the deadline.")] = 300,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 256,
    temperature: Annotated[float | None, typer.Option(help="0 to 2.")] = None,
    seed: Annotated[int | None, typer.Option(help="For an answer that can be repeated.")] = None,
    max_reward: Annotated[
        str | None, typer.Option(help="Most for its node, or for all K of a quorum, such as 0.001ether.")
    ] = None,
    gas_budget: Annotated[str | None, typer.Option(help="Most for settlement's gas.")] = None,
    priority_fee: Annotated[str | None, typer.Option(help="For being served sooner.")] = None,
    max_escrow: Annotated[str | None, typer.Option(help="Refuse to escrow more than this.")] = None,
    callback_gas: Annotated[
        int, typer.Option(min=0, help="Gas for a call of the requester's contract with the answer.")
    ] = 0,
    mode: Annotated[
        ModeName | None, typer.Option(help="What makes an answer good: its node's signature, a quorum, a verifier.")
    ] = None,
    quorum: Annotated[
        str | None,
        typer.Option(
            metavar="K/N",
            help="K nodes of at most N must give one answer; each gets what the dearest asks [default: 2/3].",
        ),
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A contract that must take a proof of the answer.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Publish prompt and answer on-chain, for ever.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Post it even if no node takes it at this price.")] = False,
    gasless: Annotated[
        bool, typer.Option("--gasless", help="Only sign: the relayer posts it, and credit in the market pays.")
    ] = False,
    max_relayer_fee: Annotated[
        str | None, typer.Option(help="Most for the relayer, with --gasless [default: thrice what the gas costs].")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it and show the answer.")] = False,
    as_json: Json = False,
) -> None:
    """Post a request; with --wait, follow it to its answer."""
    wanted = Wanted(
        model=model or "",
        prompt=_prompt(prompt, chat),
        temperature=temperature,
        seed=seed,
        max_output_tokens=max_tokens,
        lane=Lane.REALTIME if lane is LaneName.REALTIME else Lane.BULK,
        ttl_s=ttl,
        max_reward_wei=wei(max_reward, "--max-reward"),
        gas_budget_wei=wei(gas_budget, "--gas-budget"),
        priority_fee_wei=wei(priority_fee, "--priority-fee"),
        max_escrow_wei=wei(max_escrow, "--max-escrow"),
        callback_gas=callback_gas,
        verifier=address(verifier) if verifier else None,
        quorum=_quorum(mode, quorum, verifier),
        public=public,
        force=force,
    )
    wanted = _with_chat(wanted, chat) if chat else wanted
    most_fee_wei = wei(max_relayer_fee, "--max-relayer-fee")
    if most_fee_wei is not None and not gasless:
        raise InvalidInput("--max-relayer-fee is for --gasless: without it no relayer is paid for posting")
    way = _Way(gasless, most_fee_wei)
    session = session_of(context)
    progress = Progress(session.clock)
    try:
        view = asyncio.run(_new(session, wanted, way, progress, wait=wait, as_json=as_json))
    except KeyboardInterrupt:
        show_interrupted(progress)
        raise typer.Exit(INTERRUPTED) from None
    if view is not None and view["state"] == "unposted":
        raise Refused(f"the request was not posted, and nothing was escrowed. {view['posting']['reason']}")
    if view is not None and view["state"] != "fulfilled":
        raise Refused(f"the request ended {view['state']}, without an answer; its escrow is credited to the requester")


@app.command("show")
def show_request(
    context: typer.Context,
    id_: RequestId,
    answer: Annotated[bool, typer.Option("--answer", help="Read the answer too (needs the requester's key).")] = False,
    as_json: Json = False,
) -> None:
    """Show a request with its timeline."""
    asyncio.run(_show(session_of(context), request_id(id_), answer=answer, as_json=as_json))


@app.command("list")
def list_requests(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(help="Only those in this state.")] = None,
    requester: Annotated[str | None, typer.Option(help="An address [default: of the requester's key].")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 20,
    as_json: Json = False,
) -> None:
    """List requests, newest first. Of your own, it shows the prompts."""
    if state is not None and state not in STATES:
        raise InvalidInput(f"--state is {state!r}: write one of {', '.join(STATES)}")
    whose = None if requester is None else address(requester)
    asyncio.run(_list(session_of(context), state, whose, limit, as_json=as_json))


# The commands' work


@dataclass(frozen=True, slots=True)
class _Way:
    """How a request gets onto the chain: by a transaction of its own, or by the relayer's."""

    gasless: bool
    most_fee_wei: int | None = None


async def _new(
    session: Session, wanted: Wanted, way: _Way, progress: Progress, *, wait: bool, as_json: bool
) -> Mapping[str, Any] | None:
    signer = session.signer("requester")
    async with (
        session.open_chain(session.settings) as opened,
        session.client(signer, opened.chain) as client,
    ):
        if not wanted.model:
            wanted = replace(wanted, model=await client.offered_model())
        draft = await client.draft(wanted)
        if not as_json:
            show_draft(session.console, draft)
        await require_callable(opened.chain, draft.request)
        progress.request_id, progress.deadline_s = draft.request_id, draft.request.deadline_s
        with shown(progress, session.console, as_json=as_json):
            if way.gasless:
                sent, lines = await _submit(session, client, opened, draft, way, progress, as_json=as_json)
            else:
                sent, lines = await _send(session, client, opened, draft, progress, as_json=as_json)
            ending = await _follow(session, client, opened, draft, lines, progress, as_json=as_json) if wait else None
        if ending is None:
            if as_json:
                screens.show_json(session.console, {**sent, "escrow_wei": str(draft.request.escrow_wei)})
            else:
                session.console.print(f"Follow it with: headrace request show {draft.request_id}", soft_wrap=True)
            return None
        view, answer = ending
        sent["transaction_hash"] = view["transaction_hash"]
        await _show_outcome(session, opened, sent, view, answer, as_json=as_json)
        return view


async def _send(
    session: Session,
    client: HeadraceClient,
    opened: OpenChain,
    draft: Draft,
    progress: Progress,
    *,
    as_json: bool,
) -> tuple[dict[str, Any], screens.StageLines]:
    """Post a draft by a transaction of the requester's own."""
    sender = session.sender(opened.chain, session.signer("requester"))
    progress.step = "sending"
    transaction_hash = await client.send(draft, sender)
    progress.step = "sent"
    lines = screens.StageLines(session.console, session.clock.now_ms())
    if not as_json:
        _show_id(session, draft)
        lines.sent(transaction_hash)
    then = f"`headrace request show {draft.request_id}`"
    await require_included(sender, transaction_hash, then, lambda: progress.sent(lines.waiting_for))
    return {"request_id": draft.request_id, "transaction_hash": transaction_hash}, lines


async def _submit(
    session: Session,
    client: HeadraceClient,
    opened: OpenChain,
    draft: Draft,
    way: _Way,
    progress: Progress,
    *,
    as_json: bool,
) -> tuple[dict[str, Any], screens.StageLines]:
    """Sign a draft for the relayer to post."""
    most_wei = way.most_fee_wei
    if most_wei is None:
        most_wei = fair_fee_wei(await opened.chain.gas_quote(), draft)
    request = await client.gasless(draft, most_fee_wei=most_wei)
    account, credit_wei = client.account, await opened.chain.credit_wei(client.account)
    if credit_wei < request.cost_wei:
        raise Refused(
            f"escrow and the relayer's fee are {request.cost_wei} wei, and the account {account} has {credit_wei} wei "
            f"of credit. Nothing was sent: any account may add to it, with `headrace credit deposit "
            f"{request.cost_wei - credit_wei}wei --account {account}`"
        )
    if not as_json:
        session.console.print(f"fee     {show_wei(request.relayer_fee_wei)} for the relayer", soft_wrap=True)
    lines = screens.StageLines(session.console, session.clock.now_ms())
    progress.step = "sending"
    await client.submit(request)
    progress.step = "submitted"
    if not as_json:
        _show_id(session, draft)
    return {"request_id": draft.request_id, "relayer_fee_wei": str(request.relayer_fee_wei)}, lines


async def _show_outcome(
    session: Session,
    opened: OpenChain,
    sent: Mapping[str, Any],
    view: Mapping[str, Any],
    answer: Answer | None,
    *,
    as_json: bool,
) -> None:
    gas = await _gas_used(opened, view)
    if as_json:
        text = answer.text if answer else None
        screens.show_json(session.console, {**sent, "answer": text, "gas_used": gas, "request": view})
        return
    if answer:
        screens.show_answer(session.console, answer.text, verified=answer.verified)
    if view["settlement"]:
        screens.show_settlement(session.console, view, gas)


async def _follow(
    session: Session,
    client: HeadraceClient,
    opened: OpenChain,
    draft: Draft,
    lines: screens.StageLines,
    progress: Progress,
    *,
    as_json: bool,
) -> tuple[Mapping[str, Any], Answer | None]:
    left_s = draft.request.deadline_s - session.clock.now_ms() / 1000

    def on_view(view: Mapping[str, Any]) -> None:
        lines.update(view, is_silent=as_json)
        progress.view(view, lines.waiting_for)

    view = await client.wait(draft.request_id, left_s + AFTER_DEADLINE_S, on_view, progress.silence)
    if view["state"] != "fulfilled":
        return view, None
    return view, await client.answer(draft.request_id, opened.chain)


async def _show(session: Session, id_: Hash32, *, answer: bool, as_json: bool) -> None:
    signer = session.signer("requester") if answer else None
    async with session.client(signer) as client:
        view = await client.view(id_)
        found = await client.answer(id_) if answer else None
    if as_json:
        screens.show_json(session.console, {**view, "answer": found.text} if found else view)
        return
    screens.show_request(session.console, view)
    if found:
        screens.show_answer(session.console, found.text, verified=found.verified)


async def _list(session: Session, state: str | None, requester: Address | None, limit: int, *, as_json: bool) -> None:
    signer = None if requester else session.signer("requester")
    async with session.client(signer) as client:
        found = await client.requests(limit=limit, state=state, requester=requester)
        prompts = await _prompts(client, found) if signer and not as_json else {}
    if as_json:
        screens.show_json(session.console, found)
    else:
        screens.show_requests(session.console, found, prompts)


async def _prompts(client: HeadraceClient, requests: Sequence[Mapping[str, Any]]) -> dict[Hash32, str]:
    """The prompts of one's own requests, as far as the relayer has them."""
    turn = asyncio.Semaphore(PROMPTS_AT_ONCE)
    found: dict[Hash32, str] = {}

    async def read(prompt_hash: Hash32) -> None:
        async with turn:
            try:
                found[prompt_hash] = await client.prompt(prompt_hash)
            except HeadraceError:
                return  # the list is there; what was asked is a courtesy

    async with asyncio.TaskGroup() as group:
        for prompt_hash in {each["prompt_hash"] for each in requests if "prompt_hash" in each}:
            group.create_task(read(prompt_hash))
    return found


async def _gas_used(opened: OpenChain, view: Mapping[str, Any]) -> dict[str, int]:
    used: dict[str, int] = {}
    hashes = (view["transaction_hash"], view["settlement"]["transaction_hash"]) if view["settlement"] else ()
    for hash_ in hashes:
        try:
            receipt = await opened.chain.receipt(hash_)
        except HeadraceError:
            continue  # the answer is there; its cost is a courtesy
        if receipt is not None:
            used[hash_] = receipt.gas_used
    return used


def _show_id(session: Session, draft: Draft) -> None:
    """Only once it is on its way: an id that is shown before a refusal looks like a request that was posted."""
    session.console.print(f"request {draft.request_id}", soft_wrap=True)


# What was typed


def _quorum(mode: ModeName | None, quorum: str | None, verifier: str | None) -> tuple[int, int] | None:
    """k and n, if a quorum is asked for. The mode may be left out where the other options tell it."""
    if mode is ModeName.VERIFIER and not verifier:
        raise InvalidInput("--mode verifier needs --verifier ADDRESS")
    if verifier and mode not in (None, ModeName.VERIFIER):
        raise InvalidInput("--verifier is for --mode verifier")
    if quorum and (verifier or mode not in (None, ModeName.QUORUM)):
        raise InvalidInput("--quorum is for --mode quorum, and without --verifier")
    if mode is not ModeName.QUORUM and not quorum:
        return None
    given = re.fullmatch(r"([0-9]{1,2})/([0-9]{1,2})", quorum or "2/3")
    k, n = (int(given[1]), int(given[2])) if given else (0, 0)
    if not 2 <= k <= n <= MAX_QUORUM:
        raise InvalidInput(f"{quorum!r} is no quorum: write K/N, such as 2/3, with 2 <= K <= N <= {MAX_QUORUM}")
    return k, n


def _prompt(prompt: str | None, chat: Path | None) -> str | None:
    if (prompt is None) == (chat is None):
        raise InvalidInput("give either a prompt or --chat FILE")
    text = sys.stdin.read() if prompt == "-" else prompt
    if text is not None and not text.strip():
        raise InvalidInput("the prompt is empty: write it in quotes, or - to read it from stdin")
    return text


def _with_chat(wanted: Wanted, path: Path) -> Wanted:
    """A file that holds an OpenAI chat body, or only its messages."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise InvalidInput(f"the chat file {path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise InvalidInput(f"the chat file {path} is not JSON: {exc}") from exc
    body = {"messages": document} if isinstance(document, list) else document
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise InvalidInput(f"the chat file {path} has no list of messages")
    unknown = sorted(set(body) - {"messages", "temperature", "top_p", "seed", "stop"})
    if unknown:
        raise InvalidInput(f"the chat file {path} has {', '.join(unknown)}, which cannot be asked for")
    for message in body["messages"]:
        if not isinstance(message, dict) or not all(isinstance(value, str) for value in message.values()):
            raise InvalidInput(f"the chat file {path} has a message that is not {{'role': …, 'content': …}}")
    stop = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
    if not isinstance(stop, list) or not all(isinstance(each, str) for each in stop):
        raise InvalidInput(f"the chat file {path} has a stop that is neither a text nor a list of texts")
    for name in ("temperature", "top_p", "seed"):
        if isinstance(body.get(name), bool) or not isinstance(body.get(name), int | float | None):
            raise InvalidInput(f"the chat file {path} has a {name} that is not a number")
    return replace(
        wanted,
        messages=tuple(body["messages"]),
        temperature=body.get("temperature") if wanted.temperature is None else wanted.temperature,
        top_p=body.get("top_p"),
        seed=body.get("seed") if wanted.seed is None else wanted.seed,
        stop=tuple(stop) or None,
    )
