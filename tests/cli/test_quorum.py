"""`headrace request new --mode quorum`, and a quorum as `headrace request show` has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.core.envelope import seal
from headrace.core.lifecycle import RequestState
from headrace.core.scheduling import Offer
from headrace.core.types import Mode, Price
from tests.api.world import MODEL, NODE_SIGNER, RELAYER_SIGNER, REQUESTER_SIGNER
from tests.cli.conftest import Desk
from tests.fakes import MODEL_ID, FakeSigner, make_request

NEW = ("request", "new", "Why is the sky blue?")
SECOND, THIRD = FakeSigner(71), FakeSigner(72)
GOOD, OTHER = seal(b"Because.", bytes(16)), seal(b"Magic.", bytes(16))


def with_nodes(desk: Desk, *signers: FakeSigner) -> None:
    relayer = desk.relayer
    (own,) = relayer.link.nodes
    for signer in signers:
        heartbeat = replace(own.heartbeat, node=signer.address)
        relayer.link.nodes.append(replace(own, node=signer.address, heartbeat=heartbeat))
        facts = replace(relayer.chain.facts[NODE_SIGNER.address], key=signer.address, owner=signer.address)
        relayer.chain.facts[signer.address] = facts
        relayer.chain.node_offers[signer.address] = [Offer(MODEL_ID, MODEL.name, Price(0, 10**13))]


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        (("--mode", "quorum"), (2, 3)),
        (("--mode", "quorum", "--quorum", "2/3"), (2, 3)),
        (("--quorum", "3/3"), (3, 3)),
    ],
)
def test_new__quorum__is_in_the_request(desk: Desk, options: tuple[str, ...], terms: tuple[int, int]) -> None:
    with_nodes(desk, SECOND, THIRD)
    desk.json(*NEW, *options)
    (request,) = desk.posted
    assert (request.mode, request.k, request.n) == (Mode.QUORUM, *terms)


def test_new__quorum__says_whom_it_pays_how_much_before_it_is_sent(desk: Desk) -> None:
    with_nodes(desk, SECOND, THIRD)
    assert desk.run(*NEW, "--quorum", "2/3", "--priority-fee", "20gwei") == 0, desk.error
    cost, posted = desk.out.split("request 0x")
    # A prompt of one KiB and 256 tokens: the dearest of the three asks for 0.000011 ether.
    assert "up to 0.000022 ether for 2 nodes that agree: all get what the dearest asks, at most 0.000011 ether" in cost
    assert "ether for the relayer's gas" in cost
    assert "0.00000002 ether for both" in cost
    assert "✔ sent" in posted


def test_new__no_quorum__is_as_ever(desk: Desk) -> None:
    desk.json(*NEW, "--mode", "signature")
    (request,) = desk.posted
    assert (request.mode, request.k, request.n) == (Mode.SIGNATURE, 0, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--quorum", "2"), "write K/N"),
        (("--quorum", "3/2"), "2 <= K <= N <= 16"),
        (("--quorum", "1/2"), "2 <= K <= N <= 16"),
        (("--quorum", "2/17"), "2 <= K <= N <= 16"),
        (("--mode", "signature", "--quorum", "2/3"), "--quorum is for --mode quorum"),
        (("--quorum", "2/3", "--verifier", "0x" + "a4" * 20), "without --verifier"),
        (("--mode", "quorum", "--verifier", "0x" + "a4" * 20), "--verifier is for --mode verifier"),
        (("--mode", "verifier"), "--mode verifier needs --verifier"),
        (("--mode", "quorum", "--temperature", "1"), "temperature is not 0"),
    ],
)
def test_new__quorum_that_cannot_be__says_why(desk: Desk, options: tuple[str, ...], words: str) -> None:
    with_nodes(desk, SECOND, THIRD)
    assert words in " ".join(desk.refusal(*NEW, *options).split())
    assert desk.posted == []


def test_new__too_few_nodes__is_not_sent_unless_forced(desk: Desk) -> None:
    refusal = desk.refusal(*NEW, "--quorum", "2/3")
    assert "needs 2 nodes of different owners, and 1 are linked" in refusal
    assert "ask for a smaller --quorum, or send it all the same with --force" in refusal
    assert "--max-reward" not in refusal
    assert desk.posted == []
    desk.json(*NEW, "--quorum", "2/3", "--force")
    assert len(desk.posted) == 1


def outvoted(desk: Desk) -> str:
    relayer = desk.relayer
    terms: dict[str, Any] = {"requester": REQUESTER_SIGNER.address, "relayer": RELAYER_SIGNER.address}
    request = make_request(**terms, mode=Mode.QUORUM, k=2, n=3)
    stored = relayer.add_request(request, state=RequestState.COMPUTING)
    relayer.answer_at_once(stored, OTHER, NODE_SIGNER.address)
    relayer.answer_at_once(stored, GOOD, SECOND.address)
    for node in (SECOND, THIRD):
        result = relayer.answer_at_once(stored, GOOD, node.address, 2)
    relayer.settle(stored, result.result.result_hash)
    return stored.request_id


def test_show__quorum__names_its_nodes_and_their_votes(desk: Desk) -> None:
    request_id = outvoted(desk)
    assert desk.run("request", "show", request_id) == 0, desk.error
    assert "2 nodes must agree, of at most 3" in desk.out
    lines = desk.out.splitlines()
    votes = [line.split("node ")[1] for line in lines if "vote, round" in line]
    assert [vote.lower() for vote in votes] == [each.address for each in (NODE_SIGNER, SECOND, SECOND, THIRD)]
    answered = lines.index(next(line for line in lines if line.startswith("answered by")))
    paid = [line.split()[-1] for line in lines[answered : answered + 2]]
    assert [node.lower() for node in paid] == sorted([SECOND.address, THIRD.address])
    got = lines.index(next(line for line in lines if line.startswith("nodes got    0.00009 ether")))
    assert lines[got + 1].strip() == "2 nodes, 0.000045 ether each"
    assert max(map(len, lines)) <= 100


def test_show__json__has_every_vote(desk: Desk) -> None:
    document = desk.json("request", "show", outvoted(desk))
    assert len(document["results"]) == 4
    assert len({vote["result_hash"] for vote in document["results"]}) == 2
