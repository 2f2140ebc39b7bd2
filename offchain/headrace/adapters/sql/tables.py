"""The tables. A change here needs a migration beside the others; a test holds the two together."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMING)


class WideInt(TypeDecorator[int]):
    """An integer of up to 256 bits as decimal text: SQL's integers end at 63 bits."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        """To the database."""
        return None if value is None else str(int(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> int | None:
        """From the database."""
        return None if value is None else int(value)


def _hash(name: str, **options: Any) -> Column[str]:
    return Column(name, String(66), nullable=False, **options)


def _address(name: str, **options: Any) -> Column[str]:
    return Column(name, String(42), nullable=False, **options)


def _number(name: str, **options: Any) -> Column[int]:
    return Column(name, BigInteger, nullable=False, **options)


def _small(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _wide(name: str) -> Column[int]:
    return Column(name, WideInt, nullable=False)


def _state() -> Column[str]:
    return Column("state", String(16), nullable=False)


def _serial(name: str) -> Column[int]:
    # SQLite counts up by itself in INTEGER columns only.
    return Column(name, BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


blocks = Table(
    "blocks",
    metadata,
    _number("number", primary_key=True, autoincrement=False),
    _hash("hash"),
    _hash("parent_hash"),
    _number("timestamp_s"),
)

# An event is known by what it says, not by where it stands: a reorg gives the same event another log index.
events = Table(
    "events",
    metadata,
    _hash("event_key", primary_key=True),
    _number("block_number"),
    _hash("block_hash"),
    _hash("transaction_hash"),
    _number("log_index"),
    _address("contract"),
    Column("name", String(64), nullable=False),
    Column("request_id", String(66)),
    Column("args", JSON, nullable=False),
    UniqueConstraint("block_number", "log_index"),
    ForeignKeyConstraint(["block_number"], ["blocks.number"]),
    Index(None, "request_id"),
)

requests = Table(
    "requests",
    metadata,
    _hash("request_id", primary_key=True),
    _state(),
    # Names this relayer, or none.
    Column("servable", Boolean, nullable=False),
    _number("block_number"),
    _hash("block_hash"),
    _hash("transaction_hash"),
    _number("included_at_s"),
    _wide("priority_fee_added_wei"),
    _number("effective_deadline_s"),
    _number("released_until_s"),
    Column("closed", JSON(none_as_null=True)),
    # The fields of core.types.Request, by their names.
    _address("requester"),
    _address("relayer"),
    _hash("model_id"),
    _hash("prompt_hash"),
    _wide("salt"),
    _number("deadline_s"),
    _number("prompt_bytes"),
    _number("max_output_tokens"),
    _number("callback_gas"),
    _small("lane"),
    Column("batchable", Boolean, nullable=False),
    Column("inline_result", Boolean, nullable=False),
    _small("mode"),
    _small("k"),
    _small("n"),
    _address("verifier"),
    _wide("max_reward_wei"),
    _wide("gas_budget_wei"),
    _wide("priority_fee_wei"),
    Index(None, "state", "included_at_s"),
    Index(None, "requester", "block_number"),
    Index(None, "block_number"),
    Index(None, "prompt_hash"),
)

timeline = Table(
    "timeline",
    metadata,
    _serial("entry_id"),
    _hash("request_id"),
    _number("at_ms"),
    Column("stage", String(32), nullable=False),
    Column("detail", JSON, nullable=False),
    ForeignKeyConstraint(["request_id"], ["requests.request_id"]),
    Index(None, "request_id"),
)

rounds = Table(
    "rounds",
    metadata,
    _number("round", primary_key=True, autoincrement=False),
    _state(),
    _number("opened_at_ms"),
    _small("cycles"),
    _hash("policy_hash"),
    Column("record", JSON(none_as_null=True)),
    _number("recorded_block"),
    _hash("transaction_hash"),
    Index(None, "state"),
)

cycles = Table(
    "cycles",
    metadata,
    _number("round", primary_key=True, autoincrement=False),
    _number("cycle", primary_key=True, autoincrement=False),
    _hash("snapshot_hash"),
    _number("anchor_block"),
    _hash("anchor_hash"),
    _number("anchor_timestamp_s"),
    _number("planned_at_ms"),
    _number("lane_streak"),
    _number("lane_lag"),
    _number("floor_work"),
    Column("accounts", JSON, nullable=False),
    ForeignKeyConstraint(["round"], ["rounds.round"]),
)

decisions = Table(
    "decisions",
    metadata,
    _number("round", primary_key=True, autoincrement=False),
    _number("cycle", primary_key=True, autoincrement=False),
    _number("position", primary_key=True, autoincrement=False),
    _hash("request_id"),
    _address("node"),
    _small("kind"),
    _small("reason"),
    _wide("reward_wei"),
    _number("supersedes_round"),
    _wide("score_e9"),
    _wide("cost_wei"),
    _address("runner_up"),
    _wide("runner_up_cost_wei"),
    ForeignKeyConstraint(["round", "cycle"], ["cycles.round", "cycles.cycle"]),
    Index(None, "request_id", "round", "cycle"),
)

leaves = Table(
    "leaves",
    metadata,
    _number("round", primary_key=True, autoincrement=False),
    _number("position", primary_key=True, autoincrement=False),
    _hash("request_id"),
    _address("node"),
    _small("kind"),
    _small("reason"),
    _wide("reward_wei"),
    _number("supersedes_round"),
    ForeignKeyConstraint(["round"], ["rounds.round"]),
)

snapshots = Table(
    "snapshots",
    metadata,
    _hash("snapshot_hash", primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

assignments = Table(
    "assignments",
    metadata,
    _hash("request_id", primary_key=True),
    _number("attempt", primary_key=True, autoincrement=False),
    _state(),
    _address("relayer"),
    _address("node"),
    _number("round"),
    _wide("reward_wei"),
    _number("deadline_s"),
    _number("assigned_at_ms"),
    _number("lease_until_ms"),
    Column("signature", LargeBinary, nullable=False),
    Column("accept_signature", LargeBinary, nullable=False),
    Column("detail", Text, nullable=False),
    ForeignKeyConstraint(["request_id"], ["requests.request_id"]),
    Index(None, "state"),
)

policies = Table(
    "policies",
    metadata,
    _serial("entry_id"),
    _hash("configured_hash"),
    Column("policy", JSON, nullable=False),
    _number("adopted_at_ms"),
)

payloads = Table(
    "payloads",
    metadata,
    _hash("payload_hash", primary_key=True),
    Column("content", LargeBinary, nullable=False),
    _number("stored_at_ms"),
)

prompt_holders = Table(
    "prompt_holders",
    metadata,
    _hash("payload_hash", primary_key=True),
    _address("account", primary_key=True),
)

results = Table(
    "results",
    metadata,
    _hash("request_id", primary_key=True),
    _address("node", primary_key=True),
    _hash("result_hash"),
    _wide("reward_wei"),
    _address("relayer"),
    _number("round", primary_key=True, autoincrement=False),
    Column("signature", LargeBinary, nullable=False),
    _hash("payload_hash"),
    _number("payload_bytes"),
    _number("received_at_ms"),
    Column("proof", LargeBinary, nullable=False),
    ForeignKeyConstraint(["request_id"], ["requests.request_id"]),
    ForeignKeyConstraint(["payload_hash"], ["payloads.payload_hash"]),
    Index(None, "payload_hash"),
)

intents = Table(
    "intents",
    metadata,
    _serial("intent_id"),
    Column("kind", String(32), nullable=False),
    Column("key", String(255), nullable=False),
    _state(),
    Column("detail", JSON, nullable=False),
    Column("outcome", JSON, nullable=False),
    _address("to"),
    Column("data", LargeBinary, nullable=False),
    _wide("value_wei"),
    _number("gas_limit"),
    _number("nonce"),
    _number("block_number"),
    _number("created_at_ms"),
    _address("sender"),
    _number("until_s"),
    _wide("worth_wei"),
    Index(None, "state"),
    Index(None, "block_number"),
)
# No two intents of a key share a nonce: an included one is open again when its block is gone.
Index(
    "uq_intents_nonce",
    intents.c.sender,
    intents.c.nonce,
    unique=True,
    sqlite_where=text("state <> 'dropped'"),
    postgresql_where=text("state <> 'dropped'"),
)

postings = Table(
    "postings",
    metadata,
    _hash("request_id", primary_key=True),
    _state(),
    _address("requester"),
    Column("request", JSON, nullable=False),
    _wide("relayer_fee_wei"),
    _number("valid_until_s"),
    Column("data", LargeBinary, nullable=False),
    Column("reason", Text, nullable=False),
    _number("submitted_at_ms"),
    _number("ended_at_ms"),
    # The last intent that was to post it.
    Column("intent_id", BigInteger().with_variant(Integer, "sqlite"), ForeignKey(intents.c.intent_id)),
    Index(None, "state", "submitted_at_ms"),
    Index(None, "requester", "state"),
    Index(None, "intent_id"),
)

attempts = Table(
    "attempts",
    metadata,
    _hash("transaction_hash", primary_key=True),
    Column("intent_id", BigInteger().with_variant(Integer, "sqlite"), ForeignKey(intents.c.intent_id), nullable=False),
    _small("position"),
    Column("raw", LargeBinary, nullable=False),
    _wide("max_fee_wei"),
    _wide("tip_wei"),
    _number("created_at_ms"),
    Column("is_noop", Boolean, nullable=False),
    UniqueConstraint("intent_id", "position"),
)

# Which process leads: one row.
leases = Table(
    "leases",
    metadata,
    Column("name", String(16), primary_key=True),
    _number("token"),
    Column("holder", Text, nullable=False),
    Column("locked_on", String(64), nullable=False),
    _number("renewals"),
    _number("lease_ms"),
)

# What the settler gave up, until somebody has it tried again.
dead_letters = Table(
    "dead_letters",
    metadata,
    _hash("request_id", primary_key=True),
    Column("reason", Text, nullable=False),
    Column("error", Text, nullable=False),
    _address("to"),
    Column("data", LargeBinary, nullable=False),
    _number("block_number"),
    _number("at_ms"),
)
