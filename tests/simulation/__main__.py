"""Run seeds of the simulation, `python -m tests.simulation --seeds 1000`, or tell one: `--seed 7 --verbose`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.verdict import Verdict
from tests.simulation.world import Length, Simulation, a_folder, prepare, silence

SUMS = ("requests", "fulfilled", "expired", "cancelled", "withdrawn", "lost", "paid_twice", "underpaid_wei", "kills")
MORE = ("crashes", "reorgs", "deep_reorgs", "rpc_errors", "sends_unanswered", "store_faults", "clock_jumps")


def main() -> int:
    """Returns 1 when a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed, or the only one")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--requests", type=int, default=Length().requests, help="requests in a run")
    parser.add_argument("--ticks", type=int, default=Length().ticks, help="seconds with faults in a run, about")
    parser.add_argument("--verbose", action="store_true", help="tell the story")
    options = parser.parse_args()
    silence()
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    length, sums, failed = Length(options.requests, options.ticks), Counter[str](), 0
    began_s = time.monotonic()
    with a_folder() as name:
        folder = Path(name)
        await prepare(folder)
        for seed in range(options.seed, options.seed + options.seeds):
            run = Simulation(seed, folder, length, on_line=print if options.verbose else None)
            verdict = await run.run()
            sums += verdict.counts
            if not verdict.is_good:
                failed += 1
                _report(verdict, length)
            done = seed - options.seed + 1
            if done % 100 == 0:
                print(f"{done} seeds, {failed} failed, {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
            if options.verbose:
                print(f"story={run.digest}")
    print(f"seeds={options.seeds} " + " ".join(f"{key}={sums[key]}" for key in (*SUMS, *MORE)))
    if options.verbose:
        print(dict(sorted(sums.items())))
    return 1 if failed else 0


def _report(verdict: Verdict, length: Length) -> None:
    print(f"seed {verdict.seed} fails:")
    for why in verdict.objections[:5]:
        print(f"    {why}")
    options = f"--requests {length.requests} --ticks {length.ticks}"
    print(f"    replay: .venv/bin/python -m tests.simulation --seed {verdict.seed} {options} --verbose", flush=True)


if __name__ == "__main__":
    sys.exit(main())
