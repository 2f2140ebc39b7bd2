"""Sending several transactions of one account without waiting for each."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eth_utils import from_wei, keccak, to_checksum_address
from rlp import encode as rlp_encode
from web3 import Web3
from web3.exceptions import TransactionNotFound, Web3Exception
from web3.types import TxReceipt

from scripts._errors import Failure, explain
from scripts._signers import Signer


@dataclass(frozen=True)
class Call:
    """A transaction to send; `what` completes the sentence "Could not …"."""

    what: str
    to: str | None  # None creates a contract
    data: str
    value: int = 0
    abi: Sequence[dict[str, Any]] = field(default=(), repr=False)


class Sender:
    """Sends one account's transactions, in order."""

    def __init__(self, web3: Web3, signer: Signer, *, poll_s: float, timeout_s: float) -> None:
        self._web3 = web3
        self._signer = signer
        self._poll_s = poll_s
        self._timeout_s = timeout_s
        self._chain_id = web3.eth.chain_id

    @property
    def address(self) -> str:
        """Who sends."""
        return self._signer.address

    def addresses_of_next(self, count: int) -> list[str]:
        """Return the addresses that the next `count` transactions give to the contracts they create."""
        sender, nonce = bytes.fromhex(self.address[2:]), self._nonce()
        return [to_checksum_address(keccak(rlp_encode([sender, nonce + i]))[12:]) for i in range(count)]

    def send_all(self, calls: Sequence[Call]) -> list[TxReceipt]:
        """Send calls none of which needs another to have been mined, then wait for all of them."""
        if not calls:
            return []
        fees = self._fees()
        self._require_funds(sum(call.value for call in calls))
        limits = [self._gas_limit(call) for call in calls]
        self._require_funds(sum(limits) * fees["maxFeePerGas"] + sum(call.value for call in calls))
        nonce = self._nonce()
        hashes = [
            self._send(call, {"nonce": nonce + i, "gas": limit, **fees})
            for i, (call, limit) in enumerate(zip(calls, limits, strict=True))
        ]
        # One account's transactions are mined in order, so when the last is in, all are.
        self._wait(hashes[-1], len(hashes))
        receipts = [self._web3.eth.get_transaction_receipt(each) for each in hashes]
        for call, receipt in zip(calls, receipts, strict=True):
            if receipt["status"] != 1:
                raise Failure(f"Could not {call.what}: transaction 0x{receipt['transactionHash'].hex()} reverted.")
        return receipts

    def _nonce(self) -> int:
        return self._web3.eth.get_transaction_count(to_checksum_address(self.address), "pending")

    def _fees(self) -> dict[str, int]:
        base = self._web3.eth.get_block("latest")["baseFeePerGas"]
        tip = self._web3.eth.max_priority_fee
        return {"maxFeePerGas": 2 * base + tip, "maxPriorityFeePerGas": tip}

    def _gas_limit(self, call: Call) -> int:
        try:
            # A fifth more: the state may have changed by the time it is mined.
            return self._web3.eth.estimate_gas(self._fields(call)) * 6 // 5
        except Web3Exception as error:
            raise Failure(f"Could not {call.what}: {explain(error, call.abi)}.") from error

    def _send(self, call: Call, rest: dict[str, int]) -> bytes:
        transaction = {**self._fields(call), **rest, "chainId": self._chain_id, "type": 2}
        try:
            return self._web3.eth.send_raw_transaction(self._signer.sign(transaction))
        except Web3Exception as error:
            raise Failure(f"Could not {call.what}: {explain(error, call.abi)}.") from error

    def _fields(self, call: Call) -> dict[str, Any]:
        fields = {"from": to_checksum_address(self.address), "data": call.data, "value": call.value}
        return fields if call.to is None else {**fields, "to": to_checksum_address(call.to)}

    def _require_funds(self, needed: int) -> None:
        balance = self._web3.eth.get_balance(to_checksum_address(self.address))
        if balance < needed:
            raise Failure(
                f"Account {self.address} holds {from_wei(balance, 'ether')} ETH and needs up to "
                f"{from_wei(needed, 'ether')} ETH."
            )

    def _wait(self, last: bytes, count: int) -> None:
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            try:
                self._web3.eth.get_transaction_receipt(last)
            except TransactionNotFound:
                time.sleep(self._poll_s)
            else:
                return
        raise Failure(
            f"Not all of {count} transactions were mined within {self._timeout_s:.0f} s; the last is 0x{last.hex()}."
        )
