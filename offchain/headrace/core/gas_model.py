"""What a transaction costs beyond its gas: on rollups, the data that the chain below is given.

The market pays a relayer by gas and base fee alone, so on a rollup this part is the relayer's own loss, to be counted
before a request is taken on.

Sources: OP Stack specification, "L1 Cost Function" (Ecotone, Fjord); Arbitrum Nitro documentation, "Gas and fees", and
its precompile ArbGasInfo. What goes in is read from the chain; what comes out is rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

_MILLION = 10**6

# Fjord estimates a transaction's compressed size by a line over the size that FastLZ gives, in millionths of a byte.
_FJORD_LEAST_SIZE_E6 = 100 * _MILLION
_FJORD_INTERCEPT_E6, _FJORD_SLOPE_E6 = -42_585_600, 836_500


class GasModel(Protocol):
    """What a transaction's data costs."""

    def data_fee_wei(self, calldata: bytes) -> int:
        """Wei for a transaction of this calldata, besides its gas; never too little."""
        ...

    def byte_fee_wei(self) -> int:
        """Wei for one more byte that does not compress."""
        ...


@dataclass(frozen=True, slots=True)
class Ethereum:
    """Data is paid for by gas alone."""

    def data_fee_wei(self, calldata: bytes) -> int:
        """See GasModel."""
        return 0

    def byte_fee_wei(self) -> int:
        """See GasModel."""
        return 0


@dataclass(frozen=True, slots=True)
class OpStack:
    """OP-stack chains since Fjord.

    Args:
        l1_base_fee_wei: of the chain below.
        l1_blob_base_fee_wei: of its blobs.
        base_fee_scalar: of the rollup, in millionths.
        blob_base_fee_scalar: likewise.
    """

    l1_base_fee_wei: int
    l1_blob_base_fee_wei: int
    base_fee_scalar: int
    blob_base_fee_scalar: int

    def data_fee_wei(self, calldata: bytes) -> int:
        """See GasModel. FastLZ makes no text longer than by a 255th and 16 bytes: that is taken, as the chain's own
        `getL1FeeUpperBound` does."""
        size = len(calldata) + len(calldata) // 255 + 16
        size_e6 = max(_FJORD_LEAST_SIZE_E6, _FJORD_INTERCEPT_E6 + _FJORD_SLOPE_E6 * size)
        return -(-size_e6 * self._weighted_wei() // _MILLION**2)

    def byte_fee_wei(self) -> int:
        """See GasModel."""
        return -(-_FJORD_SLOPE_E6 * self._weighted_wei() // _MILLION**2)

    def ecotone_fee_wei(self, calldata: bytes) -> int:
        """What chains that are not at Fjord yet charge: by zero and other bytes, as the chain below counts them."""
        zeros = calldata.count(0)
        units = zeros * 4 + (len(calldata) - zeros) * 16
        return -(-units * self._weighted_wei() // (16 * _MILLION))

    def _weighted_wei(self) -> int:
        """Wei for a compressed byte, × 10⁶."""
        return 16 * self.base_fee_scalar * self.l1_base_fee_wei + self.blob_base_fee_scalar * self.l1_blob_base_fee_wei


@dataclass(frozen=True, slots=True)
class Arbitrum:
    """Arbitrum One and Orbit chains.

    The chain charges for the size that a transaction has once compressed; what does not compress costs this a byte. On
    top of it there is a fixed size for each transaction's envelope.

    Args:
        l1_byte_wei: `ArbGasInfo.getPricesInWei`, the second number: wei for a byte of calldata.
        l1_transaction_wei: the first: wei for a transaction whatever it carries.
    """

    l1_byte_wei: int
    l1_transaction_wei: int

    def data_fee_wei(self, calldata: bytes) -> int:
        """See GasModel."""
        return self.l1_transaction_wei + self.l1_byte_wei * len(calldata)

    def byte_fee_wei(self) -> int:
        """See GasModel."""
        return self.l1_byte_wei
