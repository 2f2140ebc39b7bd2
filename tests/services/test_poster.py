"""What was taken is posted once, by the relayer's own transaction; what can no longer be posted ends with a reason."""

from __future__ import annotations

import pytest

from headrace.core.errors import ChainUnavailable, ExpiredContext, Unknown
from headrace.core.postings import PostingState
from headrace.core.types import GasQuote
from headrace.ports import StoredPosting
from headrace.services.poster import Poster, PosterSettings
from tests.fakes import GWEI, FakeSigner
from tests.services.post_office import FEE_WEI, KEY, OTHER_KEY, PostOffice, post_office


async def taken(made: PostOffice, *salts: int, key: FakeSigner = KEY) -> list[StoredPosting]:
    """Handed in one after the other, a millisecond apart."""
    postings = []
    for salt in salts:
        postings.append(await made.hand_in(made.request(key, salt=salt), key))
        made.world.clock.advance(1)
    return postings


def requested(made: PostOffice, posting: StoredPosting) -> int:
    """How often the chain has it."""
    events = made.world.chain.all_events()
    return sum(
        1 for each in events if each.name == "InferenceRequested" and each.args["requestId"] == posting.request_id
    )


async def test_step__taken__is_stored_as_an_intent_sent_and_served_like_any_other() -> None:
    async with post_office(nodes=1) as made:
        (posting,) = await taken(made, 1)
        assert await made.poster.step() == 1
        sent = await made.the(posting.request_id)
        (intent,) = await made.world.store.open_intents()
        assert (intent.kind, intent.key) == ("request_for", f"request_for:{posting.request_id}")
        assert (sent.state, sent.intent_state) == (PostingState.SUBMITTED, "open")
        assert sent.transaction_hash == intent.attempts[-1].transaction_hash
        await made.block()
        assert (await made.the(posting.request_id)).state is PostingState.POSTED
        assert await made.world.state(posting.request_id) == "eligible"
        assert await made.world.chain.credit_wei(KEY.address) == 10**17 - posting.cost_wei
        plan = await made.world.cycle()
        assert plan is not None and plan.decisions[0].decision.reason.name == "LOWEST_COST", "its prompt is there (I29)"


async def test_step__again__sends_nothing_twice() -> None:
    async with post_office() as made:
        (posting,) = await taken(made, 1)
        assert [await made.poster.step() for _ in range(3)] == [1, 0, 0]
        await made.block()
        await made.hand_in(posting.request)
        assert await made.poster.step() == 0
        await made.block()
        assert made.sent() == 1
        assert requested(made, posting) == 1


async def test_step__several__are_sent_in_their_order() -> None:
    async with post_office() as made:
        postings = await taken(made, 5, 3, 4)
        assert await made.poster.step() == 3
        intents = await made.world.store.open_intents()
        assert [each.detail["request_id"] for each in intents] == [each.request_id for each in postings]


async def test_step__more_than_go_at_once__go_the_next_time() -> None:
    async with post_office() as made:
        world = made.world
        relayer, terms, settings = world.signer.address, world.chain.terms, PosterSettings(max_at_once=2)
        made.poster = Poster(
            world.chain, world.store, world.sender, world.clock, world.metrics, relayer, terms, settings
        )
        await taken(made, 1, 2, 3)
        assert [await made.poster.step() for _ in range(3)] == [2, 1, 0]


async def test_step__answer_of_the_node_lost__is_sent_again_byte_for_byte() -> None:
    async with post_office() as made:
        (posting,) = await taken(made, 1)
        made.world.chain.fail("send_raw", Unknown("the answer was lost"))
        await made.poster.step()
        made.world.clock.advance(5_000)
        await made.world.sender.confirm()
        assert made.sent() == 2
        assert len(set(made.world.chain.sent)) == 1
        await made.block()
        assert requested(made, posting) == 1


# What cannot be sent


async def test_step__credit_spent_since__ends_with_what_to_do() -> None:
    async with post_office() as made:
        (posting,) = await taken(made, 1)
        made.world.chain.credits[KEY.address] = 3
        assert await made.poster.step() == 0
        ended = await made.the(posting.request_id)
        assert ended.state is PostingState.UNPOSTED
        assert ended.reason.startswith("The escrow and the relayer's fee are")
        assert ended.reason.endswith("deposit more, and hand the request in again.")
        assert made.sent() == 0


async def test_step__credit_for_one_of_two__is_seen_before_a_transaction_is_spent() -> None:
    """The first is on its way and in no block yet."""
    async with post_office() as made:
        first, second = await taken(made, 1, 2)
        made.world.chain.credits[KEY.address] = first.cost_wei
        assert await made.poster.step() == 1
        assert (await made.the(second.request_id)).state is PostingState.UNPOSTED
    async with post_office() as made:
        (first,) = await taken(made, 1)
        await made.poster.step()
        (second,) = await taken(made, 2)
        made.world.chain.credits[KEY.address] = first.cost_wei
        assert await made.poster.step() == 0
        assert "account's credit in the market is 0 wei" in (await made.the(second.request_id)).reason


async def test_step__posted_by_somebody_else_meanwhile__costs_nothing() -> None:
    async with post_office() as made:
        (posting,) = await taken(made, 1)
        made.world.chain.mine(made.world.chain.requested(posting.request))
        assert await made.poster.step() == 0
        ended = await made.the(posting.request_id)
        assert (ended.state, ended.reason) == (PostingState.POSTED, "")
        assert made.sent() == 0


@pytest.mark.parametrize(
    ("valid_for_s", "deadline_in_s", "words"),
    [(60, 600, "signature counts until"), (600, 60, "The deadline must be 15 to")],
)
async def test_step__time_passed__ends_with_what_kept_it(valid_for_s: int, deadline_in_s: int, words: str) -> None:
    async with post_office() as made:
        request = made.request(deadline_s=made.now_s + deadline_in_s)
        posting = await made.hand_in(request, valid_for_s=valid_for_s)
        made.world.chain.reverts["request_for"] = "RequestsPaused()"
        assert await made.poster.step() == 0
        waiting = await made.the(posting.request_id)
        assert (waiting.state, waiting.intent_state) == (PostingState.SUBMITTED, ""), "a pause may end"
        made.world.clock.advance(61_000)
        assert await made.poster.step() == 0
        ended = await made.the(posting.request_id)
        assert ended.state is PostingState.UNPOSTED
        assert words in ended.reason
        assert ended.reason.endswith(
            "it was not posted before, since the market takes no new requests now: its owner paused them."
        )


async def test_step__gas_dearer_than_the_fee__waits_until_it_is_cheaper() -> None:
    async with post_office() as made:
        await taken(made, 1)
        made.world.chain.gas = GasQuote(base_fee_wei=FEE_WEI // 76_000, tip_wei=1)
        assert await made.poster.step() == 0
        made.world.chain.gas = GasQuote(base_fee_wei=FEE_WEI // 76_000 - 1, tip_wei=1)
        assert await made.poster.step() == 1


async def test_step__one_that_waits_for_cheaper_gas__does_not_hold_up_others() -> None:
    async with post_office() as made:
        world = made.world
        relayer, terms, settings = world.signer.address, world.chain.terms, PosterSettings(max_at_once=1)
        made.poster = Poster(
            world.chain, world.store, world.sender, world.clock, world.metrics, relayer, terms, settings
        )
        await made.hand_in(made.request(salt=1), fee_wei=FEE_WEI // 2)
        world.clock.advance(1)
        (dearer,) = await taken(made, 2)
        world.chain.gas = GasQuote(base_fee_wei=FEE_WEI // 76_000 - 1, tip_wei=1)
        assert [await made.poster.step() for _ in range(2)] == [0, 1]
        (intent,) = await world.store.open_intents()
        assert intent.detail["request_id"] == dearer.request_id


async def test_step__waited_for_too_long__makes_room_and_says_why() -> None:
    async with post_office() as made:
        posting = await made.hand_in(made.request(deadline_s=made.now_s + 3_600), valid_for_s=3_600)
        made.world.chain.gas = GasQuote(base_fee_wei=FEE_WEI, tip_wei=1)
        assert await made.poster.step() == 0
        made.world.clock.advance(600_000)
        assert await made.poster.step() == 0
        assert (await made.the(posting.request_id)).state is PostingState.SUBMITTED
        made.world.clock.advance(1_000)
        assert await made.poster.step() == 0
        ended = await made.the(posting.request_id)
        assert ended.state is PostingState.UNPOSTED
        assert ended.reason == (
            "It could not be posted within 600 seconds, since gas is dearer than the fee pays for: hand it in again."
        )


@pytest.mark.parametrize("error", ["header not found", "0xdeadbeef"])
async def test_step__node_cannot_simulate__proves_nothing(error: str) -> None:
    async with post_office() as made:
        await taken(made, 1)
        made.world.chain.reverts["request_for"] = error
        assert await made.poster.step() == 0
        made.world.chain.reverts.clear()
        assert await made.poster.step() == 1


async def test_step__chain_or_guard_says_not_now__leaves_it_for_later() -> None:
    async with post_office() as made:
        (posting,) = await taken(made, 1)
        made.world.chain.fail("simulate", ChainUnavailable("down"))
        with pytest.raises(ChainUnavailable):
            await made.poster.step()
        made.world.chain.fail("gas_quote")
        quote, made.world.chain.gas = made.world.chain.gas, GasQuote(base_fee_wei=1, tip_wei=10**12 + 1)
        made.world.chain.request_for_gas = 1
        with pytest.raises(ExpiredContext):
            await made.poster.step()
        assert (await made.the(posting.request_id)).intent_state == ""
        made.world.chain.gas = quote
        assert await made.poster.step() == 1


# What the chain makes of it


async def reverted(made: PostOffice) -> None:
    """A transaction that logged nothing is looked for once more when its block is indexed."""
    await made.world.index()
    await made.world.sender.confirm()
    assert await made.poster.step() == 0


async def test_step__reverted_in_its_block__ends_with_the_reason_and_is_not_tried_again() -> None:
    async with post_office() as made:
        (posting,) = await taken(made, 1)
        await made.poster.step()
        made.world.chain.credits[KEY.address] = 0
        made.world.chain.mine()
        await made.world.sender.confirm()
        await made.poster.step()
        assert (await made.the(posting.request_id)).state is PostingState.SUBMITTED, "its block is not indexed yet"
        await reverted(made)
        ended = await made.the(posting.request_id)
        assert (ended.state, ended.intent_state) == (PostingState.UNPOSTED, "reverted")
        assert "the account's credit in the market is 0 wei" in ended.reason
        made.world.chain.credits[KEY.address] = 10**17
        assert await made.poster.step() == 0
        assert made.sent() == 1
        assert await made.world.store.reverted_postings(KEY.address, 0) == 1


async def test_step__reverted_for_what_has_passed__says_so() -> None:
    async with post_office() as made:
        (posting,) = await taken(made, 1)
        await made.poster.step()
        made.world.chain.reverts["request_for"] = "RequestsPaused()"
        made.world.chain.mine()
        made.world.chain.reverts.clear()
        await reverted(made)
        ended = await made.the(posting.request_id)
        assert ended.state is PostingState.UNPOSTED
        assert ended.reason == "The market refused it in the block that it was put into."


async def test_step__somebody_else_was_first_in_the_block__it_is_posted_and_paid_once() -> None:
    async with post_office() as made:
        (posting,) = await taken(made, 1)
        await made.poster.step()
        made.world.chain.mine(made.world.chain.requested(posting.request))
        await made.world.sender.confirm()
        await reverted(made)
        assert (await made.the(posting.request_id)).state is PostingState.POSTED
        assert requested(made, posting) == 1


async def test_reorg__takes_its_block__the_same_transaction_posts_it_again() -> None:
    async with post_office() as made:
        (posting,) = await taken(made, 1)
        await made.poster.step()
        await made.block()
        head = made.world.chain.all_blocks()[-1].number
        made.world.chain.reorg(1)
        await made.world.store.rewind_to(head - 1)
        await made.world.index()
        assert (await made.the(posting.request_id)).state is PostingState.SUBMITTED
        assert await made.world.state(posting.request_id) == "withdrawn"
        assert await made.poster.step() == 0, "its transaction is to be sent again, not a new one"
        made.world.clock.advance(5_000)
        await made.world.sender.confirm()
        await made.block()
        assert (await made.the(posting.request_id)).state is PostingState.POSTED
        assert await made.world.state(posting.request_id) == "eligible"
        assert len(set(made.world.chain.sent)) == 1
        assert requested(made, posting) == 1


async def test_step__nonce_taken_by_a_stranger__is_sent_anew() -> None:
    async with post_office() as made:
        (posting,) = await taken(made, 1)
        await made.poster.step()
        made.world.chain.drop_pool()
        call = {"to": "0x" + "99" * 20, "data": b"", "value": 0, "nonce": 0, "chainId": 31337, "type": 2}
        gas = {"gas": 21_000, "maxFeePerGas": 9 * GWEI, "maxPriorityFeePerGas": GWEI}
        await made.world.chain.send_raw(made.world.signer.transaction({**call, **gas})[0])
        made.world.chain.mine()
        for _ in range(4):
            await made.block()
        assert (await made.the(posting.request_id)).intent_state == ""
        assert await made.poster.step() == 1
        await made.block()
        assert (await made.the(posting.request_id)).state is PostingState.POSTED
        assert requested(made, posting) == 1


async def test_restart__between_taking_and_sending__is_sent_by_the_next_run() -> None:
    async with post_office() as made:
        world = made.world
        (posting,) = await taken(made, 1)
        relayer, terms = world.signer.address, world.chain.terms
        after = Poster(world.chain, world.store, world.sender, world.clock, world.metrics, relayer, terms)
        assert await after.step() == 1
        assert (await made.the(posting.request_id)).intent_state == "open"


async def test_step__of_two_requesters__the_credit_of_each_is_its_own() -> None:
    async with post_office() as made:
        await taken(made, 1)
        await taken(made, 1, key=OTHER_KEY)
        made.world.chain.credits[KEY.address] = 0
        assert await made.poster.step() == 1


async def test_gas_of_the_fake__is_below_what_a_fee_pays_for() -> None:
    """The tests above count on it."""
    async with post_office() as made:
        assert made.world.chain.gas.price_wei == 2 * GWEI
        assert made.intake.fee_floor_wei(made.world.chain.gas) < FEE_WEI
