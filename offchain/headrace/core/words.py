"""The ABI encoding of values that take one word each, as hashes of structs and leaves have them.

`eth_abi` encodes everything, and looks up and checks each type anew: 20 to 50 µs a struct, of which a request takes a
dozen. What it gives for these types is what this gives; a test holds the two together. Source: Solidity's contract ABI
specification, static types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from headrace.core.errors import InvalidInput


def encode_words(kinds: Sequence[str], values: Sequence[object]) -> bytes:
    """32 bytes for each value.

    Args:
        kinds: `bytes32`, `address` (hex text of 20 bytes), `bool` and `uint8` to `uint256`.
        values: as many.

    Raises:
        InvalidInput: a value is not of its kind.
    """
    if len(kinds) != len(values):
        raise InvalidInput(f"there are {len(values)} values for {len(kinds)} words")
    return b"".join([_writer(kind)(value) for kind, value in zip(kinds, values, strict=True)])


@lru_cache(maxsize=64)
def _writer(kind: str) -> Callable[[object], bytes]:
    if kind == "bytes32":
        return _bytes32
    if kind == "address":
        return _address
    if kind == "bool":
        return _bool
    bits = int(kind.removeprefix("uint")) if kind.startswith("uint") and kind[4:].isdigit() else 0
    if not 8 <= bits <= 256 or bits % 8:
        raise InvalidInput(f"{kind} is no type of one word that is known here")

    def write(value: object) -> bytes:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << bits:
            raise InvalidInput(f"{value!r} is no {kind}")
        return value.to_bytes(32, "big")

    return write


def _bytes32(value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != 32:
        raise InvalidInput(f"{value!r} is no bytes32")
    return value


def _address(value: object) -> bytes:
    if isinstance(value, str) and len(value) == 42 and value.startswith("0x"):
        try:
            raw = bytes.fromhex(value[2:])
        except ValueError:
            raw = b""
        if len(raw) == 20:  # spaces are skipped in hexadecimal text
            return bytes(12) + raw
    raise InvalidInput(f"{value!r} is no address")


def _bool(value: object) -> bytes:
    if not isinstance(value, bool):
        raise InvalidInput(f"{value!r} is no bool")
    return int(value).to_bytes(32, "big")
