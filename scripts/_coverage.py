"""Prints how much of the contracts an LCOV report covers, and fails when too few branches are.

usage: python scripts/_coverage.py REPORT LEAST_PERCENT
"""

import sys
from collections import defaultdict
from pathlib import Path

LEFT_OUT = "contracts/test/"  # helpers of tests


def main(report: Path, least: float) -> int:
    """Return 0 if at least `least` percent of the branches of contracts/ were taken."""
    branches = _branches_in(report)
    if not branches:
        print(f"{report} says nothing of contracts/: run 'make coverage-contracts'.")
        return 1
    print(f"{'':44} branches")
    for name, taken in sorted(branches.items()):
        missed = ", ".join(str(line) for line, is_taken in taken if not is_taken)
        print(f"{name:44} {_share(taken):>9}" + (f"  not taken at line {missed}" if missed else ""))
    everything = [each for taken in branches.values() for each in taken]
    print(f"{'all':44} {_share(everything):>9}")
    percent = 100 * sum(is_taken for _, is_taken in everything) / len(everything)
    if percent >= least:
        return 0
    print(f"{percent:.1f} % of the branches of contracts/ are taken by tests/forge, fewer than {least:g} %.")
    return 1


def _branches_in(report: Path) -> dict[str, list[tuple[int, bool]]]:
    """Return, by file, the line of each branch and whether it was taken."""
    branches: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    name = ""
    for line in report.read_text("utf-8").splitlines():
        kind, _, rest = line.partition(":")
        if kind == "SF":
            name = rest
        elif kind == "BRDA" and name.startswith("contracts/") and not name.startswith(LEFT_OUT):
            number, _, _, times = rest.split(",")
            branches[name].append((int(number), times not in ("-", "0")))
    return branches


def _share(branches: list[tuple[int, bool]]) -> str:
    return f"{sum(is_taken for _, is_taken in branches)} of {len(branches)}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
