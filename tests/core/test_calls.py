"""Call data of requesters, against the compiled ABI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from eth_abi.abi import decode
from eth_utils.abi import function_abi_to_4byte_selector

import headrace.adapters.abi as abi_folder
from headrace.core.calls import (
    cancel_data,
    cancel_with_release_data,
    deposit_data,
    fault_selectors,
    raise_priority_fee_data,
    request_inference_data,
    request_inference_for_data,
    retry_callback_data,
    selectors,
    withdraw_data,
    withdraw_to_data,
)
from headrace.core.requests import pack
from headrace.core.types import ResultRef
from tests.fakes import RELAYER, make_request

REQUEST = make_request(salt=7, inline_result=True)


def function(name: str) -> dict[str, Any]:
    folder = Path(next(iter(abi_folder.__path__)))
    entries = json.loads((folder / "InferenceMarket.json").read_text(encoding="utf-8"))["abi"]
    return next(entry for entry in entries if entry["type"] == "function" and entry["name"] == name)


def decoded(name: str, data: bytes) -> tuple[Any, ...]:
    abi = function(name)
    assert data[:4] == function_abi_to_4byte_selector(abi)  # type: ignore[arg-type]
    return decode([_kind(each) for each in abi["inputs"]], data[4:])


def _kind(parameter: dict[str, Any]) -> str:
    if parameter["type"] == "tuple":
        return f"({','.join(_kind(each) for each in parameter['components'])})"
    return str(parameter["type"])


@pytest.mark.parametrize("result", [b"", b"an answer"])
def test_retry_callback_data__decodes_to_the_abis_fields(result: bytes) -> None:
    ref = ResultRef("0x" + "77" * 32, RELAYER, 2**64 - 1, ("0x" + "d1" * 20, "0x" + "d2" * 20), 2**40 - 1)
    request, settled, bytes_ = decoded("retryCallback", retry_callback_data(REQUEST, ref, result))
    assert request == tuple(pack(REQUEST))
    assert settled == (bytes.fromhex("77" * 32), RELAYER, 2**64 - 1, ref.nodes, 2**40 - 1)
    assert bytes_ == result


def test_request_inference_data__decodes_to_the_abis_fields() -> None:
    params, prompt = decoded("requestInference", request_inference_data(REQUEST, b"Hello"))
    names = [each["name"] for each in function("requestInference")["inputs"][0]["components"]]
    by_name = dict(zip(names, params, strict=True))
    assert prompt == b"Hello"
    assert by_name["salt"] == 7
    assert by_name["inlineResult"] is True
    assert by_name["deadline"] == REQUEST.deadline_s
    assert by_name["relayer"] == REQUEST.relayer
    assert (by_name["maxReward"], by_name["gasBudget"], by_name["priorityFee"]) == (
        REQUEST.max_reward_wei,
        REQUEST.gas_budget_wei,
        REQUEST.priority_fee_wei,
    )


def test_request_inference_for_data__decodes_to_the_abis_fields() -> None:
    data = request_inference_for_data(REQUEST, b"Hello", 2**96 - 1, 2**40 - 1, bytes(65))
    params, *others = decoded("requestInferenceFor", data)
    (same, _) = decoded("requestInference", request_inference_data(REQUEST, b""))
    assert params == same
    assert others == [b"Hello", REQUEST.requester, 2**96 - 1, 2**40 - 1, bytes(65)]
    assert data[:4] == selectors()["requestInferenceFor"]


def test_cancel_data__carries_the_packed_request() -> None:
    (packed,) = decoded("cancel", cancel_data(REQUEST))
    assert packed == tuple(pack(REQUEST))


@pytest.mark.parametrize("signature", [b"", bytes(65)])
def test_cancel_with_release_data__carries_the_release(signature: bytes) -> None:
    data = cancel_with_release_data(REQUEST, 1_800_000_000, signature)
    assert decoded("cancelWithRelease", data) == (tuple(pack(REQUEST)), 1_800_000_000, signature)


def test_credit_and_fee_data__decode_to_the_abis_fields() -> None:
    account, id_ = "0x" + "c1" * 20, "0x" + "aa" * 32
    assert decoded("raisePriorityFee", raise_priority_fee_data(id_)) == (bytes.fromhex(id_[2:]),)
    assert decoded("deposit", deposit_data(account)) == (account,)
    assert decoded("withdraw", withdraw_data(account, 7)) == (account, 7)
    assert decoded("withdrawTo", withdraw_to_data(account, 7)) == (account, 7)


def test_fault_selectors__are_those_of_the_abi() -> None:
    folder = Path(next(iter(abi_folder.__path__)))
    entries = json.loads((folder / "Faults.json").read_text(encoding="utf-8"))["abi"]
    functions = [each for each in entries if each["type"] == "function" and each["name"].startswith("prove")]
    assert fault_selectors() == {each["name"]: bytes(function_abi_to_4byte_selector(each)) for each in functions}


def test_selectors__are_those_of_the_abis() -> None:
    folder = Path(next(iter(abi_folder.__path__)))
    texts = [(folder / f"{name}.json").read_text(encoding="utf-8") for name in ("InferenceMarket", "ScheduleLog")]
    functions = [each for text in texts for each in json.loads(text)["abi"] if each["type"] == "function"]
    of_abi = {each["name"]: bytes(function_abi_to_4byte_selector(each)) for each in functions}
    assert {name: of_abi[name] for name in selectors()} == selectors()
