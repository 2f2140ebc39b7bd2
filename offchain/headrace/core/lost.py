"""Rounds whose decisions are lost: what a relayer records in their place once an old copy of its store is put back.

A record takes the next number and no other, so a relayer that forgot what it signed for a number still has to record
it. A record without the forgotten leaves would be held against the assignments that nodes have in hand. The record of a
lost round says openly that nobody has its leaves: its policy is `LOST_POLICY_HASH`, its root is the hash of no leaf. It
decides nothing, so nothing can be proven by it, and an audit calls it withheld (decision 0022).
"""

from __future__ import annotations

from headrace.core.keccak import keccak
from headrace.core.rounds import hash_snapshots
from headrace.core.types import Address, Hash32, RoundRecord

MAX_UNRECORDED = 12
"""Rounds that a relayer may have closed and not on record before it decides no more."""

LOST_ROUNDS = MAX_UNRECORDED + 4
"""Numbers from the chain's next one on that may have been signed for: the open round, those that were closed, and some
whose records a reorg may have taken away."""

LOST_POLICY_HASH: Hash32 = "0x" + keccak(b"headrace: the decisions of this round are lost").hex()


def lost_record(relayer: Address, round_: int, anchor_block: int, anchor_hash: Hash32) -> RoundRecord:
    """The record of a round whose decisions nobody has. The same arguments give the same record.

    Args:
        relayer: whose round it is.
        round_: its number.
        anchor_block: the last block that was known when the loss was seen.
        anchor_hash: its hash.
    """
    # A leaf is the hash of 32 bytes, and this is of more: no decision has it.
    root = keccak(bytes.fromhex(LOST_POLICY_HASH[2:]) + bytes.fromhex(relayer[2:]) + round_.to_bytes(8, "big"))
    return RoundRecord(
        round=round_,
        decisions_root="0x" + root.hex(),
        snapshot_hash=hash_snapshots([]),
        policy_hash=LOST_POLICY_HASH,
        anchor_block=anchor_block,
        anchor_hash=anchor_hash,
        assigned=1,  # the contract takes no record that assigns nothing
        skipped=0,
        too_late=0,
    )
