"""The words for reasons, against the glossary's list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.core.errors import sentence
from headrace.core.lifecycle import RequestState
from headrace.core.reasons import MEANINGS, why_unassigned
from headrace.core.types import ZERO_ADDRESS, Decision, DecisionKind, Reason

GLOSSARY = Path(__file__).resolve().parents[2] / "docs/glossary.md"


def test_meanings__are_of_all_reasons_in_the_glossary() -> None:
    table = GLOSSARY.read_text(encoding="utf-8").split("### Reason\n")[1].split("\n### ")[0]
    listed = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", table, flags=re.MULTILINE)
    assert [(int(number), name) for number, name in listed] == [(each.value, each.name) for each in MEANINGS]


@pytest.mark.parametrize("meaning", MEANINGS.values())
def test_meanings__are_sentences(meaning: str) -> None:
    assert meaning == sentence(meaning)
    assert "_" not in meaning


def _decision(kind: DecisionKind, reason: Reason) -> Decision:
    return Decision("0x" + "aa" * 32, ZERO_ADDRESS, kind, reason, 0, 0)


BUSY = _decision(DecisionKind.SKIPPED, Reason.NODES_BUSY)
LATE = _decision(DecisionKind.TOO_LATE, Reason.DEADLINE_PASSED)


def test_why_unassigned__only_when_it_is_not() -> None:
    eligible = RequestState.ELIGIBLE
    assert why_unassigned(None, eligible) == ""
    assert why_unassigned(_decision(DecisionKind.ASSIGNED, Reason.LOWEST_COST), eligible) == ""
    assert why_unassigned(BUSY, eligible) == MEANINGS[Reason.NODES_BUSY]
    assert why_unassigned(LATE, RequestState.EXPIRED) == MEANINGS[Reason.DEADLINE_PASSED]


@pytest.mark.parametrize(
    "state", ["assigned", "computing", "signed", "settling", "fulfilled", "cancelled", "withdrawn"]
)
def test_why_unassigned__does_not_wait__has_none(state: str) -> None:
    """A late answer makes an eligible request signed, and a cancel ends it: no cycle looks at it again."""
    assert why_unassigned(BUSY, RequestState(state)) == ""
