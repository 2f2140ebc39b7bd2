"""What a request would cost, and whom it would pay, before anything is signed."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from headrace.cli import screens
from headrace.cli.amounts import show_ether, show_wei, with_ether
from headrace.client import Draft
from headrace.core.types import Request


def show_draft(console: Console, draft: Draft) -> None:
    """A draft's escrow with its parts, and what may keep it from being answered."""
    request = draft.request
    console.print(f"escrow  {show_wei(request.escrow_wei)}", soft_wrap=True)
    for part in _parts(request):
        console.print(Text(f"  {part}", style="dim"), soft_wrap=True)
    for warning in draft.warnings:
        console.print(Text(f"⚠ {screens.printable(with_ether(warning))}", style="yellow"), soft_wrap=True)


def _parts(request: Request) -> Iterator[str]:
    reward = f"up to {show_ether(request.max_reward_wei)} for"
    if request.k:
        each = show_ether(request.max_reward_wei // request.k)
        yield f"{reward} {request.k} nodes that agree: all get what the dearest asks, at most {each}"
    else:
        yield f"{reward} the node that answers"
    yield f"up to {show_ether(request.gas_budget_wei)} for the relayer's gas"
    if request.priority_fee_wei:
        yield f"{show_ether(request.priority_fee_wei)} for both, to be served sooner"
    yield "the rest comes back as credit"
