"""The models that a new registry starts with: data in _models.toml."""

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eth_abi import encode
from eth_utils import keccak


@dataclass(frozen=True)
class Model:
    """IModelRegistry.Model."""

    name: str
    revision: str
    weights_hash: bytes
    quantisation: str
    memory_mb: int
    memory_per_token_bytes: int
    complexity_milli: int
    unit: str

    @property
    def model_id(self) -> bytes:
        """What the registry calls the model by."""
        named = (self.name, self.revision, self.weights_hash, self.quantisation)
        return keccak(encode(["string", "string", "bytes32", "string"], named))

    def as_json(self) -> dict[str, Any]:
        """Return the model as a deployment file lists it."""
        return {
            **asdict(self),
            "model_id": "0x" + self.model_id.hex(),
            "weights_hash": "0x" + self.weights_hash.hex(),
        }


def seed_models() -> list[Model]:
    """Return the models to register."""
    text = (Path(__file__).parent / "_models.toml").read_text(encoding="utf-8")
    return [_model(**entry) for entry in tomllib.loads(text)["models"]]


def _model(*, revision: str = "", weights_sha256: str = "", **rest: Any) -> Model:
    return Model(revision=revision, weights_hash=bytes.fromhex(weights_sha256).rjust(32, b"\0"), **rest)
