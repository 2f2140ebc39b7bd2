"""Chain against store: each way in which they can differ is found, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.events import ChainEvent
from headrace.core.fees import payout
from headrace.core.lifecycle import RequestState
from headrace.core.reconciliation import Discrepancy, InStore, OnChain, Payment, Slack, compare, ledger
from headrace.core.types import Status
from tests.fakes import MARKET, RELAYER, TERMS, FakeChain, make_request

ID = "0x" + "11" * 32
REQUEST = make_request()
REWARD_WEI = 10**13
D = REQUEST.deadline_s
OWED = payout(TERMS, REQUEST, 0, REWARD_WEI, 0)
PAID = OnChain(REQUEST, 5, D, payments=(Payment(OWED.node_wei, OWED.relayer_wei, OWED.refund_wei),))
OPEN = OnChain(REQUEST, 5, D)
EXPIRED = OnChain(REQUEST, 5, D, closings=(Status.EXPIRED,))
CANCELLED = OnChain(REQUEST, 5, D, closings=(Status.CANCELLED,))
ANSWERED = InStore(RequestState.FULFILLED, REWARD_WEI, 1, D)


def kinds(chain: OnChain, store: InStore | None, now_s: int = D) -> list[str]:
    return [str(each.kind) for each in compare(ID, chain, store, TERMS, now_s, Slack(expire_s=100))]


@pytest.mark.parametrize(
    ("chain", "store"),
    [
        (PAID, ANSWERED),
        (OPEN, InStore(RequestState.SIGNED, REWARD_WEI, 1, D)),
        (OPEN, InStore(RequestState.ELIGIBLE)),
        (EXPIRED, InStore(RequestState.EXPIRED)),
        (EXPIRED, InStore(RequestState.EXPIRED, REWARD_WEI, 1, D + 1)),
        (CANCELLED, InStore(RequestState.CANCELLED, REWARD_WEI, 1, D)),
    ],
)
def test_compare__they_agree__nothing(chain: OnChain, store: InStore) -> None:
    assert kinds(chain, store) == []


@pytest.mark.parametrize(
    ("chain", "store", "found"),
    [
        (replace(PAID, payments=PAID.payments * 2), ANSWERED, ["duplicated"]),
        (replace(PAID, closings=(Status.EXPIRED,)), ANSWERED, ["duplicated"]),
        (replace(OPEN, closings=(Status.EXPIRED, Status.CANCELLED)), InStore(RequestState.EXPIRED), ["duplicated"]),
        (PAID, None, ["lost"]),
        (OPEN, None, ["lost"]),
        (OPEN, ANSWERED, ["lost"]),
        (EXPIRED, InStore(RequestState.FULFILLED), ["lost"]),
        (PAID, InStore(RequestState.WITHDRAWN), ["lost"]),
        (PAID, InStore(RequestState.SETTLING, REWARD_WEI, 1, D), ["stuck"]),
        (EXPIRED, InStore(RequestState.ELIGIBLE), ["stuck"]),
        (EXPIRED, InStore(RequestState.EXPIRED, REWARD_WEI, 1, D), ["unpaid"]),
        (PAID, replace(ANSWERED, reward_wei=REWARD_WEI + 1), ["unpaid"]),
        (PAID, replace(ANSWERED, nodes=2), ["unpaid"]),
    ],
)
def test_compare__they_differ__says_how(chain: OnChain, store: InStore | None, found: list[str]) -> None:
    assert kinds(chain, store) == found


def test_compare__nobody_refunded_it__is_stuck_after_the_slack() -> None:
    over_s = D + TERMS.grace_s + 100
    store = InStore(RequestState.ELIGIBLE)
    assert kinds(OPEN, store, over_s) == []
    assert kinds(OPEN, store, over_s + 1) == ["stuck"]
    earlier = replace(OPEN, effective_deadline_s=D - 50)
    assert kinds(earlier, store, over_s - 49) == ["stuck"]
    (finding,) = compare(ID, replace(OPEN, fee_added_wei=7), store, TERMS, over_s + 1, Slack(expire_s=100))
    assert finding.wei == REQUEST.escrow_wei + 7


def test_compare__paid_too_little__says_how_many_wei() -> None:
    (finding,) = compare(ID, PAID, replace(ANSWERED, reward_wei=REWARD_WEI + 9), TERMS, D, Slack())
    assert (finding.kind, finding.wei) == (Discrepancy.UNPAID, 9)


def test_ledger__events_of_a_life__are_told_in_order() -> None:
    chain = FakeChain()
    mine, other = make_request(relayer=RELAYER), make_request(relayer="0x" + "99" * 20, salt=2)
    chain.mine(chain.requested(mine), chain.requested(other))
    (event, stranger) = chain.all_events()
    id_ = chain.id_of(mine)

    def later(name: str, **args: object) -> ChainEvent:
        return ChainEvent(9, "0x", "0x", 0, MARKET, name, {"requestId": id_, **args})

    events = [
        event,
        stranger,
        later("PriorityFeeRaised", added=5, total=12),
        later("CancelAnnounced", effectiveDeadline=77),
        later("ResultFulfilled", nodePaid=1, relayerPaid=2, refund=3),
        later("RequestClosed", status=int(Status.EXPIRED)),
    ]
    known = ledger(events, RELAYER)
    assert known == {id_: OnChain(mine, event.block_number, 77, 12, (Payment(1, 2, 3),), (Status.EXPIRED,))}
