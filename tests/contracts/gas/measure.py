"""What the market's work costs in gas: whole transactions, each alone in its block, by their receipts.

Every account has been touched before and every hash is random, as in the middle of a relayer's day.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from eth_account import Account

from tests.contracts import builders
from tests.contracts.builders import ETHER, GRACE, Item, Mode, Posted
from tests.contracts.world import GAS_LIMIT, GasTerms, World
from tests.contracts.world import _as_tuple as as_tuple

ROOT = Path(__file__).parents[3]
SNAPSHOT = Path(__file__).with_name("snapshot.json")
GAS_TERMS = ROOT / "scripts" / "_gas_terms.json"

# docs say what each row is; the keys are also those of the snapshot.
TARGETS = {
    "request": 58_000,
    "request, batch of 50": 33_000,
    "result, single": 85_000,
    "result, batch of 50, one requester, hash": 16_000,
    "result, batch of 50, one requester, 32 bytes": 18_500,
    "result, batch of 50, 50 requesters, hash": 21_500,
    "result, batch of 50, 50 requesters, 32 bytes": 24_000,
    "result, batch of 32, one requester, hash": 17_000,
    "result, batch of 50, a signature each": 22_000,
    "quorum 2-of-3, batch of 50, one requester": 18_000,
    "quorum 2-of-3, batch of 50, 50 requesters": 23_000,
    "callback, above the consumer's own gas": 7_000,
    "request that was only signed": 85_000,
    "result, settled by its node": 95_000,
    "replayed item beside good ones": 8_000,
    "replayed item in a batch of replays": 9_000,
    "expire, batch of 50": 20_000,
    "record a round": 60_000,
    "whole life, one": 200_000,
    "whole life, batches of 50": 76_000,
}


@dataclass(frozen=True)
class Row:
    gas_total: int
    items: int
    target: int

    @property
    def gas_per_item(self) -> int:
        return round(self.gas_total / self.items)

    @property
    def ok(self) -> bool:
        return self.gas_per_item <= self.target


def gas_terms() -> GasTerms:
    terms = json.loads(GAS_TERMS.read_text())
    return GasTerms(
        terms["tip_cap_wei"], terms["fixed_gas"], terms["item_gas"], terms["node_gas"], terms["assigned_gas"]
    )


def snapshot_of(rows: dict[str, Row]) -> dict:
    return {
        name: {"gas_per_item": row.gas_per_item, "target": row.target, "gas_total": row.gas_total}
        for name, row in rows.items()
    }


class GasBench:
    """A market of its own with touched accounts, and one method per kind of work."""

    def __init__(self, project, chain, accounts, seed: int = 1) -> None:
        chain.provider.network.__dict__["gas_limit"] = GAS_LIMIT
        self.rng = random.Random(seed)
        owner, relayer, node_owner = accounts[10], accounts[11], accounts[12]
        terms = gas_terms()
        stakes = owner.deploy(project.StakeManager, ETHER, ETHER, 200_000, 3_600, builders.ZERO)
        log = owner.deploy(project.ScheduleLog, stakes)
        market = owner.deploy(project.InferenceMarket, owner, stakes, log, terms.as_tuple(), (0, 0, 0))
        stakes.registerRelayer("https://relayer.example", sender=relayer, value=ETHER)
        self.node_keys = ["0x" + self._bytes32().hex() for _ in range(2)]
        owners = [node_owner, accounts[14]]
        for key, node_owner_ in zip(self.node_keys, owners, strict=True):
            node = Account.from_key(key).address
            signature = builders.sign_registration(key, stakes.address, node_owner_.address)
            stakes.registerNode(node, "", signature, sender=node_owner_, value=ETHER)
            stakes.joinMarket(node, market, sender=node_owner_)
        self.receiver = owner.deploy(project.QuietReceiver, market)
        self.requesters = [self._new_account(chain) for _ in range(50)]
        self.world = World(
            provider=chain.provider,
            chain=chain,
            stakes=stakes,
            log=log,
            market=market,
            gas_terms=terms,
            owner=owner,
            relayer=relayer,
            relayer_key=relayer.private_key,
            node_owner=node_owner,
            node_key=self.node_keys[0],
            node=Account.from_key(self.node_keys[0]).address,
            requester=self.requesters[0],
            stranger=accounts[13],
        )
        for account in (relayer, *owners, self.receiver, *self.requesters):
            market.deposit(account, sender=owner, value=self._wei())

    # WORK

    def rows(self) -> dict[str, Row]:
        """Every row of the table of targets."""
        one_post, one_record, one_settle = self.whole_life(1)
        many_post, many_record, many_settle = self.whole_life(50)
        totals = {
            "request": (one_post, 1),
            "request, batch of 50": (many_post, 50),
            "result, single": (one_settle, 1),
            "result, batch of 50, one requester, hash": (many_settle, 50),
            "result, batch of 50, one requester, 32 bytes": (self.settle(50, inline=True), 50),
            "result, batch of 50, 50 requesters, hash": (self.settle(50, requesters=50), 50),
            "result, batch of 50, 50 requesters, 32 bytes": (
                self.settle(50, requesters=50, inline=True),
                50,
            ),
            "result, batch of 32, one requester, hash": (self.settle(32), 32),
            "result, batch of 50, a signature each": (self.settle(50, single=True), 50),
            "quorum 2-of-3, batch of 50, one requester": (self.settle(50, quorum=True), 50),
            "quorum 2-of-3, batch of 50, 50 requesters": (self.settle(50, requesters=50, quorum=True), 50),
            "callback, above the consumer's own gas": (self.callbacks(50) - self.callbacks(50, called=False), 50),
            "request that was only signed": (self.request_for(), 1),
            "result, settled by its node": (self.settle_assigned(), 1),
            "replayed item beside good ones": (self.settle(40, replays=10) - self.settle(40), 10),
            "replayed item in a batch of replays": (self.settle(0, replays=50), 50),
            "expire, batch of 50": (self.expire(50), 50),
            "record a round": (max(one_record, many_record), 1),
            "whole life, one": (one_post + one_record + one_settle, 1),
            "whole life, batches of 50": (many_post + many_record + many_settle, 50),
        }
        return {name: Row(total, items, TARGETS[name]) for name, (total, items) in totals.items()}

    def whole_life(self, count: int) -> tuple[int, int, int]:
        """Gas of posting, recording and settling `count` requests of one requester."""
        posted, post_gas = self._post(count)
        round_, record_gas = self._record(count)
        return post_gas, record_gas, self._submit([self._item(p) for p in posted], round_)

    def settle_with_record(self, count: int, quorum: bool = False) -> int:
        """What a relayer spends on a batch of `count` and on its round's record."""
        if quorum:
            return self.settle(count, quorum=True) + self._record(count)[1]
        _, record_gas, settle_gas = self.whole_life(count)
        return record_gas + settle_gas

    def settle_assigned(self) -> int:
        """Gas of a node's settling one result itself."""
        (posted,), _ = self._post(1)
        world, item, round_ = self.world, self._item(posted), 10**6
        assignment = builders.assignment(item, world.relayer.address, world.node, round_, posted.deadline)
        signature = builders.sign(world.relayer_key, world.market.address, "Assignment", assignment)
        built = as_tuple(world.set_of([item], round_).build())
        world.next_block_at(posted.deadline + 1)
        return world.market.submitAssigned(as_tuple(assignment), signature, built, sender=world.node_owner).gas_used

    def request_for(self) -> int:
        """Gas of posting a request that its requester only signed."""
        key = "0x" + self._bytes32().hex()
        requester = Account.from_key(key)
        market = self.world.market
        market.deposit(requester.address, sender=self.world.owner, value=ETHER)
        posted = self.world.prepare(requester, **self._random_fields())
        until, fee = self.world.now + 60, 10**14
        message = builders.request_for(posted.params, requester.address, fee, until)
        signature = builders.sign(key, market.address, "RequestFor", message)
        arguments = (posted.params, b"", requester.address, fee, until, signature)
        return market.requestInferenceFor(*arguments, sender=self.world.relayer).gas_used

    def settle(
        self,
        count: int,
        requesters: int = 1,
        inline: bool = False,
        single: bool = False,
        replays: int = 0,
        quorum: bool = False,
    ) -> int:
        """Gas of settling `count` new results of so many requesters and `replays` of results paid before."""
        fields = {"inlineResult": inline}
        if quorum:
            fields |= {"mode": Mode.QUORUM, "k": 2, "n": 3}
        if requesters == 1:
            posted, _ = self._post(count, **fields) if count else ([], 0)
        else:
            posted = [self._post(1, self.requesters[i % requesters], **fields)[0][0] for i in range(count)]
        old, _ = self._post(replays) if replays else ([], 0)
        round_, _ = self._record(count + replays)
        replayed = [self._item(p) for p in old]
        if replayed:
            self._submit(replayed, round_)
        items = [self._item(p, inline=inline) for p in posted] + replayed
        if quorum:
            items = [each.with_(reward=each.reward // 2) for each in items]
        return self._submit(items, round_, single, self.node_keys if quorum else [])

    def callbacks(self, count: int, called: bool = True) -> int:
        """Gas of settling results of a contract's requests, whose callback does nothing or is not wanted."""
        return self._settle_for_receiver(count, 50_000 if called else 0).gas_used

    def paid_for_callback(self, count: int) -> float:
        """Gas of a callback that the relayer is paid for, in a batch of so many."""
        receipt = self._settle_for_receiver(count, 50_000, gasBudget=10**17, priorityFee=0)
        terms, price = self.world.gas_terms, self.world.gas_price_paid_for(receipt)
        paid = [event.relayerPaid for event in receipt.decode_logs(self.world.market.ResultFulfilled)]
        # Of the budget's rest a tenth is the relayer's too.
        return (sum(paid) / count - 10**16) / 0.9 / price - terms.per_item(count)

    def _settle_for_receiver(self, count: int, callback_gas: int, **fields):
        fields = self._random_fields() | {"callbackGas": callback_gas} | fields
        salts = [self.rng.getrandbits(64) for _ in range(count)]
        posted = [self.world.prepare(self.receiver, **(fields | {"salt": salt})) for salt in salts]
        value = sum(p.escrow for p in posted)
        params = [p.params for p in posted]
        self.receiver.ask(params, [b""] * count, sender=self.world.requester, value=value)
        round_, _ = self._record(count)
        result_set = self.world.set_of([self._item(p) for p in posted], round_)
        return self.world.submit(result_set)

    def expire(self, count: int) -> int:
        posted, _ = self._post(count)
        self.world.next_block_at(posted[0].deadline + GRACE + 1)
        requests = [p.request for p in posted]
        return self.world.market.expire(requests, sender=self.world.stranger).gas_used

    # STEPS

    def _post(self, count: int, requester=None, **fields) -> tuple[list[Posted], int]:
        requester = requester or self.world.requester
        posted = [self.world.prepare(requester, **(self._random_fields() | fields)) for _ in range(count)]
        value = sum(p.escrow for p in posted)
        market = self.world.market
        if count == 1:
            receipt = market.requestInference(posted[0].params, b"", sender=requester, value=value)
        else:
            params = [p.params for p in posted]
            receipt = market.requestInferenceBatch(params, [b""] * count, sender=requester, value=value)
        return posted, receipt.gas_used

    def _record(self, assigned: int) -> tuple[int, int]:
        round_ = self.world.log.nextRound(self.world.relayer)
        record = builders.record(
            round_,
            decisionsRoot=self._bytes32(),
            snapshotHash=self._bytes32(),
            policyHash=self._bytes32(),
            anchorBlock=self.rng.randrange(10**7, 10**8),
            anchorHash=self._bytes32(),
            assigned=assigned,
            skipped=self.rng.randrange(1, 200),
        )
        receipt = self.world.log.recordRound(self.world.relayer, record, b"", sender=self.world.relayer)
        return round_, receipt.gas_used

    def _item(self, posted: Posted, inline: bool = False) -> Item:
        reward = posted.params["maxReward"] - self.rng.randrange(1, 10**14)
        return builders.item(posted, reward, self._bytes32(), inline)

    def _submit(self, items: list[Item], round_: int, single: bool = False, keys: list[str] | None = None) -> int:
        return self.world.submit(self.world.set_of(items, round_, single=single, keys=keys or [])).gas_used

    # CHANCE

    def _random_fields(self) -> dict:
        return {
            "modelId": self._bytes32(),
            "promptHash": self._bytes32(),
            "salt": self.rng.getrandbits(64),
            "promptBytes": self.rng.randrange(256, 4_096),
            "maxReward": self._wei(),
            "gasBudget": self._wei(),
            "priorityFee": self._wei(),
        }

    def _bytes32(self) -> bytes:
        return self.rng.randbytes(32)

    def _wei(self) -> int:
        return self.rng.randrange(5 * 10**14, 2 * 10**15)

    def _new_account(self, chain):
        address = Account.from_key(self._bytes32()).address
        chain.provider.set_balance(address, 10**21)
        chain.provider.unlock_account(address)
        return chain.account_manager[address]
