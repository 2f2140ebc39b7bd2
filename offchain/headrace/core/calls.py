"""Call data of the market's functions that requesters call, as `contracts/interfaces/IInferenceMarket.sol` has them.

Pure, so that the API can draft a transaction and a client can send one without a connection to a chain.
"""

from __future__ import annotations

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from headrace.core.requests import PACKED_TYPES, pack
from headrace.core.types import Address, Hash32, Request

_PARAMS = (
    "(address,bytes32,bytes32,uint64,uint40,uint32,uint24,uint24,uint8,bool,bool,uint8,uint8,uint8,address,"
    "uint80,uint80,uint80)"
)
_PACKED = f"({','.join(PACKED_TYPES)})"


def request_inference_data(request: Request, prompt: bytes) -> bytes:
    """`requestInference(RequestParams params, bytes prompt)`.

    Args:
        request: its requester is not part of the call: the market takes the sender.
        prompt: the payload's bytes to publish with the request, or empty for a prompt known by its hash only.
    """
    return _call("requestInference", (_PARAMS, "bytes"), (_params(request), prompt))


def cancel_data(request: Request) -> bytes:
    """`cancel(Request request)`."""
    return _call("cancel", (_PACKED,), (tuple(pack(request)),))


def cancel_with_release_data(request: Request, valid_until_s: int, relayer_signature: bytes) -> bytes:
    """`cancelWithRelease(Request request, uint40 validUntil, bytes relayerSignature)`."""
    return _call(
        "cancelWithRelease", (_PACKED, "uint40", "bytes"), (tuple(pack(request)), valid_until_s, relayer_signature)
    )


def raise_priority_fee_data(request_id: Hash32) -> bytes:
    """`raisePriorityFee(bytes32 requestId)`; the wei that are sent are added."""
    return _call("raisePriorityFee", ("bytes32",), (bytes.fromhex(request_id[2:]),))


def deposit_data(account: Address) -> bytes:
    """`deposit(address account)`; the wei that are sent become its credit."""
    return _call("deposit", ("address",), (account,))


def withdraw_data(account: Address, amount_wei: int) -> bytes:
    """`withdraw(address account, uint256 amount)`: pays the account itself, whoever sends it."""
    return _call("withdraw", ("address", "uint256"), (account, amount_wei))


def withdraw_to_data(receiver: Address, amount_wei: int) -> bytes:
    """`withdrawTo(address to, uint256 amount)`: pays the sender's credit to a receiver."""
    return _call("withdrawTo", ("address", "uint256"), (receiver, amount_wei))


def _call(name: str, types: tuple[str, ...], values: tuple[object, ...]) -> bytes:
    return keccak(text=f"{name}({','.join(types)})")[:4] + encode(types, values)


def _params(request: Request) -> tuple[object, ...]:
    return (
        request.relayer,
        bytes.fromhex(request.model_id[2:]),
        bytes.fromhex(request.prompt_hash[2:]),
        request.salt,
        request.deadline_s,
        request.prompt_bytes,
        request.max_output_tokens,
        request.callback_gas,
        int(request.lane),
        request.batchable,
        request.inline_result,
        int(request.mode),
        request.k,
        request.n,
        request.verifier,
        request.max_reward_wei,
        request.gas_budget_wei,
        request.priority_fee_wei,
    )


def selectors() -> dict[str, bytes]:
    """The first four bytes of the calls that a relayer sends, by function name."""
    result_item = f"({_PACKED},uint96,bytes32)"
    result_set = f"(uint64,address[],bytes[],{result_item}[],bytes[],bytes[])"
    record = "(uint64,bytes32,bytes32,bytes32,uint64,bytes32,uint32,uint32,uint32)"
    signatures = {
        "recordRound": f"recordRound(address,{record},bytes)",
        "submitResults": f"submitResults(address,{result_set}[])",
        "expire": f"expire({_PACKED}[])",
    }
    return {name: keccak(text=signature)[:4] for name, signature in signatures.items()}
