from __future__ import annotations

import ape
import pytest
from eth_abi import encode
from eth_utils import keccak


def model(**fields) -> dict:
    values = {
        "name": "SmolLM2-135M-Instruct",
        "revision": "main",
        "weightsHash": keccak(text="weights"),
        "quantisation": "Q4_1",
        "memoryMb": 98,
        "memoryPerTokenBytes": 23_040,
        "complexityMilli": 20,
        "unit": "output_token",
    }
    return values | fields


def id_of(a_model: dict) -> bytes:
    identity = [a_model[name] for name in ("name", "revision", "weightsHash", "quantisation")]
    return keccak(encode(["string", "string", "bytes32", "string"], identity))


def test_register__new__is_stored_and_logged(registry, owner):
    receipt = registry.register(model(), sender=owner)
    (event,) = receipt.decode_logs(registry.ModelRegistered)
    assert event.modelId == id_of(model())
    assert dict(registry.modelOf(id_of(model())).items()) == model()
    assert registry.count() == 1
    assert registry.modelIdAt(0) == id_of(model())


def test_register__again__model_exists(registry, owner):
    registry.register(model(), sender=owner)
    with ape.reverts(registry.ModelExists, modelId=id_of(model())):
        registry.register(model(memoryMb=1), sender=owner)
    assert registry.modelOf(id_of(model())).memoryMb == 98


def test_register__no_name__name_missing(registry, owner):
    """A name is how the registry knows that it has a model: without one, it could be registered again and again."""
    with ape.reverts(registry.NameMissing):
        registry.register(model(name=""), sender=owner)


def test_register__by_another__is_refused(registry, stranger):
    with ape.reverts(registry.OwnableUnauthorizedAccount, account=stranger.address):
        registry.register(model(), sender=stranger)


@pytest.mark.parametrize(
    "change",
    [{"name": "b"}, {"revision": "b"}, {"weightsHash": bytes(32)}, {"quantisation": "b"}],
    ids=lambda change: next(iter(change)),
)
def test_id_of__another_identity__is_another(registry, change):
    assert registry.idOf(model(**change)) == id_of(model(**change))
    assert registry.idOf(model(**change)) != registry.idOf(model())


def test_id_of__name_runs_into_revision__is_another(registry):
    first, second = model(name="ab", revision="c"), model(name="a", revision="bc")
    assert registry.idOf(first) != registry.idOf(second)


def test_id_of__properties_that_are_no_identity__is_the_same(registry):
    assert registry.idOf(model(memoryMb=1, complexityMilli=1, unit="pixel")) == registry.idOf(model())


def test_model_of__unknown__unknown_model(registry):
    with ape.reverts(registry.UnknownModel, modelId=bytes(32)):
        registry.modelOf(bytes(32))


def test_model_id_at__beyond_the_last__reverts(registry):
    with ape.reverts():
        registry.modelIdAt(registry.count())
