"""Nothing lost, nothing paid twice: whole worlds with all that can go wrong, each from a seed.

A seed that fails is replayed with its story by `python -m tests.simulation --seed N --requests R --ticks T --verbose`;
`make soak-sim` runs more and longer ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from headrace.core.errors import HeadraceError, Unknown
from headrace.core.events import BlockRef
from headrace.ports import StoredAttempt, StoredIntent
from tests.simulation.faults import Rates
from tests.simulation.relayer import Relayer
from tests.simulation.verdict import Verdict
from tests.simulation.world import SHORT, Length, Simulation, prepare, silence

_SEEDS, _PARTS = 200, 4
_MOST_SEEDS_UNTIL_CAUGHT = 60


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    before = structlog.get_config()
    silence()
    yield
    structlog.configure(**before)


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    await prepare(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
async def test_simulation__all_faults__nothing_is_lost_or_paid_twice(folder: Path, part: int) -> None:
    sums, size = Counter[str](), _SEEDS // _PARTS
    for seed in range(part * size, (part + 1) * size):
        verdict = await Simulation(seed, folder, SHORT).run()
        assert verdict.is_good, _replay(verdict, SHORT)
        sums += verdict.counts
    assert sums["requests"] == SHORT.requests * size
    assert sums["fulfilled"] > sums["requests"] / 2
    for kind in ("kills", "reorgs", "deep_reorgs", "rpc_errors", "store_faults"):
        assert sums[kind] > 0, f"there was none of {kind}"


async def test_simulation__same_seed__tells_the_same_story(folder: Path) -> None:
    often = Rates(kill=0.05, store_fault=0.02, reorg=0.2)
    stories = []
    for _ in range(2):
        run = Simulation(7, folder, SHORT, often)
        await run.run()
        stories.append(run.digest)
    assert stories[0] == stories[1]


async def test_simulation__other_seed__tells_another_story(folder: Path) -> None:
    one, other = Simulation(1, folder, SHORT), Simulation(2, folder, SHORT)
    await one.run()
    await other.run()
    assert one.digest != other.digest


# A simulator that finds nothing proves nothing: each of these relayers is broken in one place.


def _takes_another_nonce_when_unanswered(relayer: Relayer) -> None:
    sender = relayer.sender

    async def broadcast(intent: StoredIntent, attempt: StoredAttempt) -> None:
        try:
            await sender._chain.send_raw(attempt.raw)
        except Unknown:
            await sender._store.end_intent(intent.intent_id, "dropped", 0, {"cause": "unanswered"})
        except HeadraceError:
            pass

    sender._pusher._broadcast = broadcast  # type: ignore[method-assign]


def _never_rewinds(relayer: Relayer) -> None:
    async def is_canonical(last: BlockRef, head: BlockRef) -> bool:
        return True

    relayer.indexer._is_canonical = is_canonical  # type: ignore[method-assign]


def _sends_before_it_stores(relayer: Relayer) -> None:
    store, chain, add = relayer.store, relayer.sender._chain, relayer.store.add_attempt

    async def add_attempt(intent_id: int, attempt: StoredAttempt) -> None:
        await chain.send_raw(attempt.raw)
        await add(intent_id, attempt)

    store.add_attempt = add_attempt  # type: ignore[method-assign]


def _takes_a_missing_receipt_for_a_failure(relayer: Relayer) -> None:
    sender = relayer.sender
    confirm = sender.confirm

    async def impatient() -> list[StoredIntent]:
        still_open = await confirm()
        batches = [intent for intent in still_open if intent.attempts and intent.kind == "submit_results"]
        for intent in batches[:1]:
            await sender._store.end_intent(intent.intent_id, "reverted", 0, {})
        return [intent for intent in still_open if intent not in batches[:1]]

    sender.confirm = impatient  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("sabotage", "complaint"),
    [
        (_takes_another_nonce_when_unanswered, "ended 2 times"),
        (_never_rewinds, "the indexer is not at the head"),
        (_sends_before_it_stores, "before it was stored"),
        (_takes_a_missing_receipt_for_a_failure, "ended 2 times"),
    ],
)
async def test_simulation__sabotaged_relayer__is_caught_within_a_few_seeds(
    folder: Path, sabotage: Callable[[Relayer], None], complaint: str
) -> None:
    for seed in range(_MOST_SEEDS_UNTIL_CAUGHT):
        run = Simulation(seed, folder, SHORT, Rates(send_unanswered=0.3), sabotage=sabotage)
        run.chain.is_naive = True
        if any(complaint in why for why in (await run.run()).objections):
            return
    pytest.fail(f"{_MOST_SEEDS_UNTIL_CAUGHT} seeds did not see it")


def _replay(verdict: Verdict, length: Length) -> str:
    options = f"--requests {length.requests} --ticks {length.ticks} --verbose"
    reasons = "\n".join(verdict.objections[:5])
    return f".venv/bin/python -m tests.simulation --seed {verdict.seed} {options}\n{reasons}"
