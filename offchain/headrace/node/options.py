"""What a node's operator decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.types import Address, Hash32, Price


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A registered model that the node serves, at its own price. The backend knows it by `name`."""

    model_id: Hash32
    name: str
    complexity_milli: int  # as registered: a 7B-class model has 1000
    price: Price


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node works. `relayer` is the only one it links to; without it, whoever answers at the URL is believed."""

    link_url: str  # or several with commas between them, of the processes of one relayer
    chain_id: int
    market: Address
    models: tuple[OfferedModel, ...]
    relayer: Address | None = None
    max_in_flight: int = 1
    context_tokens: Mapping[str, int] = field(
        default_factory=dict
    )  # of one request, by model name; the operator's word
    count_timeout_s: float = 2.0  # for the tokens of a prompt
    region: str = "local"
    initial_latency_ms: int = 1_000  # of a 7B-class answer, said until one was measured
    heartbeat_interval_s: float = 2.0
    probe_interval_s: float = 5.0  # of the backend, and of a chain that did not answer
    redeliver_after_s: float = 10.0  # when a delivery stays unanswered on a link that stands
    answer_timeout_s: float = 15.0  # for what the relayer must say at once
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 30.0
    drain_timeout_s: float = 60.0
    keep_ms: int = 30 * 24 * 3600 * 1000  # finished tasks and their payloads
