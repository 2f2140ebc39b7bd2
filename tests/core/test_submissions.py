"""Calldata of settlements, as the ABI encodes it and as a stranger might bend it."""

from __future__ import annotations

from typing import Any

import pytest
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import typed_data
from headrace.core.calls import selectors
from headrace.core.errors import InvalidInput
from headrace.core.faults import is_assignment_signed, is_result_signed
from headrace.core.requests import PACKED_TYPES, pack, request_id
from headrace.core.submissions import MAX_ITEMS, decode_submission
from headrace.core.types import Assignment, Request, Result
from tests.fakes import MARKET, FakeSigner, make_request

CHAIN_ID = 31337
DOMAIN = typed_data.Domain(CHAIN_ID, MARKET)
RELAYER, FIRST, SECOND = FakeSigner(1), *sorted((FakeSigner(7), FakeSigner(8)), key=lambda signer: signer.address)
ITEM = f"(({','.join(PACKED_TYPES)}),uint96,bytes32)"
SET = f"(uint64,address[],bytes[],{ITEM}[],bytes[],bytes[])"
ASSIGNMENT = "(bytes32,address,address,uint64,uint96,uint40)"


def requests(count: int) -> list[Request]:
    return [make_request(salt=number, relayer=RELAYER.address) for number in range(count)]


def result_of(request: Request, round_: int = 3) -> Result:
    id_ = request_id(request, CHAIN_ID, MARKET)
    return Result(id_, "0x" + id_[:1:-1], 10**12 + request.salt, RELAYER.address, round_)


def signed(signer: FakeSigner, struct_hash: bytes) -> bytes:
    return signer.sign_digest(typed_data.digest(DOMAIN, struct_hash))


def set_of(count: int, *signers: FakeSigner, single: bool = False, round_: int = 3) -> tuple[Any, ...]:
    """A set as eth-abi takes it."""
    results = [result_of(request, round_) for request in requests(count)]
    hashes = [typed_data.hash_result(result) for result in results]
    if single or count == 1:
        signatures = [signed(signer, each) for each in hashes for signer in signers]
    else:
        of_set = typed_data.hash_result_set(RELAYER.address, round_, hashes)
        signatures = [signed(signer, of_set) for signer in signers]
    items = [
        (tuple(pack(request)), result.reward_wei, bytes.fromhex(result.result_hash[2:]))
        for request, result in zip(requests(count), results, strict=True)
    ]
    payloads = [b"answer" * number for number in range(count)]
    return (round_, [signer.address for signer in signers], signatures, items, payloads, [])


def batch(*sets: tuple[Any, ...]) -> bytes:
    return selectors()["submitResults"] + encode(["address", f"{SET}[]"], [RELAYER.address, list(sets)])


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("signers", [(FIRST,), (FIRST, SECOND)], ids=["one node", "quorum"])
@pytest.mark.parametrize("single", [True, False])
def test_decode__batch__gives_what_every_node_signed(count: int, signers: tuple[FakeSigner, ...], single: bool) -> None:
    submission = decode_submission(batch(set_of(count, *signers, single=single)), CHAIN_ID, MARKET)
    assert submission is not None
    assert submission.assignment is None
    (decoded,) = submission.sets
    assert (decoded.round, decoded.relayer) == (3, RELAYER.address)
    assert decoded.nodes == tuple(signer.address for signer in signers)
    assert [[word.result for word in words] for words in decoded.signed] == [
        [result_of(request)] * len(signers) for request in requests(count)
    ]
    for words in decoded.signed:
        assert [word.node for word in words] == list(decoded.nodes)
        assert all(is_result_signed(word, DOMAIN) for word in words)


def test_decode__several_sets_by_a_submitter__gives_all() -> None:
    sets = [set_of(2, FIRST), set_of(3, SECOND, round_=4)]
    types = ["address", f"{SET}[]", "uint40", "bytes"]
    data = selectors()["submitResultsFor"] + encode(types, [RELAYER.address, sets, 2**40 - 1, bytes(65)])
    submission = decode_submission(data, CHAIN_ID, MARKET)
    assert submission is not None
    assert [(each.round, len(each.signed)) for each in submission.sets] == [(3, 2), (4, 3)]
    assert all(is_result_signed(word, DOMAIN) for each in submission.sets for words in each.signed for word in words)


def test_decode__self_settlement__gives_the_assignment_too() -> None:
    (request,) = requests(1)
    result = result_of(request)
    word = Assignment(result.request_id, RELAYER.address, FIRST.address, 3, result.reward_wei, request.deadline_s)
    signature = signed(RELAYER, typed_data.hash_assignment(word))
    fields = (bytes.fromhex(word.request_id[2:]), word.relayer, word.node, word.round, word.reward_wei, word.deadline_s)
    data = selectors()["submitAssigned"] + encode([ASSIGNMENT, "bytes", SET], [fields, signature, set_of(1, FIRST)])
    submission = decode_submission(data, CHAIN_ID, MARKET)
    assert submission is not None
    assert submission.assignment is not None
    assert submission.assignment.assignment == word
    assert is_assignment_signed(submission.assignment, DOMAIN)
    assert [[each.result for each in words] for words in submission.sets[0].signed] == [[result]]


@pytest.mark.parametrize("data", [b"", b"\x01\x02", selectors()["expire"] + bytes(64), bytes(4)])
def test_decode__other_calls__are_none(data: bytes) -> None:
    assert decode_submission(data, CHAIN_ID, MARKET) is None


@pytest.mark.parametrize("changes", [{2: []}, {2: [b""]}, {2: [bytes(64)]}, {2: [bytes(65)] * 2}])
def test_decode__signatures_missing_or_bad__are_nobodys(changes: dict[int, Any]) -> None:
    fields = list(set_of(2, FIRST))
    for position, value in changes.items():
        fields[position] = value
    submission = decode_submission(batch(tuple(fields)), CHAIN_ID, MARKET)
    assert submission is not None
    assert len(submission.sets[0].signed) == 2
    assert not any(is_result_signed(word, DOMAIN) for words in submission.sets[0].signed for word in words)


def test_decode__list_too_long_to_be_true__is_refused() -> None:
    data = bytearray(batch(set_of(1, FIRST)))
    data[4 + 64 + 31 - 4 : 4 + 64 + 32] = (MAX_ITEMS + 1).to_bytes(5, "big")
    with pytest.raises(InvalidInput, match="at most"):
        decode_submission(bytes(data), CHAIN_ID, MARKET)


def test_decode__sets_that_all_point_to_one__are_bounded_together() -> None:
    """A short calldata can name the same long list of items again and again."""
    whole = batch(set_of(60, FIRST))
    body = whole[4:]
    sets_at, start = 64, int.from_bytes(body[96:128], "big")
    count = 400
    heads = b"".join((start + 32 * (count - 1)).to_bytes(32, "big") for _ in range(count))
    bent = whole[:4] + body[:sets_at] + count.to_bytes(32, "big") + heads + body[sets_at + 64 :]
    with pytest.raises(InvalidInput, match="at most"):
        decode_submission(bent, CHAIN_ID, MARKET)


@given(st.data())
def test_decode__any_bytes_bent__never_breaks(data: st.DataObject) -> None:
    whole = bytearray(batch(set_of(3, FIRST, SECOND)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = 4 + 32 * data.draw(st.integers(0, len(whole) // 32 - 1))
        whole[at : at + 32] = data.draw(st.integers(0, 2**256 - 1) | st.integers(0, 4096)).to_bytes(32, "big")
    cut = data.draw(st.integers(4, len(whole)))
    try:
        submission = decode_submission(bytes(whole[:cut]), CHAIN_ID, MARKET)
    except InvalidInput:
        return
    assert submission is not None
    for each in submission.sets:
        for words in each.signed:
            assert all(isinstance(is_result_signed(word, DOMAIN), bool) for word in words)
