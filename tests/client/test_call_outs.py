"""A requester's side of callbacks and verifiers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from headrace.client import ApiRefused, Untrue
from headrace.client.drafts import Network, checked_draft
from headrace.client.posted import settled_answer
from headrace.core.calls import retry_callback_data
from headrace.core.errors import ChainUnavailable, NotFound
from headrace.core.gas import retry_gas
from headrace.core.types import Hash32, Mode, Request, ResultRef
from headrace.ports import Call, Receipt
from tests.api.world import RELAYER_SIGNER, linked_node
from tests.client.conftest import World
from tests.client.test_client import WANTED
from tests.fakes import MARKET, RELAYER, REQUESTER, VERIFIER, FakeChain, Log, make_request

ANSWER = b"Rayleigh scattering."
NODES = ["0x" + "d1" * 20, "0x" + "d2" * 20]


@dataclass
class Recorder:
    """Remembers what it was given to send, and with how much gas to spare."""

    address: str = REQUESTER
    sent: list[tuple[Call, int]] = field(default_factory=list)

    async def send(self, call: Call, *, call_out_gas: int = 0, remedy: str = "") -> Hash32:
        self.sent.append((call, call_out_gas))
        return "0x" + "7e" * 32

    async def wait(self, transaction_hash: Hash32, timeout_s: float) -> Receipt | None:
        raise AssertionError("nobody waits for this one")


# Drafts


async def test_draft__callback_and_verifier__are_as_they_were_asked(world: World) -> None:
    world.relayer.link.nodes = [linked_node(verifiers=(VERIFIER,))]
    draft = await world.client.draft(replace(WANTED, callback_gas=150_000, verifier=VERIFIER))
    assert (draft.request.callback_gas, draft.request.mode) == (150_000, Mode.VERIFIER)
    assert draft.request.verifier == VERIFIER


async def test_draft__verifier_that_nobody_can_satisfy__is_refused(world: World) -> None:
    with pytest.raises(ApiRefused, match="can prove its answers to the verifier"):
        await world.client.draft(replace(WANTED, verifier=VERIFIER))


@pytest.mark.parametrize(("changes", "name"), [({"callback_gas": 1}, "callback_gas"), ({"verifier": VERIFIER}, "mode")])
async def test_checked_draft__relayer_left_it_out__is_untrue(
    world: World, changes: dict[str, object], name: str
) -> None:
    body = (await world.relayer.client.post("/v1/requests/draft", json=WANTED.body(world.client.account))).json()
    network = Network(31337, MARKET, RELAYER_SIGNER.address, 86_400)
    wanted = replace(WANTED, **changes)  # type: ignore[arg-type]
    model_id = body["params"]["model_id"]
    with pytest.raises(Untrue, match=f"drafted {name} = "):
        checked_draft(wanted, body, network, world.client.account, model_id, world.relayer.clock.now_ms() // 1000)


# Calling again


def delivered(chain: FakeChain, request: Request, answer: bytes = ANSWER) -> Log:
    return Log(MARKET, "ResultDelivered", {"requestId": chain.id_of(request), "result": "0x" + answer.hex()})


def batch(round_: int = 3) -> Log:
    args = {"relayer": RELAYER, "round": round_, "nodes": NODES, "statuses": "0x00"}
    return Log(MARKET, "BatchSettled", args)


def settled_chain(request: Request, *logs: Log) -> FakeChain:
    """A chain with a request, and what is to be in the one transaction that settles it."""
    chain = FakeChain()
    chain.mine(chain.requested(request))
    block = chain.mine(*logs)
    for index, event in enumerate(chain._blocks[-1].events):
        chain._blocks[-1].events[index] = replace(event, transaction_hash="0x" + "7b" * 32)
    assert block.number == 2
    chain.mine_many(3)
    return chain


async def test_retry_callback__bytes_were_delivered__sends_them_with_enough_gas(world: World) -> None:
    request = make_request(callback_gas=90_000, inline_result=True)
    other = make_request(salt=2, inline_result=True)
    seen = FakeChain()
    id_ = seen.id_of(request)
    chain = settled_chain(
        request,
        delivered(seen, other, b"of another request"),
        seen.fulfilled(seen.id_of(other), "0x" + "55" * 32),
        batch(round_=2),
        delivered(seen, request),
        seen.callback_failed(id_),
        seen.fulfilled(id_, "0x" + "77" * 32),
        batch(round_=3),
    )
    sender = Recorder()
    assert await world.client.retry_callback(id_, chain, sender) == "0x" + "7e" * 32
    ((call, call_out_gas),) = sender.sent
    settled_at_s = chain.all_blocks()[2].timestamp_s
    ref = ResultRef("0x" + "77" * 32, RELAYER, 3, tuple(NODES), settled_at_s)
    assert call == Call(MARKET, retry_callback_data(request, ref, ANSWER))
    assert call_out_gas == retry_gas(90_000) == 90_000 + 90_000 // 63 + 10_000


async def test_settled_answer__by_hash_only__has_no_bytes() -> None:
    request = make_request(callback_gas=1)
    seen = FakeChain()
    chain = settled_chain(request, seen.fulfilled(seen.id_of(request)), batch())
    settled = await settled_answer(chain, chain.id_of(request), 0)
    assert settled.result == b""
    assert settled.ref.round == 3


async def test_settled_answer__not_settled__says_so() -> None:
    request = make_request()
    chain = FakeChain()
    chain.mine(chain.requested(request))
    with pytest.raises(NotFound, match="settled no answer"):
        await settled_answer(chain, chain.id_of(request), 0)


async def test_settled_answer__node_has_lost_part_of_it__is_unknown() -> None:
    request = make_request()
    seen = FakeChain()
    chain = settled_chain(request, seen.fulfilled(seen.id_of(request)))
    with pytest.raises(ChainUnavailable):
        await settled_answer(chain, chain.id_of(request), 0)
