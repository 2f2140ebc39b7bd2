"""The refusals of the stake manager and of owned contracts in words, as `headrace.client.refusals` has the market's."""

from __future__ import annotations

from collections.abc import Mapping

# By the error's name, with its fields as contracts/interfaces/IStakeManager.sol names them.
OWNERS_WORDS: Mapping[str, str] = {
    "AlreadyExpired": "the key would be vouched for until {validUntil}, and it is {blockTimestamp} now: "
    "give a later time",
    "AlreadyJoined": "the key {key} is in the market {market} already, or has not left it yet",
    "InvalidKey": "the zero address is no key: name the key that signs what the model said",
    "InvalidKeySignature": "the key {key} has not signed for this owner: use the owner's key that the node is of",
    "KeyAlreadyUsed": "the key {key} is, or was, a node's: make a new one with `headrace key new FILE`",
    "KeyRetired": "the key {key} was rotated away, and joins nothing any more: name the key that signs now",
    "NotARelayer": "the account {relayer} is not a registered relayer: run `ape run register_relayer`",
    "NotAttested": "the verifier does not vouch for the key {key}: nothing is to be revoked",
    "NotJoined": "the key {key} is not in the market {market}",
    "NotOwner": "the node is of {owner}, and {caller} signs: set HEADRACE_OWNER__KEY__KEYSTORE to its owner's key",
    "NothingUnbonding": "nothing of {account} is unbonding: begin that first, with an amount above 0",
    "OwnableInvalidOwner": "the zero address cannot own a contract",
    "OwnableUnauthorizedAccount": "the account {account} may not do this: set HEADRACE_OWNER__KEY__KEYSTORE to the key "
    "of the contract's owner, or of whom it is being handed to",
    "OwnershipTimelocked": "the contract may be taken over from {acceptableAt}, and it is {blockTimestamp} now: wait",
    "StillUnbonding": "it may be withdrawn from {withdrawableAt}, and it is {blockTimestamp} now: wait",
    "UnbondTooLarge": "{amount} wei are to be unbonded, and {available} wei of the stake are not yet: unbond less",
    "UnknownNode": "{key} is of no registered node: check it",
    "ZeroAddress": "the zero address is nobody: give another",
}
