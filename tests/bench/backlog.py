"""How long a relayer takes to come back with a long backlog: the real process, from its start until it is ready, and
until its first cycle is stored. `python -m tests.bench.backlog` runs it alone."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import aiohttp
from rich.console import Console
from sqlalchemy import create_engine, insert

from headrace.adapters.clock import SystemClock
from headrace.adapters.deployment import SCHEMA
from headrace.adapters.sql.rows import row_of_request
from headrace.adapters.sql.store import SqlStore
from headrace.adapters.sql.tables import requests
from headrace.core.envelope import hash_payload
from headrace.core.lifecycle import RequestState
from headrace.core.types import ZERO_HASH
from scripts._stack import free_port
from tests.bench.rows import Row
from tests.fakes import make_request
from tests.local_chain import LocalChain, local_chain
from tests.services.world import PROMPT

BACKLOG = 100_000
_CHUNK = 5_000
_TIMEOUT_S = 120.0


async def start_with_backlog(folder: Path, seed: int) -> list[Row]:
    """Fill a store with eligible requests, whose prompts are there, and start a relayer on it; and on an empty one."""
    rows = []
    async with local_chain() as anvil:
        await anvil.register_relayer()
        await anvil.mine()
        write_deployment(anvil, folder)
        for count in (0, BACKLOG):
            database = folder / f"relayer-{count}.db"
            await fill(anvil, database, count, random.Random(seed))
            ready_s, cycle_s = await started(anvil, folder, database, wants_cycle=count > 0)
            target = 5 if count else None
            rows.append(Row(f"start until ready, backlog of {count:,}", ready_s, "s", target, at_most=True))
            if count:
                rows.append(Row(f"start until the first cycle, backlog of {count:,}", cycle_s, "s"))
    return rows


async def fill(anvil: LocalChain, database: Path, count: int, rng: random.Random) -> None:
    """A store with requests that wait, as if they had been indexed and confirmed."""
    clock = SystemClock()
    store = await SqlStore.open(f"sqlite:///{database}", clock)
    await store.put_prompt(PROMPT, anvil.accounts[3], clock.now_ms())
    await store.close()
    await asyncio.to_thread(_insert, anvil, database, count, rng)


def _insert(anvil: LocalChain, database: Path, count: int, rng: random.Random) -> None:
    now_s = int(time.time())
    fields = row_of_request(
        make_request(
            requester=anvil.accounts[3],
            relayer=anvil.accounts[1],
            model_id=anvil.deployment.models["tiny"],
            prompt_hash=hash_payload(PROMPT),
            prompt_bytes=len(PROMPT),
            deadline_s=now_s + 80_000,
            max_reward_wei=10**15,
            gas_budget_wei=10**16,
        )
    )
    shared = {
        **fields,
        "state": RequestState.ELIGIBLE.value,
        "servable": True,
        "block_number": 1,
        "block_hash": ZERO_HASH,
        "transaction_hash": ZERO_HASH,
        "priority_fee_added_wei": 0,
        "effective_deadline_s": now_s + 80_000,
        "released_until_s": 0,
        "closed": None,
    }
    engine = create_engine(f"sqlite:///{database}")
    for start in range(0, count, _CHUNK):
        rows = [
            {
                **shared,
                "request_id": f"0x{rng.getrandbits(256):064x}",
                "salt": rng.getrandbits(63),
                "included_at_s": now_s - rng.randrange(3_600),
            }
            for _ in range(min(_CHUNK, count - start))
        ]
        with engine.begin() as connection:
            connection.execute(insert(requests), rows)
    engine.dispose()


def write_deployment(anvil: LocalChain, folder: Path) -> None:
    """The file that a process finds the contracts by."""
    deployed = anvil.deployment
    document = {
        "schema": SCHEMA,
        "chain_id": deployed.chain_id,
        "contracts": {name: asdict(each) for name, each in deployed.contracts.items()},
        "models": [{"name": name, "model_id": model_id} for name, model_id in deployed.models.items()],
    }
    (folder / f"{deployed.chain_id}.json").write_text(json.dumps(document), encoding="utf-8")


async def started(anvil: LocalChain, folder: Path, database: Path, *, wants_cycle: bool) -> tuple[float, float]:
    """Seconds from the start of a relayer's process until it says that it is ready, and until a cycle is stored."""
    api_port = free_port()
    environment = {
        **os.environ,
        "HEADRACE_CHAIN__RPC_URL": anvil.url,
        "HEADRACE_CHAIN__DEPLOYMENTS": str(folder),
        "HEADRACE_CHAIN__CONFIRMATIONS": "0",
        "HEADRACE_RELAYER_PRIVATE_KEY": "0x" + anvil.keys[1].hex(),
        "HEADRACE_RELAYER__API_PORT": str(api_port),
        "HEADRACE_RELAYER__LINK_PORT": str(free_port()),
        "HEADRACE_RELAYER__DATABASE": str(database),
    }
    log = await asyncio.to_thread((folder / f"{database.stem}.log").open, "wb")
    started_s = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*_COMMAND, env=environment, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(_TIMEOUT_S), aiohttp.ClientSession() as http:
            await _until_ready(http, f"http://127.0.0.1:{api_port}/readyz", process)
            ready_s = time.perf_counter() - started_s
            while wants_cycle and not await asyncio.to_thread(_has_cycle, database):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return ready_s, time.perf_counter() - started_s
    finally:
        process.kill()
        await process.wait()
        log.close()


_COMMAND = (sys.executable, "-c", "from headrace.cli import main; main()", "relayer")


async def _until_ready(http: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process) -> None:
    while process.returncode is None:
        try:
            async with http.get(url) as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.02)
    raise AssertionError(f"the relayer ended with {process.returncode}: see its log")


def _has_cycle(database: Path) -> bool:
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT 1 FROM cycles LIMIT 1").fetchone() is not None


async def _main() -> None:
    with tempfile.TemporaryDirectory() as name:
        for row in await start_with_backlog(Path(name), int(os.environ.get("SEED", "1"))):
            Console().print(f"{row.measure}: {row.value:.2f} {row.unit}")


if __name__ == "__main__":
    asyncio.run(_main())
