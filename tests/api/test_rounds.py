"""Rounds: records, leaves with proofs that hold, snapshots byte for byte."""

from __future__ import annotations

import pytest

from headrace.core.merkle import is_proven, leaf_of
from headrace.core.rounds import close_round, merge_decisions
from headrace.core.scheduling import Anchor, CyclePlan, PlannedDecision
from headrace.core.types import ZERO_ADDRESS, ZERO_HASH, Assignment, Decision, DecisionKind, Reason
from headrace.ports import StoredAssignment, StoredCycle, StoredRound
from tests.api.world import NODE_SIGNER, RELAYER_SIGNER, Relayer, error_of

SNAPSHOT = b'{"kind":"full"}'
SNAPSHOT_HASH = "0x" + "5a" * 32
POLICY_HASH = "0x" + "0c" * 32
ANCHOR = Anchor(2, "0x" + "0d" * 32, 1_750_000_000)


def decision(number: int, *, assigned: bool = False) -> Decision:
    kind, reason = (
        (DecisionKind.ASSIGNED, Reason.LOWEST_COST) if assigned else (DecisionKind.SKIPPED, Reason.NODES_TAKEN)
    )
    node = NODE_SIGNER.address if assigned else ZERO_ADDRESS
    return Decision(f"0x{number:064x}", node, kind, reason, 10**13 if assigned else 0, 0)


@pytest.fixture
def round_(relayer: Relayer) -> StoredRound:
    return add_rounds(relayer)


def add_rounds(relayer: Relayer) -> StoredRound:
    """A recorded round, which is returned, and an open one."""
    leaves = merge_decisions([[decision(3), decision(1, assigned=True), decision(2)]])
    record = close_round(1, leaves, [SNAPSHOT_HASH], POLICY_HASH, ANCHOR)
    stored = StoredRound(1, "recorded", 5, 1, record, POLICY_HASH, 3, "0x" + "7d" * 32)
    plan = CyclePlan(tuple(PlannedDecision(each, 0, 0, ZERO_ADDRESS, 0) for each in leaves), 0)
    relayer.store.all_rounds[1] = stored
    relayer.store.all_cycles[1] = [StoredCycle(1, 0, SNAPSHOT_HASH, ANCHOR, 6, plan)]
    relayer.store.all_leaves[1] = leaves
    relayer.store.snapshots[SNAPSHOT_HASH] = SNAPSHOT
    relayer.store.all_rounds[2] = StoredRound(2, "open", 9, 0, None, POLICY_HASH, 0, ZERO_HASH)
    return stored


@pytest.mark.usefixtures("round_")
async def test_list_rounds__pages__newest_first(relayer: Relayer) -> None:
    first = (await relayer.client.get("/v1/rounds?limit=1")).json()
    assert [each["round"] for each in first["rounds"]] == [2]
    assert first["rounds"][0]["record"] is None
    second = (await relayer.client.get(f"/v1/rounds?limit=1&before={first['next_before']}")).json()
    assert [each["round"] for each in second["rounds"]] == [1]
    assert second["next_before"] is None


async def test_get_round__recorded__has_record_and_cycles(relayer: Relayer, round_: StoredRound) -> None:
    body = (await relayer.client.get("/v1/rounds/1")).json()
    assert round_.record is not None
    assert body["record"]["decisions_root"] == round_.record.decisions_root
    assert (body["record"]["assigned"], body["record"]["skipped"]) == (1, 2)
    assert body["relayer"] == RELAYER_SIGNER.address
    assert body["recorded_block"] == 3
    assert [each["snapshot_hash"] for each in body["cycles"]] == [SNAPSHOT_HASH]


@pytest.mark.parametrize(("path", "status"), [("7", 404), ("0", 400), ("x", 400), (str(1 << 63), 400)])
async def test_get_round__unknown_or_malformed__is_refused(relayer: Relayer, path: str, status: int) -> None:
    error_of(await relayer.client.get(f"/v1/rounds/{path}"), status)


@pytest.mark.parametrize("path", ["/v1/rounds?before=", "/v1/requests?before_block="])
async def test_lists__number_beyond_the_store__is_400(relayer: Relayer, path: str) -> None:
    error_of(await relayer.client.get(f"{path}{1 << 63}"), 400)


async def test_list_decisions__of_one_request__come_with_proofs_that_hold(
    relayer: Relayer, round_: StoredRound
) -> None:
    assert round_.record is not None
    for number in (1, 2, 3):
        wanted = decision(number, assigned=number == 1)
        url = f"/v1/rounds/1/decisions?request_id={wanted.request_id}"
        body = (await relayer.client.get(url)).json()
        (leaf,) = body["leaves"]
        root = round_.record.decisions_root
        assert is_proven(root, leaf_of(wanted), leaf["index"], body["count"], leaf["proof"])


@pytest.mark.usefixtures("round_")
async def test_list_decisions__pages__in_their_order(relayer: Relayer) -> None:
    first = (await relayer.client.get("/v1/rounds/1/decisions?limit=2")).json()
    assert [each["index"] for each in first["leaves"]] == [0, 1]
    assert [each["kind"] for each in first["leaves"]] == ["assigned", "skipped"]
    rest = (await relayer.client.get(f"/v1/rounds/1/decisions?limit=2&offset={first['next_offset']}")).json()
    assert [each["index"] for each in rest["leaves"]] == [2]
    assert rest["next_offset"] is None


@pytest.mark.usefixtures("round_")
async def test_list_decisions__open_round_or_undecided_request__is_refused(relayer: Relayer) -> None:
    assert error_of(await relayer.client.get("/v1/rounds/2/decisions"), 409)["code"] == "ROUND_OPEN"
    error_of(await relayer.client.get("/v1/rounds/1/decisions?request_id=0x" + "99" * 32), 404)


@pytest.mark.usefixtures("round_")
async def test_get_snapshot__known__is_byte_for_byte_and_cacheable(relayer: Relayer) -> None:
    response = await relayer.client.get(f"/v1/snapshots/{SNAPSHOT_HASH}")
    assert response.content == SNAPSHOT
    assert "immutable" in response.headers["Cache-Control"]


async def test_get_snapshot__unknown__is_404(relayer: Relayer) -> None:
    error_of(await relayer.client.get("/v1/snapshots/0x" + "99" * 32), 404)


# Accepts


def assignment(number: int, accept_signature: bytes, round_number: int = 1) -> StoredAssignment:
    word = Assignment(f"0x{number:064x}", RELAYER_SIGNER.address, NODE_SIGNER.address, round_number, 7, 1_750_000_600)
    return StoredAssignment(word.request_id, 1, word, "accepted", 5, 6, b"the relayer's", accept_signature, "")


@pytest.mark.usefixtures("round_")
async def test_list_accepts__of_a_round__has_what_nodes_signed_and_nothing_else(relayer: Relayer) -> None:
    for stored in (assignment(2, b"\x02\xfe"), assignment(1, b"\x01"), assignment(3, b""), assignment(4, b"\x04", 2)):
        relayer.store.all_assignments[stored.request_id].append(stored)
    response = await relayer.client.get("/v1/rounds/1/accepts")
    assert response.json() == {
        "round": 1,
        "accepts": [
            {
                "request_id": f"0x{number:064x}",
                "node": NODE_SIGNER.address,
                "deadline_s": 1_750_000_600,
                "signature": signature,
            }
            for number, signature in ((1, "0x01"), (2, "0x02fe"))
        ],
        "next_offset": None,
    }
    assert b"the relayer's".hex() not in response.text


@pytest.mark.usefixtures("round_")
async def test_list_accepts__many__come_in_pages(relayer: Relayer) -> None:
    for number in range(1, 6):
        relayer.store.all_assignments[f"0x{number:064x}"].append(assignment(number, bytes([number])))
    found, offset = [], 0
    while offset is not None:
        page = (await relayer.client.get(f"/v1/rounds/1/accepts?limit=2&offset={offset}")).json()
        assert len(page["accepts"]) <= 2
        found += [each["signature"] for each in page["accepts"]]
        offset = page["next_offset"]
    assert found == [f"0x{number:02x}" for number in range(1, 6)]


async def test_list_accepts__no_such_round__is_not_found(relayer: Relayer) -> None:
    error_of(await relayer.client.get("/v1/rounds/9/accepts"), 404)
