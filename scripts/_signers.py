"""Who signs a script's transactions: an Ape account, a key in the environment, or a local chain's test account."""

import os
import sys
from typing import Any, Protocol

from ape import accounts
from ape.exceptions import ApeException
from ape.logging import LogLevel, logger
from eth_account import Account
from eth_account.signers.local import LocalAccount

from scripts._errors import Failure


class Signer(Protocol):
    """Signs transactions for one address."""

    address: str

    def sign(self, transaction: dict[str, Any]) -> bytes:
        """Return the signed transaction as it is sent."""
        ...


class KeySigner:
    """Signs with a key that is held in memory."""

    def __init__(self, account: LocalAccount) -> None:
        self.address: str = account.address
        self._account = account

    def sign(self, transaction: dict[str, Any]) -> bytes:
        return bytes(self._account.sign_transaction(transaction).raw_transaction)


class ApeSigner:
    """Signs with an account that Ape knows by its alias."""

    def __init__(self, alias: str, ecosystem: Any) -> None:
        try:
            self._account = accounts.load(alias)
        except KeyError:
            raise Failure(f"Ape knows no account '{alias}': see `ape accounts list`.") from None
        self._ecosystem = ecosystem
        self.address = str(self._account.address)
        self._unlock(alias)

    def sign(self, transaction: dict[str, Any]) -> bytes:
        with logger.at_level(LogLevel.ERROR):  # it warns at each signature that it does not ask
            signed = self._account.sign_transaction(self._ecosystem.create_transaction(**transaction))
        if signed is None:
            raise Failure(f"Account {self.address} did not sign.")
        return bytes(signed.serialize_transaction())

    def _unlock(self, alias: str) -> None:
        if not hasattr(self._account, "set_autosign"):
            return
        variable = f"APE_ACCOUNTS_{alias}_PASSPHRASE"
        if variable not in os.environ and not sys.stdin.isatty():
            raise Failure(f"Set {variable} to the passphrase of account '{alias}'.")
        try:
            self._account.set_autosign(True)
        except ApeException:
            raise Failure(f"{variable} does not unlock account '{alias}'.") from None


def signer_of(
    role: str,
    *,
    provider: Any,
    is_local: bool,
    alias: str | None,
    variable: str,
    test_account: int | None,
    local_default: int | None = None,
) -> Signer:
    """Return who signs as `role`: the command line comes first, then the environment, then a local chain's default."""
    if alias is not None:
        return ApeSigner(alias, provider.network.ecosystem)
    if test_account is None and variable in os.environ:
        return _from_environment(variable)
    if test_account is None and is_local:
        test_account = local_default
    if test_account is None:
        raise Failure(f"Name an account for the {role}, or set {variable}.")
    if not is_local:
        raise Failure(f"Test accounts sign on local chains only: name an account for the {role}, or set {variable}.")
    try:
        key = accounts.test_accounts[test_account].private_key
    except (IndexError, KeyError):
        raise Failure(f"There is no test account {test_account}.") from None
    return KeySigner(Account.from_key(key))


def _from_environment(variable: str) -> Signer:
    try:
        return KeySigner(Account.from_key(os.environ[variable].strip()))
    except Exception:  # noqa: BLE001 - whatever it says might quote the key
        raise Failure(f"{variable} holds no private key.") from None
