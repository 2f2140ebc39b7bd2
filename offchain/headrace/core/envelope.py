"""Payloads: the bytes behind a prompt hash or a result hash.

What stays off-chain is wrapped in an envelope, `0x01 ‖ 16-byte salt ‖ content`, because a short text can be guessed
from a bare hash. What goes on-chain is its content alone, public for ever. Content is UTF-8 text, which never starts
with 0x01, so the first byte tells which it is. Hashes are keccak256 of all the bytes.

Salts are random, but for the answers of a quorum: its nodes must come to one hash, so each derives the salt from the
prompt's payload, whose own salt only they, the relayer and the requester know.
"""

from __future__ import annotations

from headrace.core.errors import InvalidInput
from headrace.core.keccak import keccak
from headrace.core.types import Hash32

VERSION = 1
SALT_BYTES = 16
OVERHEAD_BYTES = 1 + SALT_BYTES
_QUORUM_SALT = b"headrace: salt of a quorum's answer"


def seal(content: bytes, salt: bytes) -> bytes:
    """Wrap content for a hash that gives nothing away.

    Raises:
        InvalidInput: the salt is not 16 bytes.
    """
    if len(salt) != SALT_BYTES:
        raise InvalidInput(f"an envelope's salt has {SALT_BYTES} bytes, not {len(salt)}")
    return bytes([VERSION]) + salt + content


def quorum_salt(request_id: Hash32, prompt: bytes) -> bytes:
    """The salt of a quorum's answer: the first 16 bytes of keccak256(tag ‖ request id ‖ prompt).

    Args:
        request_id: of the request, so that one prompt asked twice gives two hashes.
        prompt: the payload of its prompt. Of one that is public the salt is no secret either.
    """
    return keccak(_QUORUM_SALT + bytes.fromhex(request_id[2:]) + prompt)[:SALT_BYTES]


def content_of(payload: bytes) -> bytes:
    """The content of an envelope, or of bare bytes as they are.

    Raises:
        InvalidInput: the payload is empty, or an envelope that ends within its salt.
    """
    if not payload:
        raise InvalidInput("the payload is empty")
    if payload[0] != VERSION:
        return payload
    if len(payload) < OVERHEAD_BYTES:
        raise InvalidInput(f"the payload is an envelope of {len(payload)} bytes, too short to hold its salt")
    return payload[OVERHEAD_BYTES:]


def hash_payload(payload: bytes) -> Hash32:
    """keccak256 of a payload's bytes, as they are stored and sent."""
    return "0x" + keccak(payload).hex()
