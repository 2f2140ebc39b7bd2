"""Rollups' prices of data, read from stand-ins of their contracts on a real chain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
import pytest_asyncio
from eth_utils.crypto import keccak

from headrace.adapters.json_rpc import connect_http
from headrace.adapters.rollup_gas import ARB_GAS_INFO, GAS_PRICE_ORACLE
from headrace.adapters.web3_chain import Web3Chain
from headrace.core.gas_model import OpStack
from tests.local_chain import GWEI, LocalChain, local_chain

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="function")]


@pytest_asyncio.fixture
async def anvil() -> AsyncIterator[LocalChain]:
    async with local_chain() as chain:
        yield chain


@pytest_asyncio.fixture
async def chain(anvil: LocalChain) -> AsyncIterator[Web3Chain]:
    opened = Web3Chain(await connect_http(anvil.url), anvil.deployment)
    yield opened
    await opened.close()


def answering(answers: Mapping[str, Sequence[int]]) -> str:
    """Code of a contract that answers calls of these signatures with these words, and any other with nothing."""
    head = bytes.fromhex("5f3560e01c")  # the selector: PUSH0 CALLDATALOAD PUSH1 224 SHR
    at = len(head) + 11 * len(answers) + 1
    jumps, bodies = b"", b""
    for signature, words in answers.items():
        # DUP1 PUSH4 selector EQ PUSH2 body JUMPI
        jumps += (
            b"\x80\x63" + keccak(text=signature)[:4] + b"\x14\x61" + (at + len(bodies)).to_bytes(2, "big") + b"\x57"
        )
        bodies += b"\x5b"
        for number, word in enumerate(words):
            bodies += b"\x7f" + word.to_bytes(32, "big") + b"\x60" + bytes([32 * number]) + b"\x52"
        bodies += b"\x60" + bytes([32 * len(words)]) + b"\x5f\xf3"
    return "0x" + (head + jumps + b"\x00" + bodies).hex()


async def test_quote__ethereum__has_no_price_of_data(chain: Web3Chain) -> None:
    assert (await chain.gas_quote()).data_byte_wei == 0


async def test_quote__op_stack__has_the_oracles_price(anvil: LocalChain, chain: Web3Chain) -> None:
    prices = {"l1BaseFee()": 9 * GWEI, "blobBaseFee()": 3, "baseFeeScalar()": 5_227, "blobBaseFeeScalar()": 1_014_213}
    code = answering({name: [value] for name, value in prices.items()})
    await anvil.rpc("anvil_setCode", GAS_PRICE_ORACLE, code)
    assert (await chain.gas_quote()).data_byte_wei == OpStack(*prices.values()).byte_fee_wei() > 0


async def test_quote__arbitrum__has_the_precompiles_price(anvil: LocalChain, chain: Web3Chain) -> None:
    code = answering({"getPricesInWei()": [5_000, 77, 3, 0, 0, 0]})
    await anvil.rpc("anvil_setCode", ARB_GAS_INFO, code)
    assert (await chain.gas_quote()).data_byte_wei == 77
