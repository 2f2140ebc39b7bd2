"""Runs tests/bench/scheduler.py: `SEED=1 python scripts/_bench_scheduler.py`."""

import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
# Packages that install their own `tests` hide this repository's, which is none: pytest is who finds it by itself.
sys.path.insert(0, str(ROOT))
sys.modules["tests"] = ModuleType("tests")
sys.modules["tests"].__path__ = [str(ROOT / "tests")]

from tests.bench.scheduler import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
