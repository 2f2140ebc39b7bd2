"""Call data of the market's functions that requesters call, as `contracts/interfaces/IInferenceMarket.sol` has them.

Pure, so that the API can draft a transaction and a client can send one without a connection to a chain.
"""

from __future__ import annotations

from eth_abi.abi import encode

from headrace.core.keccak import keccak
from headrace.core.requests import PACKED_TYPES, pack, params_of
from headrace.core.types import Address, Hash32, Request, ResultRef

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
    return _call("requestInference", (_PARAMS, "bytes"), (params_of(request), prompt))


def request_inference_for_data(
    request: Request, prompt: bytes, relayer_fee_wei: int, valid_until_s: int, signature: bytes
) -> bytes:
    """`requestInferenceFor(RequestParams params, bytes prompt, address requester, uint96 relayerFee, uint40 validUntil,
    bytes signature)`; anyone may send it.

    Args:
        request: with the requester whose credit pays.
        prompt: as for `request_inference_data`.
        relayer_fee_wei: what the requester signed for the relayer.
        valid_until_s: the last second in which the signature counts.
        signature: of the requester's key, or what its contract takes for one (ERC-1271).
    """
    types = (_PARAMS, "bytes", "address", "uint96", "uint40", "bytes")
    values = (params_of(request), prompt, request.requester, relayer_fee_wei, valid_until_s, signature)
    return _call("requestInferenceFor", types, values)


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


def retry_callback_data(request: Request, ref: ResultRef, result: bytes) -> bytes:
    """`retryCallback(Request request, ResultRef ref, bytes result)`.

    Args:
        request: whose callback failed.
        ref: its settled result.
        result: the answer's bytes when the request asked for inline delivery, else empty.
    """
    settled = (bytes.fromhex(ref.result_hash[2:]), ref.relayer, ref.round, ref.nodes, ref.settled_at_s)
    kinds = (_PACKED, "(bytes32,address,uint64,address[],uint40)", "bytes")
    return _call("retryCallback", kinds, (tuple(pack(request)), settled, result))


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
    return keccak(f"{name}({','.join(types)})".encode())[:4] + encode(types, values)


def selectors() -> dict[str, bytes]:
    """The first four bytes of the calls that a relayer, its submitter or a node sends, by function name."""
    result_item = f"({_PACKED},uint96,bytes32)"
    result_set = f"(uint64,address[],bytes[],{result_item}[],bytes[],bytes[])"
    assignment = "(bytes32,address,address,uint64,uint96,uint40)"
    record = "(uint64,bytes32,bytes32,bytes32,uint64,bytes32,uint32,uint32,uint32)"
    signatures = {
        "recordRound": f"recordRound(address,{record},bytes)",
        "submitResults": f"submitResults(address,{result_set}[])",
        "submitResultsFor": f"submitResultsFor(address,{result_set}[],uint40,bytes)",
        "submitAssigned": f"submitAssigned({assignment},bytes,{result_set})",
        "expire": f"expire({_PACKED}[])",
        "requestInferenceFor": f"requestInferenceFor({_PARAMS},bytes,address,uint96,uint40,bytes)",
    }
    return {name: keccak(signature.encode())[:4] for name, signature in signatures.items()}


def fault_selectors() -> dict[str, bytes]:
    """The first four bytes of the calls that prove faults, by function name, as `contracts/interfaces/IFaults.sol` has
    them."""
    assignment = "(bytes32,address,address,uint64,uint96,uint40)"
    record = "(uint64,bytes32,bytes32,bytes32,uint64,bytes32,uint32,uint32,uint32)"
    decision = "(bytes32,address,uint8,uint8,uint96,uint64)"
    proven = f"({record},{decision},uint256,bytes32[])"
    absence = f"({record},uint256,{decision},bytes32[],{decision},bytes32[])"
    result = "(bytes32,uint96,address,uint64,bytes32[],bytes)"
    types = {
        "proveMissed": f"address,uint40,bytes,{proven}",
        "proveEquivocation": f"address,{result}[2]",
        "provePaidUndecided": f"(bytes32,address,uint64,address[],uint40),uint256,{absence}",
        "proveAssignedUndecided": f"{assignment},bytes,{absence}",
        "proveContradicted": f"{assignment},bytes,{proven}",
        "proveDoubleAssignment": f"address,{proven},{proven}",
        "proveReleasedAssignment": f"{assignment},bytes",
        "proveReleasedDecision": proven,
    }
    return {name: keccak(f"{name}({_PACKED},{kinds})".encode())[:4] for name, kinds in types.items()}
