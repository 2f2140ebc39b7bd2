"""What faults are proven with: recorded rounds and their leaves, signed words, and the books before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from eth_utils import keccak, to_canonical_address

from tests.contracts import builders
from tests.contracts.builders import GRACE, GWEI, ZERO, Item, ItemStatus, Mode, Posted, Tree
from tests.contracts.world import World

Fault = IntEnum("Fault", "MISSED EQUIVOCATION UNDECIDED CONTRADICTED DOUBLE_ASSIGNMENT RELEASED", start=0)

PROOF_GAS, TIP_CAP, BOUNTY_BPS = 200_000, 2 * GWEI, 1_000
NO_DECISION = builders.decision(bytes(32), ZERO, reward=0)
LOW, HIGH = b"\x00" * 31 + b"\x01", b"\xff" * 32


@dataclass(frozen=True)
class Recorded:
    """A round on the chain with its leaves."""

    relayer: str
    record: dict
    tree: Tree

    @property
    def round(self) -> int:
        return self.record["round"]

    def index_of(self, posted: Posted, node: str) -> int:
        return next(i for i, d in enumerate(self.tree.decisions) if (d["requestId"], d["node"]) == (posted.id, node))

    def proven(self, posted: Posted, node: str, **changes) -> dict:
        return self.proven_at(self.index_of(posted, node), **changes)

    def proven_at(self, index: int, /, **changes) -> dict:
        values = {
            "record": self.record,
            "decision": self.tree.decisions[index],
            "index": index,
            "proof": self.tree.proof(index),
        }
        return values | changes

    def absence(self, posted: Posted, node: str) -> dict:
        """Where the decision would be."""
        key = (posted.id, to_canonical_address(node))
        leaves = [(d["requestId"], to_canonical_address(d["node"])) for d in self.tree.decisions]
        return self.absence_at(sum(1 for leaf in leaves if leaf < key))

    def absence_at(self, index: int, /, **changes) -> dict:
        has_left, has_right = index > 0, index < len(self.tree.decisions)
        values = {
            "record": self.record,
            "index": index,
            "left": self.tree.decisions[index - 1] if has_left else NO_DECISION,
            "leftProof": self.tree.proof(index - 1) if has_left else [],
            "right": self.tree.decisions[index] if has_right else NO_DECISION,
            "rightProof": self.tree.proof(index) if has_right else [],
        }
        return values | changes


@dataclass(frozen=True)
class Books:
    """Who has what of the wei that a proof can move."""

    stakes: int
    market: int
    faults: int
    burnt: int
    reporter: int
    victim: int


@dataclass
class Trial:
    world: World
    faults: object

    # TIME AND REQUESTS

    def end(self, posted: Posted) -> None:
        """Nobody answered in time."""
        self.world.next_block_at(posted.deadline + GRACE + 1)
        self.world.market.expire([tuple(posted.request.values())], sender=self.world.stranger)

    def release(self, posted: Posted, relayer=None) -> None:
        """The requester cancels on the relayer's release."""
        valid_until = self.world.now + 1_000
        key = (relayer or self.world.relayer).private_key
        signature = builders.sign_release(key, self.world.market.address, posted.id, valid_until)
        self.world.market.cancelWithRelease(
            tuple(posted.request.values()), valid_until, signature, sender=self.world.requester
        )

    # ROUNDS

    def decision(self, posted: Posted, node: str | None = None, **fields) -> dict:
        return builders.decision(posted.id, node or self.world.node, **({"reason": 1} | fields))

    def others(self, *request_ids: bytes) -> list[dict]:
        """Decisions on requests of nobody here; LOW and HIGH come before and after all real ones."""
        return [builders.decision(each, self.world.node, reason=1) for each in request_ids]

    def record(self, decisions: Sequence[dict], relayer=None, tree: Tree | None = None, **fields) -> Recorded:
        relayer = relayer or self.world.relayer
        tree = tree or Tree(list(decisions))
        record = builders.record(self.world.log.nextRound(relayer), tree, **fields)
        self.world.log.recordRound(relayer, record, b"", sender=relayer)
        return Recorded(relayer.address, record, tree)

    # WORDS

    def accept(self, posted: Posted, round_: int, deadline: int | None = None, relayer=None, key=None) -> bytes:
        message = {
            "requestId": posted.id,
            "relayer": (relayer or self.world.relayer).address,
            "round": round_,
            "deadline": posted.deadline if deadline is None else deadline,
        }
        return builders.sign(key or self.world.node_key, self.world.market.address, "Accept", message)

    def assignment(self, posted: Posted, round_: int, node: str | None = None, relayer=None, **fields) -> dict:
        relayer = (relayer or self.world.relayer).address
        made = builders.assignment(
            builders.item(posted, 10**15), relayer, node or self.world.node, round_, posted.deadline
        )
        return made | fields

    def sign_assignment(self, assignment: dict, key: str | None = None) -> bytes:
        return builders.sign(key or self.world.relayer_key, self.world.market.address, "Assignment", assignment)

    def result(
        self,
        posted: Posted,
        answer: bytes,
        round_: int = 1,
        key=None,
        beside: Sequence[Item] | None = None,
        **fields,
    ) -> dict:
        """A result as a node signed it: alone or, given others `beside` it, as a set."""
        key = key or self.world.node_key
        item = replace(builders.item(posted, 10**15), result_hash=keccak(answer))
        relayer, market = fields.get("relayer", self.world.relayer.address), self.world.market.address
        items = [item, *(beside or ())]
        if beside is None:
            structs, signature = [], builders.sign_result(key, market, item, relayer, round_)
        else:
            structs = [builders.result_struct_hash(each, relayer, round_) for each in items]
            signature = builders.sign_set(key, market, items, relayer, round_)
        values = {
            "resultHash": item.result_hash,
            "reward": item.reward,
            "relayer": relayer,
            "round": round_,
            "set": structs,
            "signature": signature,
        }
        return values | fields

    def pay(self, posted: Posted, round_: int, **fields) -> dict:
        """Settles the request and returns what the market keeps of it."""
        item = builders.item(posted, fields.pop("reward", 10**15 // 4))
        built = self.world.set_of([item], round_, **fields)
        receipt = self.world.submit(built)
        assert self.world.statuses(receipt) == [[ItemStatus.OK]]
        return {
            "resultHash": item.result_hash,
            "relayer": self.world.relayer.address,
            "round": round_,
            "nodes": built.build()["nodes"],
            "settledAt": receipt.timestamp,
        }

    # PROVING

    def prove(self, function: str, *values, sender=None, **kwargs):
        method = getattr(self.faults, function)
        return method(*(as_tuple(value) for value in values), sender=sender or self.world.stranger, **kwargs)

    def books(self, victim: str, reporter=None) -> Books:
        balance = self.world.provider.get_balance
        return Books(
            stakes=self.world.stakes.balance,
            market=self.world.market.balance,
            faults=self.faults.balance,
            burnt=balance(ZERO),
            reporter=self.world.credit(reporter or self.world.stranger),
            victim=self.world.credit(victim) if victim != ZERO else 0,
        )

    def assert_punished(
        self,
        receipt,
        before: Books,
        fault: Fault,
        culprit: str,
        posted: Posted,
        taken: int,
        victim: str,
        loss: int,
        node: str = ZERO,
    ) -> None:
        """That a proof by the stranger took and gave what it should, to the wei, and is remembered."""
        bounty = self.bounty(taken, self.world.gas_price_paid_for(receipt))
        compensation = min(loss, taken // 2 - bounty)
        (event,) = receipt.decode_logs(self.faults.FaultProven)
        assert (event.fault, event.culprit, event.requestId, event.node) == (fault, culprit, posted.id, node)
        assert self.faults.isProven(fault, culprit, posted.id, node)
        assert (event.reporter, event.victim) == (self.world.stranger, victim)
        assert (event.slashed, event.bounty, event.compensation) == (taken, bounty, compensation)
        after = self.books(victim)
        assert before.stakes - after.stakes == taken
        assert after.reporter - before.reporter == bounty
        assert after.victim - before.victim == compensation
        assert after.market - before.market == bounty + compensation
        # Whoever makes the blocks is given the tips, and in these tests it is nobody.
        burnt = after.burnt - before.burnt - tip_of(receipt, self.world)
        assert burnt == taken - bounty - compensation
        assert burnt * 2 >= taken
        assert after.faults == before.faults == 0

    def bounty(self, taken: int, gas_price: int) -> int:
        return min(taken * BOUNTY_BPS // 10_000 + PROOF_GAS * gas_price, taken // 2)


def tip_of(receipt, world: World) -> int:
    """What the maker of a block got for a transaction, if that is the zero address."""
    block = world.provider.make_request("eth_getBlockByNumber", [hex(receipt.block_number), False])
    if int(block["miner"], 16) != 0:
        return 0
    return receipt.gas_used * (receipt.gas_price - int(block["baseFeePerGas"], 16))


def quorum(**fields) -> dict:
    """Terms of a request that two of two nodes must answer."""
    return {"mode": Mode.QUORUM, "k": 2, "n": 2} | fields


def as_tuple(value):
    """Ape takes a dictionary for a struct, but not everywhere within another."""
    if isinstance(value, dict):
        return tuple(as_tuple(v) for v in value.values())
    if isinstance(value, list | tuple):
        return [as_tuple(v) for v in value]
    return value


def reason(text: str) -> bytes:
    """As NotProven names it."""
    return text.encode().ljust(32, b"\0")
