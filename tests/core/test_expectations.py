"""What a simulation must say before a key signs: each request paid once, in full, and nothing else settled."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import ExpiredContext
from headrace.core.events import ChainEvent
from headrace.core.expectations import ExpectedItem, ExpectedSet, require_recorded, require_settled
from headrace.core.fees import payout
from tests.fakes import MARKET, RELAYER, TERMS, make_request

NODE, OTHER = "0x" + "0a" * 20, "0x" + "0b" * 20
IDS = ["0x" + f"{number:02x}" * 32 for number in (1, 2)]
HASH = "0x" + "f1" * 32
REQUEST = make_request()
REWARD_WEI, ADDED_WEI = 10**13, 7
OWED = payout(TERMS, REQUEST, ADDED_WEI, REWARD_WEI, 10**9)
SETS = [ExpectedSet(3, (NODE,), tuple(ExpectedItem(id_, REQUEST, ADDED_WEI, REWARD_WEI, HASH) for id_ in IDS))]


def event(name: str, **args: Any) -> ChainEvent:
    return ChainEvent(1, "0x", "0x", 0, MARKET, name, args)


def paid(id_: str, **changes: Any) -> ChainEvent:
    args = {
        "requestId": id_,
        "resultHash": HASH,
        "nodePaid": OWED.node_wei,
        "relayerPaid": OWED.relayer_wei,
        "refund": OWED.refund_wei,
    }
    return event("ResultFulfilled", **{**args, **changes})


def settled(**changes: Any) -> ChainEvent:
    args = {"relayer": RELAYER, "round": 3, "nodes": [NODE], "statuses": "0x0000"}
    return event("BatchSettled", **{**args, **changes})


GOOD = [paid(IDS[0]), paid(IDS[1]), settled()]


def test_require_settled__as_meant__passes() -> None:
    require_settled(GOOD, RELAYER, SETS, TERMS)
    require_settled([event("Deposited"), *GOOD, event("InferenceRequested")], RELAYER, SETS, TERMS)
    raised = [paid(IDS[0], nodePaid=OWED.node_wei + 8, relayerPaid=OWED.relayer_wei + 2), *GOOD[1:]]
    require_settled(raised, RELAYER, SETS, TERMS)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (GOOD[:2], "settles \\[\\]"),
        ([*GOOD, settled()], "not what it was made of"),
        ([*GOOD[:2], settled(relayer=OTHER)], "not what it was made of"),
        ([*GOOD[:2], settled(round=4)], "not what it was made of"),
        ([*GOOD[:2], settled(nodes=[NODE, OTHER])], "not what it was made of"),
        (GOOD[1:], "pays 1 requests, and 2"),
        ([GOOD[0], *GOOD], "pays 3 requests, and 2"),
        ([GOOD[0], paid("0x" + "99" * 32), settled()], "pays 2 requests, and 2"),
        ([paid(IDS[0], resultHash="0x" + "f2" * 32), *GOOD[1:]], "another answer"),
        ([paid(IDS[0], nodePaid=OWED.node_wei - 1, refund=OWED.refund_wei + 1), *GOOD[1:]], "are promised"),
        ([paid(IDS[0], refund=OWED.refund_wei - 1), *GOOD[1:]], "of an escrow"),
    ],
)
def test_require_settled__anything_else__is_not_signed(events: list[ChainEvent], words: str) -> None:
    with pytest.raises(ExpiredContext, match=words):
        require_settled(events, RELAYER, SETS, TERMS)


def test_require_recorded__as_meant_only() -> None:
    def recorded(**changes: Any) -> ChainEvent:
        args = {"relayer": RELAYER, "round": 3, "record": {"decisionsRoot": HASH}}
        return event("RoundRecorded", **{**args, **changes})

    require_recorded([recorded()], RELAYER, 3, HASH)
    for events in (
        [],
        [recorded(), recorded()],
        [recorded(round=4)],
        [recorded(relayer=OTHER)],
        [recorded(record={"decisionsRoot": IDS[0]})],
    ):
        with pytest.raises(ExpiredContext, match="round 3's record"):
            require_recorded(events, RELAYER, 3, HASH)
