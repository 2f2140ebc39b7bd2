"""What all tests share: the option `--vectors` and the marker that hands out a vector file's entries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A slow machine must not fail a property, nor a new example the build; `deep` looks for new ones.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", settings.get_profile("default"), derandomize=False, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

VECTORS_DIR = Path(__file__).parent / "vectors" / "reference"

_FIRST = ("e2e", "simulation")

REQUIRED_FILES = frozenset({"priority.json", "route_cost.json", "schedule_round.json", "dual_queue.json"})
"""The scheduling files: a folder without one of them is refused. Other files may be absent."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--vectors DIR`, relative to the folder that pytest was started in."""
    parser.addoption(
        "--vectors",
        type=Path,
        default=VECTORS_DIR,
        metavar="DIR",
        help="folder of reference values of the same shape as tests/vectors/reference (the default)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "vectors(file, describe): run the test once per entry of a vector file, given as `entry`; "
        "`describe` turns an entry into a readable id",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of a file, or of one running stack, together when there are several workers (`-n`)."""
    if not hasattr(config, "workerinput"):
        return
    # First what waits more than it works, then what takes long without a pause: the rest fills the gaps at the end.
    items.sort(
        key=lambda item: next((rank for rank, part in enumerate(_FIRST) if part in item.path.parts), len(_FIRST))
    )
    for item in items:
        own = "stack" not in item.fixturenames or _is_of_module(item, "stack")
        group = item.nodeid if "simulation" in item.path.parts else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group if own else "stack"))


def _is_of_module(item: pytest.Item, fixture: str) -> bool:
    """Whether a module has a fixture of its own in place of the one that all share."""
    return item._fixtureinfo.name2fixturedefs[fixture][-1].scope == "module"  # type: ignore[attr-defined]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise every test that is marked with `vectors`."""
    marker = metafunc.definition.get_closest_marker("vectors")
    if marker is None:
        return
    file: str = marker.args[0]
    describe: Callable[[Any], str] = marker.kwargs.get("describe", lambda entry: "")
    directory = metafunc.config.invocation_params.dir / metafunc.config.getoption("--vectors")
    if not (directory / file).is_file() and file not in REQUIRED_FILES:
        absent = pytest.param(None, marks=pytest.mark.skip(f"{directory / file} is absent"), id="absent")
        metafunc.parametrize("entry", [absent])
        return
    entries = _read_entries(directory / file)
    ids = [f"{index}-{describe(entry)}".rstrip("-") for index, entry in enumerate(entries)]
    metafunc.parametrize("entry", entries, ids=ids)


def _read_entries(path: Path) -> list[Any]:
    """The entries of a vector file; of a file that is one object, its [name, value] pairs.

    Ends the collection, naming the file, if it is missing, is not JSON or has no entries: a test without
    cases would pass unseen.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise pytest.fail.Exception(f"cannot read the vector file {path}: {error}", pytrace=False) from None
    entries = [list(pair) for pair in content.items()] if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        pytest.fail(f"the vector file {path} has no entries", pytrace=False)
    return entries
