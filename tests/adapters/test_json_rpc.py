"""Errors of nodes and of the way to them, split ranges, deployment files, and words for reverts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from headrace.adapters.abi_codec import CONTRACTS, ErrorDecoder
from headrace.adapters.deployment import Deployment, load_deployment
from headrace.adapters.json_rpc import AnswerLost, JsonRpc, RpcError, connect_http, name_of
from headrace.adapters.web3_chain import Web3Chain
from headrace.core.errors import ChainUnavailable, ConfigurationError, Unknown
from headrace.ports import Call

ADDRESSES = {name: f"0x{index + 1:040x}" for index, name in enumerate(CONTRACTS)}
SEEN_IN_LOGS = "0x" + keccak(text="RequestsPausedSet(bool,uint40)").hex()

Answer = Callable[[str, list[Any]], Any]


class Node:
    """A node whose answers a test writes: a result, an RpcError, an HTTP status, or nothing at all."""

    def __init__(self) -> None:
        self.answer: Answer = lambda method, params: None
        self.asked: list[tuple[str, list[Any]]] = []
        self.url = ""

    async def serve(self, request: web.Request) -> web.Response:
        question = await request.json()
        if isinstance(question, list):
            return web.json_response([self._response(each) for each in question])
        response = self._response(question)
        if isinstance(response, Status):
            return web.Response(status=response)
        if response is None:
            await asyncio.sleep(60)
        return web.json_response(response)

    def _response(self, question: Any) -> Any:
        self.asked.append((question["method"], question["params"]))
        answer = self.answer(question["method"], question["params"])
        if answer is None or isinstance(answer, Status):
            return answer
        reply = {"jsonrpc": "2.0", "id": question["id"]}
        if isinstance(answer, RpcError):
            return {**reply, "error": {"code": answer.code, "message": answer.message, "data": answer.data}}
        return {**reply, "result": answer}


class Status(int):
    """An HTTP status."""


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    scripted = Node()
    application = web.Application()
    application.router.add_post("/key/{tail:.*}", scripted.serve)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.url = f"http://user:secret@127.0.0.1:{runner.addresses[0][1]}/key/secret?token=secret"
    yield scripted
    await runner.cleanup()


@pytest.fixture
async def rpc(node: Node) -> AsyncIterator[JsonRpc]:
    opened = await connect_http(node.url, timeout_s=0.5)
    yield opened
    await opened.close()


@pytest.fixture
def chain(rpc: JsonRpc, tmp_path: Path) -> Web3Chain:
    return Web3Chain(rpc, write_deployment(tmp_path))


def write_deployment(folder: Path, **changes: Any) -> Deployment:
    entry = {"block": 7, "code_hash": "0xAB", "transaction": "0x", "constructor_arguments": {}}
    contracts = {name: {"address": address.upper().replace("X", "x"), **entry} for name, address in ADDRESSES.items()}
    models = [{"name": "tiny", "model_id": "0x01"}]
    document = {"schema": 1, "chain_id": 5, "commit": None, "contracts": contracts, "models": models, **changes}
    (folder / "5.json").write_text(json.dumps(document))
    return load_deployment(folder, 5)


def log_of(block: int) -> dict[str, Any]:
    return {
        "address": ADDRESSES["InferenceMarket"],
        "topics": [SEEN_IN_LOGS],
        "data": "0x" + "00" * 31 + "01" + f"{1_800_000_000:064x}",
        "blockNumber": hex(block),
        "blockHash": f"0x{block:064x}",
        "transactionHash": f"0x{block:064x}",
        "logIndex": "0x0",
    }


async def test_call__result_and_error__are_told_apart(node: Node, rpc: JsonRpc) -> None:
    node.answer = lambda method, params: "0x5"
    assert await rpc.call("eth_chainId") == "0x5"
    node.answer = lambda method, params: RpcError(-32000, "no", {"why": 1})
    with pytest.raises(RpcError) as caught:
        await rpc.call("eth_call", {}, "latest")
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32000, "no", {"why": 1})


@pytest.mark.parametrize(
    ("answer", "message"), [(Status(502), "HTTP 502"), (Status(429), "429"), (None, "within 0.5 s")]
)
async def test_call__no_answer__is_lost_and_names_the_endpoint_without_keys(
    node: Node, rpc: JsonRpc, answer: Any, message: str
) -> None:
    node.answer = lambda method, params: answer
    with pytest.raises(AnswerLost, match=message) as caught:
        await rpc.call("eth_blockNumber")
    assert str(caught.value).startswith("http://127.0.0.1:")
    assert "secret" not in str(caught.value)


async def test_call__nobody_listens__cannot_be_reached(chain: Web3Chain) -> None:
    rpc = await connect_http("http://127.0.0.1:1/secret")
    try:
        with pytest.raises(ChainUnavailable, match="cannot be reached") as caught:
            await rpc.call("eth_blockNumber")
        assert not isinstance(caught.value, AnswerLost)
        assert "secret" not in str(caught.value)
    finally:
        await rpc.close()


async def test_batch__answers_in_order__or_with_the_error(node: Node, rpc: JsonRpc) -> None:
    node.answer = lambda method, params: params[0]
    assert await rpc.batch("echo", [["0x1"], ["0x2"]]) == ["0x1", "0x2"]
    assert await rpc.batch("echo", []) == []
    node.answer = lambda method, params: RpcError(-32005, "limit")
    with pytest.raises(RpcError):
        await rpc.batch("echo", [["0x1"]])


@pytest.mark.parametrize("refusal", [RpcError(-32005, "range too wide"), Status(413)])
async def test_events__range_refused__is_asked_for_in_parts(node: Node, chain: Web3Chain, refusal: Any) -> None:
    def answer(method: str, params: list[Any]) -> Any:
        start, end = int(params[0]["fromBlock"], 16), int(params[0]["toBlock"], 16)
        return refusal if end - start >= 3 else [log_of(number) for number in range(start, end + 1)]

    node.answer = answer
    events = await chain.events(10, 19)
    assert [event.block_number for event in events] == list(range(10, 20))
    assert {event.name for event in events} == {"RequestsPausedSet"}
    assert events[0].args == {"paused": True, "until": 1_800_000_000}


async def test_events__block_refused__is_unavailable(node: Node, chain: Web3Chain) -> None:
    node.answer = lambda method, params: RpcError(-32000, "unknown block")
    with pytest.raises(ChainUnavailable, match="eth_getLogs with: unknown block"):
        await chain.events(10, 19)


async def test_events__of_strangers__are_left_out(node: Node, chain: Web3Chain) -> None:
    stranger = {**log_of(1), "address": "0x" + "99" * 20}
    unnamed = {**log_of(2), "topics": ["0x" + "99" * 32]}
    anonymous = {**log_of(3), "topics": []}
    node.answer = lambda method, params: [stranger, unnamed, anonymous, log_of(4)]
    assert [event.block_number for event in await chain.events(0, 9)] == [4]


async def test_blocks__endpoint_without_batches__is_asked_one_by_one(node: Node, chain: Web3Chain) -> None:
    def answer(method: str, params: list[Any]) -> Any:
        number = int(params[0], 16)
        if not node.asked[1:]:
            return RpcError(-32601, "no batches")
        header = {"number": hex(number), "hash": f"0x{number}", "parentHash": "0x", "timestamp": "0x9"}
        return header if number < 3 else False

    node.answer = answer
    assert [block.number for block in await chain.blocks(0, 5)] == [0, 1, 2]


async def test_send_raw__answer_lost__is_unknown(node: Node, chain: Web3Chain) -> None:
    node.answer = lambda method, params: Status(502)
    with pytest.raises(Unknown, match="is not known"):
        await chain.send_raw(b"\x02")


async def test_simulate__failures__are_worded_by_what_there_is(node: Node, chain: Web3Chain) -> None:
    failed = {"status": "0x0", "gasUsed": "0x5208", "logs": []}
    reason = "0x08c379a0" + encode(["string"], ["no"]).hex()
    calls = [
        {**failed, "returnData": "0x", "error": {"code": -32015, "message": "out of gas"}},
        {**failed, "returnData": "0x"},
        {
            **failed,
            "error": {"code": 3, "message": "reverted", "data": reason},
        },
    ]
    answers = {
        "eth_getBlockByNumber": {"number": "0x1", "hash": "0x01", "baseFeePerGas": "0x1", "gasLimit": "0x1c9c380"},
        "eth_simulateV1": [{"calls": calls}],
    }
    node.answer = lambda method, params: answers[method]
    outcomes = await chain.simulate("0x" + "11" * 20, [Call("0x" + "22" * 20, b"")] * 3)
    assert [outcome.error for outcome in outcomes] == ["out of gas", "reverted without a reason", "Error(reason=no)"]


async def test_read__nothing_comes_back__is_unavailable(node: Node, chain: Web3Chain) -> None:
    node.answer = lambda method, params: "0x"
    with pytest.raises(ChainUnavailable, match=r"answered isBonded at .* the data ends after 0 bytes"):
        await chain.is_bonded("0x" + "11" * 20)


async def test_connect__closes_when_nothing_is_deployed(node: Node, tmp_path: Path) -> None:
    node.answer = lambda method, params: "0x5"
    with pytest.raises(ConfigurationError, match="nothing is deployed on chain 5"):
        await Web3Chain.connect(node.url, tmp_path)


def test_load_deployment__reads_what_is_needed(tmp_path: Path) -> None:
    deployment = write_deployment(tmp_path)
    assert deployment.address_of("StakeManager") == ADDRESSES["StakeManager"]
    assert deployment.contracts["StakeManager"].code_hash == "0xab"
    assert deployment.models == {"tiny": "0x01"}
    assert deployment.first_block == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "is of schema 2, not 1; run `ape run deploy` again"),
        ({"chain_id": 6}, "is of chain 6, not 5"),
        ({"contracts": {}}, "is not a deployment file"),
        ({"models": None}, "is not a deployment file"),
    ],
)
def test_load_deployment__wrong_file__is_one_clear_sentence(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        write_deployment(tmp_path, **changes)


def test_load_deployment__missing__says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"9.json is missing; run `ape run deploy`"):
        load_deployment(tmp_path, 9)
    (tmp_path / "9.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is not a deployment file"):
        load_deployment(tmp_path, 9)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://user:key@rpc.example/v3/key?token=key", "https://rpc.example"),
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("http://[::1]:8545/", "http://[::1]:8545"),
    ],
)
def test_name_of__leaves_out_what_may_be_a_key(url: str, name: str) -> None:
    assert name_of(url) == name


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "reverted without a reason"),
        (b"\x12\x34\x56\x78\x00", "0x1234567800"),
        (keccak(text="Panic(uint256)")[:4] + encode(["uint256"], [17]), "Panic(code=17)"),
        (keccak(text="Panic(uint256)")[:4] + b"\x01", "0x4e487b7101"),
        (
            keccak(text="NotPending(bytes32,uint8)")[:4] + encode(["bytes32", "uint8"], [b"\x01" * 32, 4]),
            f"NotPending(requestId=0x{'01' * 32}, status=4)",
        ),
        (keccak(text="EmptyBatch()")[:4], "EmptyBatch()"),
    ],
)
def test_error_decoder__words(data: bytes, words: str) -> None:
    assert ErrorDecoder().decode(data) == words


async def test_call__others_are_cancelled_at_any_step__is_answered(node: Node) -> None:
    """With web3.py's own sessions a cancelled question kept all later ones out, for ever."""
    node.answer = lambda method, params: "0x1"
    rpc = await connect_http(node.url, timeout_s=5)
    try:
        for steps in range(30):
            asked = [asyncio.create_task(rpc.call("eth_chainId")) for _ in range(3)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for each in asked[1:]:
                each.cancel()
            assert await asked[0] == "0x1"
            await asyncio.gather(*asked, return_exceptions=True)
    finally:
        await rpc.close()
