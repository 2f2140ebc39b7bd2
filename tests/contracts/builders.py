"""What the contracts take and what nodes and relayers sign, written from the protocol's text alone.

Nothing here imports the product: where both agree, two readings of the protocol agree.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import IntEnum

import rlp
from eth_abi import encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils import keccak, to_canonical_address, to_checksum_address

ZERO = "0x" + "00" * 20
CHAIN_ID = 31337
GRACE, MIN_TTL, MAX_TTL = 300, 10, 86_400
MAX_INLINE_PROMPT = 8192
MAX_PAUSE = 7 * 86_400
MAX_CALLBACK_GAS = 2_000_000
MAX_QUORUM = 16
GAS_PER_RESULT_BYTE = 40
ETHER, GWEI = 10**18, 10**9

Status = IntEnum(
    "Status",
    "NONE PENDING PROPOSED CHALLENGED FULFILLED FULFILLED_CALLBACK_FAILED EXPIRED CANCELLED",
    start=0,
)
ItemStatus = IntEnum(
    "ItemStatus",
    "OK UNKNOWN ALREADY_DONE LATE WRONG_RELAYER REWARD_TOO_HIGH BAD_RESULT BAD_SIGNATURE NODE_NOT_JOINED "
    "NO_ROUND PROBATION VERIFICATION_FAILED",
    start=0,
)
Mode = IntEnum("Mode", "SIGNATURE QUORUM OPTIMISTIC VERIFIER", start=0)

# Positions of the fields of a request's two packed words: (name, bits), low to high.
AMOUNTS = (("maxReward", 80), ("gasBudget", 80), ("priorityFee", 80))
TERMS = (
    ("salt", 64),
    ("deadline", 40),
    ("promptBytes", 32),
    ("maxOutputTokens", 24),
    ("callbackGas", 24),
    ("lane", 8),
    ("mode", 8),
    ("k", 8),
    ("n", 8),
)
FLAGS = ("batchable", "inlineResult")

TYPES = {
    "Result": "bytes32 requestId,bytes32 resultHash,uint96 reward,address relayer,uint64 round",
    "ResultSet": "address relayer,uint64 round,bytes32[] results",
    "Release": "bytes32 requestId,uint40 validUntil",
    "Submitter": "address relayer,address submitter,uint40 validUntil",
    "Assignment": "bytes32 requestId,address relayer,address node,uint64 round,uint96 reward,uint40 deadline",
    "Accept": "bytes32 requestId,address relayer,uint64 round,uint40 deadline",
    "RequestFor": "RequestParams params,address requester,uint96 relayerFee,uint40 validUntil",
    "RequestParams": "address relayer,bytes32 modelId,bytes32 promptHash,uint64 salt,uint40 deadline,"
    "uint32 promptBytes,uint24 maxOutputTokens,uint24 callbackGas,uint8 lane,bool batchable,bool inlineResult,"
    "uint8 mode,uint8 k,uint8 n,address verifier,uint80 maxReward,uint80 gasBudget,uint80 priorityFee",
    "RegisterNode": "address key,address owner",
    "RoundRecord": "uint64 round,bytes32 decisionsRoot,bytes32 snapshotHash,bytes32 policyHash,"
    "uint64 anchorBlock,bytes32 anchorHash,uint32 assigned,uint32 skipped,uint32 tooLate",
}

_salts = random.Random(1)


def params(**fields) -> dict:
    """A request's parameters: a hash-only prompt of 32 bytes, 1e15 wei of reward, a random salt."""
    values = {
        "relayer": ZERO,
        "modelId": keccak(text="tiny"),
        "promptHash": keccak(text="what is a headrace?"),
        "salt": _salts.getrandbits(64),
        "deadline": 0,
        "promptBytes": 32,
        "maxOutputTokens": 256,
        "callbackGas": 0,
        "lane": 0,
        "batchable": True,
        "inlineResult": False,
        "mode": Mode.SIGNATURE,
        "k": 0,
        "n": 0,
        "verifier": ZERO,
        "maxReward": 10**15 + 7,
        "gasBudget": 4 * 10**14 + 3,
        "priorityFee": 2 * 10**14 + 1,
    }
    unknown = fields.keys() - values.keys()
    assert not unknown, unknown
    return values | fields


def escrow_of(params: dict) -> int:
    return params["maxReward"] + params["gasBudget"] + params["priorityFee"]


def pack(params: dict, requester: str) -> dict:
    flags = sum(1 << bit for bit, name in enumerate(FLAGS) if params[name])
    return {
        "requester": requester,
        "relayer": params["relayer"],
        "modelId": params["modelId"],
        "promptHash": params["promptHash"],
        "amounts": _word(AMOUNTS, params),
        "terms": _word(TERMS, params) | flags << 216,
        "verifier": params["verifier"],
    }


def _word(layout: tuple, params: dict) -> int:
    word = at = 0
    for name, bits in layout:
        word |= int(params[name]) << at
        at += bits
    return word


def request_id(request: dict, market: str) -> bytes:
    words = [
        _address_word(request["requester"]),
        _address_word(request["relayer"]),
        request["modelId"],
        request["promptHash"],
        request["amounts"].to_bytes(32, "big"),
        request["terms"].to_bytes(32, "big"),
        _address_word(request["verifier"]),
    ]
    return keccak(CHAIN_ID.to_bytes(32, "big") + _address_word(market) + b"".join(words))


def address_of_next(account, after: int = 0) -> str:
    """The address of the contract that an account's next transaction, or one so many after it, creates."""
    return to_checksum_address(keccak(rlp.encode([to_canonical_address(account.address), account.nonce + after]))[12:])


def _address_word(address: str) -> bytes:
    return to_canonical_address(address).rjust(32, b"\0")


# SIGNATURES


def typed_data(contract: str, primary: str, message: dict, name: str = "Headrace", chain_id: int = CHAIN_ID) -> dict:
    """A message as wallets show it."""
    nested = [kind for kind in TYPES if kind != primary and f"{kind} " in TYPES[primary]]
    return {
        "domain": {"name": name, "version": "1", "chainId": chain_id, "verifyingContract": contract},
        "types": {
            "EIP712Domain": [
                {"name": "name", "type": "string"},
                {"name": "version", "type": "string"},
                {"name": "chainId", "type": "uint256"},
                {"name": "verifyingContract", "type": "address"},
            ],
            **{kind: _fields(kind) for kind in (primary, *nested)},
        },
        "primaryType": primary,
        "message": message,
    }


def _fields(kind: str) -> list[dict]:
    return [dict(zip(("type", "name"), part.split(" "), strict=True)) for part in TYPES[kind].split(",")]


def sign(key: str, contract: str, primary: str, message: dict, **domain) -> bytes:
    typed = typed_data(contract, primary, message, **domain)
    return bytes(Account.sign_message(encode_typed_data(full_message=typed), key).signature)


def digest_of(contract: str, primary: str, message: dict) -> bytes:
    """What is signed of a message."""
    signable = encode_typed_data(full_message=typed_data(contract, primary, message))
    return keccak(b"\x19" + signable.version + signable.header + signable.body)


def sign_result(key: str, market: str, item: Item, relayer: str, round_: int) -> bytes:
    message = {
        "requestId": item.request_id,
        "resultHash": item.result_hash,
        "reward": item.reward,
        "relayer": relayer,
        "round": round_,
    }
    return sign(key, market, "Result", message)


def result_struct_hash(item: Item, relayer: str, round_: int) -> bytes:
    types = ["bytes32", "bytes32", "bytes32", "uint96", "address", "uint64"]
    typehash = keccak(text=f"Result({TYPES['Result']})")
    return keccak(encode(types, [typehash, item.request_id, item.result_hash, item.reward, relayer, round_]))


def sign_set(key: str, market: str, items: list[Item], relayer: str, round_: int) -> bytes:
    results = [result_struct_hash(item, relayer, round_) for item in items]
    return sign(key, market, "ResultSet", {"relayer": relayer, "round": round_, "results": results})


def sign_release(key: str, market: str, request_id: bytes, valid_until: int) -> bytes:
    return sign(key, market, "Release", {"requestId": request_id, "validUntil": valid_until})


def request_for(params: dict, requester: str, relayer_fee: int, valid_until: int) -> dict:
    """The message of a requester that only signs."""
    return {
        "params": params | {"mode": int(params["mode"])},
        "requester": requester,
        "relayerFee": relayer_fee,
        "validUntil": valid_until,
    }


def assignment(item: Item, relayer: str, node: str, round_: int, deadline: int, **fields) -> dict:
    values = {
        "requestId": item.request_id,
        "relayer": relayer,
        "node": node,
        "round": round_,
        "reward": item.reward,
        "deadline": deadline,
    }
    return values | fields


def sign_submitter(key: str, market: str, relayer: str, submitter: str, valid_until: int) -> bytes:
    message = {"relayer": relayer, "submitter": submitter, "validUntil": valid_until}
    return sign(key, market, "Submitter", message)


def sign_record(key: str, log: str, record: dict) -> bytes:
    return sign(key, log, "RoundRecord", record)


def sign_registration(key: str, stakes: str, owner: str) -> bytes:
    node = Account.from_key(key).address
    return sign(key, stakes, "RegisterNode", {"key": node, "owner": owner})


# RESULTS


@dataclass(frozen=True)
class Posted:
    """A request that is on the chain."""

    params: dict
    request: dict
    id: bytes

    @property
    def escrow(self) -> int:
        return escrow_of(self.params)

    @property
    def deadline(self) -> int:
        return self.params["deadline"]


@dataclass(frozen=True)
class Item:
    """A result of a request, with what its bytes are when they go on-chain."""

    request: dict
    request_id: bytes
    reward: int
    result_hash: bytes
    result: bytes = b""

    def with_(self, **changes) -> Item:
        return replace(self, **changes)

    def as_tuple(self) -> dict:
        return {"request": self.request, "reward": self.reward, "resultHash": self.result_hash}


def item(posted: Posted, reward: int | None = None, result: bytes = b"", inline: bool = False) -> Item:
    result = result or b"an answer to " + posted.id
    return Item(
        request=posted.request,
        request_id=posted.id,
        reward=posted.params["maxReward"] * 3 // 4 if reward is None else reward,
        result_hash=keccak(result),
        result=result if inline else b"",
    )


@dataclass
class SetOf:
    """A result set in the making: signed by `key` as a set, or result by result."""

    key: str
    market: str
    relayer: str
    round: int
    items: list[Item]
    single: bool = False
    changes: dict = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)  # of a quorum's nodes, instead of `key`
    proofs: list[bytes] = field(default_factory=list)

    def build(self) -> dict:
        keys = sorted(self.keys or [self.key], key=lambda key: to_canonical_address(Account.from_key(key).address))
        # A lone item is signed as a Result.
        if self.single or len(self.items) == 1:
            signatures = [sign_result(k, self.market, i, self.relayer, self.round) for i in self.items for k in keys]
        else:
            signatures = [sign_set(k, self.market, self.items, self.relayer, self.round) for k in keys]
        results = [i.result for i in self.items]
        built = {
            "round": self.round,
            "nodes": [Account.from_key(k).address for k in keys],
            "signatures": signatures,
            "items": [i.as_tuple() for i in self.items],
            "results": results if any(results) else [],
            "proofs": self.proofs,
        }
        return built | self.changes


@dataclass(frozen=True)
class Shares:
    node: int
    relayer: int
    refund: int


def shares(
    posted: Posted, reward: int, gas_paid_for: int, gas_price: int, result_bytes: int = 0, added: int = 0
) -> Shares:
    """How one escrow is split: `gas_paid_for` is an item's gas without the bytes of its result."""
    budget = posted.params["gasBudget"]
    fee = posted.params["priorityFee"] + added
    gas = min(budget, (gas_paid_for + GAS_PER_RESULT_BYTE * result_bytes) * gas_price)
    relayer_fee = fee * 20 // 100
    relayer = gas + (budget - gas) * 10 // 100 + relayer_fee
    node = reward + fee - relayer_fee
    return Shares(node, relayer, posted.escrow + added - node - relayer)


# ROUNDS


def decision(request_id: bytes, node: str, **fields) -> dict:
    values = {
        "requestId": request_id,
        "node": node,
        "kind": 0,
        "reason": 0,
        "reward": 10**15,
        "supersedesRound": 0,
    }
    return values | fields


def leaf_of(decision: dict) -> bytes:
    types = ["bytes32", "address", "uint8", "uint8", "uint96", "uint64"]
    return keccak(keccak(encode(types, list(decision.values()))))


class Tree:
    """The decisions of a round: leaves sorted by (requestId, node), padded with zero leaves."""

    def __init__(self, decisions: list[dict]) -> None:
        self.decisions = sorted(decisions, key=lambda d: (d["requestId"], to_canonical_address(d["node"])))
        leaves = [leaf_of(d) for d in self.decisions]
        width = 1
        while width < len(leaves):
            width *= 2
        self.layers = [leaves + [bytes(32)] * (width - len(leaves))]
        while len(self.layers[-1]) > 1:
            below = self.layers[-1]
            self.layers.append([keccak(below[i] + below[i + 1]) for i in range(0, len(below), 2)])

    @property
    def root(self) -> bytes:
        return self.layers[-1][0]

    def proof(self, index: int) -> list[bytes]:
        return [layer[(index >> height) ^ 1] for height, layer in enumerate(self.layers[:-1])]


def record(round_: int, tree: Tree | None = None, **fields) -> dict:
    values = {
        "round": round_,
        "decisionsRoot": tree.root if tree else keccak(text=f"root {round_}"),
        "snapshotHash": keccak(text=f"snapshot {round_}"),
        "policyHash": keccak(text="policy"),
        "anchorBlock": 100 + round_,
        "anchorHash": keccak(text=f"anchor {round_}"),
        "assigned": len(tree.decisions) if tree else 1,
        "skipped": 0,
        "tooLate": 0,
    }
    return values | fields


def head_after(previous: bytes, relayer: str, record: dict) -> bytes:
    """The head of a relayer's chain after `record`: 216 bits of a digest."""
    types = ["bytes32", "address", "uint64", "bytes32", "bytes32", "bytes32", "uint64", "bytes32"]
    types += ["uint32"] * 3
    return keccak(encode(types, [previous, relayer, *record.values()]))[:27] + bytes(5)
