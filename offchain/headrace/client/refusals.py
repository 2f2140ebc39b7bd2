"""The market's refusals in words: its custom errors, as the Chain port decodes them, for the person who sends."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.client.owners_refusals import OWNERS_WORDS
from headrace.core.refusals import worded

# By the error's name, with its fields as contracts/interfaces/IInferenceMarket.sol names them.
WORDS: Mapping[str, str] = {
    "BalanceShort": "the account {account} has {available} wei of credit, and {required} wei are wanted: withdraw less",
    "CallbackFailedAgain": "the requester's contract failed again, since {reason}: it must be able to take the answer",
    "CallbackGasTooHigh": "a callback has at most {most} gas, and {callbackGas} are wanted: lower --callback-gas",
    "DeadlineOutOfRange": "the deadline is {deadline}, and the market takes one from {earliest} to {latest}: "
    "choose another --ttl",
    "DeadlinePassed": "the request's deadline passed at {deadline}, and it is {blockTimestamp} now: "
    "without an answer its escrow comes back after the grace period",
    "EscrowShort": "the escrow is {required} wei, and what was sent and the account's credit are {available} wei: "
    "send more, or lower --max-reward or --gas-budget",
    "InvalidSignature": "the signature is by {signer}, and not by the relayer that the request names",
    "InsufficientGas": "the call has {available} gas where {required} are needed: give the transaction more",
    "InvalidQuorum": "a quorum has 2 to 16 nodes, and {k} of {n} are wanted: correct --quorum",
    "InvalidTerms": "the market takes no request with these terms: draft it anew",
    "InvalidVerifier": "the verifier {verifier} is no contract: correct --verifier",
    "NoFailedCallback": "the request {requestId} has no callback that failed: there is nothing to call again",
    "NotAccount": "only {account} itself can have its credit paid out, as it is no contract: sign with its key "
    "(`--key`)",
    "NotPending": "the request {requestId} is not open: the market says that it is {status}",
    "NotRequester": "the request is of {requester}, and only its requester can do this",
    "NothingSent": "no wei were sent: give an amount above 0",
    "PromptMismatch": "the prompt that is published has {promptBytes} bytes and is not the one of the request's hash: "
    "draft it anew",
    "PromptTooLong": "the prompt has {promptBytes} bytes, and on-chain it may have at most {most}: "
    "shorten it, or leave out --public",
    "RequestExists": "the request {requestId} was posted before: nothing is paid twice",
    "RequestsPaused": "the market takes no new requests now: its owner paused them",
    "ResultMismatch": "the bytes are not those of the settled answer {resultHash}",
    "SafeCastOverflowedUintDowncast": "the amount is larger than the market can hold",
    "SignatureExpired": "what was signed counted until {validUntil}, and it is {blockTimestamp} now: try again",
    "TransferFailed": "the account {to} does not take the {amount} wei: choose another receiver",
    "UnsupportedMode": "this market does not pay for answers of the mode {mode}: choose another --mode",
}


def in_words(error: str) -> str:
    """A decoded custom error as a clause; one that has no words, or is none, as it is."""
    return worded(error, WORDS) or worded(error, OWNERS_WORDS) or f"the transaction would fail: {error}"
