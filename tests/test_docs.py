"""What the documents name exists, and the tables that repeat the code say what the code says."""

import json
import re
import xml.etree.ElementTree as ET
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from headrace.adapters.prometheus import COUNTERS, GAUGES, HISTOGRAMS
from headrace.cli import app
from headrace.core.faults import Fault
from headrace.core.lifecycle import Cause, RequestState
from headrace.core.link_messages import RejectionCode
from headrace.core.tasks import RefusalReason
from headrace.core.types import DecisionKind, ItemStatus, Lane, Mode, Reason, Status
from headrace.settings import NOT_SETTINGS, PREFIX, Settings
from scripts._parameters import parameters_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPERATIONS, GLOSSARY = ROOT / "docs/operations.md", ROOT / "docs/glossary.md"
NOT_YET = "nothing gives it yet"

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def section(page: Path, heading: str) -> str:
    """The text under a heading, up to the next one of any depth."""
    parts = re.split(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    found = [parts[i + 1] for i in range(1, len(parts), 2) if parts[i] == heading]
    assert len(found) == 1, f"{page.name} must have one section {heading!r}"
    return found[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    heads = {i - 1 for i, row in enumerate(cells) if set("".join(row)) <= {"-"}}
    return [row for i, row in enumerate(cells) if i not in heads and i - 1 not in heads]


def code_in(text: str) -> list[str]:
    """Lines of code blocks, continued lines joined, and code within the text."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    return lines + [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


# Links


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{target} leads nowhere"
        assert not anchor or anchor in anchors(file), f"{target} names no heading"


def test_the_index_of_decisions_has_all_of_them() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"\]\((\d{4}[^)]*)\)", (folder / "README.md").read_text("utf-8"))
    assert listed == sorted(note.name for note in folder.glob("[0-9]*.md"))


def test_the_pictures_steps_are_numbered_without_gap_or_double() -> None:
    texts = [element.text or "" for element in ET.parse(ROOT / "docs/images/flow.svg").iter() if "text" in element.tag]
    numbers = [int(text) for text in texts if text.isdecimal()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 1


# Commands


@pages
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    for code in code_in(page.read_text("utf-8")):
        if named := re.match(r"\$?\s*make ([a-z][a-z -]*)", code):
            assert set(named[1].split()) <= targets, code


@pages
def test_headrace_commands_and_their_options_exist(page: Path) -> None:
    for code in code_in(page.read_text("utf-8")):
        for named in re.finditer(r"(?<![\w/.])headrace ([a-z][^#]*)", code):
            check_command(named[1])


def check_command(text: str) -> None:
    """Follow the words of a command; `a|b` names several."""
    words = text.split()
    commands: list[Any] = [typer.main.get_command(app)]
    while words and hasattr(commands[0], "commands"):
        group = commands[0]
        names = words.pop(0).split("|")
        assert set(names) <= set(group.commands), f"headrace {text}"
        commands = [group.commands[name] for name in names]
    known = {option for command in commands for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known, f"headrace {text}"


@pages
def test_scripts_and_their_options_exist(page: Path) -> None:
    shared = (ROOT / "scripts/_chain.py").read_text("utf-8") + '"--network"'
    for code in code_in(page.read_text("utf-8")):
        if named := re.match(r"ape run (\w+)([^#]*)", code):
            script = ROOT / f"scripts/{named[1]}.py"
            assert script.exists(), code
            for option in re.findall(r"--[a-z-]+", named[2]):
                assert f'"{option}"' in script.read_text("utf-8") + shared, f"{named[1]} has no {option}"


# Settings


def defaults(model: type[BaseModel], path: str = "") -> dict[str, Any]:
    """Every setting by its variable, without the prefix, with its default as JSON has it."""
    found: dict[str, Any] = {}
    for name, each in model.model_fields.items():
        variable = f"{path}{name.upper()}"
        if isinstance(each.annotation, type) and issubclass(each.annotation, BaseModel):
            found |= defaults(each.annotation, f"{variable}__")
        else:
            found[variable] = each.get_default(call_default_factory=True)
    return found


def test_the_table_of_settings_is_that_of_the_code() -> None:
    table, others = section(OPERATIONS, "Settings").split("no settings", 1)
    written = {row[0].strip("`"): row[1].strip("`") for row in rows(table)}
    assert written == {name: shown(value) for name, value in defaults(Settings).items()}
    assert {row[0].strip("`") for row in rows(others)} == NOT_SETTINGS


def shown(value: Any) -> str:
    """A default as the environment would have it."""
    if value is None or isinstance(value, str | Path):
        return "" if value is None else str(value)
    return json.dumps(value)


@pages
def test_variables_exist(page: Path) -> None:
    known = {f"{PREFIX}{name}" for name in {*defaults(Settings), *NOT_SETTINGS}}
    text = page.read_text("utf-8")
    for variable in re.findall(rf"\b{PREFIX}[A-Z_]+[A-Z]\b", text):
        assert variable in known, variable
    for variable in re.findall(r"`((?:CHAIN|RELAYER|NODE|REQUESTER|LOG)__[A-Z_]+)`", text):
        assert PREFIX + variable in known, variable


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    written = {row[0].strip("`") for row in rows(section(OPERATIONS, "Health"))}
    kinds = {**COUNTERS, **GAUGES, **HISTOGRAMS}
    assert written == {name + (f"{{{','.join(kind.labels)}}}" if kind.labels else "") for name, kind in kinds.items()}


# Values


@pytest.mark.parametrize(
    ("heading", "values"),
    [
        ("Status", Status),
        ("Item status", ItemStatus),
        ("Mode", Mode),
        ("Lane", Lane),
        ("Decision kind", DecisionKind),
        ("Reason", Reason),
        ("Fault", Fault),
    ],
)
def test_numbers_in_the_glossary_are_those_of_the_code(heading: str, values: type[IntEnum]) -> None:
    written = [(int(row[0]), row[1]) for row in rows(section(GLOSSARY, heading))]
    assert written == [(value.value, value.name) for value in values]


@pytest.mark.parametrize(
    ("heading", "values"),
    [
        ("Request state", RequestState),
        ("Cause", Cause),
        ("Refusal reason", RefusalReason),
        ("Rejection code", RejectionCode),
    ],
)
def test_names_in_the_glossary_are_those_of_the_code(heading: str, values: type[Enum]) -> None:
    assert [row[0].strip("`") for row in rows(section(GLOSSARY, heading))] == [value.value for value in values]


@pytest.mark.parametrize(
    ("heading", "values", "source"),
    [
        ("Reason", Reason, "offchain/headrace/core/{scheduling,routing}/*.py"),
        ("Item status", ItemStatus, "contracts/market/Results.sol"),
    ],
)
def test_what_nothing_gives_yet_is_marked(heading: str, values: type[IntEnum], source: str) -> None:
    head, _, rest = source.partition("{")
    folders, _, tail = rest.partition("}")
    files = [file for folder in folders.split(",") for file in ROOT.glob(head + folder + tail)]
    text = "".join(file.read_text("utf-8") for file in files)
    unused = {value.name for value in values if not re.search(rf"\b{values.__name__}\.{value.name}\b", text)}
    assert {row[1] for row in rows(section(GLOSSARY, heading)) if NOT_YET in row[2]} == unused


@pytest.mark.parametrize("chain_id", [31337, 1])
def test_the_readmes_numbers_are_those_of_the_deployment(chain_id: int) -> None:
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    terms = parameters_of(chain_id)
    gas = terms.gas_terms
    assert f"({gas['fixed_gas']:,} ÷ items of the batch + {gas['item_gas']:,} + " in text
    assert f"at most {gas['tip_cap_wei'] / 10**9:g} gwei above the base fee" in text
    assert f"stakes at least {terms.min_stake_wei / 10**18:g} ETH" in text
    assert f"a bond of at least {terms.min_bond_wei / 10**18:g} ETH" in text
    assert f"may earn at most {terms.probation['max_reward_wei'] / 10**18:g} ETH a result" in text
    assert (terms.probation["settled_count"], terms.probation["duration_s"]) == (10, 86_400)
    assert terms.unbond_delay_s == 3 * 86_400


@pytest.mark.parametrize(
    "contract", ["AttestedKeyVerifier", "InferenceMarket", "ModelRegistry", "ScheduleLog", "StakeManager"]
)
def test_contracts__each_function_that_changes_something__is_explained(contract: str) -> None:
    abi = json.loads((ROOT / f"offchain/headrace/adapters/abi/{contract}.json").read_text("utf-8"))["abi"]
    changing = {
        entry["name"]
        for entry in abi
        if entry["type"] == "function" and entry["stateMutability"] in ("nonpayable", "payable")
    }
    text = (ROOT / "docs/contracts.md").read_text("utf-8")
    section = text.split(f"\n## {contract}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == changing
