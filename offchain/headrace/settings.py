"""What an operator can set: environment variables `HEADRACE_…` over a TOML file (`--config`, `HEADRACE_CONFIG`).

`HEADRACE_CHAIN__RPC_URL` and `rpc_url` under `[chain]` are the same setting. Keys come from an encrypted keystore or
from `HEADRACE_<ROLE>_PRIVATE_KEY`, never from both; they are held as secrets, which print as asterisks.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from headrace.core.adaptive_batching import AdaptivePolicy
from headrace.core.batching import BatchPolicy
from headrace.core.cycle import BALANCED, SHARED, STRICT, Policy
from headrace.core.errors import ConfigurationError
from headrace.core.self_settlement import SelfSettlementPolicy

PREFIX = "HEADRACE_"
# Variables of the prefix that are not settings: the command line's, the keystore's and those of `scripts/`.
NOT_SETTINGS = frozenset({"CONFIG", "DEBUG", "KEYSTORE_PASSWORD", "DEPLOYER_PRIVATE_KEY"})

Port = Annotated[int, Field(ge=0, le=65535)]
Wei = Annotated[int, Field(ge=0, lt=1 << 96)]
HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://\S+$")]
AddressText = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-fA-F]{40}$", to_lower=True)]
SocketUrl = Annotated[str, StringConstraints(pattern=r"^wss?://\S+$")]
SocketUrls = Annotated[str, StringConstraints(pattern=r"^wss?://[^\s,]+(\s*,\s*wss?://[^\s,]+)*$")]


def _require_http_url(url: SecretStr) -> SecretStr:
    if not re.fullmatch(r"https?://\S+", url.get_secret_value()):
        raise ValueError("it is no address that begins with http:// or https://")
    return url


class Section(BaseModel):
    """A section of the settings. Unknown names are refused, so that a typing error is never a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ChainSettings(Section):
    """The chain and where its contracts are."""

    rpc_url: HttpUrl = "http://127.0.0.1:8545"
    deployments: Path = Path("deployments")
    confirmations: int = Field(default=1, ge=0, le=1000)
    poll_ms: int = Field(default=250, ge=10, le=60_000)
    max_rewind: int = Field(default=256, ge=1, le=1_000_000)
    timeout_s: float = Field(default=10, gt=0, le=300)


class KeySettings(Section):
    """An encrypted keystore file, with its password in a file or in HEADRACE_KEYSTORE_PASSWORD."""

    keystore: Path | None = None
    password_file: Path | None = None


class DaemonKeySettings(KeySettings):
    """A keystore file, or a web3signer that holds the key of an address. Its URL may have a name and a password."""

    signer_url: Annotated[SecretStr, AfterValidator(_require_http_url)] | None = None
    signer_address: AddressText | None = None
    signer_ca_file: Path | None = None
    signer_certificate_file: Path | None = None
    signer_timeout_s: float = Field(default=5, gt=0, le=60)


class BatchSettings(Section):
    """When results are settled. `adaptive` sends with the next block, or a later one while that saves more than it
    delays; `threshold`, what it is compared with, once a batch is this full or its oldest result this old."""

    name: Literal["adaptive", "threshold"] = "adaptive"
    max_results: int = Field(default=50, ge=1, le=500)
    max_age_ms: int = Field(default=1_500, ge=0, le=600_000)
    margin_milli: int = Field(default=1_500, ge=1_000, le=10_000)
    longest_wait_ms: int = Field(default=36_000, ge=0, le=3_600_000)
    longest_realtime_wait_ms: int = Field(default=12_000, ge=0, le=3_600_000)
    deadline_margin_ms: int = Field(default=15_000, ge=0, le=3_600_000)
    block_margin_ms: int = Field(default=2_000, ge=0, le=60_000)
    least_delay_wei_per_s: Wei = 10**12

    def policy(self) -> BatchPolicy | AdaptivePolicy:
        """As the settler takes it."""
        if self.name == "threshold":
            return BatchPolicy(self.max_results, self.max_age_ms)
        return AdaptivePolicy(
            max_items=self.max_results,
            deadline_margin_ms=self.deadline_margin_ms,
            block_margin_ms=self.block_margin_ms,
            margin_milli=self.margin_milli,
            longest_wait_ms=self.longest_wait_ms,
            longest_realtime_wait_ms=self.longest_realtime_wait_ms,
            least_delay_wei_per_s=self.least_delay_wei_per_s,
        )


class PolicySettings(Section):
    """The published numbers of the scheduling policy; their hash is in each round's record. `balanced` is what Headrace
    is for; `reference` is what it grew from, to compare with, and reads only what stands above the waits."""

    name: Literal["balanced", "reference"] = "balanced"
    realtime_capacity: int = Field(default=200, ge=1)
    bulk_capacity: int = Field(default=1_000, ge=1)
    realtime_streak: int = Field(default=20, ge=1)
    realtime_fee_floor_wei: Wei = 0
    max_assignments: int = Field(default=3, ge=1, le=10)
    expected_batch_size: int = Field(default=8, ge=1, le=500)
    heartbeat_timeout_ms: int = Field(default=15_000, ge=1_000)
    realtime_max_wait_ms: int = Field(default=10_000, ge=1, le=86_400_000)
    bulk_max_wait_ms: int = Field(default=120_000, ge=1, le=86_400_000)
    fee_weight_milli: int = Field(default=600, ge=0, le=1_000)
    wait_weight_milli: int = Field(default=300, ge=0, le=1_000)
    deadline_weight_milli: int = Field(default=100, ge=0, le=1_000)
    least_delay_wei_per_s: Wei = 10**12
    miss_delay_ms: int = Field(default=30_000, ge=0, le=3_600_000)
    exploration_milli: int = Field(default=50, ge=0, le=1_000)

    def policy(self) -> Policy:
        """As the scheduler takes it."""
        return Policy(lanes=SHARED if self.name == BALANCED else STRICT, **self.model_dump())


class GaslessSettings(Section):
    """On what terms requests are posted that their requesters only sign."""

    fee_margin_bps: int = Field(default=12_000, ge=0, le=100_000)
    max_open: int = Field(default=200, ge=0, le=1_000)
    max_open_per_requester: int = Field(default=8, ge=1, le=1_000)


class WatchSettings(Section):
    """A relayer's watch over its nodes. `min_return_bps`: what a bounty must bring in for the gas of its proof,
    10,000 = as much; 0 = whatever it is."""

    enabled: bool = True
    min_return_bps: int = Field(default=10_000, ge=0, le=1_000_000)


class StorageSettings(Section):
    """How much a relayer keeps, and how long. Days are counted from the end of a request."""

    max_unused_prompt_mb: int = Field(default=256, ge=1, le=1_000_000)
    keep_payloads_days: int = Field(default=30, ge=1, le=36_500)


class ApiSettings(Section):
    """How often one address may call, 0 = any number; through how many proxies it comes; and who sees the metrics."""

    writes_per_minute: int = Field(default=600, ge=0, le=1_000_000)
    heavy_reads_per_minute: int = Field(default=3_000, ge=0, le=1_000_000)
    trusted_proxies: int = Field(default=0, ge=0, le=16)
    operator_token: Annotated[SecretStr, Field(min_length=16)] | None = None


class RelayerSettings(Section):
    """A relayer: its key, its two doors, its store and its policy."""

    key: DaemonKeySettings = DaemonKeySettings()
    submitter: DaemonKeySettings = DaemonKeySettings()
    further_submitters: Annotated[tuple[DaemonKeySettings, ...], Field(max_length=16)] = ()
    api_host: str = "127.0.0.1"
    api_port: Port = 8480
    api: ApiSettings = ApiSettings()
    cors_origins: tuple[str, ...] = ()
    link_host: str = "127.0.0.1"
    link_port: Port = 8481
    public_link_url: SocketUrl | None = None
    database: Path = Path(".headrace/relayer.db")
    standby: bool = False
    batch: BatchSettings = BatchSettings()
    policy: PolicySettings = PolicySettings()
    gasless: GaslessSettings = GaslessSettings()
    watch: WatchSettings = WatchSettings()
    storage: StorageSettings = StorageSettings()
    lease_ms: int = Field(default=30_000, ge=1_000, le=3_600_000)
    min_balance_wei: Wei = 10**16
    spending_limit_wei: Wei = 10**19


class PriceSettings(Section):
    """What a node asks for a model, instead of its price on the chain."""

    per_prompt_kib_wei: Wei
    per_thousand_tokens_wei: Wei


class SelfSettlementSettings(Section):
    """When a node settles by itself what its relayer left."""

    enabled: bool = True
    patience_s: int = Field(default=30, ge=0, le=240)
    min_return_bps: int = Field(default=10_000, ge=0, le=1_000_000)

    def policy(self) -> SelfSettlementPolicy:
        """As the node takes it."""
        return SelfSettlementPolicy(patience_s=self.patience_s, min_return_bps=self.min_return_bps)


class NodeSettings(Section):
    """A node: its key, its relayer and the models that it serves."""

    key: DaemonKeySettings = DaemonKeySettings()
    payer: DaemonKeySettings = DaemonKeySettings()
    self_settlement: SelfSettlementSettings = SelfSettlementSettings()
    relayer_link_url: SocketUrls = "ws://127.0.0.1:8481/link"
    relayer: AddressText | None = None
    journal: Path = Path(".headrace/node.db")
    models: tuple[str, ...] = ("smollm2-135m-instruct",)
    prices: Mapping[str, PriceSettings] = Field(default_factory=dict)
    max_in_flight: int = Field(default=1, ge=1, le=10_000)
    backend: Literal["embedded", "openai"] = "embedded"
    openai_url: HttpUrl | None = None
    openai_api_key: SecretStr | None = None
    model_files: Mapping[str, Path] = Field(default_factory=dict)
    context_tokens: Mapping[str, Annotated[int, Field(ge=64, le=1 << 24)]] = Field(default_factory=dict)
    region: str = Field(default="local", min_length=1, max_length=32)


class AttestationSettings(Section):
    """A key that a registrar vouches for, with which a node proves its answers to requests that name a verifier. The
    verifier is the deployment's own AttestedKeyVerifier unless another is named."""

    key: KeySettings = KeySettings()
    verifier: AddressText | None = None


class RequesterSettings(Section):
    """Who posts requests from the command line, and at which relayer."""

    key: KeySettings = KeySettings()
    api_url: HttpUrl = "http://127.0.0.1:8480"


class OwnerSettings(Section):
    """Whose nodes, or contracts, are changed from the command line."""

    key: KeySettings = KeySettings()


class WatcherSettings(Section):
    """Who watches a relayer from outside, and is credited the bounties."""

    key: KeySettings = KeySettings()
    folder: Path = Path(".headrace/watch")
    min_return_bps: int = Field(default=10_000, ge=0, le=1_000_000)


class LogSettings(Section):
    """How it logs."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    style: Literal["json", "console"] = "console"


class Settings(BaseSettings):
    """All settings. Read them with `load_settings`, which words what is wrong with them."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    chain: ChainSettings = ChainSettings()
    relayer: RelayerSettings = RelayerSettings()
    node: NodeSettings = NodeSettings()
    attestation: AttestationSettings = AttestationSettings()
    requester: RequesterSettings = RequesterSettings()
    owner: OwnerSettings = OwnerSettings()
    watcher: WatcherSettings = WatcherSettings()
    log: LogSettings = LogSettings()
    relayer_private_key: SecretStr | None = None
    relayer_submitter_private_key: SecretStr | None = None
    node_private_key: SecretStr | None = None
    node_payer_private_key: SecretStr | None = None
    attestation_private_key: SecretStr | None = None
    requester_private_key: SecretStr | None = None
    owner_private_key: SecretStr | None = None
    watcher_private_key: SecretStr | None = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment goes before the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(config: Path | None = None) -> Settings:
    """Read the settings.

    Args:
        config: a TOML file; without one, the file that HEADRACE_CONFIG names, or none.

    Raises:
        ConfigurationError: a setting is unknown or wrong; the message names it and says what to do.
    """
    named = os.environ.get(f"{PREFIX}CONFIG")
    path = config or (Path(named) if named else None)
    if path is not None:
        _require_toml(path)
    _require_known_variables(os.environ)

    class WithFile(Settings):
        model_config = SettingsConfigDict(toml_file=path)

    try:
        return WithFile()
    except ValidationError as exc:
        raise ConfigurationError(_sentence(exc.errors(include_input=False)[0], path)) from None
    except ValueError as exc:
        # pydantic-settings could not read a structured variable as JSON; its cause may quote a value, so it is cut off.
        raise ConfigurationError(
            f"A setting of the environment cannot be read: {str(exc).splitlines()[0]}. Lists and tables are "
            "written as JSON there, such as HEADRACE_NODE__MODELS='[\"smollm2-135m-instruct\"]'."
        ) from None


def _require_toml(path: Path) -> None:
    try:
        tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigurationError(
            f"The settings file {path} cannot be read ({exc.strerror}): correct --config or HEADRACE_CONFIG."
        ) from exc
    except ValueError as exc:
        raise ConfigurationError(f"The settings file {path} is not TOML: {exc}.") from exc


def _require_known_variables(environment: Mapping[str, str]) -> None:
    """pydantic-settings passes over unknown variables; a wrong name must not become a silent default."""
    known = {name.upper() for name in Settings.model_fields} | NOT_SETTINGS
    for variable in sorted(environment):
        if not variable.upper().startswith(PREFIX):
            continue
        first = variable.upper().removeprefix(PREFIX).split("__", 1)[0]
        if first not in known:
            raise ConfigurationError(f"There is no setting {variable}{_suggestion(first, known)}: correct or unset it.")


def _suggestion(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {PREFIX}{close[0]}?)" if close else ""


def _sentence(error: ErrorDetails, path: Path | None) -> str:
    name = ".".join(str(part) for part in error["loc"])
    variable = PREFIX + "__".join(str(part).upper() for part in error["loc"])
    where = f"{variable} or {path}" if path else variable
    if error["type"] == "extra_forbidden":
        options = _names_beside(error["loc"])
        known = f" There are: {', '.join(options)}." if options else ""
        return f"There is no setting {name}: correct or remove it in {where}.{known}"
    return f"The setting {name} is wrong: {_lower_first(error['msg'])}. Correct it in {where}."


def _names_beside(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Settings
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        model = field.annotation
    return sorted(model.model_fields)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
