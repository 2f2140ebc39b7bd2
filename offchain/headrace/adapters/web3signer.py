"""A key that a web3signer holds, in its mode `eth1`: at another machine, or in another process.

Source: web3signer's API. `/api/v1/eth1/publicKeys` lists its keys, `/api/v1/eth1/sign/{public key}` signs the keccak of
what it is given, and JSON-RPC's `eth_signTransaction` signs a transaction of the chain that web3signer is set up for.
What comes back is used only if it is the configured address's signature of this very message. A signature has no effect
by itself, so a call may be made again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import structlog
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_utils.address import to_checksum_address
from eth_utils.exceptions import ValidationError
from hexbytes import HexBytes

from headrace.core.errors import (
    ConfigurationError,
    InvalidInput,
    SignatureMismatch,
    SignerUnavailable,
    UntrueSigner,
)
from headrace.core.keccak import keccak
from headrace.core.nesting import read_json
from headrace.core.typed_data import Domain, digest, preimage, signer_of
from headrace.core.types import Address, Hash32
from headrace.ports import Metrics

log = structlog.get_logger(__name__)

MAX_AT_ONCE = 32
"""Calls that are under way at the same time. More wait, within their deadlines."""
_MAX_ANSWER_BYTES = 1 << 20  # of the longest transaction that a pool takes, the answer is a quarter of it
_MAX_KEYS_BYTES = 1 << 24
_MAX_QUOTED_CHARS = 200
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TYPE = 2  # EIP-1559
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, repr=False)
class SignerAddress:
    """Where a remote signer is, and how it and this program know each other.

    Args:
        url: of its HTTP API. A name and a password in it are sent, and never shown.
        ca_file: who vouches for its certificate, instead of those whom the system trusts (PEM).
        certificate_file: certificate and key that this program shows it, in one file (PEM).
        timeout_s: for each call.
    """

    url: str
    ca_file: Path | None = None
    certificate_file: Path | None = None
    timeout_s: float = 5

    @property
    def shown(self) -> str:
        """The URL without what may be secret in it."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def __repr__(self) -> str:
        return f"SignerAddress({self.shown})"

    def tls(self) -> ssl.SSLContext | bool:
        """How to meet it by TLS.

        Raises:
            ConfigurationError: a file cannot be read, or is not what it must be.
        """
        if self.ca_file is None and self.certificate_file is None:
            return True
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file)
        except (OSError, ValueError) as exc:
            files = ", ".join(str(each) for each in (self.ca_file, self.certificate_file) if each)
            reason = getattr(exc, "strerror", None) or type(exc).__name__
            raise ConfigurationError(f"a certificate for the signer cannot be used ({files}): {reason}") from None
        return context


class Web3Signer:
    """One key of a web3signer. Nothing is asked of it before the first signature, or `start`, which also has it keep
    connections until `close`."""

    def __init__(self, where: SignerAddress, address: Address) -> None:
        self._where = where
        self._address = address.lower()
        self._identifier = ""
        self._session: aiohttp.ClientSession | None = None
        self._metrics: Metrics | None = None

    @property
    def address(self) -> Address:
        return self._address

    def __repr__(self) -> str:
        return f"Web3Signer({self._address} at {self._where.shown})"

    def report_to(self, metrics: Metrics) -> None:
        """Count its answers from now on."""
        self._metrics = metrics

    async def start(self) -> None:
        """See that it is there and has the key.

        Raises:
            ConfigurationError: it does not have it, or a certificate cannot be used.
            SignerUnavailable: it does not answer.
        """
        parts = urlsplit(self._where.url)
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            log.warning("signer_without_tls", signer=self._where.shown, hint="who can reach it can use the key")
        self._session = self._new_session()
        self._identifier = await self._find_key()

    async def close(self) -> None:
        """End its connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def sign_typed(self, domain: Domain, struct_hash: bytes) -> bytes:
        return await self._counted(lambda: self._typed(domain, struct_hash))

    async def sign_transaction(self, transaction: Mapping[str, Any]) -> tuple[bytes, Hash32]:
        unsigned = _unsigned(transaction)
        return await self._counted(lambda: self._transaction(unsigned))

    # What is asked, and what is made of the answer

    async def _typed(self, domain: Domain, struct_hash: bytes) -> bytes:
        self._identifier = self._identifier or await self._find_key()
        asked = {"data": "0x" + preimage(domain, struct_hash).hex()}
        content = await self._ask("POST", f"/api/v1/eth1/sign/{self._identifier}", asked)
        signature = _bytes_of(content.decode("ascii", "replace").strip(), "signature")
        if len(signature) == 65 and signature[64] in (0, 1):
            signature = signature[:64] + bytes([signature[64] + 27])
        self._require_own(digest(domain, struct_hash), signature)
        return signature

    async def _transaction(self, unsigned: Mapping[str, Any]) -> tuple[bytes, Hash32]:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "eth_signTransaction"}
        params = [{"from": self._address, **{name: _in_json(value) for name, value in unsigned.items()}}]
        raw = _bytes_of(self._result(await self._ask("POST", "/", {**asked, "params": params})), "transaction")
        try:
            signed = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
            seal = {name: int(signed[name]) for name in ("v", "r", "s")}
            is_same = bytes(TypedTransaction.from_dict({**unsigned, **seal}).encode()) == raw
        except Exception:  # noqa: BLE001 - the library's decoders raise whatever they meet
            raise UntrueSigner(f"the signer at {self._where.shown} answers with no signed transaction") from None
        if not is_same:
            raise UntrueSigner(
                f"the signer at {self._where.shown} signed another transaction than was asked: see that its "
                f"--chain-id is {unsigned['chainId']}"
            )
        rs = seal["r"].to_bytes(32, "big") + seal["s"].to_bytes(32, "big")
        self._require_own(bytes(TypedTransaction.from_dict(dict(unsigned)).hash()), rs + bytes([seal["v"] + 27]))
        return raw, "0x" + keccak(raw).hex()

    def _require_own(self, message: bytes, signature: bytes) -> None:
        try:
            signer = signer_of(message, signature)
        except SignatureMismatch as exc:
            raise UntrueSigner(f"the signer at {self._where.shown} answers with no signature: {exc}") from None
        if signer != self._address:
            raise UntrueSigner(
                f"what the signer at {self._where.shown} signed is signed by {signer}, not by {self._address}"
            )

    async def _find_key(self) -> str:
        content = await self._ask("GET", "/api/v1/eth1/publicKeys")
        try:
            listed = read_json(content)
        except ValueError:
            listed = None
        if not isinstance(listed, list):
            raise UntrueSigner(f"the signer at {self._where.shown} answers with no list of keys: is it a web3signer?")
        for text in listed:
            if _address_of(text) == self._address:
                return str(text)
        raise ConfigurationError(
            f"the signer at {self._where.shown} does not have the key of {self._address} ({len(listed)} others): give "
            "it the key and have it reload, or correct the address"
        )

    def _result(self, content: bytes) -> object:
        try:
            answer = read_json(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or ("result" in answer) == bool(answer.get("error")):
            raise UntrueSigner(f"the signer at {self._where.shown} answers something else than JSON-RPC")
        if error := answer.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            raise SignerUnavailable(
                f"the signer at {self._where.shown} signs no transaction of {self._address}: {_quoted(message)}"
            )
        return answer["result"]

    # The way there

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Raises SignerUnavailable when there is no answer, or one that says that it failed."""
        try:
            async with asyncio.timeout(self._where.timeout_s):
                status, content = await self._exchange(method, path, body)
        except TimeoutError:
            raise SignerUnavailable(
                f"the signer at {self._where.shown} did not answer within {self._where.timeout_s:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as exc:
            # An error of the library may quote the URL.
            raise SignerUnavailable(
                f"the signer at {self._where.shown} does not answer ({type(exc).__name__}): start it or correct the URL"
            ) from None
        if status == 404:
            raise SignerUnavailable(
                f"the signer at {self._where.shown} has no key of {self._address} (any more), or is not in mode eth1"
            )
        if status in (401, 403):
            raise SignerUnavailable(f"the signer at {self._where.shown} does not let this program in (HTTP {status})")
        if status != 200 and not (path == "/" and content.lstrip().startswith(b"{")):
            raise SignerUnavailable(f"the signer at {self._where.shown} answers with HTTP {status}")
        return content

    async def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        try:
            return await self._exchange_once(method, path, body)
        except aiohttp.ServerDisconnectedError:
            # It may have closed a connection that was kept, just when it was used again.
            return await self._exchange_once(method, path, body)

    async def _exchange_once(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        if self._session is not None:
            return await self._exchange_by(self._session, method, path, body)
        async with self._new_session() as session:
            return await self._exchange_by(session, method, path, body)

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=MAX_AT_ONCE, ssl=self._where.tls()))

    async def _exchange_by(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int, bytes]:
        url = self._where.url.rstrip("/") + path
        most = _MAX_ANSWER_BYTES if body is not None else _MAX_KEYS_BYTES
        async with session.request(method, url, json=body, allow_redirects=False) as response:
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > most:
                    raise UntrueSigner(f"the signer at {self._where.shown} answers more than {most} bytes")
            return response.status, bytes(content)

    async def _counted(self, sign: Callable[[], Awaitable[_T]]) -> _T:
        loop = asyncio.get_running_loop()
        started_s, outcome = loop.time(), "unavailable"
        try:
            signed = await sign()
            outcome = "signed"
        except UntrueSigner as exc:
            outcome = "untrue"
            log.error("signer_untrue", signer=self._where.shown, address=self._address, reason=str(exc))
            raise
        except ConfigurationError as exc:
            # At the start this ends the program. Later, the key may come back.
            raise SignerUnavailable(str(exc)) from None
        finally:
            if self._metrics is not None:
                self._metrics.count("headrace_signer_calls_total", outcome=outcome)
                self._metrics.observe("headrace_signer_seconds", loop.time() - started_s)
        return signed


def _unsigned(transaction: Mapping[str, Any]) -> dict[str, Any]:
    """A transaction's fields, as its signature covers them.

    Raises:
        InvalidInput: it is no EIP-1559 transaction.
    """
    fields = dict(transaction)
    try:
        fields["to"] = to_checksum_address(fields["to"])
        fields["data"] = "0x" + bytes(fields["data"]).hex()
        if fields["type"] != _TYPE:
            raise ValueError("it is of another type than EIP-1559")
        TypedTransaction.from_dict(dict(fields)).hash()
    except (TypeError, ValueError, KeyError, ValidationError) as exc:
        raise InvalidInput(f"the transaction cannot be signed: {exc}") from None
    return fields


def _in_json(value: Any) -> Any:
    return hex(value) if isinstance(value, int) else value


def _bytes_of(text: object, what: str) -> bytes:
    try:
        if not isinstance(text, str) or not text.startswith("0x"):
            raise ValueError
        return bytes.fromhex(text[2:])
    except ValueError:
        raise UntrueSigner(f"the signer answers with no {what}: {_quoted(text)}") from None


def _address_of(public_key: object) -> Address:
    """Whose an uncompressed public key is, with or without the mark of its form; nobody's, if it is none."""
    try:
        key = bytes.fromhex(str(public_key).removeprefix("0x"))
    except ValueError:
        return ""
    key = key[1:] if len(key) == 65 and key[0] == 4 else key
    return "0x" + keccak(key)[-20:].hex() if len(key) == 64 else ""


def _quoted(text: object) -> str:
    cut = str(text)[:_MAX_QUOTED_CHARS]
    return repr("".join(each if each.isprintable() else "?" for each in cut))
