"""The last look at a transaction before a key signs it: only what the operator's own typed values can have asked for.

Nothing that a model wrote reaches a signer; a call that is not one of these few is refused whatever it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.errors import ExpiredContext, Refused
from headrace.core.types import Address

MAX_TRANSACTION_GAS = 16_777_216
"""EIP-7825."""
MAX_FEE_CEILING_WEI = 10_000 * 10**9
"""What nobody means to pay for a unit of gas."""


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """What may be signed. `selectors`: for each allowed target, the first four bytes of the calls it may get."""

    selectors: Mapping[Address, frozenset[bytes]]
    max_fee_ceiling_wei: int


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A transaction that is about to be signed."""

    to: Address
    data: bytes
    value_wei: int
    gas_limit: int
    max_fee_wei: int


NOOP_GAS = 21_000


def require_noop(policy: GuardPolicy, transaction: Unsigned, sender: Address) -> None:
    """Check that a transaction does nothing but take its sender's nonce.

    Raises:
        Refused: it could do more.
        ExpiredContext: the chain asks for a higher fee than the policy allows now.
    """
    does_nothing = transaction.to == sender and not transaction.data and transaction.value_wei == 0
    if not does_nothing or transaction.gas_limit != NOOP_GAS:
        raise Refused("a transaction that gives a nonce up sends nothing, to its sender itself")
    _require_affordable(policy, transaction)


def require_signable(policy: GuardPolicy, transaction: Unsigned) -> None:
    """Check a transaction against the policy.

    Raises:
        Refused: its target, selector, value or gas is none that the key is ever needed for.
        ExpiredContext: the chain asks for a higher fee than the policy allows now; later may be better.
    """
    allowed = policy.selectors.get(transaction.to)
    if allowed is None:
        raise Refused(f"the target {transaction.to} is not on the list of contracts that this key calls")
    if transaction.data[:4] not in allowed:
        raise Refused(f"the selector 0x{transaction.data[:4].hex()} is not one that this key calls")
    if transaction.value_wei != 0:
        raise Refused(f"the transaction would send {transaction.value_wei} wei, and those of this key never send any")
    if transaction.gas_limit > MAX_TRANSACTION_GAS:
        raise Refused(f"the gas limit {transaction.gas_limit} is above the most a transaction may use")
    _require_affordable(policy, transaction)


def _require_affordable(policy: GuardPolicy, transaction: Unsigned) -> None:
    if transaction.max_fee_wei > policy.max_fee_ceiling_wei:
        raise ExpiredContext(
            f"gas costs {transaction.max_fee_wei} wei at most now, above the ceiling of {policy.max_fee_ceiling_wei}"
        )
