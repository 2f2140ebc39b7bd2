"""What is taken to be posted for its requester, and what is not: nothing is stored of what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.core.chat_bodies import PromptNotServed
from headrace.core.envelope import hash_payload
from headrace.core.errors import ChainUnavailable, InvalidInput, QueueFull, SignatureMismatch, Unavailable
from headrace.core.postings import (
    CreditShort,
    DeadlineOutOfRange,
    FeeTooLow,
    NotOffered,
    PostingState,
    PromptMismatch,
    PromptMissing,
    RequestExists,
    RequestsPaused,
    SignatureLapsed,
    WrongRelayer,
)
from headrace.core.types import GasQuote, Request
from headrace.ports import Call, CallOutcome
from headrace.services.intake import MAX_CHECKS, HandedIn, IntakeSettings
from tests.fakes import GWEI, REQUESTER, START_S
from tests.services.post_office import CREDIT_WEI, FEE_WEI, KEY, OTHER_KEY, PostOffice, post_office
from tests.services.world import PROMPT

NOBODY = "0x" + "99" * 20


async def refused(made: PostOffice, handed: HandedIn, kind: type[Exception], words: str, *, simulated: int = 0) -> None:
    """It is refused for that, and leaves nothing behind."""
    before = made.world.chain.calls["simulate"]
    with pytest.raises(kind, match=words):
        await made.intake.take(handed)
    assert made.world.chain.calls["simulate"] - before == simulated, "what is cheap comes first"
    assert await made.world.store.postings(PostingState.SUBMITTED) == []
    request = handed.signed.request
    assert await made.world.store.held_prompts({(request.prompt_hash, request.requester)}) == set()
    assert made.rings == []


async def test_take__signed_and_paid_for__is_stored_with_its_prompt_and_rings() -> None:
    async with post_office() as made:
        request = made.request()
        taken = await made.hand_in(request)
        assert taken.request_id == made.world.chain.id_of(request)
        assert (taken.request, taken.relayer_fee_wei, taken.state) == (request, FEE_WEI, PostingState.SUBMITTED)
        assert await made.the(taken.request_id) == taken
        held = {(hash_payload(PROMPT), KEY.address), (hash_payload(PROMPT), REQUESTER)}
        assert await made.world.store.held_prompts(held) == {(hash_payload(PROMPT), KEY.address)}
        assert len(made.rings) == 1
        assert made.sent() == 0, "it is stored before anything is sent"
        assert made.world.metrics.counts["headrace_postings_total", "outcome=taken"] == 1


async def test_take__again__is_the_same_posting_whatever_has_changed() -> None:
    async with post_office() as made:
        first = await made.hand_in(made.request())
        made.world.chain.credits[KEY.address] = 0
        assert await made.hand_in(first.request) == first
        assert await made.hand_in(first.request, fee_wei=1) == first
        assert len(made.rings) == 1


async def test_take__twice_at_once__is_one_posting() -> None:
    async with post_office() as made:
        request = made.request()
        first, second = await asyncio.gather(made.hand_in(request), made.hand_in(request))
        assert first == second
        assert len(await made.world.store.postings(PostingState.SUBMITTED)) == 1


def handed(made: PostOffice, request: Request, payload: bytes | None = PROMPT, **changes: int) -> HandedIn:
    return HandedIn(made.signed(request, **changes), payload, False)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"relayer": NOBODY}, WrongRelayer, NOBODY),
        ({"relayer": "0x" + "00" * 20}, WrongRelayer, "names the relayer 0x0000"),
        ({"prompt_hash": "0x" + "99" * 32}, PromptMismatch, "the bytes have the hash"),
        ({"prompt_bytes": 1}, PromptMismatch, "the request names 1"),
        ({"deadline_s": START_S + 14}, DeadlineOutOfRange, "15 to 86395 seconds from now, not 14"),
        ({"deadline_s": START_S + 90_000}, DeadlineOutOfRange, "not 90000"),
    ],
)
async def test_take__terms_that_cannot_be__are_refused(
    changes: dict[str, object], kind: type[Exception], words: str
) -> None:
    async with post_office() as made:
        await refused(made, handed(made, made.request(**changes)), kind, words)


async def test_take__prompt_that_no_node_takes__is_refused_whenever_it_was_handed_in() -> None:
    async with post_office() as made:
        payload = b'{"messages": [{"role": "user", "content": "Hi"}], "logprobs": true}'
        request = made.request(prompt_hash=hash_payload(payload), prompt_bytes=len(payload))
        await refused(made, handed(made, request, payload), PromptNotServed, "asks for logprobs")
        await made.world.store.put_prompt(payload, request.requester, 0)
        with pytest.raises(PromptNotServed, match="asks for logprobs"):
            await made.intake.take(handed(made, request, None))
        assert await made.world.store.postings(PostingState.SUBMITTED) == []


async def test_take__number_that_the_market_has_no_room_for__is_refused() -> None:
    async with post_office() as made:
        signed = made.signed(made.request())
        signed = replace(signed, request=replace(signed.request, max_reward_wei=2**80))
        await refused(made, HandedIn(signed, PROMPT, False), InvalidInput, "does not fit into 80 bits")


async def test_take__signature_about_to_lapse__is_refused() -> None:
    async with post_office() as made:
        await refused(made, handed(made, made.request(), valid_for_s=4), SignatureLapsed, "sign the request anew")


# The fee


async def test_take__fee_at_the_floor__is_enough_and_a_wei_less_is_not() -> None:
    async with post_office() as made:
        made.world.chain.gas = GasQuote(base_fee_wei=7 * GWEI, tip_wei=GWEI)
        floor_wei = made.intake.fee_floor_wei(made.world.chain.gas)
        assert floor_wei == 77_500 * 8 * GWEI * 12 // 10
        short = handed(made, made.request(), fee_wei=floor_wei - 1)
        await refused(made, short, FeeTooLow, f"at least {floor_wei}")
        assert (await made.hand_in(made.request(), fee_wei=floor_wei)).relayer_fee_wei == floor_wei


async def test_take__prompt_that_is_published__costs_by_its_bytes() -> None:
    async with post_office() as made:
        gas = made.world.chain.gas
        floor_wei = made.intake.fee_floor_wei(gas, len(PROMPT))
        assert floor_wei > made.intake.fee_floor_wei(gas)
        short = HandedIn(made.signed(made.request(), fee_wei=floor_wei - 1), PROMPT, True)
        await refused(made, short, FeeTooLow, f"at least {floor_wei}")
        taken = await made.intake.take(replace(short, signed=made.signed(made.request(), fee_wei=floor_wei)))
        assert PROMPT in taken.data


async def test_take__margin_of_nothing__posts_for_nothing() -> None:
    async with post_office(settings=IntakeSettings(fee_margin_bps=0)) as made:
        assert (await made.hand_in(made.request(), fee_wei=0)).relayer_fee_wei == 0


# Credit


async def test_take__credit_short__says_how_much_is_missing() -> None:
    async with post_office() as made:
        request = made.request()
        made.world.chain.credits[KEY.address] = request.escrow_wei + FEE_WEI - 1
        await refused(made, handed(made, request), CreditShort, "deposit 1 wei more")
        made.world.chain.credits[KEY.address] += 1
        await made.hand_in(request)


async def test_take__credit_that_waits_for_others__is_not_counted_twice() -> None:
    async with post_office() as made:
        first, second = made.request(salt=1), made.request(salt=2)
        made.world.chain.credits[KEY.address] = first.escrow_wei + second.escrow_wei + 2 * FEE_WEI - 1
        await made.hand_in(first)
        with pytest.raises(CreditShort, match="deposit 1 wei more"):
            await made.hand_in(second)


async def test_take__two_at_once_for_the_credit_of_one__one_is_refused() -> None:
    async with post_office() as made:
        requests = [made.request(salt=salt) for salt in (1, 2)]
        made.world.chain.credits[KEY.address] = requests[0].escrow_wei + FEE_WEI
        outcomes = await asyncio.gather(*(made.hand_in(each) for each in requests), return_exceptions=True)
        assert sorted(isinstance(each, CreditShort) for each in outcomes) == [False, True]


# Who signed


async def test_take__signed_by_another_key__is_refused() -> None:
    async with post_office() as made:
        request = made.request()
        signed = made.signed(request, OTHER_KEY)
        await refused(made, HandedIn(signed, PROMPT, False), SignatureMismatch, KEY.address, simulated=1)


async def test_take__contract_account__its_own_word_counts_and_its_gas_is_paid_for() -> None:
    async with post_office() as made:
        chain, wallet = made.world.chain, "0x" + "77" * 20
        chain.wallets[wallet] = b"two of three"
        chain.credits[wallet] = CREDIT_WEI
        request = made.request(requester=wallet)
        signed = replace(made.signed(request), signature=b"two of three")
        assert (await made.intake.take(HandedIn(signed, PROMPT, False))).state is PostingState.SUBMITTED
        other = made.request(requester=wallet, salt=2)
        floor_wei = made.intake.fee_floor_wei(chain.gas)
        chain.request_for_gas = 200_000
        needed_wei = 200_000 * chain.gas.price_wei * 12 // 10
        signed = replace(made.signed(other, fee_wei=floor_wei), signature=b"two of three")
        with pytest.raises(FeeTooLow, match=f"at least {needed_wei}"):
            await made.intake.take(HandedIn(signed, PROMPT, False))
        signed = replace(made.signed(other, fee_wei=needed_wei), signature=b"two of three")
        await made.intake.take(HandedIn(signed, PROMPT, False))


# Prompts


async def test_take__prompt_that_was_handed_in_before__is_enough() -> None:
    async with post_office() as made:
        await refused(made, handed(made, made.request(), None), PromptMissing, "send them with the request")
        await made.world.store.put_prompt(PROMPT, KEY.address, made.world.clock.now_ms())
        assert (await made.intake.take(handed(made, made.request(), None))).state is PostingState.SUBMITTED


async def test_take__prompt_that_another_account_handed_in__does_not_count() -> None:
    """I29: its hash is public."""
    async with post_office() as made:
        await made.world.store.put_prompt(PROMPT, OTHER_KEY.address, made.world.clock.now_ms())
        await refused(made, handed(made, made.request(), None), PromptMissing, KEY.address)


# What the market says


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ("RequestsPaused()", RequestsPaused, "its owner paused them"),
        ("InvalidTerms()", InvalidInput, "no request with these terms"),
        ("CallbackGasTooHigh(callbackGas=9, most=3)", InvalidInput, "3 gas at most, and the request asks for 9"),
        ("execution reverted", Unavailable, "could not be simulated"),
    ],
)
async def test_take__market_would_refuse__is_not_stored(error: str, kind: type[Exception], words: str) -> None:
    async with post_office() as made:
        made.world.chain.reverts["request_for"] = error
        await refused(made, handed(made, made.request()), kind, words, simulated=1)


async def test_take__posted_by_the_requester_itself__exists() -> None:
    async with post_office() as made:
        request = made.request()
        await made.world.post(request, prompt=None)
        with pytest.raises(RequestExists, match="nothing is paid twice"):
            await made.hand_in(request)


async def test_take__posted_before_in_a_block_that_is_gone__may_be_posted() -> None:
    async with post_office() as made:
        request = made.request()
        await made.world.post(request, prompt=None)
        made.world.chain.reorg(1)
        await made.world.store.rewind_to(made.world.chain.all_blocks()[-1].number - 1)
        await made.world.index()
        assert await made.world.state(made.world.chain.id_of(request)) == "withdrawn"
        assert (await made.hand_in(request)).state is PostingState.SUBMITTED


async def test_take__chain_does_not_answer__is_unavailable_and_not_stored() -> None:
    async with post_office() as made:
        made.world.chain.fail("simulate", ChainUnavailable("down"))
        with pytest.raises(ChainUnavailable):
            await made.hand_in(made.request())
        assert await made.world.store.postings(PostingState.SUBMITTED) == []
        await made.hand_in(made.request())


# Bounds


async def test_take__as_many_as_may_wait__are_bounded_in_total_and_by_requester() -> None:
    settings = IntakeSettings(max_open=3, max_open_per_requester=2)
    async with post_office(settings=settings) as made:
        for salt in (1, 2):
            await made.hand_in(made.request(salt=salt))
        with pytest.raises(QueueFull, match=f"2 of the 2 places of {KEY.address} are taken"):
            await made.hand_in(made.request(salt=3))
        await made.hand_in(made.request(OTHER_KEY, salt=3), OTHER_KEY)
        with pytest.raises(QueueFull, match="3 requests wait to be posted"):
            await made.hand_in(made.request(OTHER_KEY, salt=4), OTHER_KEY)
        assert QueueFull.http_status == 429


async def test_take__transactions_that_failed__count_for_an_hour() -> None:
    async with post_office(settings=IntakeSettings(max_open_per_requester=1)) as made:
        first = await made.hand_in(made.request(salt=1, deadline_s=made.now_s + 7_200))
        await made.poster.step()
        made.world.chain.reverts["request_for"] = "RequestsPaused()"
        await made.block()
        await made.world.sender.confirm()
        await made.poster.step()
        made.world.chain.reverts.clear()
        assert (await made.the(first.request_id)).state is PostingState.UNPOSTED
        for request in (first.request, made.request(salt=2, deadline_s=made.now_s + 7_200)):
            with pytest.raises(QueueFull, match=r"1 of the 1 places.*failed within an hour"):
                await made.hand_in(request)
        await made.hand_in(made.request(OTHER_KEY, salt=3), OTHER_KEY)
        made.world.clock.advance(3_600_001)
        made.world.chain.mine()
        assert (await made.hand_in(first.request)).state is PostingState.SUBMITTED


async def test_take__at_once__never_above_the_bound() -> None:
    async with post_office(settings=IntakeSettings(max_open_per_requester=2)) as made:
        tasks = (made.hand_in(made.request(salt=salt)) for salt in range(6))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(each, QueueFull) for each in outcomes) == 4
        assert len(await made.world.store.postings(PostingState.SUBMITTED)) == 2


async def test_take__more_checks_than_may_run_at_once__are_sent_away() -> None:
    async with post_office(settings=IntakeSettings(max_open_per_requester=100)) as made:
        chain, go, started = made.world.chain, asyncio.Event(), asyncio.Event()
        simulate = chain.simulate
        running = 0

        async def slow(sender: str, calls: Sequence[Call]) -> list[CallOutcome]:
            nonlocal running
            running += 1
            if running == MAX_CHECKS:
                started.set()
            await go.wait()
            return await simulate(sender, calls)

        chain.simulate = slow  # type: ignore[method-assign]
        tasks = [asyncio.create_task(made.hand_in(made.request(salt=salt))) for salt in range(MAX_CHECKS)]
        await started.wait()
        with pytest.raises(QueueFull, match=f"{MAX_CHECKS} requests are being checked"):
            await made.hand_in(made.request(salt=99))
        go.set()
        await asyncio.gather(*tasks)


async def test_take__none_is_to_be_taken__says_what_to_do() -> None:
    async with post_office(settings=IntakeSettings(max_open=0)) as made:
        await refused(made, handed(made, made.request()), NotOffered, "from the account itself")


async def test_take__unposted_before__may_be_handed_in_again() -> None:
    async with post_office() as made:
        first = await made.hand_in(made.request())
        now_ms = made.world.clock.now_ms()
        await made.world.store.end_posting(first.request_id, PostingState.UNPOSTED, "No.", now_ms)
        again = await made.hand_in(first.request)
        assert (again.state, again.reason) == (PostingState.SUBMITTED, "")
