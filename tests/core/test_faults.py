"""What is found in a dossier, and that what is found is proven (I34); a miss is none of whose result is known (I35)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import typed_data
from headrace.core.faults import (
    Absence,
    Contradicted,
    Dossier,
    Ending,
    Equivocation,
    Fault,
    FaultTerms,
    PaidUndecided,
    ReleasedAssignment,
    ReleasedDecision,
    SignedAccept,
    SignedAssignment,
    SignedResult,
    WatchedRound,
    bounty_wei,
    find_faults,
    is_record_of,
    pays,
)
from headrace.core.merkle import leaf_of, root_of, sort_decisions
from headrace.core.types import (
    ZERO_ADDRESS,
    Assignment,
    Decision,
    DecisionKind,
    GasQuote,
    Mode,
    Reason,
    Request,
    Result,
    ResultRef,
    RoundRecord,
)
from tests.core.faults_twin import NotProven, OnChain, culprit_of, require_absent
from tests.fakes import MARKET, FakeSigner, make_request

DOMAIN = typed_data.Domain(31337, MARKET)
RELAYER_SIGNER, NODES = FakeSigner(1), [FakeSigner(100 + number) for number in range(4)]
RELAYER, NODE, OTHER, THIRD = RELAYER_SIGNER.address, *(node.address for node in NODES[:3])
SIGNERS = {signer.address: signer for signer in (RELAYER_SIGNER, *NODES)}
REQUEST_ID = "0x" + keccak(b"a request").hex()
REWARD = 10**14
DEADLINE_S = make_request().deadline_s
RECORDED_S = DEADLINE_S - 100


def decision(node: str = NODE, request_id: str = REQUEST_ID, **changes: Any) -> Decision:
    made = Decision(request_id, node, DecisionKind.ASSIGNED, Reason.LOWEST_COST, REWARD, 0)
    return replace(made, **changes)


def skipped(request_id: str) -> Decision:
    return Decision(request_id, ZERO_ADDRESS, DecisionKind.SKIPPED, Reason.NODES_BUSY, 0, 0)


def round_of(number: int, *leaves: Decision, recorded_at_s: int = RECORDED_S, in_order: bool = True) -> WatchedRound:
    kept = sort_decisions(leaves) if in_order else list(leaves)
    counts = [sum(leaf.kind is kind for leaf in kept) for kind in DecisionKind]
    hashes = ["0x" + keccak(f"{name} {number}".encode()).hex() for name in ("snapshot", "policy", "anchor")]
    root = root_of([leaf_of(leaf) for leaf in kept])
    record = RoundRecord(number, root, hashes[0], hashes[1], 7, hashes[2], *counts)
    return WatchedRound(RELAYER, record, recorded_at_s, kept)


def sign(signer: str, struct_hash: bytes) -> bytes:
    return SIGNERS[signer].sign_digest(typed_data.digest(DOMAIN, struct_hash))


def accept(node: str = NODE, number: int = 1, deadline_s: int = DEADLINE_S, by: str = "") -> SignedAccept:
    signature = sign(by or node, typed_data.hash_accept(REQUEST_ID, RELAYER, number, deadline_s))
    return SignedAccept(REQUEST_ID, node, RELAYER, number, deadline_s, signature)


def assignment(node: str = NODE, number: int = 1, reward_wei: int = REWARD, by: str = "") -> SignedAssignment:
    word = Assignment(REQUEST_ID, RELAYER, node, number, reward_wei, DEADLINE_S)
    return SignedAssignment(word, sign(by or RELAYER, typed_data.hash_assignment(word)))


def result(answer: bytes, node: str = NODE, number: int = 1, beside: Sequence[bytes] | None = None) -> SignedResult:
    made = Result(REQUEST_ID, "0x" + keccak(answer).hex(), REWARD, RELAYER, number)
    if beside is None:
        return SignedResult(node, made, sign(node, typed_data.hash_result(made)))
    hashes = (*beside, typed_data.hash_result(made))
    return SignedResult(node, made, sign(node, typed_data.hash_result_set(RELAYER, number, hashes)), hashes)


def paid_to(*nodes: str, number: int = 1) -> ResultRef:
    return ResultRef("0x" + keccak(b"answer").hex(), RELAYER, number, nodes, DEADLINE_S - 50)


@dataclass
class Case:
    """A request and what is known of it; each test changes what it is about."""

    ending: Ending = Ending.OPEN
    rounds: list[WatchedRound] = field(default_factory=list)
    paid: ResultRef | None = None
    accepts: list[SignedAccept] = field(default_factory=list)
    assignments: list[SignedAssignment] = field(default_factory=list)
    results: list[SignedResult] = field(default_factory=list)
    request: Request = field(default_factory=lambda: make_request(relayer=RELAYER))

    @property
    def dossier(self) -> Dossier:
        return Dossier(
            request_id=REQUEST_ID,
            request=self.request,
            relayer=RELAYER,
            ending=self.ending,
            paid=self.paid,
            rounds={round_.record.round: round_ for round_ in self.rounds},
            accepts=self.accepts,
            assignments=self.assignments,
            results=self.results,
        )

    @property
    def chain(self) -> OnChain:
        return OnChain(
            domain=DOMAIN,
            records={(RELAYER, each.record.round): (each.record, each.recorded_at_s) for each in self.rounds},
            endings={REQUEST_ID: self.ending},
            paid={REQUEST_ID: self.paid} if self.paid else {},
        )

    def found(self) -> list[tuple[Fault, str]]:
        """What is found, each of it held against the contracts' checks."""
        faults = find_faults(self.dossier, DOMAIN)
        for each in faults:
            assert culprit_of(each, self.chain) == (each.fault, each.culprit)
        return [(each.fault, each.culprit) for each in faults]


# Misses


def missed(**changes: Any) -> Case:
    return Case(**{"ending": Ending.EXPIRED, "rounds": [round_of(1, decision())], "accepts": [accept()], **changes})


def test_missed__accepted_and_silent__is_found() -> None:
    assert missed().found() == [(Fault.MISSED, NODE)]


def test_missed__two_tries_of_which_one_accepted__is_one_nodes() -> None:
    case = missed(rounds=[round_of(1, decision()), round_of(2, decision(OTHER, supersedes_round=1))])
    assert case.found() == [(Fault.MISSED, NODE)]
    case.accepts.append(accept(OTHER, 2))
    assert case.found() == [(Fault.MISSED, NODE), (Fault.MISSED, OTHER)]


@pytest.mark.parametrize("ending", [each for each in Ending if each is not Ending.EXPIRED])
def test_missed__ended_otherwise__is_none(ending: Ending) -> None:
    found = missed(ending=ending).found()
    assert (Fault.MISSED, NODE) not in found


@pytest.mark.parametrize("mode", [Mode.QUORUM, Mode.VERIFIER])
def test_missed__answers_may_have_disagreed__is_none(mode: Mode) -> None:
    assert missed(request=make_request(relayer=RELAYER, mode=mode)).found() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"accepts": []},
        {"accepts": [accept(number=2)]},
        {"accepts": [accept(OTHER)]},
        {"accepts": [accept(by=OTHER)]},
        {"accepts": [accept(deadline_s=DEADLINE_S + 1)]},
        {"accepts": [replace(accept(), signature=b"")]},
        {"rounds": [round_of(1, decision(), recorded_at_s=DEADLINE_S + 1)]},
        {"rounds": [round_of(1, decision(kind=DecisionKind.SKIPPED))]},
        {"rounds": [round_of(1, skipped("0x" + "11" * 32))]},
        {"rounds": []},
        {"results": [result(b"late")]},
    ],
    ids=[
        "no accept",
        "of another round",
        "of another node",
        "signed by another",
        "for later",
        "unsigned",
        "recorded too late",
        "not assigned",
        "not decided",
        "no record",
        "answered",
    ],
)
def test_missed__one_thing_is_missing__is_none(changes: dict[str, Any]) -> None:
    assert missed(**changes).found() == []


# Equivocation


def test_equivocation__alone_and_in_a_set__is_found() -> None:
    beside = [keccak(b"another result")]
    for first, second in ((None, None), (None, beside), (beside, beside)):
        case = Case(results=[result(b"yes", beside=first), result(b"no", number=2, beside=second)])
        assert case.found() == [(Fault.EQUIVOCATION, NODE)]


def test_equivocation__third_result_and_unsigned_ones__prove_no_more() -> None:
    unsigned = replace(result(b"never"), signature=b"")
    case = Case(results=[unsigned, result(b"yes"), result(b"yes"), result(b"no"), result(b"perhaps")])
    assert case.found() == [(Fault.EQUIVOCATION, NODE)]


@pytest.mark.parametrize(
    "results",
    [
        [result(b"yes")],
        [result(b"yes"), result(b"yes", number=2)],
        [result(b"yes"), result(b"no", OTHER)],
        [result(b"yes"), replace(result(b"no"), signature=result(b"yes").signature)],
        [result(b"yes"), replace(result(b"no", beside=[]), set_hashes=(keccak(b"x"),))],
    ],
    ids=["one", "one twice", "two nodes", "signed otherwise", "not in the set"],
)
def test_equivocation__one_result_a_node__is_none(results: list[SignedResult]) -> None:
    assert Case(results=results).found() == []


# Records against pay and assignments


def test_paid_undecided__node_is_in_no_leaf__is_found() -> None:
    case = Case(ending=Ending.SETTLED, rounds=[round_of(1, decision(OTHER))], paid=paid_to(NODE))
    assert case.found() == [(Fault.UNDECIDED, RELAYER)]


def test_paid_undecided__second_node_of_a_quorum__is_found() -> None:
    request = make_request(relayer=RELAYER, mode=Mode.QUORUM, k=2, n=2)
    nodes = sorted([NODE, OTHER])
    case = Case(Ending.SETTLED, [round_of(1, decision(nodes[0]))], paid_to(*nodes), request=request)
    assert case.found() == [(Fault.UNDECIDED, RELAYER)]
    (fault,) = find_faults(case.dossier, DOMAIN)
    assert isinstance(fault.proof, PaidUndecided)
    assert fault.proof.node_index == 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_paid_undecided__leaves_in_any_order__is_found(order: tuple[int, ...]) -> None:
    """A relayer that does not sort its leaves hides nothing."""
    ids = sorted(f"0x{n:064x}" for n in (1, 2, 4, 5))
    jumbled = [decision(OTHER, ids[n]) for n in order]
    round_ = round_of(1, *jumbled, in_order=False)
    for request_id in (f"0x{n:064x}" for n in range(7)):
        absence = round_.absent(request_id, NODE)
        assert absence is not None
        require_absent(RELAYER, request_id, NODE, absence, Case(rounds=[round_]).chain)


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": [round_of(1, decision())]},
        {"rounds": []},
        {"paid": replace(paid_to(NODE), relayer=OTHER)},
        {"paid": None},
    ],
    ids=["decided", "no record", "by another relayer", "not paid"],
)
def test_paid_undecided__nothing_wrong__is_none(changes: dict[str, Any]) -> None:
    fields = {"ending": Ending.SETTLED, "rounds": [round_of(1, decision(OTHER))], "paid": paid_to(NODE), **changes}
    assert Case(**fields).found() == []


def test_assigned_undecided__left_out_of_the_record__is_found() -> None:
    case = Case(rounds=[round_of(1, skipped("0x" + "11" * 32))], assignments=[assignment()])
    assert case.found() == [(Fault.UNDECIDED, RELAYER)]


def test_contradicted__another_reward_on_record__is_found() -> None:
    case = Case(rounds=[round_of(1, decision(reward_wei=REWARD - 1))], assignments=[assignment()])
    assert case.found() == [(Fault.CONTRADICTED, RELAYER)]
    (fault,) = find_faults(case.dossier, DOMAIN)
    assert isinstance(fault.proof, Contradicted)


@pytest.mark.parametrize(
    ("assigned", "leaf"),
    [
        (assignment(), decision()),
        (assignment(number=2), decision(OTHER)),
        (assignment(by=NODE), decision(OTHER)),
        (assignment(by=NODE), decision(reward_wei=1)),
        (replace(assignment(), signature=b""), decision(OTHER)),
    ],
    ids=["as recorded", "round not recorded", "signed by another", "other reward, signed by another", "unsigned"],
)
def test_assigned__nothing_wrong_or_nothing_signed__is_none(assigned: SignedAssignment, leaf: Decision) -> None:
    assert Case(rounds=[round_of(1, leaf)], assignments=[assigned]).found() == []


# Assigned twice


@pytest.mark.parametrize(
    ("rounds", "is_fault"),
    [
        ([round_of(1, decision(), decision(OTHER))], True),
        ([round_of(1, decision(), decision(OTHER, supersedes_round=1))], False),
        ([round_of(1, decision()), round_of(2, decision(OTHER))], True),
        ([round_of(1, decision()), round_of(2, decision(OTHER, supersedes_round=1))], False),
        ([round_of(1, decision()), round_of(2, decision())], False),
        ([round_of(2, decision()), round_of(3, decision(OTHER, supersedes_round=1))], True),
        (
            [
                round_of(1, decision(), decision(OTHER, supersedes_round=1)),
                round_of(2, decision(THIRD, supersedes_round=1)),
            ],
            False,
        ),
        ([round_of(1, decision(), decision(OTHER, kind=DecisionKind.SKIPPED))], False),
    ],
    ids=[
        "in one round",
        "superseded in one round",
        "in two rounds",
        "superseded in the second",
        "the same node",
        "another was superseded",
        "three tries",
        "not assigned",
    ],
)
def test_double_assignment__unless_superseded__is_found(rounds: list[WatchedRound], is_fault: bool) -> None:
    assert Case(rounds=rounds).found() == ([(Fault.DOUBLE_ASSIGNMENT, RELAYER)] if is_fault else [])


def test_double_assignment__nodes_of_a_quorum__are_assigned_together() -> None:
    request = make_request(relayer=RELAYER, mode=Mode.QUORUM, k=2, n=2)
    listed = round_of(1, decision(), decision(OTHER))
    again = round_of(2, decision(NODE, supersedes_round=1), decision(THIRD, supersedes_round=1))
    assert Case(rounds=[listed, again], request=request).found() == []
    beside = round_of(2, decision(THIRD))
    assert Case(rounds=[listed, beside], request=request).found() == [(Fault.DOUBLE_ASSIGNMENT, RELAYER)]


# Released


def test_released__recorded_or_signed__is_found() -> None:
    by_record = Case(Ending.RELEASED, [round_of(1, decision())])
    by_word = Case(Ending.RELEASED, assignments=[assignment()])
    for case, kind in ((by_record, ReleasedDecision), (by_word, ReleasedAssignment)):
        assert case.found() == [(Fault.RELEASED, RELAYER)]
        (fault,) = find_faults(case.dossier, DOMAIN)
        assert isinstance(fault.proof, kind)


@pytest.mark.parametrize("relayer", [ZERO_ADDRESS, OTHER])
def test_released__not_by_the_relayer_that_assigned__is_none(relayer: str) -> None:
    request = make_request(relayer=relayer)
    case = Case(Ending.RELEASED, [round_of(1, decision())], assignments=[assignment()], request=request)
    assert case.found() == []


def test_released__never_assigned__is_none() -> None:
    assert Case(Ending.RELEASED, [round_of(1, skipped(REQUEST_ID))]).found() == []


# Absence, of any leaves

ids = st.integers(0, 30).map(lambda n: f"0x{n:064x}")
nodes = st.integers(1, 4).map(lambda n: f"0x{n:040x}")
keys = st.tuples(ids, nodes)


def leaves_of(chosen: set[tuple[str, str]]) -> list[Decision]:
    return [decision(node, request_id) for request_id, node in sorted(chosen)]


@given(st.sets(keys, min_size=1, max_size=40), keys)
def test_absent__any_leaves__is_shown_of_exactly_what_is_in_none(
    chosen: set[tuple[str, str]], key: tuple[str, str]
) -> None:
    round_ = round_of(1, *leaves_of(chosen))
    absence = round_.absent(*key)
    assert (absence is None) == (key in chosen)
    if absence is not None:
        require_absent(RELAYER, *key, absence, Case(rounds=[round_]).chain)


@given(st.sets(keys, min_size=1, max_size=24), st.data())
def test_absent__decided__no_two_neighbours_show_it(chosen: set[tuple[str, str]], data: st.DataObject) -> None:
    """Sound as the contract checks it: of a key that is in a leaf, no place passes."""
    round_ = round_of(1, *leaves_of(chosen))
    key = data.draw(st.sampled_from(sorted(chosen)))
    for index in range(len(chosen) + 1):
        with pytest.raises(NotProven):
            require_absent(RELAYER, *key, round_._absence(index), Case(rounds=[round_]).chain)


@given(st.sets(keys, min_size=2, max_size=24), keys, st.data())
def test_absent__other_neighbours__are_refused(
    chosen: set[tuple[str, str]], key: tuple[str, str], data: st.DataObject
) -> None:
    """Proofs are by index, so leaves that are not next to each other never pass for neighbours."""
    round_ = round_of(1, *leaves_of(chosen - {key}), decision("0x" + "ff" * 20, "0x" + "ff" * 32))
    true = round_.absent(*key)
    assert true is not None
    left, index = (data.draw(st.integers(0, len(round_.leaves) - 1)) for _ in range(2))
    given_left, given_right = round_.proven(left), round_.proven(index)
    shown = Absence(true.record, index, given_left.decision, given_left.proof, given_right.decision, given_right.proof)
    chain = Case(rounds=[round_]).chain
    if index == true.index and left == (index - 1 if index else left):
        require_absent(RELAYER, *key, shown, chain)
    else:
        with pytest.raises(NotProven):
            require_absent(RELAYER, *key, shown, chain)


@given(st.sets(keys, min_size=1, max_size=20), st.sets(keys, min_size=1, max_size=20))
def test_is_record_of__other_leaves__are_not(chosen: set[tuple[str, str]], others: set[tuple[str, str]]) -> None:
    record = round_of(1, *leaves_of(chosen)).record
    assert is_record_of(record, leaves_of(others)) == (chosen == others)


# Histories


@dataclass(frozen=True)
class Try:
    node: int
    number: int
    accepts: bool
    answers: bool


tries = st.lists(
    st.builds(Try, st.integers(0, 3), st.integers(1, 4), st.booleans(), st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda each: each.node,
).map(lambda found: sorted(found, key=lambda each: each.number))


def history(found: list[Try], ending: Ending) -> Case:
    """What an honest relayer leaves behind: each try supersedes the one before, and the last that answers is paid."""
    case, leaves, before = Case(ending), {}, 0
    for each in found:
        node = NODES[each.node].address
        leaves.setdefault(each.number, []).append(decision(node, supersedes_round=before))
        case.assignments.append(assignment(node, each.number))
        if each.accepts:
            case.accepts.append(accept(node, each.number))
        if each.answers:
            case.results.append(result(b"answer", node, each.number))
        before = each.number
    case.rounds = [round_of(number, *each) for number, each in leaves.items()]
    return case


@given(tries)
def test_find_faults__honest_and_settled__finds_nothing(found: list[Try]) -> None:
    case = history(found, Ending.SETTLED)
    case.paid = paid_to(NODES[found[-1].node].address, number=found[-1].number)
    assert case.found() == []


@given(tries)
def test_find_faults__honest_and_expired__finds_exactly_the_silent_nodes(found: list[Try]) -> None:
    silent = {NODES[each.node].address for each in found if each.accepts and not each.answers}
    assert set(history(found, Ending.EXPIRED).found()) == {(Fault.MISSED, node) for node in silent}


@given(tries, st.sampled_from(Ending), st.data())
def test_find_faults__anything_was_tampered_with__what_is_found_is_proven(
    found: list[Try], ending: Ending, data: st.DataObject
) -> None:
    """Whatever rounds, words and pay are mixed up: `found` holds each fault against the contracts' checks."""
    case = history(found, ending)
    node = st.sampled_from([signer.address for signer in NODES])
    leaf = st.builds(
        decision,
        node,
        reward_wei=st.integers(0, 2),
        supersedes_round=st.integers(0, 4),
        kind=st.sampled_from(DecisionKind),
    )
    for number in data.draw(st.sets(st.integers(1, 5), max_size=3)):
        case.rounds = [each for each in case.rounds if each.record.round != number]
        leaves = data.draw(st.lists(leaf, min_size=1, max_size=4, unique_by=lambda each: each.node))
        case.rounds.append(round_of(number, *leaves, skipped("0x" + "00" * 32)))
    case.assignments += [assignment(data.draw(node), data.draw(st.integers(1, 5)))]
    case.results += [result(data.draw(st.sampled_from([b"a", b"b"])), data.draw(node))]
    case.paid = data.draw(st.none() | st.builds(paid_to, node, number=st.integers(1, 5)))
    case.found()


# What a proof brings in

TERMS = FaultTerms(10**16, 10**17, 10**18, bounty_bps=1000, proof_gas=200_000, tip_cap_wei=2 * 10**9)


@given(st.sampled_from(Fault), st.integers(0, 10**19), st.integers(0, 10**13), st.integers(0, 10**13))
def test_bounty__any_stake_and_price__is_never_more_than_half_of_what_is_taken(
    fault: Fault, held_wei: int, base_fee_wei: int, tip_wei: int
) -> None:
    bounty = bounty_wei(TERMS, fault, held_wei, GasQuote(base_fee_wei, tip_wei))
    taken = min(held_wei, TERMS.amount_wei(fault))
    gas = 200_000 * (base_fee_wei + min(tip_wei, 2 * 10**9))
    assert bounty == min(taken // 10 + gas, taken // 2)


@pytest.mark.parametrize(
    ("min_return_bps", "bounty", "is_worth"),
    [(10_000, 100, True), (10_000, 99, False), (0, 0, True), (15_000, 149, False), (15_000, 150, True)],
)
def test_pays__what_is_asked_of_it(min_return_bps: int, bounty: int, is_worth: bool) -> None:
    assert pays(bounty, 10, GasQuote(8, 2), min_return_bps) is is_worth


def test_equivocation__proof_has_the_first_two_that_differ() -> None:
    first, second = result(b"yes"), result(b"no")
    (fault,) = find_faults(Case(results=[first, first, second, result(b"x")]).dossier, DOMAIN)
    assert fault.proof == Equivocation(NODE, first, second)
