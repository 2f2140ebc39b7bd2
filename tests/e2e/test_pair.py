"""Two processes of one relayer: the leader is killed, hangs or is stopped, and the other goes on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator, Mapping

import pytest

from scripts._stack import ROOT, Stack, clean_environment
from tests.e2e.pair import ready, traffic, why_not_ready
from tests.e2e.test_requests import times_paid


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One of its own: its nodes know of two relayer processes."""
    with Stack(tmp_path_factory.mktemp("stack") / "run", report=lambda _: None, is_pair=True) as running:
        yield running


def as_relayer(
    stack: Stack, *arguments: str, changes: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**clean_environment(), **stack.relayer_environment(), **(changes or {})}
    return subprocess.run(
        ["headrace", *arguments], env=environment, cwd=ROOT, text=True, capture_output=True, check=False, timeout=120
    )


def require_good_books(stack: Stack) -> None:
    """What chain and database tell is the same, and the records hold."""
    for done in (as_relayer(stack, "reconcile", "--json"), stack.headrace("audit", "--json")):
        assert done.returncode == 0, done.stdout + done.stderr


async def test_pair__leader_is_killed_under_traffic__standby_takes_over_and_nothing_is_lost_or_paid_twice(
    stack: Stack,
) -> None:
    stack.start_standby()
    assert "standby: another process leads" in why_not_ready(stack.standby_api_port)
    async with traffic(stack) as requests:
        await requests.post(4)
        flowing = asyncio.create_task(requests.flow())
        await requests.reach(8)
        stack.kill("relayer")
        await ready(stack.standby_api_port)
        stack.follow()
        await requests.reach(len(requests.ids) + 4)
        flowing.cancel()
        await asyncio.gather(flowing, return_exceptions=True)
        await requests.settled()
        assert [times_paid(stack, id_) for id_ in requests.ids] == [1] * len(requests.ids)
    require_good_books(stack)


async def test_pair__leader_hangs_and_comes_back__steps_down_and_nothing_is_paid_twice(stack: Stack) -> None:
    stack.start_standby()
    async with traffic(stack) as requests:
        await requests.post(4)
        hung = stack.parts["relayer"]
        hung.process.send_signal(signal.SIGSTOP)
        try:
            await ready(stack.standby_api_port)
            stack.follow()
            hung.process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(hung.process.wait, 30) == 1
        finally:
            hung.kill()
        await asyncio.to_thread(stack.await_ready, 2)
        await requests.post(2)
        assert "lead_lost" in hung.log.read_text("utf-8")
        assert "leads this relayer now, by token" in hung.log.read_text("utf-8").replace("\n", " ")
        await requests.settled()
        assert [times_paid(stack, id_) for id_ in requests.ids] == [1] * len(requests.ids)
    require_good_books(stack)


async def test_pair__leader_is_stopped__standby_follows_at_once(stack: Stack) -> None:
    stack.start_standby()
    await asyncio.to_thread(stack.parts["relayer"].stop)
    await ready(stack.standby_api_port)
    stack.follow()
    await asyncio.to_thread(stack.await_ready, 2)
    async with traffic(stack) as requests:
        await requests.post(1)
        await requests.settled()


def test_second_relayer__is_not_to_stand_by__is_refused(stack: Stack) -> None:
    ports = {"HEADRACE_RELAYER__API_PORT": "0", "HEADRACE_RELAYER__LINK_PORT": "0"}
    done = as_relayer(stack, "relayer", changes=ports)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "Another relayer (process" in said
    assert "start this one with --standby to follow it" in said
