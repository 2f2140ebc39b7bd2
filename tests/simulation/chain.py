"""A chain whose blocks, pools and endpoint misbehave as the weather says, and the ground truth of a run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes

from headrace.core.errors import Refused, Unknown
from headrace.core.keccak import keccak
from headrace.core.types import Address, Hash32, ItemStatus, Request, Status
from headrace.ports import Call
from tests.fakes import FakeChain, FakeClock, Log, _Transaction, _World
from tests.simulation.faults import Weather


@dataclass(frozen=True, slots=True)
class Wish:
    """A requester's transaction, which does what it can when it is mined.

    `kind`: post, raise, cancel or release. `value`: wei added, or until when the relayer's release counts.
    """

    kind: str
    request: Request
    value: int = 0


@dataclass
class _Sent(_Transaction):
    max_fee_wei: int = 0


class SimChain(FakeChain):
    """The fake chain with requesters' transactions, fees that decide who is in a block, and reorgs of both."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.wishes: list[Wish] = []  # that wait
        self.ever: set[Hash32] = {self._blocks[0].ref.hash}  # hashes of all blocks that there were
        self.posted: dict[Hash32, Request] = {}  # all requests that were in a block, some day
        self.is_full = False  # the next block has no room for the relayer
        self.is_naive = False  # the market pays what it has paid before, so that only the relayer's care is left
        self._granted: dict[Hash32, list[Wish]] = {}  # by block hash

    def mine_block(self, granted: list[Wish], *, is_full: bool = False) -> None:
        """Append a block with these wishes, and with what the pool has."""
        self.is_full = is_full
        world, now_s = _World(self.all_events()), self._next_s()
        logs = [log for wish in granted if (log := self._grant(world, wish, now_s))]
        ref = self.mine(*logs)
        self.is_full = False
        self.ever.add(ref.hash)
        self._granted[ref.hash] = granted

    def fork(self, depth: int, *, refill: bool) -> list[Wish]:
        """Take blocks away. Returns the wishes that were in them; `refill` puts the transactions back into the pool, as
        geth does and anvil does not."""
        gone = self._blocks[len(self._blocks) - depth :]
        self.rollback(depth)
        if refill:
            for transaction in (each for block in gone for each in block.transactions):
                self._pool.setdefault((transaction.sender, transaction.nonce), transaction)
        return [wish for block in gone for wish in self._granted[block.ref.hash]]

    def world(self) -> _World:
        """What the chain's events amount to."""
        return _World(self.all_events())

    def batches(self) -> list[tuple[Hash32, tuple[Hash32, ...]]]:
        """Of each batch on the chain, its transaction and the requests in it."""
        found = []
        for transaction in (each for block in self._blocks for each in block.transactions):
            kind, arguments = self._known_calls.get((transaction.call.to, transaction.call.data), ("", ()))
            if kind == "submit_results":
                ids = tuple(result.request_id for each in arguments[1] for _, result in each.items)
                found.append((transaction.hash, ids))
        return found

    def _item_status(
        self, world: _World, relayer: Address, round_: int, request: Request, reward_wei: int, nodes: int = 1
    ) -> ItemStatus:
        if self.is_naive and world.statuses[self.id_of(request)] is Status.FULFILLED:
            world.statuses[self.id_of(request)] = Status.PENDING
        return super()._item_status(world, relayer, round_, request, reward_wei, nodes)

    def _next_s(self) -> int:
        assert isinstance(self.clock, FakeClock)
        return max(self._blocks[-1].ref.timestamp_s, self.clock.now_ms() // 1000)

    def _grant(self, world: _World, wish: Wish, now_s: int) -> Log | None:
        """What a requester's transaction logs, by the market's rules. `world` is carried on."""
        request, id_ = wish.request, self.id_of(wish.request)
        deadline_s, status = world.deadlines.get(id_, request.deadline_s), world.statuses[id_]
        if wish.kind == "post" and status is Status.NONE and now_s < request.deadline_s:
            world.statuses[id_] = Status.PENDING
            self.posted[id_] = request
            return self.requested(request)
        if status is not Status.PENDING:
            return None
        if wish.kind == "raise" and now_s <= deadline_s:
            world.added[id_] += wish.value
            return self.raised(id_, wish.value, world.added[id_])
        if wish.kind == "cancel" and now_s < deadline_s:
            world.deadlines[id_] = now_s
            return self.cancel_announced(id_, now_s)
        if wish.kind == "release" and now_s <= wish.value:
            world.statuses[id_] = Status.CANCELLED
            return self.closed(id_, Status.CANCELLED, request.requester, request.escrow_wei + world.added[id_])
        return None

    # The pool

    def _take(self, raw: bytes) -> None:
        fields = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
        sender, hash_ = str(Account.recover_transaction(raw)).lower(), "0x" + keccak(raw).hex()
        if any(hash_ in block.receipts for block in self._blocks):
            raise Refused("already known")
        if fields["nonce"] < self._mined_count(sender):
            raise Refused("nonce too low")
        tip_wei, max_fee_wei = fields["maxPriorityFeePerGas"], fields["maxFeePerGas"]
        waiting = self._pool.get((sender, fields["nonce"]))
        if isinstance(waiting, _Sent):
            if waiting.hash == hash_:
                raise Refused("already known")
            if tip_wei * 10 < waiting.tip_wei * 11 or max_fee_wei * 10 < waiting.max_fee_wei * 11:
                raise Refused("replacement transaction underpriced")
        call = Call("0x" + bytes(fields["to"]).hex(), bytes(fields["data"]), fields["value"])
        self._pool[sender, fields["nonce"]] = _Sent(hash_, sender, fields["nonce"], call, tip_wei, max_fee_wei)

    def _includable(self) -> list[_Transaction]:
        taken: list[_Transaction] = []
        for sender in dict.fromkeys(sender for sender, _ in self._pool):
            nonce = self._mined_count(sender)
            for stale in [key for key in self._pool if key[0] == sender and key[1] < nonce]:
                del self._pool[stale]
            while not self.is_full and (sender, nonce) in self._pool:
                waiting = self._pool[sender, nonce]
                if isinstance(waiting, _Sent) and waiting.max_fee_wei < self.gas.base_fee_wei:
                    break
                taken.append(self._pool.pop((sender, nonce)))
                nonce += 1
        return taken


class Rpc:
    """A relayer's way to the chain: every call may fail, or let others go first; a send may be lost on either way."""

    def __init__(self, chain: SimChain, weather: Weather, witness: Callable[[bytes], None]) -> None:
        self._chain = chain
        self._weather = weather
        self._witness = witness

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._chain, name)
        if not inspect.iscoroutinefunction(attribute):
            return attribute

        async def call(*args: Any, **options: Any) -> Any:
            await self._before(name)
            self._weather.rpc(name)
            answer = await attribute(*args, **options)
            self._weather.hazard()
            return answer

        return call

    async def send_raw(self, raw: bytes) -> None:
        """Give a transaction to a pool, perhaps."""
        await self._before("send_raw")
        weather = self._weather
        self._witness(raw)
        weather.rpc("send_raw")
        if weather.strikes(weather.rates.send_swallowed):
            weather.counts["sends_swallowed"] += 1
            return
        await self._chain.send_raw(raw)
        weather.hazard()
        if weather.strikes(weather.rates.send_unanswered):
            weather.counts["sends_unanswered"] += 1
            raise Unknown("send_raw: the answer is lost")

    async def _before(self, name: str) -> None:
        self._weather.hazard()
        for _ in range(self._weather.pauses()):
            await asyncio.sleep(0)
        self._weather.hazard()
