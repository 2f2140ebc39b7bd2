"""A node's journal: one result of a request for ever, across restarts, and one process at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.adapters.node_journal import JournalAssignments, SqlNodeJournal
from headrace.core.errors import ConfigurationError, IllegalTransition
from headrace.core.faults import SignedAssignment
from headrace.core.journal import JournalEntry, TaskState
from headrace.core.link_messages import TaskMessage, encode
from headrace.core.requests import request_id as id_of
from headrace.core.tasks import Task
from headrace.core.types import Assignment, Result
from headrace.node.journal import NodeJournal
from tests.fakes import MARKET, NODE, RELAYER, make_request

ID = "0x" + "11" * 32
OTHER = "0x" + "22" * 32
ENTRY = JournalEntry(ID, 3, TaskState.ACCEPTED, '{"a":1}', b"\x01" * 65, None, b"", 0, 0, "", 1_000, 1_000)
RESULT = Result(ID, "0x" + "77" * 32, 2**96 - 1, RELAYER, 3)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SqlNodeJournal]:
    async with SqlNodeJournal(tmp_path / "deep" / "node.db") as opened:
        yield opened


async def test_what_was_put_is_there_after_a_restart(journal: SqlNodeJournal, tmp_path: Path) -> None:
    await journal.put(ENTRY)
    await journal.add_result(ID, RESULT, b"\x00\x01", 5, 60, 2_000, 9_000)
    await journal.close()
    async with SqlNodeJournal(tmp_path / "deep" / "node.db") as again:
        port: NodeJournal = again
        assert await port.entry(ID) == dataclasses.replace(
            ENTRY,
            state=TaskState.COMPUTED,
            result=RESULT,
            payload=b"\x00\x01",
            output_tokens=5,
            compute_ms=60,
            changed_at_ms=2_000,
        )
        assert await port.entry(OTHER) is None


async def test_a_result_is_fixed_once(journal: SqlNodeJournal) -> None:
    await journal.put(ENTRY)
    await journal.add_result(ID, RESULT, b"first", 5, 60, 2_000, 9_000)
    another = dataclasses.replace(RESULT, result_hash="0x" + "88" * 32)
    with pytest.raises(IllegalTransition, match="not waiting"):
        await journal.add_result(ID, another, b"second", 5, 60, 2_000, 9_000)
    for state in TaskState:
        await journal.set_state(ID, state, "", 3_000)
        with pytest.raises(IllegalTransition, match="already"):
            await journal.put(dataclasses.replace(ENTRY, round=4))
        with pytest.raises(IllegalTransition, match="not waiting"):
            await journal.add_result(ID, another, b"second", 5, 60, 2_000, 9_000)
    assert await journal.results([ID, OTHER]) == {ID: RESULT}


@pytest.mark.parametrize("state", [TaskState.REFUSED, TaskState.FAILED])
async def test_only_an_accepted_task_takes_a_result(journal: SqlNodeJournal, state: TaskState) -> None:
    await journal.put(dataclasses.replace(ENTRY, state=state))
    with pytest.raises(IllegalTransition):
        await journal.add_result(ID, RESULT, b"late", 5, 60, 2_000, 9_000)
    await journal.put(ENTRY)
    with pytest.raises(IllegalTransition, match="round 9"):
        await journal.add_result(ID, dataclasses.replace(RESULT, round=9), b"other round", 5, 60, 2_000, 9_000)
    assert (await journal.add_result(ID, RESULT, b"now", 5, 60, 2_000, 9_000)).payload == b"now"


async def test_lists_are_oldest_first(journal: SqlNodeJournal) -> None:
    ids = ["0x" + f"{number:064x}" for number in range(5)]
    for age, request_id in enumerate(reversed(ids)):
        await journal.put(dataclasses.replace(ENTRY, request_id=request_id, received_at_ms=age))
    assert [entry.request_id for entry in await journal.accepted()] == ids[::-1]
    for request_id in ids[:3]:
        result = dataclasses.replace(RESULT, request_id=request_id)
        await journal.add_result(request_id, result, b"x", 1, 1, 9, 9_000)
    assert [entry.request_id for entry in await journal.undelivered(RELAYER, 2)] == [ids[2], ids[1]]
    await journal.set_state(ids[2], TaskState.ACKNOWLEDGED, "", 10)
    assert [entry.request_id for entry in await journal.undelivered(RELAYER, 2)] == [ids[1], ids[0]]
    assert [entry.request_id for entry in await journal.accepted()] == [ids[4], ids[3]]
    assert await journal.undelivered("0x" + "b2" * 20, 2) == []


async def test_many_results_are_found_at_once(journal: SqlNodeJournal) -> None:
    await journal.put(ENTRY)
    await journal.add_result(ID, RESULT, b"x", 1, 1, 9, 9_000)
    others = ["0x" + f"{number:064x}" for number in range(1_200)]
    assert await journal.results([*others, ID]) == {ID: RESULT}


async def test_pruning_forgets_the_bulk_but_not_what_was_signed(journal: SqlNodeJournal) -> None:
    await journal.put(dataclasses.replace(ENTRY, request_id=OTHER, state=TaskState.REFUSED))
    await journal.put(ENTRY)
    assert await journal.prune(5_000) == 1
    assert await journal.entry(OTHER) is None
    await journal.add_result(ID, RESULT, b"x", 1, 1, 2_000, 9_000)
    assert await journal.prune(5_000) == 0
    await journal.set_state(ID, TaskState.ACKNOWLEDGED, "", 3_000)
    assert await journal.prune(5_000) == 1
    assert await journal.prune(5_000) == 0
    entry = await journal.entry(ID)
    assert entry is not None
    assert (entry.result, entry.payload, entry.task) == (RESULT, b"", "")


async def test_a_proof_is_kept_with_its_result(journal: SqlNodeJournal, tmp_path: Path) -> None:
    await journal.put(ENTRY)
    entry = await journal.add_result(ID, RESULT, b"x", 1, 1, 2_000, 9_000, b"\x00proof")
    assert entry.proof == b"\x00proof"
    await journal.close()
    async with SqlNodeJournal(tmp_path / "deep" / "node.db") as again:
        assert await again.entry(ID) == entry


async def test_a_journal_from_before_there_were_proofs_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    async with SqlNodeJournal(path) as journal:
        await journal.put(ENTRY)
        before = await journal.add_result(ID, RESULT, b"x", 1, 1, 2_000, 9_000)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE tasks DROP COLUMN proof")
        connection.commit()
    async with SqlNodeJournal(path) as journal:
        assert await journal.entry(ID) == before
        assert before.proof == b""


async def test_a_second_process_is_refused(journal: SqlNodeJournal, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="in use by another node"):
        await SqlNodeJournal(tmp_path / "deep" / "node.db").open()
    await journal.put(ENTRY)


async def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("this is not a database, and long enough to be seen as none", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="not a database"):
        await SqlNodeJournal(path).open()
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        await SqlNodeJournal(path / "below" / "node.db").open()


async def test_a_newer_round_asks_for_the_fixed_answer__its_hash_and_bytes_stay(journal: SqlNodeJournal) -> None:
    await journal.put(ENTRY)
    await journal.add_result(ID, RESULT, b"answer", 5, 60, 2_000, 9_000)
    await journal.set_state(ID, TaskState.ACKNOWLEDGED, "", 3_000)
    moved = await journal.move_to_round(ID, 7, '{"b":2}', b"\x02" * 65, 11, 4_000)
    assert moved == await journal.entry(ID)
    assert (moved.round, moved.state, moved.task) == (7, TaskState.COMPUTED, '{"b":2}')
    assert moved.accept_signature == b"\x02" * 65
    assert moved.result == dataclasses.replace(RESULT, round=7, reward_wei=11)
    assert moved.payload == b"answer"
    assert await journal.undelivered(RELAYER, 9) == [moved]


@pytest.mark.parametrize("state", [TaskState.ACKNOWLEDGED, TaskState.FAILED])
async def test_word_of_a_delivery_for_an_older_round__leaves_the_newer_one_to_be_delivered(
    journal: SqlNodeJournal, state: TaskState
) -> None:
    """The relayer's word for the older round may be on its way while the answer moves."""
    await journal.put(ENTRY)
    await journal.add_result(ID, RESULT, b"answer", 5, 60, 2_000, 9_000)
    moved = await journal.move_to_round(ID, 7, '{"b":2}', b"\x02" * 65, 11, 4_000)
    await journal.end_delivery(ID, 3, state, "", 5_000)
    assert await journal.undelivered(RELAYER, 9) == [moved]
    await journal.end_delivery(ID, 7, state, "why", 6_000)
    ended = await journal.entry(ID)
    assert ended is not None
    assert (ended.state, ended.detail, ended.changed_at_ms) == (state, "why", 6_000)


async def test_word_of_a_delivery_of_what_is_not_on_its_way__changes_nothing(journal: SqlNodeJournal) -> None:
    await journal.put(ENTRY)
    await journal.end_delivery(ID, 3, TaskState.ACKNOWLEDGED, "", 5_000)
    assert await journal.entry(ID) == ENTRY


async def test_a_newer_round_asks_while_it_is_computed__takes_the_answer(journal: SqlNodeJournal) -> None:
    await journal.put(ENTRY)
    moved = await journal.move_to_round(ID, 7, '{"b":2}', b"\x02" * 65, 11, 4_000)
    assert (moved.state, moved.result) == (TaskState.ACCEPTED, None)
    with pytest.raises(IllegalTransition, match="not waiting"):
        await journal.add_result(ID, RESULT, b"answer", 5, 60, 5_000, 9_000)
    await journal.add_result(ID, dataclasses.replace(RESULT, round=7), b"answer", 5, 60, 5_000, 9_000)


@pytest.mark.parametrize("state", [TaskState.REFUSED, TaskState.FAILED])
async def test_a_task_that_ended__is_not_moved(journal: SqlNodeJournal, state: TaskState) -> None:
    await journal.put(dataclasses.replace(ENTRY, state=state))
    with pytest.raises(IllegalTransition, match="round 7"):
        await journal.move_to_round(ID, 7, "{}", b"", 11, 4_000)


@pytest.mark.parametrize("round_", [2, 3])
async def test_a_round_that_is_not_newer__is_refused(journal: SqlNodeJournal, round_: int) -> None:
    await journal.put(ENTRY)
    with pytest.raises(IllegalTransition, match=f"round {round_}"):
        await journal.move_to_round(ID, round_, "{}", b"", 11, 4_000)
    assert await journal.entry(ID) == ENTRY


# What a watcher reads


def task_of(number: int) -> Task:
    request = make_request(salt=number)
    word = Assignment(id_of(request, 31337, MARKET), RELAYER, NODE, number, 7, request.deadline_s)
    return Task(word, bytes([number]) * 65, request, "tiny", b"a prompt")


async def test_assignments__of_a_running_node__are_read_as_it_goes_on(journal: SqlNodeJournal, tmp_path: Path) -> None:
    reader = JournalAssignments(tmp_path / "deep" / "node.db")
    tasks = [task_of(number) for number in (1, 2, 3)]
    for at_ms, task in enumerate(tasks, start=1):
        word = task.assignment
        frame = encode(TaskMessage.of(task))
        entry = dataclasses.replace(ENTRY, request_id=word.request_id, round=word.round, task=frame)
        await journal.put(dataclasses.replace(entry, received_at_ms=at_ms, changed_at_ms=at_ms))
        expected = [SignedAssignment(each.assignment, each.assignment_signature) for each in tasks[:at_ms]]
        assert await reader.assignments(0) == expected
    assert [each.assignment.round for each in await reader.assignments(2)] == [2, 3]
    assert await reader.assignments(4) == []
    await journal.put(ENTRY)  # its frame is none of a task


async def test_assignments__refused_or_unreadable_tasks__are_passed_over(
    journal: SqlNodeJournal, tmp_path: Path
) -> None:
    await journal.put(ENTRY)
    await journal.put(dataclasses.replace(ENTRY, request_id=OTHER, state=TaskState.REFUSED, task=""))
    assert await JournalAssignments(tmp_path / "deep" / "node.db").assignments(0) == []


async def test_assignments__no_journal__says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no journal"):
        await JournalAssignments(tmp_path / "missing.db").assignments(0)
    (tmp_path / "text").write_text("this is not a database, and long enough to be seen as none", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        await JournalAssignments(tmp_path / "text").assignments(0)
