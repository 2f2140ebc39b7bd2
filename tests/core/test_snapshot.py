from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.scheduling import CycleInputs, Policy, plan_cycle
from headrace.core.snapshot import decode_snapshot, encode_snapshot, from_json, policy_hash, to_json
from headrace.core.tasks import Heartbeat
from tests.core.protocol_vectors import read
from tests.core.strategies import cycle_inputs

WITH_ALL = next(entry for entry in read("snapshots") if entry["name"] == "drawn")
Document = dict[str, Any]


def document() -> Document:
    return json.loads(WITH_ALL["text"])


def written(value: Any) -> bytes:
    """Canonical, if the value is of what canonical JSON has."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def objects(value: Any) -> list[Document]:
    """Each object within a document, itself included."""
    if isinstance(value, list):
        return [found for item in value for found in objects(item)]
    if not isinstance(value, dict):
        return []
    return [value] + [found for item in value.values() for found in objects(item)]


@given(cycle_inputs())
def test_decode__encoded__is_the_same_and_replays_to_the_same_plan(inputs: CycleInputs) -> None:
    text = encode_snapshot(inputs)
    again = decode_snapshot(text)
    assert again == inputs
    assert encode_snapshot(again) == text
    assert plan_cycle(again) == plan_cycle(inputs)


def test_documents_for_refusals__are_read_when_nothing_is_changed() -> None:
    assert written(document()) == WITH_ALL["text"].encode()
    assert encode_snapshot(decode_snapshot(written(document()))) == written(document())


def test_encode__text_and_wei__are_as_documented() -> None:
    inputs = document()["inputs"]
    for found in objects(inputs):
        for name, value in found.items():
            assert isinstance(value, str) or not name.endswith("_wei"), name
    assert inputs["requests"][0]["lane"] in (0, 1)
    assert (document()["schema"], document()["kind"]) == (3, "full")


@given(st.data())
def test_decode__missing_field__is_refused(data: st.DataObject) -> None:
    changed = document()
    found = data.draw(st.sampled_from([entry for entry in objects(changed) if entry]))
    del found[data.draw(st.sampled_from(sorted(found)))]
    with pytest.raises(InvalidInput):
        decode_snapshot(written(changed))


@given(st.data())
def test_decode__unknown_field__is_refused(data: st.DataObject) -> None:
    changed = document()
    data.draw(st.sampled_from(objects(changed)))["surplus"] = 1
    with pytest.raises(InvalidInput):
        decode_snapshot(written(changed))


@given(st.data(), st.sampled_from([None, True, 1.5, "x", -1, [], {}]))
def test_decode__mistyped_field__is_refused(data: st.DataObject, other: Any) -> None:
    changed = document()
    found = data.draw(st.sampled_from(objects(changed)))
    name = data.draw(st.sampled_from(sorted(found)))
    assume(type(found[name]) is not type(other))
    found[name] = other
    with pytest.raises(InvalidInput):
        decode_snapshot(written(changed))


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "01", "1.0", "1e3", " 1", "1 ", "1\n", "0x1", "١", "1_0", "9" * 79, "9" * 5000]
)
def test_decode__wei_that_is_no_decimal_number__is_refused(text: str) -> None:
    changed = document()
    changed["inputs"]["gas"]["tip_wei"] = text
    with pytest.raises(InvalidInput):
        decode_snapshot(written(changed))


@pytest.mark.parametrize("lane", [-1, 2, 7])
def test_decode__unknown_lane__is_refused(lane: int) -> None:
    changed = document()
    changed["inputs"]["requests"][0]["lane"] = lane
    with pytest.raises(InvalidInput, match=f"lane is {lane}"):
        decode_snapshot(written(changed))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"",
        lambda text: b"null",
        lambda text: b"[]",
        lambda text: b"{}",
        lambda text: text[:-1],
        lambda text: b"[" * 200_000,
        lambda text: b"\xff" + text,
        lambda text: b"\xef\xbb\xbf" + text,
        lambda text: text.decode().encode("utf-16"),
        lambda text: text + b"\n",
        lambda text: text.replace(b",", b", ", 1),
        lambda text: text.replace("ü".encode(), b"\\u00fc", 1),
        lambda text: text.replace("ü".encode(), b"\\ud800", 1),
        lambda text: text.replace(b'"schema":3', b'"schema":2'),
        lambda text: text.replace(b'"schema":3', b'"schema":true'),
        lambda text: text.replace(b'"schema":3', b'"schema":3.0'),
        lambda text: text.replace(b'"schema":3', b'"schema":"3"'),
        lambda text: text.replace(b'"kind":"full"', b'"kind":"delta"'),
        lambda text: text.replace(b'"chain_id":31337', b'"chain_id":1,"chain_id":31337'),
        lambda text: text.replace(b'"chain_id":31337', b'"chain_id":31337,"chain_id":31337'),
        lambda text: text.replace(b'"chain_id":31337', b'"chain_id":9007199254740992'),
        lambda text: json.dumps(dict(reversed(json.loads(text).items())), separators=(",", ":")).encode(),
    ],
)
def test_decode__another_text__is_refused(change: Callable[[bytes], bytes]) -> None:
    text = WITH_ALL["text"].encode()
    assert change(text) != text
    with pytest.raises(InvalidInput):
        decode_snapshot(change(text))


def test_from_json__of_a_heartbeat__is_the_inverse() -> None:
    heartbeat = next(entry for entry in read("typed_data") if entry["name"] == "a heartbeat")["content"]
    assert to_json(from_json(Heartbeat, heartbeat)) == heartbeat
    with pytest.raises(InvalidInput, match="surplus"):
        from_json(Heartbeat, heartbeat | {"surplus": 1})
    with pytest.raises(InvalidInput, match="not an object"):
        from_json(Heartbeat, [heartbeat])


def test_policy_hash__any_other_number__is_another() -> None:
    hashes = {policy_hash(Policy())}
    for name, value in to_json(Policy()).items():
        other = str(value) + "x" if isinstance(getattr(Policy(), name), str) else getattr(Policy(), name) + 1
        hashes.add(policy_hash(replace(Policy(), **{name: other})))
    assert len(hashes) == 1 + len(to_json(Policy()))
