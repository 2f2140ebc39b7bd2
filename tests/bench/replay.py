"""Snapshots planned again by another Python: `OTHER_PYTHON tests/bench/replay.py FOLDER` prints the root of each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headrace.core.merkle import leaf_of, root_of
from headrace.core.rounds import merge_decisions
from headrace.core.scheduling import Engine
from headrace.core.snapshot import SnapshotReader


def roots_of(folder: Path) -> list[str]:
    """The roots of the cycles in a folder: `order.json` has their snapshots' hashes, each file is named by its own."""
    hashes = json.loads((folder / "order.json").read_text(encoding="utf-8"))
    texts = {hash_: (folder / hash_).read_bytes() for hash_ in hashes}
    reader, engine, roots = SnapshotReader(), Engine(), []
    for hash_ in hashes:
        plan = engine.plan(reader.read(hash_, texts))
        leaves = merge_decisions([[planned.decision for planned in plan.decisions]])
        roots.append(root_of([leaf_of(leaf) for leaf in leaves]))
    return roots


if __name__ == "__main__":
    sys.stdout.write(json.dumps(roots_of(Path(sys.argv[1]))))
