"""A program that asks: the example as it is shown, and how a question may end."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

import pytest

from headrace.client import Answer, Wanted
from headrace.connect import HeadraceError, NotAnswered, Untrue, connect
from headrace.core.lifecycle import RequestState
from tests.cli.conftest import Desk
from tests.cli.test_requests import live

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/ask.py"


def ask(wanted: str | Wanted) -> Answer:
    async def work() -> Answer:
        async with connect() as headrace:
            return await headrace.ask(wanted)

    return asyncio.run(work())


def test_example__run_as_shown__prints_the_answer(desk: Desk) -> None:
    live(desk)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "Rayleigh" in desk.capture.readouterr().out


def test_ask__all_terms__are_in_the_request(desk: Desk) -> None:
    live(desk)
    answer = ask(Wanted(model="", messages=({"role": "user", "content": "Hi"},), max_output_tokens=9, ttl_s=60))
    assert answer.verified
    assert desk.posted[0].max_output_tokens == 9


def test_ask__refunded__is_not_answered(desk: Desk) -> None:
    live(desk, ending=RequestState.EXPIRED)
    with pytest.raises(NotAnswered, match="ended expired"):
        ask("Why?")


def test_ask__dearer_than_allowed__posts_nothing(desk: Desk) -> None:
    with pytest.raises(Untrue, match="more than the 1 wei that it may"):
        ask(Wanted(model="", prompt="Why?", max_escrow_wei=1))
    assert desk.posted == []


def test_ask__nobody_linked__is_an_error_of_headrace(desk: Desk) -> None:
    desk.relayer.link.nodes.clear()
    with pytest.raises(HeadraceError, match="offers a model now"):
        ask("Why?")
