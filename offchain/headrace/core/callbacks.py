"""What the four bytes mean that the market keeps of a callback that failed."""

from __future__ import annotations

from collections.abc import Mapping

# Solidity's own: Error(string) of `require` and `revert`, and Panic(uint256). The rest of what was said is not kept.
_MEANINGS: Mapping[str, str] = {
    "0x00000000": "it gave no reason: it reverted without one, or the callback's gas ran out",
    "0x08c379a0": "it reverted with a text, of which the chain keeps only that it was one (Error)",
    "0x4e487b71": "it panicked, as on a failed assert, an overflow or an index out of bounds (Panic)",
}


def why_callback_failed(reason: str) -> str:
    """A clause about the requester's contract.

    Args:
        reason: the first four bytes of what it reverted with, as `0x` and eight digits; zeros when there were fewer.
    """
    return _MEANINGS.get(reason, f"it reverted with an error of its own, whose selector is {reason}")
