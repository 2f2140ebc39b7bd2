"""Keys: a signer that can be used but not read, and where its key comes from.

A key is in an encrypted keystore file (Web3 Secret Storage, as geth and Ape write it) or in an environment variable.
No message, representation or pickle of anything here holds a key or a password.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from eth_account import Account
from eth_keys.datatypes import PrivateKey
from eth_utils.address import to_checksum_address
from eth_utils.exceptions import ValidationError

from headrace.core.errors import ConfigurationError, InvalidInput
from headrace.core.nesting import read_json
from headrace.core.typed_data import Domain, digest
from headrace.core.types import Address, Hash32

PASSWORD_VARIABLE = "HEADRACE_KEYSTORE_PASSWORD"
_KEY_BYTES = 32
_KEY_TEXT = re.compile(r"(0x)?[0-9a-fA-F]{64}")
_MAX_KEYSTORE_BYTES = 64 * 1024


class LocalSigner:
    """A secp256k1 key in this process's memory."""

    __slots__ = ("__key", "_address")

    def __init__(self, private_key: bytes) -> None:
        """Take a key of 32 bytes.

        Raises:
            ConfigurationError: it is not a key of the curve.
        """
        try:
            self.__key = PrivateKey(private_key)
            self._address: Address = self.__key.public_key.to_address()
        except (ValidationError, ValueError, TypeError):
            raise ConfigurationError("the private key is not a number of the secp256k1 curve") from None

    @property
    def address(self) -> Address:
        return self._address

    async def sign_typed(self, domain: Domain, struct_hash: bytes) -> bytes:
        return self.sign_digest(digest(domain, struct_hash))

    def sign_digest(self, digest_: bytes) -> bytes:
        """65 bytes r ‖ s ‖ v (27 or 28) over 32 bytes, at once.

        Raises:
            InvalidInput: they are not 32.
        """
        if len(digest_) != _KEY_BYTES:
            raise InvalidInput(f"a digest has 32 bytes, not {len(digest_)}")
        signature = self.__key.sign_msg_hash(digest_).to_bytes()
        return signature[:64] + bytes([signature[64] + 27])

    async def sign_transaction(self, transaction: Mapping[str, Any]) -> tuple[bytes, Hash32]:
        fields = dict(transaction)
        if isinstance(fields.get("to"), str):
            fields["to"] = _checksummed(fields["to"])
        try:
            signed = Account.sign_transaction(fields, self.__key.to_bytes())
        except (TypeError, ValueError, ValidationError) as exc:
            raise InvalidInput(f"the transaction cannot be signed: {exc}") from None
        return bytes(signed.raw_transaction), "0x" + bytes(signed.hash).hex()

    def __repr__(self) -> str:
        return f"LocalSigner({self._address})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signer is not pickled: that would write its key down")


def load_signer(
    *,
    keystore: Path | None = None,
    password_file: Path | None = None,
    private_key: str | None = None,
    key_variable: str = "HEADRACE_PRIVATE_KEY",
    environ: Mapping[str, str] | None = None,
) -> LocalSigner:
    """The signer that the operator configured, from exactly one of a keystore file and a private key.

    Args:
        keystore: the encrypted keystore file.
        password_file: holds its password; otherwise `HEADRACE_KEYSTORE_PASSWORD` does.
        private_key: a key as text, when the caller has read it already.
        key_variable: the environment variable that holds a key otherwise.
        environ: the environment, `os.environ` unless given.

    Raises:
        ConfigurationError: none or both are given, or what is given cannot be used.
    """
    environ = os.environ if environ is None else environ
    key_text = private_key or environ.get(key_variable) or None
    if keystore is not None and key_text is not None:
        raise ConfigurationError(f"there is both a keystore ({keystore}) and a private key ({key_variable}): drop one")
    if keystore is not None:
        return open_keystore(keystore, read_password(password_file, environ))
    if key_text is None:
        raise ConfigurationError(f"there is no key: set a keystore file, or {key_variable}")
    if not _KEY_TEXT.fullmatch(key_text.strip()):
        raise ConfigurationError(f"{key_variable} is not a private key: it must be 64 hexadecimal digits")
    return LocalSigner(bytes.fromhex(key_text.strip()[-64:]))


def read_password(password_file: Path | None, environ: Mapping[str, str]) -> str:
    """A keystore's password, from a file's first line or from the environment.

    Raises:
        ConfigurationError: none or both are given, or the file cannot be read.
    """
    from_environment = environ.get(PASSWORD_VARIABLE)
    if password_file is None:
        if from_environment is None:
            raise ConfigurationError(f"the keystore's password is missing: set a password file, or {PASSWORD_VARIABLE}")
        return from_environment
    if from_environment is not None:
        raise ConfigurationError(f"there is both a password file ({password_file}) and {PASSWORD_VARIABLE}: drop one")
    try:
        lines = password_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"the password file {password_file} cannot be read: {_reason(exc)}") from None
    if not lines:
        raise ConfigurationError(f"the password file {password_file} is empty")
    return lines[0]


def open_keystore(path: Path, password: str) -> LocalSigner:
    """Decrypt a keystore file.

    Raises:
        ConfigurationError: it cannot be read, is no keystore, or the password is wrong.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEYSTORE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigurationError(f"the keystore {path} does not exist") from None
    except OSError as exc:
        raise ConfigurationError(f"the keystore {path} cannot be read: {_reason(exc)}") from None
    try:
        document = read_json(content)
    except ValueError:
        document = None
    if not isinstance(document, dict) or len(content) > _MAX_KEYSTORE_BYTES:
        raise ConfigurationError(f"{path} is not a keystore: it is not a JSON object of that form")
    try:
        key = bytes(Account.decrypt(document, password))
    except ValueError as exc:
        # The library has one error for all; only this text means the password.
        if "MAC mismatch" in str(exc):
            raise ConfigurationError(f"the password does not open the keystore {path}") from None
        raise ConfigurationError(f"{path} is not a keystore that can be decrypted") from None
    except (KeyError, TypeError, AttributeError, NotImplementedError, ValidationError, MemoryError):
        raise ConfigurationError(f"{path} is not a keystore that can be decrypted") from None
    return LocalSigner(key)


def create_keystore(path: Path, password: str, *, iterations: int | None = None) -> LocalSigner:
    """Make a new key and write it to a new file that only its owner may read, whole or not at all.

    Args:
        path: where; its folder is made if it is missing. A file that exists is never replaced.
        password: at least one character.
        iterations: scrypt's cost, a power of two; the library's default unless given.

    Raises:
        ConfigurationError: the file exists or cannot be written, or the password is empty.
    """
    if not password:
        raise ConfigurationError("a keystore needs a password")
    signer_key = _new_key()
    signer = LocalSigner(signer_key)
    text = json.dumps(Account.encrypt(signer_key, password, iterations=iterations))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_new(path, text.encode())
    except FileExistsError:
        raise ConfigurationError(f"the keystore {path} exists; it is not replaced") from None
    except OSError as exc:
        raise ConfigurationError(f"the keystore {path} cannot be written: {_reason(exc)}") from None
    return signer


def _new_key() -> bytes:
    while True:
        key = secrets.token_bytes(_KEY_BYTES)
        try:
            LocalSigner(key)
        except ConfigurationError:  # pragma: no cover - one in 2^128
            continue
        return key


def _write_new(path: Path, content: bytes) -> None:
    """Write beside the target, then link: the name appears with all of its content, and never over another's."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink()


def _checksummed(address: str) -> str:
    try:
        return str(to_checksum_address(address))
    except ValueError as exc:
        raise InvalidInput(f"the transaction's recipient is not an address: {exc}") from None


def _reason(exc: Exception) -> str:
    return getattr(exc, "strerror", None) or type(exc).__name__
