"""A market with a bonded relayer and a joined node, and the few moves that most tests are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from eth_utils import keccak

from tests.contracts import builders
from tests.contracts.builders import Item, ItemStatus, Posted, SetOf, Shares, Status

# Enough for every call of the tests. A given limit also means that Ape does not estimate, which would run a call at
# another time than the one the next block was set to.
GAS_LIMIT = 14_000_000

WORDS_SLOT = 4  # of the market's storage: the mapping of the requests' words


@dataclass(frozen=True)
class GasTerms:
    tip_cap: int = 2 * builders.GWEI
    fixed: int = 90_000
    item: int = 16_000
    node: int = 15_000
    assigned: int = 100_000

    def as_tuple(self) -> tuple[int, ...]:
        return (self.tip_cap, self.fixed, self.item, self.node, self.assigned)

    def per_item(self, total: int, nodes: int = 1, in_set: int = 0) -> int:
        """Gas that settlement pays for an item of a batch of `total`, one of `in_set` in a set of so many nodes."""
        return self.fixed // total + self.item + self.node * (nodes - 1) // (in_set or total)


@dataclass
class World:
    provider: object
    chain: object
    stakes: object
    log: object
    market: object
    gas_terms: GasTerms
    owner: object
    relayer: object
    relayer_key: str
    node_owner: object
    node_key: str
    node: str
    requester: object
    stranger: object
    posted: list[Posted] = field(default_factory=list)
    holders: set[str] = field(default_factory=set)

    # TIME

    @property
    def now(self) -> int:
        return self.chain.blocks.head.timestamp

    def next_block_at(self, timestamp: int) -> None:
        self.provider.make_request("evm_setNextBlockTimestamp", [timestamp])

    def mine_at(self, timestamp: int) -> None:
        self.next_block_at(timestamp)
        self.chain.mine()

    def next_block_base_fee(self, wei: int) -> None:
        self.provider.make_request("anvil_setNextBlockBaseFeePerGas", [hex(wei)])

    def gas_price_paid_for(self, receipt) -> int:
        """What settlement pays a unit of gas: the price, or less than the cap above the base fee."""
        base_fee = self.chain.blocks[receipt.block_number].base_fee
        return min(receipt.gas_price, base_fee + self.gas_terms.tip_cap)

    # REQUESTS

    def params(self, **fields) -> dict:
        defaults = {"relayer": self.relayer.address, "deadline": self.now + 600}
        return builders.params(**(defaults | fields))

    def prepare(self, requester=None, **fields) -> Posted:
        """A request as it will be when it is posted."""
        requester = requester or self.requester
        params = self.params(**fields)
        request = builders.pack(params, requester.address)
        return Posted(params, request, builders.request_id(request, self.market.address))

    def post(self, requester=None, prompt: bytes = b"", **fields) -> Posted:
        requester = requester or self.requester
        posted = self.prepare(requester, **fields)
        self.market.requestInference(posted.params, prompt, sender=requester, value=posted.escrow)
        return self.track(posted)

    def post_many(self, count: int, requester=None, **fields) -> list[Posted]:
        requester = requester or self.requester
        many = [self.prepare(requester, **fields) for _ in range(count)]
        self.market.requestInferenceBatch(
            [p.params for p in many], [b""] * count, sender=requester, value=sum(p.escrow for p in many)
        )
        return [self.track(p) for p in many]

    def track(self, posted: Posted) -> Posted:
        self.posted.append(posted)
        self.holders.add(posted.request["requester"])
        return posted

    def status_of(self, posted: Posted) -> Status:
        return Status(self.market.statusOf([posted.id])[0])

    def deadline_of(self, posted: Posted) -> int:
        return self.market.pendingOf(posted.id).effectiveDeadline

    def word_of(self, request_id: bytes) -> int:
        """The market's storage word of a request."""
        slot = keccak(request_id + WORDS_SLOT.to_bytes(32, "big"))
        return int.from_bytes(self.provider.get_storage(self.market.address, slot), "big")

    # ROUNDS AND RESULTS

    def record_round(self) -> int:
        """Records the relayer's next round and returns its number."""
        round_ = self.log.nextRound(self.relayer)
        self.log.recordRound(self.relayer, builders.record(round_), b"", sender=self.relayer)
        return round_

    def set_of(self, items: Sequence[Item], round_: int, **fields) -> SetOf:
        values = {"key": self.node_key, "market": self.market.address, "relayer": self.relayer.address}
        return SetOf(round=round_, items=list(items), **(values | fields))

    def submit(self, *sets: SetOf | dict, sender=None, relayer=None, **kwargs):
        built = [_as_tuple(s.build() if isinstance(s, SetOf) else s) for s in sets]
        relayer = relayer or self.relayer
        return self.market.submitResults(relayer, built, sender=sender or self.relayer, **kwargs)

    def encode_submit(self, built: dict) -> bytes:
        """The calldata of a submission, for tests that bend it."""
        return bytes(self.market.submitResults.encode_input(self.relayer, [_as_tuple(built)]))

    def send_raw(self, calldata: bytes):
        return self.market(data=calldata, sender=self.relayer)

    def settle(self, *posted: Posted, **kwargs):
        """Records a round and settles the requests in one set."""
        round_ = self.record_round()
        return self.submit(self.set_of([builders.item(p) for p in posted], round_), **kwargs)

    def statuses(self, receipt) -> list[list[ItemStatus]]:
        events = receipt.decode_logs(self.market.BatchSettled)
        return [[ItemStatus(byte) for byte in event.statuses] for event in events]

    def shares_in(self, receipt, item: Item, total: int = 1, result_bytes: int = 0, added: int = 0) -> Shares:
        """What a settled item must have paid in a batch of `total`."""
        posted = next(p for p in self.posted if p.id == item.request_id)
        price = self.gas_price_paid_for(receipt)
        return builders.shares(posted, item.reward, self.gas_terms.per_item(total), price, result_bytes, added)

    # MONEY

    # By plain calls: they are made after each test, and Ape's take five times as long.

    def credit(self, account) -> int:
        address = str(getattr(account, "address", account))
        return self._read("accountOf(address)", bytes(12) + bytes.fromhex(address[2:]))[0]

    def settled_count(self, account) -> int:
        return self.market.accountOf(account).settledCount

    def open_escrow(self) -> int:
        return sum(
            posted.escrow + self._read("pendingOf(bytes32)", posted.id)[0]
            for posted, status in zip(self.posted, self._statuses(), strict=True)
            if status == Status.PENDING
        )

    def _statuses(self) -> list[int]:
        if not self.posted:
            return []
        words = [32, len(self.posted), *(int.from_bytes(posted.id, "big") for posted in self.posted)]
        return self._read("statusOf(bytes32[])", b"".join(word.to_bytes(32, "big") for word in words))[2:]

    def _read(self, signature: str, arguments: bytes) -> list[int]:
        """The words that a view of the market returns."""
        data = keccak(text=signature)[:4] + arguments
        answer = bytes(self.provider.web3.eth.call({"to": self.market.address, "data": "0x" + data.hex()}))
        return [int.from_bytes(answer[at : at + 32], "big") for at in range(0, len(answer), 32)]

    def assert_conserved(self) -> None:
        """Not a wei of the market's balance is anybody's but the accounts' and the open requests'."""
        credited = sum(self.credit(holder) for holder in self.holders)
        assert self.market.balance == credited + self.open_escrow()


def _as_tuple(value):
    """Ape takes a dictionary for a struct, but not within another struct's array."""
    if isinstance(value, dict):
        return tuple(_as_tuple(v) for v in value.values())
    if isinstance(value, list):
        return [_as_tuple(v) for v in value]
    return value
