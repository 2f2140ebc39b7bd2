from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.core.errors import InvalidInput
from headrace.core.fields import from_json, to_json
from headrace.core.keccak import keccak
from headrace.core.scheduling import CycleInputs, Policy, plan_cycle
from headrace.core.snapshot import (
    MOST_DELTAS,
    SnapshotReader,
    SnapshotWriter,
    Withheld,
    base_of,
    decode_snapshot,
    encode_delta,
    encode_snapshot,
    policy_hash,
)
from headrace.core.tasks import Heartbeat
from headrace.core.types import Reason
from tests.core.protocol_vectors import read
from tests.core.strategies import cycle_inputs

WITH_ALL = next(entry for entry in read("snapshots") if entry["name"] == "drawn")
DELTA = next(entry for entry in read("snapshots") if entry["name"] == "a cycle later")
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
    for found in objects(document()):
        for name, value in found.items():
            values = value if isinstance(value, list) else [value]
            assert not name.endswith("_wei") or all(isinstance(each, str) for each in values), name
    requests = document()["tables"]["requests"]
    assert requests["k"] == 0, "all have the same"
    assert set(requests["lane"]) == {0, 1}
    assert (document()["schema"], document()["kind"]) == (4, "full")


# Deltas


@given(cycle_inputs(), cycle_inputs(), st.data())
def test_delta__read_on_its_base__is_the_same(base: CycleInputs, drawn: CycleInputs, data: st.DataObject) -> None:
    kept = [each for each in base.requests if data.draw(st.booleans())]
    kept = [replace(each, last_reason=Reason.LANE_FULL) if data.draw(st.booleans()) else each for each in kept]
    rows = {each.request_id: each for each in (*drawn.requests, *kept)}
    inputs = replace(drawn, requests=tuple(rows[each] for each in sorted(rows)))
    hash_ = "0x" + keccak(encode_snapshot(base)).hex()
    text = encode_delta(base, hash_, inputs)
    assert base_of(text) == hash_
    assert decode_snapshot(text, base) == inputs


def test_delta__nothing_changed_but_the_time__is_a_frame_and_empty_tables() -> None:
    base = decode_snapshot(WITH_ALL["text"].encode())
    text = encode_delta(base, WITH_ALL["hash"], replace(base, now_ms=base.now_ms + 1))
    tables = json.loads(text)["tables"]
    assert all(not table["changed"] and not table["gone"] for table in tables.values())
    assert len(text) < 4_000


def base_and_delta() -> tuple[CycleInputs, Document]:
    drawn = next(entry for entry in read("snapshots") if entry["hash"] == DELTA["base"])
    return decode_snapshot(drawn["text"].encode()), json.loads(DELTA["text"])


def test_delta_for_refusals__is_read_when_nothing_is_changed() -> None:
    base, changed = base_and_delta()
    assert to_json(decode_snapshot(written(changed), base)) == DELTA["inputs"]
    with pytest.raises(InvalidInput, match="is based on"):
        decode_snapshot(written(changed))


@given(st.data(), st.sampled_from([None, True, 1.5, "x", -1, 10**6, [], {}, [-1], ["x"], [[]]]))
@settings(max_examples=300)
def test_delta__anything_in_it_is_another__is_refused(data: st.DataObject, other: Any) -> None:
    base, changed = base_and_delta()
    found = data.draw(st.sampled_from([entry for entry in objects(changed["tables"]) if entry]))
    name = data.draw(st.sampled_from(sorted(found)))
    assume(found[name] != other)
    found[name] = other
    try:
        again = decode_snapshot(written(changed), base)
    except InvalidInput:
        return
    # What is left may be another content, told as it must be told.
    assert encode_delta(base, DELTA["base"], again) == written(changed)


def test_reader__a_row_of_deltas__is_read_from_the_full_one_on() -> None:
    base, writer, texts = decode_snapshot(WITH_ALL["text"].encode()), SnapshotWriter(), {}
    hashes, contents = [], []
    for number in range(MOST_DELTAS + 3):
        inputs = replace(base, now_ms=base.now_ms + number)
        hash_, text = writer.write(inputs)
        writer.keep(hash_, text, inputs)
        texts[hash_] = text
        hashes.append(hash_)
        contents.append(inputs)
    full = [number for number, hash_ in enumerate(hashes) if base_of(texts[hash_]) is None]
    assert full == [0, MOST_DELTAS + 1]
    assert SnapshotReader().read(hashes[MOST_DELTAS], texts) == contents[MOST_DELTAS]
    reader = SnapshotReader()
    assert [reader.read(hash_, texts) for hash_ in hashes] == contents
    missing = {hash_: text for hash_, text in texts.items() if hash_ != hashes[1]}
    with pytest.raises(Withheld) as caught:
        SnapshotReader().read(hashes[2], missing)
    assert caught.value.snapshot_hash == hashes[1]
    with pytest.raises(Withheld):
        SnapshotReader().read(hashes[2], texts | {hashes[1]: texts[hashes[0]]})


def test_reader__deltas_on_deltas_without_end__is_refused() -> None:
    base = decode_snapshot(WITH_ALL["text"].encode())
    text, texts, previous = encode_snapshot(base), {}, base
    hash_ = "0x" + keccak(text).hex()
    texts[hash_] = text
    for number in range(MOST_DELTAS + 2):
        inputs = replace(base, now_ms=base.now_ms + number)
        text = encode_delta(previous, hash_, inputs)
        hash_, previous = "0x" + keccak(text).hex(), inputs
        texts[hash_] = text
    with pytest.raises(InvalidInput, match="in a row"):
        SnapshotReader().read(hash_, texts)


def test_decode__few_words_for_many_items__is_refused() -> None:
    changed = document()
    changed["tables"]["nodes"]["offers"]["count"] = 10**12
    with pytest.raises(InvalidInput, match="count"):
        decode_snapshot(written(changed))


# Refusals


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
    # One value that fits says that all rows have it.
    assume(not isinstance(found[name], list) or all(type(each) is not type(other) for each in found[name]))
    found[name] = other
    with pytest.raises(InvalidInput):
        decode_snapshot(written(changed))


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "01", "1.0", "1e3", " 1", "1 ", "1\n", "0x1", "١", "1_0", "9" * 79, "9" * 5000]
)
def test_decode__wei_that_is_no_decimal_number__is_refused(text: str) -> None:
    changed = document()
    changed["frame"]["gas"]["tip_wei"] = text
    with pytest.raises(InvalidInput):
        decode_snapshot(written(changed))


@pytest.mark.parametrize("lane", [-1, 2, 7])
def test_decode__unknown_lane__is_refused(lane: int) -> None:
    changed = document()
    changed["tables"]["requests"]["lane"][0] = lane
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
        lambda text: text.replace(b'"schema":4', b'"schema":3'),
        lambda text: text.replace(b'"schema":4', b'"schema":true'),
        lambda text: text.replace(b'"schema":4', b'"schema":4.0'),
        lambda text: text.replace(b'"schema":4', b'"schema":"3"'),
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
