"""A stand-in of web3signer in its mode eth1, which holds keys and can be slow, gone, broken or untrue."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from eth_account import Account
from eth_keys.datatypes import PrivateKey
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

CHAIN_ID = 31337
Answer = Callable[["Web3SignerStandIn", web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Web3SignerStandIn:
    """What it holds, what it was asked, and what it does instead of what it is asked."""

    keys: list[PrivateKey]
    chain_id: int = CHAIN_ID
    login: str = ""  # name:password, that callers must show
    instead: Answer | None = None
    changes: dict[str, Any] = field(default_factory=dict)  # fields of transactions that it signs otherwise
    v_base: int = 27
    tls: ssl.SSLContext | None = None
    asked: list[str] = field(default_factory=list)
    port: int = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, at the same port as before."""
        application = web.Application(middlewares=[self._front])
        application.router.add_get("/upcheck", self._up)
        application.router.add_get("/api/v1/eth1/publicKeys", self._list)
        application.router.add_post("/api/v1/eth1/sign/{identifier}", self._sign)
        application.router.add_post("/", self._rpc)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self.tls).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Be gone."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _front(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        expected = "Basic " + base64.b64encode(self.login.encode()).decode()
        if self.login and request.headers.get("Authorization") != expected:
            return web.Response(status=401)
        return await (self.instead(self, request) if self.instead else handler(request))

    async def _up(self, _: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response([key.public_key.to_hex() for key in self.keys])

    async def _sign(self, request: web.Request) -> web.Response:
        wanted = request.match_info["identifier"].removeprefix("0x")
        key = next((each for each in self.keys if each.public_key.to_hex()[2:] == wanted), None)
        if key is None:
            return web.Response(status=404)
        data = bytes.fromhex((await request.json())["data"].removeprefix("0x"))
        signature = key.sign_msg_hash(keccak(data)).to_bytes()
        return web.Response(text="0x" + signature[:64].hex() + f"{signature[64] + self.v_base:02x}")

    async def _rpc(self, request: web.Request) -> web.Response:
        call = await request.json()
        (asked,) = call["params"]
        key = next((each for each in self.keys if each.public_key.to_address() == asked["from"].lower()), None)
        if key is None or call["method"] != "eth_signTransaction":
            error = {"code": -32000, "message": "The account does not exist\n or cannot be used"}
            return web.json_response({"jsonrpc": "2.0", "id": call["id"], "error": error}, status=400)
        numbers = {name: int(asked[name], 16) for name in ("nonce", "value", "gas")}
        fees = {name: int(asked[name], 16) for name in ("maxFeePerGas", "maxPriorityFeePerGas")}
        # Its own chain, whatever it is asked for.
        rest = {"type": 2, "chainId": self.chain_id, "to": to_checksum_address(asked["to"]), "data": asked["data"]}
        signed = Account.sign_transaction({**numbers, **fees, **rest, **self.changes}, key.to_bytes())
        result = "0x" + bytes(signed.raw_transaction).hex()
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": result})


@asynccontextmanager
async def web3signer(*keys: bytes, **options: Any) -> AsyncIterator[Web3SignerStandIn]:
    """One that runs."""
    stand_in = Web3SignerStandIn([PrivateKey(key) for key in keys], **options)
    await stand_in.start()
    try:
        yield stand_in
    finally:
        await stand_in.stop()


def saying(text: str | bytes, status: int = 200) -> Answer:
    """Answer everything with this."""

    async def answer(_signer: Web3SignerStandIn, _request: web.Request) -> web.Response:
        return web.Response(body=text if isinstance(text, bytes) else text.encode(), status=status)

    return answer


def saying_json(document: Any, status: int = 200) -> Answer:
    """Answer everything with this document."""
    return saying(json.dumps(document), status)


async def silence(_signer: Web3SignerStandIn, _request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def hang_up(_signer: Web3SignerStandIn, request: web.Request) -> web.StreamResponse:
    """Close the connection instead of answering."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()
