"""What a node's journal has of settling by itself: stored with the answer, one intent at a time, kept over restarts."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.adapters.node_journal import SqlNodeJournal
from headrace.core.errors import IllegalTransition
from headrace.core.journal import TaskState
from headrace.core.self_settlement import Settlement, SettlementAttempt, SettlementState
from headrace.node.journal import SettlementJournal
from tests.adapters.test_node_journal import ENTRY, ID, OTHER, RESULT

PAYER = "0x" + "aa" * 20
WATCHED = Settlement(ID, SettlementState.WATCHED, 9_000, "", 0, "", -1, b"", 0, ())
FIRST = SettlementAttempt("0x" + "01" * 32, b"raw one", 2**70, 2**65, 10)
SECOND = SettlementAttempt("0x" + "02" * 32, b"raw two", 2**71, 2**66, 10)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SqlNodeJournal]:
    async with SqlNodeJournal(tmp_path / "node.db") as opened:
        yield opened


async def answer(journal: SqlNodeJournal, request_id: str = ID, deadline_s: int = 9_000) -> None:
    await journal.put(dataclasses.replace(ENTRY, request_id=request_id))
    result = dataclasses.replace(RESULT, request_id=request_id)
    await journal.add_result(request_id, result, b"x", 1, 1, 2_000, deadline_s)


async def test_an_answer_is_watched_from_when_it_is_fixed(journal: SqlNodeJournal) -> None:
    await journal.put(ENTRY)
    port: SettlementJournal = journal.settlements
    assert await port.unsettled(9) == []
    await journal.add_result(ID, RESULT, b"x", 1, 1, 2_000, 9_000)
    assert await port.unsettled(9) == [WATCHED]
    # Whatever the relayer says of the delivery.
    for state in (TaskState.ACKNOWLEDGED, TaskState.FAILED):
        await journal.set_state(ID, state, "", 3_000)
        assert await port.unsettled(9) == [WATCHED]


async def test_intent_and_attempts_are_there_after_a_restart(journal: SqlNodeJournal, tmp_path: Path) -> None:
    await answer(journal)
    await journal.settlements.begin(ID, PAYER, 7, b"\x01\x02", 300_000, 2_500)
    await journal.settlements.add_attempt(ID, 7, FIRST)
    await journal.settlements.add_attempt(ID, 7, SECOND)
    await journal.close()
    async with SqlNodeJournal(tmp_path / "node.db") as again:
        (found,) = await again.settlements.unsettled(9)
    assert found == dataclasses.replace(
        WATCHED,
        state=SettlementState.OPEN,
        payer=PAYER,
        nonce=7,
        data=b"\x01\x02",
        gas_limit=300_000,
        attempts=(FIRST, SECOND),
    )


async def test_a_second_intent_is_refused_while_one_is_open(journal: SqlNodeJournal) -> None:
    await answer(journal)
    opened = await journal.settlements.begin(ID, PAYER, 7, b"\x01", 1, 2_500)
    with pytest.raises(IllegalTransition, match="under way, or ended"):
        await journal.settlements.begin(ID, PAYER, 8, b"\x02", 1, 2_500)
    with pytest.raises(IllegalTransition, match="not under way with nonce 8"):
        await journal.settlements.add_attempt(ID, 8, FIRST)
    await journal.settlements.note(ID, "it is under way", 2_600)
    assert await journal.settlements.unsettled(9) == [opened]
    with pytest.raises(IllegalTransition, match="under way, or ended"):
        await journal.settlements.begin(OTHER, PAYER, 8, b"\x02", 1, 2_500)


async def test_an_intent_that_stepped_back_may_begin_anew_without_its_old_attempts(journal: SqlNodeJournal) -> None:
    await answer(journal)
    for nonce, (reverted, reverts) in enumerate([(True, 1), (False, 1), (True, 2)]):
        await journal.settlements.begin(ID, PAYER, nonce, b"\x01", 1, 2_500)
        attempt = dataclasses.replace(FIRST, transaction_hash=f"0x{nonce:064x}")
        await journal.settlements.add_attempt(ID, nonce, attempt)
        (opened,) = await journal.settlements.unsettled(9)
        assert opened.attempts == (attempt,)
        await journal.settlements.step_back(ID, "why", reverted, 2_600)
        assert await journal.settlements.unsettled(9) == [dataclasses.replace(WATCHED, detail="why", reverts=reverts)]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("end", [SettlementState.SETTLED, SettlementState.GIVEN_UP])
async def test_what_ended_is_looked_at_no_more(journal: SqlNodeJournal, end: SettlementState, is_open: bool) -> None:
    await answer(journal)
    if is_open:
        await journal.settlements.begin(ID, PAYER, 7, b"\x01", 1, 2_500)
    with pytest.raises(IllegalTransition, match="does not end as watched"):
        await journal.settlements.end(ID, SettlementState.WATCHED, "", 2_600)
    await journal.settlements.end(ID, end, "done", 2_600)
    assert await journal.settlements.unsettled(9) == []
    with pytest.raises(IllegalTransition):
        await journal.settlements.begin(ID, PAYER, 8, b"\x01", 1, 2_700)
    await journal.settlements.step_back(ID, "", False, 2_700)
    assert await journal.settlements.unsettled(9) == []


async def test_what_is_under_way_comes_first_then_the_nearest_deadline(journal: SqlNodeJournal) -> None:
    ids = ["0x" + f"{number:064x}" for number in range(4)]
    for request_id, deadline_s in zip(ids, (400, 300, 200, 100), strict=True):
        await answer(journal, request_id, deadline_s)
    await journal.settlements.begin(ids[0], PAYER, 7, b"\x01", 1, 2_500)
    found = [each.request_id for each in await journal.settlements.unsettled(9)]
    assert found == [ids[0], ids[3], ids[2], ids[1]]
    assert len(await journal.settlements.unsettled(2)) == 2


async def test_pruning_forgets_what_ended_and_nothing_else(journal: SqlNodeJournal, tmp_path: Path) -> None:
    for request_id in (ID, OTHER):
        await answer(journal, request_id)
        await journal.settlements.begin(request_id, PAYER, 7, b"\x01", 1, 2_500)
    await journal.settlements.add_attempt(ID, 7, FIRST)
    await journal.settlements.add_attempt(OTHER, 7, SECOND)
    await journal.settlements.end(ID, SettlementState.SETTLED, "", 2_600)
    await journal.prune(5_000)
    (left,) = await journal.settlements.unsettled(9)
    assert (left.request_id, left.attempts) == (OTHER, (SECOND,))
    await journal.close()
    with sqlite3.connect(tmp_path / "node.db") as connection:
        assert connection.execute("SELECT request_id FROM settlements").fetchall() == [(OTHER,)]
        assert connection.execute("SELECT raw FROM settlement_attempts").fetchall() == [(SECOND.raw,)]
    connection.close()


async def test_a_journal_from_before_is_taken_on_with_its_answers(journal: SqlNodeJournal, tmp_path: Path) -> None:
    task = json.dumps({"assignment": {"deadline_s": 7_777}})
    for request_id, text in ((ID, task), (OTHER, "")):
        await journal.put(dataclasses.replace(ENTRY, request_id=request_id, task=text))
        result = dataclasses.replace(RESULT, request_id=request_id)
        await journal.add_result(request_id, result, b"x", 1, 1, 2_000, 9_000)
    await journal.put(dataclasses.replace(ENTRY, request_id="0x" + "33" * 32, task=task))
    await journal.close()
    with sqlite3.connect(tmp_path / "node.db") as connection:
        for table in ("settlements", "settlement_attempts"):
            connection.execute(f"DROP TABLE {table}")
    connection.close()
    async with SqlNodeJournal(tmp_path / "node.db") as again:
        # What has no answer yet, and what was pruned, is not there to be settled.
        assert await again.settlements.unsettled(9) == [dataclasses.replace(WATCHED, deadline_s=7_777)]
