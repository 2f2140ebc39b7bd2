"""Prints how large the project's own contracts are, and fails when one is too large to be deployed."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / ".build" / "check"
# EIP-170 and EIP-3860.
MAX_CODE_BYTES = 24_576
MAX_CREATION_BYTES = 49_152
_NOT_DEPLOYED = ("interfaces", "libraries", "test")


@dataclass(frozen=True)
class Size:
    """A contract's code, and its creation code without constructor arguments."""

    name: str
    code_bytes: int
    creation_bytes: int

    @property
    def is_too_large(self) -> bool:
        """Whether a chain would refuse it."""
        return self.code_bytes > MAX_CODE_BYTES or self.creation_bytes > MAX_CREATION_BYTES


def main() -> int:
    """Return 0 if every contract can be deployed."""
    sizes = sizes_in(_forge(), own_contracts(ROOT / "contracts"))
    for line in table(sizes):
        print(line)
    too_large = [size.name for size in sizes if size.is_too_large]
    if too_large:
        print(f"too large to be deployed: {', '.join(too_large)}")
    return int(bool(too_large))


def own_contracts(folder: Path) -> list[str]:
    """Return the names of the contracts in a folder that can be deployed: no interfaces, libraries or abstract ones."""
    paths = [path for path in folder.rglob("*.sol") if path.relative_to(folder).parts[0] not in _NOT_DEPLOYED]
    texts = (path.read_text("utf-8") for path in paths)
    return sorted(name for text in texts for name in re.findall(r"^contract (\w+)", text, flags=re.MULTILINE))


def sizes_in(report: str, names: list[str]) -> list[Size]:
    """Return the sizes of these contracts, largest first, from what `forge build --sizes --json` prints."""
    found = json.loads(report)
    missing = [name for name in names if name not in found]
    if missing:
        sys.exit(f"forge tells no size of {', '.join(missing)}")
    sizes = [Size(name, found[name]["runtime_size"], found[name]["init_size"]) for name in names]
    return sorted(sizes, key=lambda size: -size.code_bytes)


def table(sizes: list[Size]) -> list[str]:
    """Return the lines to print."""
    width = max(len(name) for name in ("contract", *(size.name for size in sizes)))
    head = f"{'contract':<{width}}   bytes   left  of {MAX_CODE_BYTES:,}"
    return [head, *(_row(size, width) for size in sizes)]


def _row(size: Size, width: int) -> str:
    left = MAX_CODE_BYTES - size.code_bytes
    return f"{size.name:<{width}}  {size.code_bytes:>6,} {left:>6,}  {size.code_bytes / MAX_CODE_BYTES:>6.1%}"


def _forge() -> str:
    command = [
        "forge",
        "build",
        "--sizes",
        "--json",
        "--out",
        str(BUILD),
        "--cache-path",
        str(BUILD / "cache"),
        "contracts",
    ]
    environment = {**os.environ, "HOME": str(ROOT / ".build" / "home")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    # It also fails when a contract is too large, of which those for tests may be one.
    if not done.stdout.startswith("{"):
        sys.exit(f"forge build failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
