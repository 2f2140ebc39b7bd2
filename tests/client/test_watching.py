"""What a watcher that is no relayer uses: another's API, and an account of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.client import ChainSender
from headrace.client.watching import PATIENCE_MS, ApiWords, SingleProofs
from headrace.core.errors import Refused, Unavailable
from headrace.core.faults import Fault, SignedAccept
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Assignment, Decision, DecisionKind, Reason, RoundRecord
from headrace.ports import Call, CallOutcome, StoredAssignment, StoredFault, StoredRound
from tests.api.world import NODE_SIGNER, RELAYER_SIGNER
from tests.client.conftest import World
from tests.fakes import FakeChain, FakeClock, FakeSigner

SIGNER = FakeSigner(2)
COUNT = 2_300  # three pages


def leaf(number: int) -> Decision:
    return Decision(f"0x{number:064x}", NODE_SIGNER.address, DecisionKind.ASSIGNED, Reason.LOWEST_COST, 10**20, 0)


def assignment(number: int) -> StoredAssignment:
    word = Assignment(f"0x{number:064x}", RELAYER_SIGNER.address, NODE_SIGNER.address, 1, 7, 1_750_000_600)
    return StoredAssignment(word.request_id, 1, word, "accepted", 5, 6, b"", number.to_bytes(65, "big"), "")


@pytest.fixture
async def words(world: World) -> ApiWords:
    store = world.relayer.store
    record = RoundRecord(1, "0x" + "11" * 32, ZERO_HASH, ZERO_HASH, 1, ZERO_HASH, COUNT, 0, 0)
    store.all_rounds[1] = StoredRound(1, "recorded", 0, 1, record, ZERO_HASH, 3, ZERO_HASH)
    store.all_leaves[1] = [leaf(number) for number in range(COUNT)]
    for number in range(COUNT):
        store.all_assignments[f"0x{number:064x}"] = [assignment(number)]
    return world.client.words(RELAYER_SIGNER.address)


async def test_leaves__several_pages__are_all_in_order(words: ApiWords) -> None:
    assert await words.leaves(1, COUNT) == [leaf(number) for number in range(COUNT)]


async def test_accepts__several_pages__are_all(words: ApiWords) -> None:
    found = await words.accepts(1)
    assert found is not None
    assert len(found) == COUNT
    number = 1_234
    assert found[number] == SignedAccept(
        f"0x{number:064x}", NODE_SIGNER.address, RELAYER_SIGNER.address, 1, 1_750_000_600, number.to_bytes(65, "big")
    )


async def test_leaves__more_than_are_recorded__are_not_read_on(words: ApiWords, world: World) -> None:
    assert await words.leaves(1, 500) is None
    assert await words.leaves(1, COUNT - 1) is None


@pytest.mark.parametrize("asked", ["leaves", "accepts"])
async def test_words__no_such_round__cannot_be_had(words: ApiWords, asked: str) -> None:
    assert await (words.leaves(9, 5) if asked == "leaves" else words.accepts(9)) is None


class Calls:
    """An API that answers whatever it is told to."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def json(self, method: str, path: str, **_: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    "answer",
    [
        Unavailable("no"),
        {},
        {"accepts": 5, "next_offset": None},
        {"accepts": [{"request_id": "0x1"}], "next_offset": None},
        {"accepts": [{"request_id": "0x1", "node": "n", "deadline_s": "x", "signature": "0x"}], "next_offset": None},
        {"accepts": [{"request_id": "0x1", "node": "n", "deadline_s": 1, "signature": "0xzz"}], "next_offset": None},
        [],
    ],
)
async def test_accepts__answer_that_is_none__cannot_be_had(answer: Any) -> None:
    assert await ApiWords(Calls(answer), RELAYER_SIGNER.address).accepts(1) is None  # type: ignore[arg-type]


async def test_accepts__empty_page_that_names_a_next__ends() -> None:
    calls = Calls({"accepts": [], "next_offset": 5})
    assert await ApiWords(calls, RELAYER_SIGNER.address).accepts(1) == []  # type: ignore[arg-type]


# Proofs of an account of its own


class Chain(FakeChain):
    """Takes any call."""

    async def simulate(self, sender: str, calls: Any) -> list[CallOutcome]:
        return [CallOutcome(True, 100_000, (), "")]


async def no_sleep(_: float) -> None:
    return


def fault(chain: FakeChain, **changes: Any) -> StoredFault:
    call = Call("0x" + "a5" * 20, b"\x01\x02")
    made = StoredFault(
        Fault.MISSED, NODE_SIGNER.address, ZERO_HASH, ZERO_ADDRESS, 1, call, "found", "", ZERO_HASH, 0, 0
    )
    return replace(made, **changes)


async def test_send__is_waited_for_and_no_longer_under_way() -> None:
    chain, clock = Chain(automine=True), FakeClock()
    proofs = SingleProofs(chain, ChainSender(chain, SIGNER, sleep=no_sleep), clock)
    assert proofs.address == SIGNER.address
    assert not await proofs.is_under_way(fault(chain))
    hash_ = await proofs.send(fault(chain), 100_000)
    assert await chain.receipt(hash_) is not None
    assert not await proofs.is_under_way(fault(chain, transaction_hash=hash_))


async def test_send__not_included_in_time__is_under_way_for_a_while() -> None:
    chain, clock = Chain(), FakeClock()
    proofs = SingleProofs(chain, ChainSender(chain, SIGNER, sleep=no_sleep), clock)
    sent = fault(chain, transaction_hash=await proofs.send(fault(chain), 100_000))
    assert await proofs.is_under_way(sent)
    clock.advance(PATIENCE_MS + 1)
    assert not await proofs.is_under_way(sent)
    restarted = SingleProofs(chain, ChainSender(chain, SIGNER, sleep=no_sleep), clock)
    assert not await restarted.is_under_way(sent)


async def test_send__account_without_ether__is_refused() -> None:
    chain = Chain()
    chain.balances[SIGNER.address] = 0
    proofs = SingleProofs(chain, ChainSender(chain, SIGNER, sleep=no_sleep), FakeClock())
    with pytest.raises(Refused, match="has 0 wei"):
        await proofs.send(fault(chain), 100_000)
    assert chain.sent == []
