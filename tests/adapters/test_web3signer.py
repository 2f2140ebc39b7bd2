"""A remote signer: what it signs counts as if it were here, and what it does wrong is never used."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from headrace.adapters.keystore import LocalSigner
from headrace.adapters.web3signer import MAX_AT_ONCE, SignerAddress, Web3Signer
from headrace.core.errors import ConfigurationError, InvalidInput, SignerUnavailable, UntrueSigner
from headrace.core.typed_data import Domain, digest, hash_accept, signer_of
from headrace.services.signing import sign_all
from tests.fakes import MARKET, FakeMetrics
from tests.web3signer import Answer, Web3SignerStandIn, hang_up, saying, saying_json, silence, web3signer

KEY, OTHER_KEY = b"\x4c" * 32, b"\x4d" * 32
LOCAL, OTHER = LocalSigner(KEY), LocalSigner(OTHER_KEY)
DOMAIN = Domain(31337, MARKET)
STRUCT_HASH = hash_accept("0x" + "22" * 32, "0x" + "b1" * 20, 3, 99)
TRANSACTION: dict[str, Any] = {
    "type": 2,
    "chainId": 31337,
    "nonce": 7,
    "to": "0x" + "ab" * 20,
    "value": 5,
    "data": b"\x01\x02",
    "gas": 100_000,
    "maxFeePerGas": 10**9,
    "maxPriorityFeePerGas": 1,
}


@pytest.fixture
async def stand_in() -> AsyncIterator[Web3SignerStandIn]:
    async with web3signer(OTHER_KEY, KEY) as running:
        yield running


@pytest.fixture
async def signer(stand_in: Web3SignerStandIn) -> AsyncIterator[Web3Signer]:
    made = Web3Signer(SignerAddress(stand_in.url, timeout_s=2.0), LOCAL.address)
    yield made
    await made.close()


# What it signs


@pytest.mark.parametrize("v_base", [27, 0])
async def test_signs_typed_data_as_a_key_here_does(
    stand_in: Web3SignerStandIn, signer: Web3Signer, v_base: int
) -> None:
    stand_in.v_base = v_base
    await signer.start()
    assert await signer.sign_typed(DOMAIN, STRUCT_HASH) == await LOCAL.sign_typed(DOMAIN, STRUCT_HASH)


@pytest.mark.parametrize("changes", [{}, {"data": b"", "value": 0, "gas": 21_000}, {"nonce": 0}])
async def test_signs_transactions_as_a_key_here_does(signer: Web3Signer, changes: dict[str, Any]) -> None:
    assert await signer.sign_transaction(TRANSACTION | changes) == await LOCAL.sign_transaction(TRANSACTION | changes)


async def test_signs_many_at_once_and_finds_its_key_once(stand_in: Web3SignerStandIn, signer: Web3Signer) -> None:
    await signer.start()
    hashes = [number.to_bytes(32, "big") for number in range(3 * MAX_AT_ONCE)]
    signatures = await sign_all(signer, DOMAIN, hashes)
    assert [signer_of(digest(DOMAIN, one), two) for one, two in zip(hashes, signatures, strict=True)] == [
        LOCAL.address
    ] * len(hashes)
    assert stand_in.asked.count("GET /api/v1/eth1/publicKeys") == 1


@pytest.mark.parametrize("change", [{"to": "0xzz"}, {"nonce": "seven"}, {"bogus": 1}, {"type": 1}])
async def test_a_transaction_that_is_none_is_refused_before_it_is_asked_for(
    stand_in: Web3SignerStandIn, signer: Web3Signer, change: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match="cannot be signed"):
        await signer.sign_transaction(TRANSACTION | change)
    assert stand_in.asked == []


async def test_is_known_by_its_password(stand_in: Web3SignerStandIn) -> None:
    stand_in.login = "relayer:hush hush"
    url = stand_in.url.replace("//", "//relayer:hush%20hush@")
    known, stranger = (Web3Signer(SignerAddress(each), LOCAL.address) for each in (url, stand_in.url))
    try:
        await known.start()
        with pytest.raises(SignerUnavailable, match="does not let this program in"):
            await stranger.start()
    finally:
        await known.close()
        await stranger.close()


# What it does wrong


GONE: dict[str, tuple[Answer, str]] = {
    "slow": (silence, "did not answer within 2 s"),
    "hangs up": (hang_up, "does not answer"),
    "500": (saying("no", 500), "HTTP 500"),
    "500 as JSON": (saying_json({"oops": 1}, 503), "HTTP 503|something else than JSON-RPC"),
    "404": (saying("", 404), "has no key of 0x"),
    "elsewhere": (saying("", 302), "HTTP 302"),
}
WRONG: dict[str, Answer] = {
    "nothing": saying(""),
    "no hex": saying("0xzz"),
    "bytes": saying(b"\xff\xfe"),
    "short": saying("0x1234"),
    "zeros": saying("0x" + "00" * 64 + "1b"),
    "no v": saying("0x" + "11" * 64 + "1d"),
    "too much": saying("0x" + "11" * 2_000_000),
    "a list": saying_json([1]),
    "no result": saying_json({"jsonrpc": "2.0", "id": 1}),
    "a number": saying_json({"jsonrpc": "2.0", "id": 1, "result": 7}),
    "junk": saying_json({"jsonrpc": "2.0", "id": 1, "result": "0x02c0"}),
    "other type": saying_json({"jsonrpc": "2.0", "id": 1, "result": "0x99c0"}),
}


@pytest.mark.parametrize(("answer", "says"), GONE.values(), ids=GONE.keys())
async def test_no_answer_is_no_signature(
    stand_in: Web3SignerStandIn, signer: Web3Signer, answer: Answer, says: str
) -> None:
    await signer.start()
    stand_in.instead = answer
    with pytest.raises(SignerUnavailable, match=says):
        await signer.sign_typed(DOMAIN, STRUCT_HASH)
    with pytest.raises(SignerUnavailable, match=says):
        await signer.sign_transaction(TRANSACTION)
    stand_in.instead = None
    assert await signer.sign_typed(DOMAIN, STRUCT_HASH) == await LOCAL.sign_typed(DOMAIN, STRUCT_HASH)


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG.keys())
async def test_an_answer_that_is_none_is_never_used(
    stand_in: Web3SignerStandIn, signer: Web3Signer, answer: Answer
) -> None:
    await signer.start()
    metrics = FakeMetrics()
    signer.report_to(metrics)
    stand_in.instead = answer
    with pytest.raises(UntrueSigner):
        await signer.sign_typed(DOMAIN, STRUCT_HASH)
    with pytest.raises(UntrueSigner):
        await signer.sign_transaction(TRANSACTION)
    assert metrics.counts == {("headrace_signer_calls_total", "outcome=untrue"): 2}


async def test_another_keys_signature_is_never_used(stand_in: Web3SignerStandIn, signer: Web3Signer) -> None:
    await signer.start()
    theirs = (await OTHER.sign_typed(DOMAIN, STRUCT_HASH)).hex()
    stand_in.instead = saying("0x" + theirs)
    with pytest.raises(UntrueSigner, match=f"is signed by {OTHER.address}, not by {LOCAL.address}"):
        await signer.sign_typed(DOMAIN, STRUCT_HASH)
    raw, _ = await OTHER.sign_transaction(TRANSACTION)
    stand_in.instead = saying_json({"jsonrpc": "2.0", "id": 1, "result": "0x" + raw.hex()})
    with pytest.raises(UntrueSigner, match="is signed by"):
        await signer.sign_transaction(TRANSACTION)


async def test_a_signature_of_something_else_is_never_used(stand_in: Web3SignerStandIn, signer: Web3Signer) -> None:
    await signer.start()
    other = await LOCAL.sign_typed(DOMAIN, STRUCT_HASH[::-1])
    stand_in.instead = saying("0x" + other.hex())
    with pytest.raises(UntrueSigner):
        await signer.sign_typed(DOMAIN, STRUCT_HASH)


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": 8},
        {"chainId": 1},
        {"to": "0x" + "00" * 20},
        {"value": 6},
        {"data": "0x0103"},
        {"gas": 100_001},
        {"maxFeePerGas": 10**9 + 1},
        {"maxPriorityFeePerGas": 2},
        {"accessList": [{"address": "0x" + "00" * 20, "storageKeys": []}]},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_another_transaction_than_was_asked_is_never_used(
    stand_in: Web3SignerStandIn, signer: Web3Signer, changes: dict[str, Any]
) -> None:
    stand_in.changes = changes
    with pytest.raises(UntrueSigner, match="another transaction than was asked"):
        await signer.sign_transaction(TRANSACTION)


async def test_bytes_after_the_transaction_are_refused(stand_in: Web3SignerStandIn, signer: Web3Signer) -> None:
    raw, _ = await LOCAL.sign_transaction(TRANSACTION)
    stand_in.instead = saying_json({"jsonrpc": "2.0", "id": 1, "result": "0x" + raw.hex() + "00"})
    with pytest.raises(UntrueSigner):
        await signer.sign_transaction(TRANSACTION)


async def test_a_key_that_it_lost_is_waited_for(stand_in: Web3SignerStandIn, signer: Web3Signer) -> None:
    await signer.start()
    keys, stand_in.keys = stand_in.keys, stand_in.keys[:1]
    with pytest.raises(SignerUnavailable, match="has no key"):
        await signer.sign_typed(DOMAIN, STRUCT_HASH)
    with pytest.raises(SignerUnavailable, match=r"signs no transaction of .*does not exist\?"):
        await signer.sign_transaction(TRANSACTION)
    stand_in.keys = keys
    await signer.sign_typed(DOMAIN, STRUCT_HASH)
    await signer.sign_transaction(TRANSACTION)


async def test_comes_back_at_the_same_address(stand_in: Web3SignerStandIn, signer: Web3Signer) -> None:
    metrics = FakeMetrics()
    signer.report_to(metrics)
    await signer.sign_transaction(TRANSACTION)
    await stand_in.stop()
    with pytest.raises(SignerUnavailable, match="does not answer"):
        await signer.sign_transaction(TRANSACTION)
    await stand_in.start()
    raw, _ = await signer.sign_transaction(TRANSACTION)
    assert Account.recover_transaction(raw).lower() == LOCAL.address
    outcomes = {key[1]: count for key, count in metrics.counts.items()}
    assert outcomes == {"outcome=signed": 2, "outcome=unavailable": 1}


async def test_a_connection_that_was_closed_meanwhile_is_opened_again(
    stand_in: Web3SignerStandIn, signer: Web3Signer
) -> None:
    await signer.start()
    calls = iter((hang_up, None))

    async def once(there: Web3SignerStandIn, request: Any) -> Any:
        answer = next(calls)
        there.instead = None
        assert answer is not None
        return await answer(there, request)

    stand_in.instead = once
    await signer.sign_typed(DOMAIN, STRUCT_HASH)


async def test_one_that_is_cancelled_leaves_the_others_alone(stand_in: Web3SignerStandIn, signer: Web3Signer) -> None:
    await signer.start()
    came = asyncio.Event()

    async def wait(there: Web3SignerStandIn, request: Any) -> Any:
        came.set()
        return await silence(there, request)

    stand_in.instead = wait
    waiting = asyncio.create_task(signer.sign_typed(DOMAIN, STRUCT_HASH))
    await came.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    stand_in.instead = None
    await signer.sign_typed(DOMAIN, STRUCT_HASH)


# The start


async def test_start__key_is_not_there__says_so(stand_in: Web3SignerStandIn) -> None:
    stranger = Web3Signer(SignerAddress(stand_in.url), "0x" + "ee" * 20)
    try:
        with pytest.raises(ConfigurationError, match="does not have the key of 0xee"):
            await stranger.start()
        with pytest.raises(SignerUnavailable, match="does not have the key"):
            await stranger.sign_typed(DOMAIN, STRUCT_HASH)
    finally:
        await stranger.close()


@pytest.mark.parametrize("answer", [saying("<html>"), saying_json({"keys": []})])
async def test_start__something_else_answers__says_so(
    stand_in: Web3SignerStandIn, signer: Web3Signer, answer: Answer
) -> None:
    stand_in.instead = answer
    with pytest.raises(UntrueSigner, match="is it a web3signer"):
        await signer.start()


async def test_a_password_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    where = SignerAddress("http://relayer:hushhush@localhost:1/some/hushhush?key=hushhush", timeout_s=0.2)
    signer = Web3Signer(where, LOCAL.address)
    with caplog.at_level(logging.DEBUG), pytest.raises(SignerUnavailable) as caught:
        await signer.start()
    await signer.close()
    chain, error = [], caught.value
    while error is not None:
        chain.append(f"{error!r}{error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)  # type: ignore[assignment]
    assert "hushhush" not in repr(signer) + repr(where) + str(where) + caplog.text + "".join(chain)
    assert "localhost:1" in str(caught.value)


@pytest.mark.parametrize("field", ["ca_file", "certificate_file"])
async def test_certificates_that_cannot_be_used_are_named(tmp_path: Path, field: str) -> None:
    file = tmp_path / "file.pem"
    for content in (None, "no certificate"):
        if content is not None:
            file.write_text(content, encoding="utf-8")
        signer = Web3Signer(SignerAddress("https://localhost:1", **{field: file}), LOCAL.address)
        with pytest.raises(ConfigurationError, match=r"certificate for the signer cannot be used \(.*file.pem\)"):
            await signer.start()
        await signer.close()


# TLS


def certificates(folder: Path) -> None:
    """An authority (ca.pem), a signer's certificate and a client's, each with its key in one file."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl("req", "-x509", *curve, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("signer", "client"):
        openssl("req", "-x509", *curve, "-subj", f"/CN={name}", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
                "-keyout", f"{name}.key", "-out", f"{name}.crt")  # fmt: skip
        both = (folder / f"{name}.crt").read_text("utf-8") + (folder / f"{name}.key").read_text("utf-8")
        (folder / f"{name}.pem").write_text(both, encoding="utf-8")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_tls__both_know_each_other_by_their_certificates(tmp_path: Path) -> None:
    certificates(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.pem")
    tls.load_cert_chain(tmp_path / "signer.pem")
    tls.verify_mode = ssl.CERT_REQUIRED
    async with web3signer(KEY, tls=tls) as stand_in:
        known = SignerAddress(stand_in.url, tmp_path / "ca.pem", tmp_path / "client.pem")
        signer = Web3Signer(known, LOCAL.address)
        await signer.start()
        assert await signer.sign_typed(DOMAIN, STRUCT_HASH) == await LOCAL.sign_typed(DOMAIN, STRUCT_HASH)
        await signer.close()
        for stranger in (SignerAddress(stand_in.url, tmp_path / "ca.pem"), SignerAddress(stand_in.url)):
            with pytest.raises(SignerUnavailable, match="does not answer"):
                await Web3Signer(stranger, LOCAL.address).sign_typed(DOMAIN, STRUCT_HASH)
