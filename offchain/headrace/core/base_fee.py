"""The base fee of blocks to come, by EIP-1559's own rule: exactly for the next one, within bounds for those after it.

A block's base fee follows from its parent alone: it rises by at most an eighth, when the parent is full, and falls by
at most an eighth, when it is empty. Divisions are rounded as the specification has them.
"""

from __future__ import annotations

ELASTICITY = 2
"""A block's gas limit over its target."""
CHANGE_DENOMINATOR = 8
"""What a base fee changes by at most is this part of it. Chains of the OP stack have another."""


def next_base_fee_wei(base_fee_wei: int, gas_used: int, gas_limit: int) -> int:
    """The base fee of a block from its parent's.

    Args:
        base_fee_wei: of the parent.
        gas_used: in the parent.
        gas_limit: of the parent; twice its target.
    """
    target = gas_limit // ELASTICITY
    if gas_used == target or target == 0:
        return base_fee_wei
    delta = base_fee_wei * abs(gas_used - target) // target // CHANGE_DENOMINATOR
    return base_fee_wei + max(delta, 1) if gas_used > target else base_fee_wei - delta


def bounds_wei(base_fee_wei: int, blocks: int) -> tuple[int, int]:
    """The least and the most that the base fee can be so many blocks later.

    Args:
        base_fee_wei: of a block.
        blocks: after it; 0 gives the base fee itself.
    """
    least = most = base_fee_wei
    for _ in range(blocks):
        least -= least // CHANGE_DENOMINATOR
        most += max(most // CHANGE_DENOMINATOR, 1)
    return least, most
