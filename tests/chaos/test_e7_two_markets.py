"""E7: another version of the market is on the chain, and is asked the same. Ids are made with the market's address and
only the deployment's contracts are listened to: the relayer serves its own market's request, once."""

from __future__ import annotations

from eth_utils.address import to_checksum_address

from headrace.adapters.abi_codec import ContractAbi
from headrace.core.requests import params_of, request_id
from tests.chaos.bench import Bench
from tests.local_chain import GWEI


async def test_request__same_content_at_two_markets__is_served_at_the_relayers_own(bench: Bench) -> None:
    deployment = bench.anvil.deployment
    stakes, log = (to_checksum_address(deployment.address_of(name)) for name in ("StakeManager", "ScheduleLog"))
    owner = to_checksum_address(bench.anvil.accounts[0])
    terms = (2 * GWEI, 110_000, 15_000, 15_000, 150_000)
    other = await bench.anvil.deploy("InferenceMarket", owner, stakes, log, terms, (10**16, 10, 86_400))
    request = bench.request()
    data = ContractAbi("InferenceMarket").call("requestInference", params_of(request), b"")
    raw, hash_ = await bench.anvil.sign(3, other, "0x" + data.hex(), request.escrow_wei)
    await bench.send(raw)
    await bench.mine()
    receipt = await bench.rpc("eth_getTransactionReceipt", hash_)
    there = request_id(request, bench.chain.chain_id, other)
    assert there in receipt["logs"][0]["topics"]
    bench._salt -= 1
    (here,) = await bench.post()
    assert bench.requests[here] == request
    assert here != there

    assert await bench.store.request(there) is None
    assert [each.request_id for each in await bench.store.requests()] == [here]
    await bench.answer([here])
    await bench.settle()
    await bench.oracle()
