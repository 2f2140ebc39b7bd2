"""What is simulated, as a TOML file says it."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from headrace.core.adaptive_batching import AdaptivePolicy
from headrace.core.batching import BatchPolicy
from headrace.core.cycle import BALANCED, SHARED, Policy
from headrace.core.errors import InvalidInput

GWEI = 10**9
Share = Annotated[float, Field(ge=0, le=1)]


def _in_order(span: tuple[Any, Any]) -> tuple[Any, Any]:
    if span[0] > span[1]:
        raise ValueError(f"{span[0]} to {span[1]} is no span: the lower end comes first")
    return span


Seconds = Annotated[tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]], AfterValidator(_in_order)]
Counts = Annotated[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]], AfterValidator(_in_order)]


class Section(BaseModel):
    """A part of a scenario: what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Requests(Section):
    """What is asked.

    `trace` is a CSV as the Azure Public Dataset has it. `offset_s` is where in it the run starts, drawn by the seed
    when there is none; `rate` multiplies how often requests come. Fees are log-normal around their medians.
    """

    trace: Path
    offset_s: float | None = Field(default=None, ge=0)
    rate: float = Field(default=1.0, gt=0)
    requesters: int = Field(default=200, ge=1)
    realtime_share: Share = 0.3
    realtime_deadline_s: Seconds = (20, 60)
    bulk_deadline_s: Seconds = (300, 1_800)
    realtime_fee_wei: int = Field(default=2 * 10**14, ge=0)
    bulk_fee_wei: int = Field(default=10**13, ge=0)
    fee_sigma: float = Field(default=1.0, ge=0)
    gas_headroom: float = Field(default=1.5, ge=1)


class Model(Section):
    """A model that is asked for: how often, how large, and what nodes ask on average."""

    name: str = "llama-7b"
    weight: float = Field(default=1.0, gt=0)
    complexity_milli: int = Field(default=1_000, ge=1)
    memory_mb: int = Field(default=4_000, ge=0)
    per_prompt_kib_wei: int = Field(default=10**12, ge=0)
    per_thousand_tokens_wei: int = Field(default=10**14, ge=0)


class Nodes(Section):
    """Who answers. Speeds are log-normal, in tokens a second of a 7B-class model.

    `miss_share`: of assignments that come to nothing. `mean_up_s`, `mean_down_s`: how long a node is there and away,
    each exponential; 0 = always there. `liar_share`: of nodes that say they are `lie_factor` faster and have nothing in
    hand. `new_share`: of nodes on probation.
    """

    count: int = Field(default=40, ge=1)
    places: Counts = (1, 4)
    tokens_per_s: float = Field(default=60.0, gt=0)
    speed_sigma: float = Field(default=0.5, ge=0)
    memory_mb: int = Field(default=24_000, ge=1)
    models_each: Counts = (1, 3)
    warm_models: int = Field(default=1, ge=1)
    load_mb_per_s: float = Field(default=500.0, gt=0)
    price_sigma: float = Field(default=0.3, ge=0)
    miss_share: Share = 0.01
    flaky_share: Share = 0.1
    flaky_miss_share: Share = 0.15
    mean_up_s: float = Field(default=1_800.0, ge=0)
    mean_down_s: float = Field(default=60.0, ge=0)
    liar_share: Share = 0.05
    lie_factor: float = Field(default=4.0, ge=1)
    new_share: Share = 0.05
    heartbeat_s: float = Field(default=5.0, gt=0)
    cost_wei_per_s: int = Field(default=10**11, ge=0)


class ChainTrace(Section):
    """The chain: `trace` has its blocks. `landing_blocks`: how many a batch takes to be in one, 1 = the next."""

    trace: Path
    offset_s: float | None = Field(default=None, ge=0)
    fee_scale: float = Field(default=1.0, gt=0)
    tip_wei: int = Field(default=GWEI // 10, ge=0)
    landing_blocks: int = Field(default=1, ge=1)


class Gas(Section):
    """Gas as the contracts charge it, and as settling uses it (the table of `make bench-gas`)."""

    fixed_gas: int = 130_500
    item_gas: int = 13_800
    used_fixed_gas: int = 129_200  # a batch of one, and the record of its round
    used_item_gas: int = 13_850
    used_requester_gas: int = 5_550  # of each further requester
    probation_max_reward_wei: int = 10**15


class Relayer(Section):
    """How it works: cycles are so far apart at least, and a lease is so long."""

    cycle_ms: int = Field(default=500, ge=1)
    lease_ms: int = Field(default=30_000, ge=1)


class Policies(Section):
    """One pair of policies to compare, with numbers of its own."""

    name: str
    scheduling: Literal["reference", "balanced"] = "balanced"
    batching: Literal["threshold", "adaptive"] = "adaptive"
    numbers: dict[str, int] = Field(default_factory=dict)  # of the scheduling policy
    batch_numbers: dict[str, int] = Field(default_factory=dict)  # of the batching policy

    @model_validator(mode="after")
    def _are_policies(self) -> Policies:
        for numbers, base in ((self.numbers, Policy()), (self.batch_numbers, self._batching)):
            known = {field.name for field in fields(base) if isinstance(getattr(base, field.name), int)}
            if odd := ", ".join(sorted(numbers.keys() - known)):
                raise ValueError(f"{self.name!r} has no number called {odd}; there are {', '.join(sorted(known))}")
            if any(value < 0 for value in numbers.values()):
                raise ValueError(f"a number of {self.name!r} is below 0")
        try:
            self.scheduling_policy()
        except InvalidInput as exc:
            raise ValueError(str(exc)) from exc
        return self

    @property
    def _batching(self) -> BatchPolicy | AdaptivePolicy:
        return AdaptivePolicy() if self.batching == "adaptive" else BatchPolicy()

    def scheduling_policy(self) -> Policy:
        """As the scheduler takes it."""
        base = Policy(name=BALANCED, lanes=SHARED) if self.scheduling == BALANCED else Policy()
        numbers: dict[str, Any] = dict(self.numbers)
        return replace(base, **numbers)

    def batching_policy(self) -> BatchPolicy | AdaptivePolicy:
        """As the settler takes it."""
        numbers: dict[str, Any] = dict(self.batch_numbers)
        return replace(self._batching, **numbers)


DEFAULT_POLICIES = (
    Policies(name="reference", scheduling="reference", batching="threshold"),
    Policies(name="balanced", scheduling="balanced", batching="adaptive"),
)


class Scenario(Section):
    """All of it. Traces are found beside the file."""

    name: str
    duration_s: float = Field(default=600.0, gt=0, le=86_400)
    requests: Requests
    chain: ChainTrace
    nodes: Nodes = Nodes()
    gas: Gas = Gas()
    relayer: Relayer = Relayer()
    models: tuple[Model, ...] = (Model(),)
    policies: tuple[Policies, ...] = DEFAULT_POLICIES

    @model_validator(mode="after")
    def _names_differ(self) -> Scenario:
        for names in ([each.name for each in self.policies], [each.name for each in self.models]):
            if len(set(names)) < len(names) or not names:
                raise ValueError(f"there must be one or more with names that differ, not {names}")
        return self


def read_scenario(path: Path) -> Scenario:
    """A scenario from its file.

    Raises:
        InvalidInput: it cannot be read, or something in it is not as it must be.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise InvalidInput(f"the scenario {path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise InvalidInput(f"the scenario {path} is not TOML: {exc}") from exc
    for section in ("requests", "chain"):
        if isinstance(table.get(section), dict) and isinstance(table[section].get("trace"), str):
            table[section]["trace"] = path.parent / table[section]["trace"]
    try:
        return Scenario.model_validate(table)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(each) for each in first["loc"])
        raise InvalidInput(f"{where or 'the scenario'} in {path}: {first['msg']}") from exc
