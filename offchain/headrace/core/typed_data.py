"""EIP-712 digests of everything that requesters, relayers and nodes sign, and who signed a digest.

The types are those of `contracts/libraries/TypedDataLib.sol`, and `Attestation` of the verifier that takes it;
`Access`, `LinkHello` and `Heartbeat` are never seen by a contract. Source: EIP-712.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from eth_keys.datatypes import Signature
from eth_keys.exceptions import BadSignature
from eth_utils.exceptions import ValidationError

from headrace.core.errors import SignatureMismatch
from headrace.core.keccak import keccak
from headrace.core.requests import params_of
from headrace.core.types import Address, Assignment, Hash32, Request, Result, RoundRecord
from headrace.core.words import encode_words

NAME = "Headrace"
ATTESTED_KEY_VERIFIER = "Headrace AttestedKeyVerifier"
VERSION = "1"
_SECP256K1_HALF_N = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0

TYPES: dict[str, tuple[tuple[str, str], ...]] = {
    "Result": (
        ("requestId", "bytes32"),
        ("resultHash", "bytes32"),
        ("reward", "uint96"),
        ("relayer", "address"),
        ("round", "uint64"),
    ),
    "ResultSet": (("relayer", "address"), ("round", "uint64"), ("results", "bytes32[]")),
    "Accept": (("requestId", "bytes32"), ("relayer", "address"), ("round", "uint64"), ("deadline", "uint40")),
    "Assignment": (
        ("requestId", "bytes32"),
        ("relayer", "address"),
        ("node", "address"),
        ("round", "uint64"),
        ("reward", "uint96"),
        ("deadline", "uint40"),
    ),
    "Release": (("requestId", "bytes32"), ("validUntil", "uint40")),
    "RequestFor": (
        ("params", "RequestParams"),
        ("requester", "address"),
        ("relayerFee", "uint96"),
        ("validUntil", "uint40"),
    ),
    "RoundRecord": (
        ("round", "uint64"),
        ("decisionsRoot", "bytes32"),
        ("snapshotHash", "bytes32"),
        ("policyHash", "bytes32"),
        ("anchorBlock", "uint64"),
        ("anchorHash", "bytes32"),
        ("assigned", "uint32"),
        ("skipped", "uint32"),
        ("tooLate", "uint32"),
    ),
    "Submitter": (("relayer", "address"), ("submitter", "address"), ("validUntil", "uint40")),
    "RegisterNode": (("key", "address"), ("owner", "address")),
    "Attestation": (("requestId", "bytes32"), ("node", "address"), ("resultHash", "bytes32")),
    "Access": (("account", "address"), ("relayer", "address"), ("validUntil", "uint40")),
    "LinkHello": (
        ("node", "address"),
        ("relayer", "address"),
        ("protocolVersion", "uint16"),
        ("challenge", "bytes32"),
    ),
    "Heartbeat": (("node", "address"), ("relayer", "address"), ("contentHash", "bytes32")),
}
NESTED_TYPES: dict[str, tuple[tuple[str, str], ...]] = {
    "RequestParams": (
        ("relayer", "address"),
        ("modelId", "bytes32"),
        ("promptHash", "bytes32"),
        ("salt", "uint64"),
        ("deadline", "uint40"),
        ("promptBytes", "uint32"),
        ("maxOutputTokens", "uint24"),
        ("callbackGas", "uint24"),
        ("lane", "uint8"),
        ("batchable", "bool"),
        ("inlineResult", "bool"),
        ("mode", "uint8"),
        ("k", "uint8"),
        ("n", "uint8"),
        ("verifier", "address"),
        ("maxReward", "uint80"),
        ("gasBudget", "uint80"),
        ("priorityFee", "uint80"),
    ),
}
"""Types that are only ever signed as a field of another."""


def types_of(name: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """A type's fields by its name, and those of the types that it holds."""
    fields = (TYPES | NESTED_TYPES)[name]
    held = sorted({kind for _, kind in fields if kind in NESTED_TYPES})
    return {name: fields} | {kind: NESTED_TYPES[kind] for kind in held}


def _type_string(name: str) -> str:
    return "".join(
        f"{each}({','.join(f'{kind} {field}' for field, kind in fields)})" for each, fields in types_of(name).items()
    )


_TYPE_HASHES = {name: keccak(_type_string(name).encode()) for name in (*TYPES, *NESTED_TYPES)}
_DOMAIN_TYPE_HASH = keccak(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")


@dataclass(frozen=True, slots=True)
class Domain:
    """Where a signature counts. The market's domain unless a type says otherwise."""

    chain_id: int
    verifying_contract: Address
    name: str = NAME

    def separator(self) -> bytes:
        """The 32-byte domain separator."""
        return _separator(self.chain_id, self.verifying_contract, self.name)


@lru_cache(maxsize=64)
def _separator(chain_id: int, verifying_contract: Address, name: str) -> bytes:
    kinds = ("bytes32", "bytes32", "bytes32", "uint256", "address")
    values = (_DOMAIN_TYPE_HASH, keccak(name.encode()), keccak(VERSION.encode()), chain_id, verifying_contract)
    return keccak(encode_words(kinds, values))


def typed_message(domain: Domain, name: str, message: Mapping[str, object]) -> dict[str, object]:
    """The whole EIP-712 document of a message, as a wallet wants it (`eth_signTypedData_v4`)."""
    domain_type = (
        ("name", "string"),
        ("version", "string"),
        ("chainId", "uint256"),
        ("verifyingContract", "address"),
    )
    return {
        "types": {
            "EIP712Domain": [{"name": field, "type": kind} for field, kind in domain_type],
            **{
                each: [{"name": field, "type": kind} for field, kind in fields]
                for each, fields in types_of(name).items()
            },
        },
        "primaryType": name,
        "domain": {
            "name": domain.name,
            "version": VERSION,
            "chainId": domain.chain_id,
            "verifyingContract": domain.verifying_contract,
        },
        "message": dict(message),
    }


def request_for_message(request: Request, relayer_fee_wei: int, valid_until_s: int) -> dict[str, object]:
    """What a requester reads and signs to have a relayer post its request: the contract's names, and numbers as decimal
    text, since wallets round large ones."""
    fields = zip(NESTED_TYPES["RequestParams"], params_of(request), strict=True)
    return {
        "params": {name: _shown(kind, value) for (name, kind), value in fields},
        "requester": request.requester,
        "relayerFee": str(relayer_fee_wei),
        "validUntil": str(valid_until_s),
    }


def hash_request_for(request: Request, relayer_fee_wei: int, valid_until_s: int) -> bytes:
    """Struct hash of a requester's word that a relayer may post its request.

    Args:
        request: escrowed from its requester's credit in the market.
        relayer_fee_wei: paid from the same credit to the relayer that the request names.
        valid_until_s: the last second in which it may be posted.
    """
    params = _hash("RequestParams", *params_of(request))
    return _hash("RequestFor", params, request.requester, relayer_fee_wei, valid_until_s)


def hash_result(result: Result) -> bytes:
    """Struct hash of a node's result; also what a ResultSet lists."""
    return _hash(
        "Result",
        _b32(result.request_id),
        _b32(result.result_hash),
        result.reward_wei,
        result.relayer,
        result.round,
    )


def hash_result_set(relayer: Address, round_: int, results: Sequence[bytes]) -> bytes:
    """Struct hash of a set of results, given the struct hash of each in the order of the batch."""
    return keccak(
        encode_words(
            ("bytes32", "address", "uint64", "bytes32"),
            (_TYPE_HASHES["ResultSet"], relayer, round_, keccak(b"".join(results))),
        )
    )


def hash_accept(request_id: Hash32, relayer: Address, round_: int, deadline_s: int) -> bytes:
    """Struct hash of a node's word that it has the prompt and will answer by the deadline."""
    return _hash("Accept", _b32(request_id), relayer, round_, deadline_s)


def hash_assignment(assignment: Assignment) -> bytes:
    """Struct hash of a relayer's assignment."""
    return _hash(
        "Assignment",
        _b32(assignment.request_id),
        assignment.relayer,
        assignment.node,
        assignment.round,
        assignment.reward_wei,
        assignment.deadline_s,
    )


def hash_release(request_id: Hash32, valid_until_s: int) -> bytes:
    """Struct hash of a relayer's word that a request is not assigned."""
    return _hash("Release", _b32(request_id), valid_until_s)


def hash_round_record(record: RoundRecord) -> bytes:
    """Struct hash of a round's record; signed under the schedule log's domain."""
    return _hash(
        "RoundRecord",
        record.round,
        _b32(record.decisions_root),
        _b32(record.snapshot_hash),
        _b32(record.policy_hash),
        record.anchor_block,
        _b32(record.anchor_hash),
        record.assigned,
        record.skipped,
        record.too_late,
    )


def hash_submitter(relayer: Address, submitter: Address, valid_until_s: int) -> bytes:
    """Struct hash of a relayer's word that another key may submit its results until `valid_until_s`."""
    return _hash("Submitter", relayer, submitter, valid_until_s)


def hash_register_node(key: Address, owner: Address) -> bytes:
    """Struct hash of a key's consent to be registered; signed under the stake manager's domain."""
    return _hash("RegisterNode", key, owner)


def hash_attestation(request_id: Hash32, node: Address, result_hash: Hash32) -> bytes:
    """Struct hash of an attested key's word that a result is what its model said; signed under the domain of the
    verifier, which is named `ATTESTED_KEY_VERIFIER`."""
    return _hash("Attestation", _b32(request_id), node, _b32(result_hash))


def hash_access(account: Address, relayer: Address, valid_until_s: int) -> bytes:
    """Struct hash of a sign-in at a relayer's API, to read payloads until `valid_until_s`."""
    return _hash("Access", account, relayer, valid_until_s)


def hash_link_hello(node: Address, relayer: Address, protocol_version: int, challenge: Hash32) -> bytes:
    """Struct hash of a node's answer to the challenge that opens its link to a relayer."""
    return _hash("LinkHello", node, relayer, protocol_version, _b32(challenge))


def hash_heartbeat(node: Address, relayer: Address, content_hash: Hash32) -> bytes:
    """Struct hash of a heartbeat, whose content is canonical JSON under its keccak."""
    return _hash("Heartbeat", node, relayer, _b32(content_hash))


def preimage(domain: Domain, struct_hash: bytes) -> bytes:
    """The 66 bytes whose keccak is signed: what a signer takes that hashes by itself."""
    return b"\x19\x01" + domain.separator() + struct_hash


def digest(domain: Domain, struct_hash: bytes) -> bytes:
    """The 32 bytes that are signed."""
    return keccak(preimage(domain, struct_hash))


def signer_of(digest_: bytes, signature: bytes) -> Address:
    """Who signed a digest.

    Args:
        digest_: 32 bytes.
        signature: 65 bytes r ‖ s ‖ v with v 27 or 28 and s in the lower half, as the contracts take it.

    Raises:
        SignatureMismatch: it is no signature of that form.
    """
    if len(signature) != 65 or signature[64] not in (27, 28):
        raise SignatureMismatch("a signature must be 65 bytes r, s, v with v 27 or 28")
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
    if s > _SECP256K1_HALF_N:
        raise SignatureMismatch("the signature's s is in the upper half of its range (EIP-2)")
    try:
        key = Signature(vrs=(signature[64] - 27, r, s)).recover_public_key_from_msg_hash(digest_)
    except (BadSignature, ValidationError) as exc:
        raise SignatureMismatch("the signature recovers to no address") from exc
    return key.to_address()


def require_signer(expected: Address, digest_: bytes, signature: bytes, what: str) -> None:
    """Check that `expected` signed.

    Raises:
        SignatureMismatch: someone else did; the message names `what` was signed.
    """
    signer = signer_of(digest_, signature)
    if signer != expected.lower():
        raise SignatureMismatch(f"the {what} is signed by {signer}, not by {expected}")


def _hash(name: str, *values: object) -> bytes:
    return keccak(encode_words(_words_of(name), (_TYPE_HASHES[name], *values)))


@cache
def _words_of(name: str) -> tuple[str, ...]:
    """The kinds of a struct's words. A field that is a struct is hashed by its own struct hash."""
    return ("bytes32", *("bytes32" if kind in NESTED_TYPES else kind for _, kind in types_of(name)[name]))


def _shown(kind: str, value: object) -> object:
    if kind.startswith("uint"):
        return str(value)
    return "0x" + value.hex() if isinstance(value, bytes) else value


def _b32(text: Hash32) -> bytes:
    return bytes.fromhex(text[2:])
