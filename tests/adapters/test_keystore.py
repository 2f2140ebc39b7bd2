"""Keys: what they sign, where they come from, and that they do not leak."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from headrace.adapters.keystore import LocalSigner, create_keystore, load_signer, open_keystore
from headrace.core.errors import ConfigurationError, InvalidInput
from headrace.core.typed_data import Domain, digest, hash_accept, signer_of, typed_message
from headrace.ports import Signer

KEY = "0x" + "4c" * 32
PASSWORD = "correct horse"
CHEAP = 2**4
TRANSACTION: dict[str, Any] = {
    "type": 2,
    "chainId": 31337,
    "nonce": 7,
    "to": "0x" + "ab" * 20,
    "value": 0,
    "data": b"\x01\x02",
    "gas": 100_000,
    "maxFeePerGas": 10**9,
    "maxPriorityFeePerGas": 1,
}


@pytest.fixture
def signer() -> LocalSigner:
    return LocalSigner(bytes.fromhex(KEY[2:]))


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    path = tmp_path / "node.json"
    create_keystore(path, PASSWORD, iterations=CHEAP)
    return path


async def test_signs_what_recovers_to_its_address(signer: Signer) -> None:
    domain = Domain(31337, "0x" + "a1" * 20)
    for number in range(20):
        message = number.to_bytes(32, "big")
        assert signer_of(digest(domain, message), await signer.sign_typed(domain, message)) == signer.address


async def test_signs_what_a_wallet_signs(signer: Signer) -> None:
    domain = Domain(31337, "0x" + "a1" * 20)
    message = {"requestId": b"\x22" * 32, "relayer": "0x" + "b1" * 20, "round": 3, "deadline": 99}
    ours = await signer.sign_typed(domain, hash_accept("0x" + "22" * 32, "0x" + "b1" * 20, 3, 99))
    wallet = Account.sign_typed_data(KEY, full_message=typed_message(domain, "Accept", message))
    assert ours == bytes(wallet.signature)


async def test_signs_transactions(signer: Signer) -> None:
    raw, transaction_hash = await signer.sign_transaction(TRANSACTION)
    assert Account.recover_transaction(raw).lower() == signer.address
    assert transaction_hash.startswith("0x") and len(transaction_hash) == 66


@pytest.mark.parametrize("change", [{"to": "0xzz"}, {"nonce": "seven"}, {"bogus": 1}, {"from": "0x" + "00" * 20}])
async def test_refuses_a_transaction_that_is_none(signer: Signer, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        await signer.sign_transaction({**TRANSACTION, **change})
    assert KEY[2:] not in _everything(caught.value)


def test_refuses_a_digest_of_another_length(signer: LocalSigner) -> None:
    with pytest.raises(InvalidInput, match="32 bytes"):
        signer.sign_digest(b"short")


def test_a_signer_does_not_show_its_key(signer: Signer, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("test").warning("%r %s", signer, signer)
    shown = repr(signer) + str(signer) + f"{[signer]}" + caplog.text
    assert signer.address in shown
    assert KEY[2:] not in shown
    for write_down in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            write_down(signer)


def test_a_new_keystore_opens_again(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "node.json"
    made = create_keystore(path, PASSWORD, iterations=CHEAP)
    assert open_keystore(path, PASSWORD).address == made.address
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["node.json"]


def test_a_keystore_is_never_replaced(keystore: Path) -> None:
    before = keystore.read_bytes()
    with pytest.raises(ConfigurationError, match="exists"):
        create_keystore(keystore, "other", iterations=CHEAP)
    assert keystore.read_bytes() == before
    assert len(list(keystore.parent.iterdir())) == 1


def test_two_keystores_hold_two_keys(tmp_path: Path) -> None:
    first = create_keystore(tmp_path / "1", PASSWORD, iterations=CHEAP)
    assert create_keystore(tmp_path / "2", PASSWORD, iterations=CHEAP).address != first.address


def test_the_password_comes_from_the_environment_or_a_file(keystore: Path, tmp_path: Path) -> None:
    password_file = tmp_path / "password"
    password_file.write_text(PASSWORD + "\n", encoding="utf-8")
    by_file = load_signer(keystore=keystore, password_file=password_file, environ={})
    by_variable = load_signer(keystore=keystore, environ={"HEADRACE_KEYSTORE_PASSWORD": PASSWORD})
    assert by_file.address == by_variable.address


@pytest.mark.parametrize("text", [KEY, KEY[2:], KEY.upper().replace("0X", "0x"), f" {KEY}\n"])
def test_a_key_comes_from_a_variable(text: str) -> None:
    signer = load_signer(key_variable="HEADRACE_NODE_PRIVATE_KEY", environ={"HEADRACE_NODE_PRIVATE_KEY": text})
    assert signer.address == Account.from_key(KEY).address.lower()


Load = Callable[[Path, Path], LocalSigner]


@pytest.mark.parametrize(
    ("load", "says"),
    [
        pytest.param(lambda k, d: load_signer(environ={}), "there is no key", id="none"),
        pytest.param(lambda k, d: load_signer(private_key="", environ={}), "there is no key", id="empty key"),
        pytest.param(lambda k, d: load_signer(keystore=k, private_key=KEY, environ={}), "both a keystore", id="both"),
        pytest.param(lambda k, d: load_signer(private_key="0x1234", environ={}), "64 hexadecimal digits", id="short"),
        pytest.param(lambda k, d: load_signer(private_key="0x" + "zz" * 32, environ={}), "64 hexadecimal", id="no hex"),
        pytest.param(lambda k, d: load_signer(private_key="0" * 64, environ={}), "secp256k1", id="zero"),
        pytest.param(lambda k, d: load_signer(private_key="f" * 64, environ={}), "secp256k1", id="beyond the curve"),
        pytest.param(lambda k, d: load_signer(keystore=k, environ={}), "password is missing", id="no password"),
        pytest.param(
            lambda k, d: load_signer(keystore=k, environ={"HEADRACE_KEYSTORE_PASSWORD": "wrong"}),
            "does not open the keystore",
            id="wrong password",
        ),
        pytest.param(
            lambda k, d: load_signer(keystore=d / "none", environ={"HEADRACE_KEYSTORE_PASSWORD": PASSWORD}),
            "does not exist",
            id="no keystore",
        ),
        pytest.param(
            lambda k, d: load_signer(keystore=d, environ={"HEADRACE_KEYSTORE_PASSWORD": PASSWORD}),
            "cannot be read",
            id="a folder",
        ),
        pytest.param(
            lambda k, d: load_signer(keystore=k, password_file=d / "none", environ={}),
            "password file .* cannot be read",
            id="no password file",
        ),
        pytest.param(
            lambda k, d: load_signer(keystore=k, password_file=k, environ={"HEADRACE_KEYSTORE_PASSWORD": PASSWORD}),
            "both a password file",
            id="two passwords",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(keystore: Path, load: Load, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        load(keystore, keystore.parent)
    message = str(caught.value)
    assert "\n" not in message
    for secret in (KEY[2:], PASSWORD, "0x1234", "zz" * 32):
        assert secret not in _everything(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"{}", b'{"version":3}', b'{"version":3,"crypto":{}}', b"[" * 10_000],
)
def test_a_file_that_is_no_keystore_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keystore"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="is not a keystore"):
        open_keystore(path, PASSWORD)


def test_a_damaged_keystore_is_refused(keystore: Path) -> None:
    document = json.loads(keystore.read_text(encoding="utf-8"))
    document["crypto"]["kdfparams"]["n"] = "many"
    keystore.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="is not a keystore"):
        open_keystore(keystore, PASSWORD)


def test_an_empty_password_file_and_an_empty_password_are_refused(keystore: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(ConfigurationError, match="is empty"):
        load_signer(keystore=keystore, password_file=empty, environ={})
    with pytest.raises(ConfigurationError, match="needs a password"):
        create_keystore(tmp_path / "new", "")


def _everything(exc: BaseException | None) -> str:
    """All that a log line with a traceback would say (the lines of this file that it quotes apart)."""
    said = ""
    while exc is not None:
        said += f"{exc!r} {exc} "
        exc = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    return said
