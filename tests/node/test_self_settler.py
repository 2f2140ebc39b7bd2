"""A node settles what its relayer left: in the window, once, and whatever breaks in between."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.adapters.node_journal import SqlNodeJournal
from headrace.core.envelope import hash_payload
from headrace.core.errors import ChainUnavailable, ConfigurationError, Refused, Unknown
from headrace.core.guard import GuardPolicy
from headrace.core.journal import JournalEntry, TaskState
from headrace.core.link_messages import TaskMessage, encode
from headrace.core.self_settlement import SelfSettlementPolicy, Settlement, SettlementState
from headrace.core.tasks import Task
from headrace.core.typed_data import Domain, digest, hash_assignment
from headrace.core.types import GasQuote, Hash32, Mode, Result, RoundRecord, Status
from headrace.node.self_settler import SelfSettler, SelfSettlerSettings
from headrace.ports import CallOutcome
from tests.fakes import GWEI, MARKET, START_S, TERMS, FakeChain, FakeClock, FakeSigner, LoopClock
from tests.node.world import NODE_KEY, RELAYER_KEY, make_task, member
from tests.services.world import AnySelector

PAYER_KEY = FakeSigner(33)
PAYER = PAYER_KEY.address
DEADLINE_S = START_S + 600
DUE_S = DEADLINE_S + 31  # after the deadline and the patience with its relayer
ANSWER = b"Rayleigh scattering."
MISSED_WEI = 10**17
SETTINGS = SelfSettlerSettings(retry_s=20, sure_blocks=3, give_up_blocks=2, max_open=2)


class World:
    """A node's journal and a chain; no relayer."""

    def __init__(self, journal: SqlNodeJournal) -> None:
        self.journal = journal
        self.clock = FakeClock()
        self.chain = FakeChain(self.clock)
        self.policy = SelfSettlementPolicy()
        self.payer = PAYER_KEY
        self.settler = self.started()

    def started(self) -> SelfSettler:
        """A settler as after a start of the node."""
        return SelfSettler(
            self.chain,
            self.journal,
            self.journal.settlements,
            self.clock,
            NODE_KEY,
            self.payer,
            self.chain.terms,
            MISSED_WEI,
            GuardPolicy({MARKET: AnySelector()}, 10_000 * GWEI),
            self.policy,
            SETTINGS,
        )

    def restart(self, **policy: Any) -> None:
        """Start the node anew, under another policy if one is named."""
        self.policy = dataclasses.replace(self.policy, **policy)
        self.settler = self.started()

    async def answered(self, *, posted: bool = True, proof: bytes = b"", **changes: Any) -> Hash32:
        """A task that was accepted and computed, of a request that is on the chain."""
        task = make_task(**{"deadline_s": DEADLINE_S, "max_reward_wei": 10**16, **changes})
        if posted:
            self.chain.mine(self.chain.requested(task.request))
        await self.compute(task)
        return task.assignment.request_id

    async def compute(self, task: Task) -> None:
        word = task.assignment
        frame = encode(TaskMessage.of(task))
        entry = JournalEntry(
            word.request_id, word.round, TaskState.ACCEPTED, frame, b"accept", None, b"", 0, 0, "", 1, 1
        )
        await self.journal.put(entry)
        result = Result(word.request_id, hash_payload(ANSWER), word.reward_wei, word.relayer, word.round)
        await self.journal.add_result(word.request_id, result, ANSWER, 3, 40, 2, word.deadline_s)

    async def at(self, time_s: int, blocks: int = 1) -> None:
        """Mine at a time, then look."""
        self.clock.advance(max(0, time_s * 1000 - self.clock.now_ms()))
        for _ in range(blocks):
            self.chain.mine()
            await self.settler.step()

    async def settlement(self) -> Settlement | None:
        """The one that has not ended."""
        found = await self.journal.settlements.unsettled(9)
        assert len(found) <= 1
        return found[0] if found else None

    async def status(self, request_id: Hash32) -> Status:
        (status,) = await self.chain.statuses([request_id])
        return status

    def paid(self, request_id: Hash32) -> list[dict[str, Any]]:
        return [
            dict(event.args)
            for event in self.chain.all_events()
            if event.name == "ResultFulfilled" and event.args["requestId"] == request_id
        ]

    def hashes_sent(self) -> int:
        return len(set(self.chain.sent))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with SqlNodeJournal(tmp_path / "node.db") as journal:
        yield World(journal)


async def test_an_answer_whose_relayer_is_gone_is_settled_and_paid_to_the_node_alone(world: World) -> None:
    request_id = await world.answered()
    await world.at(DUE_S - 1)
    assert world.chain.sent == []
    await world.at(DUE_S)
    assert len(world.chain.sent) == 1
    await world.at(DUE_S + 1)
    assert await world.status(request_id) is Status.FULFILLED
    (paid,) = world.paid(request_id)
    # Reward, all of the priority fee, gas by formula and a tenth of what is left of its budget.
    gas_wei = TERMS.assigned_gas * 2 * GWEI
    assert paid["nodePaid"] + paid["relayerPaid"] == 10**14 + 10**14 + gas_wei + (10**15 - gas_wei) // 10
    await world.at(DUE_S + 2, blocks=5)
    assert await world.settlement() is None
    assert len(world.chain.sent) == 1


async def test_what_its_relayer_settles_costs_the_node_nothing(world: World) -> None:
    request_id = await world.answered()
    world.chain.mine(world.chain.fulfilled(request_id))
    await world.at(START_S + 1, blocks=5)
    assert await world.settlement() is None
    assert world.chain.sent == []
    assert world.chain.calls["simulate"] == 0


async def test_a_cancel_between_answer_and_record_moves_the_window_earlier(world: World) -> None:
    request_id = await world.answered()
    world.chain.mine(world.chain.cancel_announced(request_id, START_S + 50))
    await world.at(START_S + 80)
    assert world.chain.sent == []
    await world.at(START_S + 81, blocks=2)
    assert await world.status(request_id) is Status.FULFILLED


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.EXPIRED])
async def test_what_was_given_back_ends_with_the_reason(
    world: World, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    request_id = await world.answered()
    world.chain.mine(world.chain.closed(request_id, status))
    await world.at(START_S + 1, blocks=5)
    assert await world.settlement() is None
    assert world.chain.sent == []
    assert f"the request is {status.name.lower()}" in capsys.readouterr().out


async def test_an_end_that_a_reorg_takes_back_is_not_believed(world: World) -> None:
    request_id = await world.answered()
    world.chain.mine(world.chain.fulfilled(request_id))
    await world.settler.step()
    world.chain.reorg(1)
    await world.at(DUE_S, blocks=2)
    assert len(world.paid(request_id)) == 1
    # Its own settlement may be taken back as well; the same bytes bring it in again.
    world.chain.rollback(1)
    await world.at(DUE_S + 2, blocks=2)
    assert len(world.paid(request_id)) == 1
    assert world.hashes_sent() == 1


async def test_a_request_whose_block_is_gone_is_waited_for(world: World) -> None:
    request_id = await world.answered(posted=False)
    await world.at(DEADLINE_S + 300, blocks=5)
    assert await world.settlement() is not None
    await world.at(DEADLINE_S + 301, blocks=5)
    assert await world.settlement() is None
    assert world.paid(request_id) == []


async def test_an_answer_that_its_relayer_rejected_is_settled_all_the_same(world: World) -> None:
    """It was assigned anew, and nobody else answered either: the node's assignment still counts."""
    request_id = await world.answered()
    await world.journal.set_state(request_id, TaskState.FAILED, "not assigned any more", 3)
    await world.at(DUE_S, blocks=2)
    assert await world.status(request_id) is Status.FULFILLED


# Bytes


async def test_an_answer_goes_inline_when_the_request_asks_for_it(world: World) -> None:
    await world.answered(inline_result=True)
    await world.at(DUE_S, blocks=2)
    (delivered,) = [event for event in world.chain.all_events() if event.name == "ResultDelivered"]
    assert delivered.args["result"] == "0x" + ANSWER.hex()


@pytest.mark.parametrize(("callback_gas", "is_settled"), [(0, True), (100_000, False)])
async def test_bytes_that_the_market_refuses_are_left_out_unless_a_callback_needs_them(
    world: World, callback_gas: int, is_settled: bool
) -> None:
    request_id = await world.answered(inline_result=True, callback_gas=callback_gas)
    simulate = world.chain.simulate

    async def without_bytes(sender: str, calls: Any) -> list[CallOutcome]:
        if world.chain._known_calls[calls[0].to, calls[0].data][1][2].payloads:
            return [CallOutcome(False, 0, (), "ItemRefused(status=6)")]
        return await simulate(sender, calls)

    world.chain.simulate = without_bytes  # type: ignore[method-assign]
    await world.at(DUE_S, blocks=2)
    assert (await world.status(request_id) is Status.FULFILLED) is is_settled
    if not is_settled:
        settlement = await world.settlement()
        assert settlement is not None
        assert "the market would refuse it: ItemRefused(status=6)" in settlement.detail


async def test_a_proof_goes_along(world: World) -> None:
    await world.answered(mode=Mode.VERIFIER, verifier="0x" + "ee" * 20)
    entry = world.journal.entry

    async def with_proof(request_id: Hash32) -> JournalEntry | None:
        found = await entry(request_id)
        return found and dataclasses.replace(found, proof=b"attested")

    world.journal.entry = with_proof  # type: ignore[method-assign]
    await world.at(DUE_S)
    (call,) = [arguments for kind, arguments in world.chain._known_calls.values() if kind == "submit_assigned"]
    assert call[2].proofs == (b"attested",)


async def test_a_quorums_answer_is_left_to_its_relayer(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.answered(mode=Mode.QUORUM, k=2, n=3)
    await world.at(DUE_S)
    assert await world.settlement() is None
    assert world.chain.sent == []
    assert "by their relayer only" in capsys.readouterr().out


# Money


async def test_what_is_not_worth_its_gas_waits_until_gas_is_cheaper(world: World) -> None:
    request_id = await world.answered(max_reward_wei=10**14, gas_budget_wei=0, priority_fee_wei=0)
    world.chain.gas = GasQuote(10_000 * GWEI // 2, GWEI)
    await world.at(DUE_S)
    settlement = await world.settlement()
    assert settlement is not None
    assert "it would bring in 100000000000000 wei, and cost" in settlement.detail
    assert world.chain.sent == []
    world.chain.gas = GasQuote(GWEI // 10, GWEI // 10)
    await world.at(DUE_S + 19)
    assert world.chain.sent == []  # it is not asked about at every block
    await world.at(DUE_S + 20, blocks=2)
    assert await world.status(request_id) is Status.FULFILLED


POOR = {"max_reward_wei": 10**14, "gas_budget_wei": 0, "priority_fee_wei": 0}
RECORDED = RoundRecord(1, "0x" + "d1" * 32, "0x" + "d2" * 32, "0x" + "d3" * 32, 1, "0x" + "d4" * 32, 1, 0, 0)
# More than the reward, and less than what a miss costs.
DEAR = GasQuote(1_000 * GWEI, GWEI)


async def poor_and_recorded(world: World, *, round_: int = 3, stake_wei: int = 10**18, **changes: Any) -> Hash32:
    """An answer that does not pay for its gas, of a round that its relayer recorded before it vanished."""
    request_id = await world.answered(**{**POOR, **changes})
    world.chain.facts[NODE_KEY.address] = member(NODE_KEY.address, stake_wei=stake_wei)
    world.chain.mine(world.chain.recorded(RELAYER_KEY.address, dataclasses.replace(RECORDED, round=round_)))
    world.chain.gas = DEAR
    return request_id


async def test_plan__a_miss_would_cost_more_than_the_gas__settles_at_a_loss(world: World) -> None:
    request_id = await poor_and_recorded(world)
    await world.at(DUE_S, blocks=2)
    assert await world.status(request_id) is Status.FULFILLED


@pytest.mark.parametrize(
    "changes",
    [
        {"round_": 4},
        {"mode": Mode.VERIFIER, "verifier": "0x" + "ee" * 20},
        {"stake_wei": 5 * 10**16},
    ],
    ids=["round not recorded", "another mode", "little stake left"],
)
async def test_plan__nothing_or_too_little_is_at_stake__waits_for_cheaper_gas(
    world: World, changes: dict[str, Any]
) -> None:
    await poor_and_recorded(world, **changes)
    await world.at(DUE_S)
    assert world.chain.sent == []


async def test_plan__cancelled__is_no_miss(world: World) -> None:
    request_id = await poor_and_recorded(world)
    world.chain.mine(world.chain.cancel_announced(request_id, DEADLINE_S - 100))
    await world.at(DUE_S)
    assert world.chain.sent == []


async def test_what_is_never_worth_its_gas_ends_with_the_reason(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.answered()
    world.restart(min_return_bps=10**9)
    await world.at(DUE_S)
    await world.at(DEADLINE_S + 301, blocks=5)
    assert await world.settlement() is None
    assert world.chain.sent == []
    assert "wei of gas by the end of the grace" in capsys.readouterr().out


async def test_without_ether_it_says_so_and_settles_when_there_is_some(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    request_id = await world.answered()
    world.chain.balances[PAYER] = 7
    await world.at(DUE_S)
    assert world.chain.sent == []
    said = capsys.readouterr().out
    assert f"{PAYER} has 7 wei and needs" in said
    assert "HEADRACE_NODE__PAYER__KEYSTORE" in said
    world.chain.balances[PAYER] = 10**18
    await world.at(DUE_S + 20, blocks=2)
    assert await world.status(request_id) is Status.FULFILLED


async def test_a_fee_that_nobody_means_to_pay_is_not_signed(world: World) -> None:
    await world.answered(max_reward_wei=2**79, word={"reward_wei": 2**78})
    world.chain.gas = GasQuote(10_000 * GWEI, GWEI)
    await world.at(DUE_S)
    settlement = await world.settlement()
    assert settlement is not None
    assert "above the ceiling" in settlement.detail
    assert settlement.state is SettlementState.WATCHED


# Persist, then act


async def test_every_transaction_is_in_the_journal_before_it_is_sent(world: World) -> None:
    await world.answered()
    send_raw, stored = world.chain.send_raw, []

    async def witness(raw: bytes) -> None:
        settlement = await world.settlement()
        assert settlement is not None
        stored.append([attempt.raw for attempt in settlement.attempts] == [raw])
        await send_raw(raw)

    world.chain.send_raw = witness  # type: ignore[method-assign]
    await world.at(DUE_S)
    assert stored == [True]


@pytest.mark.parametrize("error", [Unknown("timed out"), ChainUnavailable("gone"), Refused("the pool is full")])
async def test_an_answer_to_the_send_that_is_lost_leads_to_no_second_nonce(world: World, error: Exception) -> None:
    request_id = await world.answered()
    world.chain.fail("send_raw", error)
    await world.at(DUE_S)
    world.restart()
    await world.at(DUE_S + 1, blocks=3)
    assert len(world.paid(request_id)) == 1
    assert world.hashes_sent() == 1


@pytest.mark.parametrize("at", ["begin", "add_attempt", "send_raw"])
async def test_a_kill_at_any_step_leads_to_no_second_nonce(
    world: World, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_id = await world.answered()
    where: Any = world.chain if at == "send_raw" else world.journal.settlements
    method = getattr(where, at)

    async def then_die(*arguments: Any) -> Any:
        await method(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, at, then_die)
        with pytest.raises(KeyboardInterrupt):
            await world.at(DUE_S)
    world.restart()
    await world.at(DUE_S + 1, blocks=3)
    assert len(world.paid(request_id)) == 1
    assert world.hashes_sent() == 1


async def test_a_transaction_that_got_lost_is_sent_again_byte_for_byte(world: World) -> None:
    request_id = await world.answered()
    await world.at(DUE_S)
    world.chain.drop_pool()
    await world.at(DUE_S + 1, blocks=2)
    assert world.hashes_sent() == 1
    assert len(world.chain.sent) == 2
    assert len(world.paid(request_id)) == 1


async def test_a_bid_that_is_not_taken_is_raised_under_the_same_nonce(world: World) -> None:
    request_id = await world.answered()
    await world.at(DUE_S)
    world.chain.gas = GasQuote(5 * GWEI, 2 * GWEI)
    world.chain.drop_pool()
    await world.at(DUE_S + 44)
    assert world.hashes_sent() == 1
    world.chain.drop_pool()
    await world.at(DUE_S + 45)
    assert world.hashes_sent() == 2
    settlement = await world.settlement()
    assert settlement is not None
    first, second = settlement.attempts
    assert second.max_fee_wei * 10 >= first.max_fee_wei * 11
    await world.at(DUE_S + 46)
    assert len(world.paid(request_id)) == 1
    assert world.chain._mined_count(PAYER) == 1


async def test_a_higher_bid_that_is_not_worth_it_is_not_made(world: World) -> None:
    await world.answered()
    await world.at(DUE_S)
    world.chain.gas = GasQuote(4_000 * GWEI, 2_000 * GWEI)
    for seconds in (45, 100, 200):
        world.chain.drop_pool()
        await world.at(DUE_S + seconds)
    assert world.hashes_sent() == 1


async def test_a_nonce_that_another_transaction_took_is_given_up_for_a_new_one(world: World) -> None:
    request_id = await world.answered()
    await world.at(DUE_S)
    world.chain.drop_pool()
    await take_nonce(world, 0)
    await world.at(DUE_S + 1, blocks=2)
    assert world.hashes_sent() == 2  # a node may tell its count before it tells the receipt
    await world.at(DUE_S + 2, blocks=1)
    settlement = await world.settlement()
    assert settlement is not None
    assert (settlement.state, settlement.reverts) == (SettlementState.WATCHED, 0)
    await world.at(DUE_S + 3, blocks=2)
    assert len(world.paid(request_id)) == 1


async def test_a_revert_is_tried_again_but_not_for_ever(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.answered()
    world.restart(patience_s=0)
    for seconds in (1, 30, 60, 90, 120):
        await world.at(DEADLINE_S + seconds)
        world.chain.reverts["submit_assigned"] = "OutOfGas()"
        await world.at(DEADLINE_S + seconds + 1, blocks=4)
        del world.chain.reverts["submit_assigned"]
    assert world.hashes_sent() == 3
    assert await world.settlement() is None
    assert "3 transactions of it reverted" in capsys.readouterr().out


async def test_a_settlement_that_its_relayer_overtakes_ends_as_settled(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    request_id = await world.answered()
    await world.at(DUE_S)
    world.chain.mine(world.chain.fulfilled(request_id))  # in the block before it
    await world.at(DUE_S + 1, blocks=5)
    assert await world.settlement() is None
    assert len(world.paid(request_id)) == 1
    assert "self_settlement_overtaken" in capsys.readouterr().out


async def test_several_answers_go_with_nonces_in_a_row_and_only_some_at_once(world: World) -> None:
    ids = [await world.answered(salt=salt) for salt in (1, 2, 3)]
    await world.at(DUE_S)
    assert world.hashes_sent() == 2
    await world.at(DUE_S + 1, blocks=6)
    assert [len(world.paid(request_id)) for request_id in ids] == [1, 1, 1]
    assert world.hashes_sent() == 3


async def test_a_new_payer_sends_nothing_under_an_old_ones_nonce(world: World) -> None:
    request_id = await world.answered()
    await world.at(DUE_S)
    world.chain.drop_pool()
    world.payer = FakeSigner(34)
    world.restart()
    await world.at(DUE_S + 60)
    # The old payer's transaction may be anywhere: it is sent again as it is, and nothing beside it.
    assert world.hashes_sent() == 1
    await world.at(DUE_S + 61)
    assert len(world.paid(request_id)) == 1


async def test_a_damaged_task_ends_and_the_others_go_on(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    damaged, sound = await world.answered(salt=1), await world.answered(salt=2)
    entry = world.journal.entry

    async def read(request_id: Hash32) -> JournalEntry | None:
        found = await entry(request_id)
        return dataclasses.replace(found, task="{}") if found and request_id == damaged else found

    world.journal.entry = read  # type: ignore[method-assign]
    await world.at(DUE_S, blocks=2)
    assert await world.status(sound) is Status.FULFILLED
    settlement = await world.settlement()
    assert settlement is not None
    assert settlement.request_id == sound
    assert "its journal is damaged" in capsys.readouterr().out


async def test_an_assignment_that_its_relayer_never_signed_is_refused_before_it_costs_gas(world: World) -> None:
    task = make_task(deadline_s=DEADLINE_S)
    world.chain.mine(world.chain.requested(task.request))
    forged = FakeSigner(12).sign_digest(digest(Domain(31337, MARKET), hash_assignment(task.assignment)))
    await world.compute(dataclasses.replace(task, assignment_signature=forged))
    await world.at(DUE_S)
    settlement = await world.settlement()
    assert settlement is not None
    assert f"InvalidSignature(signer={RELAYER_KEY.address})" in settlement.detail
    assert world.chain.sent == []


# The loop


@pytest.mark.looptime
async def test_run__chain_gone_and_back__goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with SqlNodeJournal(tmp_path / "node.db") as journal:
        world = World(journal)
        world.clock = world.chain.clock = LoopClock()  # type: ignore[assignment]
        world.chain.automine = True
        world.chain.balances[PAYER] = 0
        world.settler = world.started()
        request_id = await world.answered(deadline_s=START_S + 60)
        world.chain.fail("balance_wei", ChainUnavailable("the node restarts"))
        world.chain.fail("head", ChainUnavailable("it does so again"), ZeroDivisionError("a bug"))
        world.chain.fail("statuses", ConfigurationError("it is another chain's"))
        running = asyncio.ensure_future(world.settler.run())
        try:
            async with asyncio.timeout(900):
                await asyncio.sleep(30)
                world.chain.balances[PAYER] = 10**18
                while not world.paid(request_id):
                    await asyncio.sleep(1)
                    world.chain.mine()
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
    said = capsys.readouterr().out
    for words in ("the node restarts", "does so again", "self_settlement_unfunded", "self_settlement_broke"):
        assert words in said


async def take_nonce(world: World, nonce: int) -> None:
    """Something else uses the payer's key."""
    fields = {"type": 2, "chainId": world.chain.chain_id, "nonce": nonce, "to": PAYER, "value": 1, "gas": 21_000}
    raw, _ = PAYER_KEY.transaction({**fields, "maxFeePerGas": 10**10, "maxPriorityFeePerGas": 10**9, "data": b""})
    await world.chain.send_raw(raw)
