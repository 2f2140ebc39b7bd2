"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create them."""
    op.create_table(
        "blocks",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.String(length=66), nullable=False),
        sa.Column("parent_hash", sa.String(length=66), nullable=False),
        sa.Column("timestamp_s", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_blocks"),
    )
    op.create_table(
        "intents",
        sa.Column("intent_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.JSON(), nullable=False),
        sa.Column("to", sa.String(length=42), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("value_wei", sa.Text(), nullable=False),
        sa.Column("gas_limit", sa.BigInteger(), nullable=False),
        sa.Column("nonce", sa.BigInteger(), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("intent_id", name="pk_intents"),
    )
    op.create_index("ix_intents_block_number", "intents", ["block_number"])
    op.create_index("ix_intents_state", "intents", ["state"])
    op.create_index(
        "uq_intents_nonce",
        "intents",
        ["nonce"],
        unique=True,
        sqlite_where=sa.text("state <> 'dropped'"),
        postgresql_where=sa.text("state <> 'dropped'"),
    )
    op.create_table(
        "payloads",
        sa.Column("payload_hash", sa.String(length=66), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("stored_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("payload_hash", name="pk_payloads"),
    )
    op.create_table(
        "requests",
        sa.Column("request_id", sa.String(length=66), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("servable", sa.Boolean(), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=False),
        sa.Column("block_hash", sa.String(length=66), nullable=False),
        sa.Column("transaction_hash", sa.String(length=66), nullable=False),
        sa.Column("included_at_s", sa.BigInteger(), nullable=False),
        sa.Column("priority_fee_added_wei", sa.Text(), nullable=False),
        sa.Column("effective_deadline_s", sa.BigInteger(), nullable=False),
        sa.Column("released_until_s", sa.BigInteger(), nullable=False),
        sa.Column("closed", sa.JSON(), nullable=True),
        sa.Column("requester", sa.String(length=42), nullable=False),
        sa.Column("relayer", sa.String(length=42), nullable=False),
        sa.Column("model_id", sa.String(length=66), nullable=False),
        sa.Column("prompt_hash", sa.String(length=66), nullable=False),
        sa.Column("salt", sa.Text(), nullable=False),
        sa.Column("deadline_s", sa.BigInteger(), nullable=False),
        sa.Column("prompt_bytes", sa.BigInteger(), nullable=False),
        sa.Column("max_output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("callback_gas", sa.BigInteger(), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("batchable", sa.Boolean(), nullable=False),
        sa.Column("inline_result", sa.Boolean(), nullable=False),
        sa.Column("mode", sa.Integer(), nullable=False),
        sa.Column("k", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("verifier", sa.String(length=42), nullable=False),
        sa.Column("max_reward_wei", sa.Text(), nullable=False),
        sa.Column("gas_budget_wei", sa.Text(), nullable=False),
        sa.Column("priority_fee_wei", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name="pk_requests"),
    )
    op.create_index("ix_requests_block_number", "requests", ["block_number"])
    op.create_index("ix_requests_prompt_hash", "requests", ["prompt_hash"])
    op.create_index("ix_requests_requester_block_number", "requests", ["requester", "block_number"])
    op.create_index("ix_requests_state_included_at_s", "requests", ["state", "included_at_s"])
    op.create_table(
        "rounds",
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("opened_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("cycles", sa.Integer(), nullable=False),
        sa.Column("policy_hash", sa.String(length=66), nullable=False),
        sa.Column("record", sa.JSON(), nullable=True),
        sa.Column("recorded_block", sa.BigInteger(), nullable=False),
        sa.Column("transaction_hash", sa.String(length=66), nullable=False),
        sa.PrimaryKeyConstraint("round", name="pk_rounds"),
    )
    op.create_table(
        "snapshots",
        sa.Column("snapshot_hash", sa.String(length=66), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("snapshot_hash", name="pk_snapshots"),
    )
    op.create_table(
        "assignments",
        sa.Column("request_id", sa.String(length=66), nullable=False),
        sa.Column("attempt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("relayer", sa.String(length=42), nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("reward_wei", sa.Text(), nullable=False),
        sa.Column("deadline_s", sa.BigInteger(), nullable=False),
        sa.Column("assigned_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("accept_signature", sa.LargeBinary(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["requests.request_id"], name="fk_assignments_request_id"),
        sa.PrimaryKeyConstraint("request_id", "attempt", name="pk_assignments"),
    )
    op.create_index("ix_assignments_state", "assignments", ["state"])
    op.create_table(
        "attempts",
        sa.Column("transaction_hash", sa.String(length=66), nullable=False),
        sa.Column("intent_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("max_fee_wei", sa.Text(), nullable=False),
        sa.Column("tip_wei", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["intent_id"], ["intents.intent_id"], name="fk_attempts_intent_id"),
        sa.PrimaryKeyConstraint("transaction_hash", name="pk_attempts"),
        sa.UniqueConstraint("intent_id", "position", name="uq_attempts_intent_id_position"),
    )
    op.create_table(
        "cycles",
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cycle", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("snapshot_hash", sa.String(length=66), nullable=False),
        sa.Column("anchor_block", sa.BigInteger(), nullable=False),
        sa.Column("anchor_hash", sa.String(length=66), nullable=False),
        sa.Column("anchor_timestamp_s", sa.BigInteger(), nullable=False),
        sa.Column("planned_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("lane_streak", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["round"], ["rounds.round"], name="fk_cycles_round"),
        sa.PrimaryKeyConstraint("round", "cycle", name="pk_cycles"),
    )
    op.create_table(
        "events",
        sa.Column("event_key", sa.String(length=66), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=False),
        sa.Column("block_hash", sa.String(length=66), nullable=False),
        sa.Column("transaction_hash", sa.String(length=66), nullable=False),
        sa.Column("log_index", sa.BigInteger(), nullable=False),
        sa.Column("contract", sa.String(length=42), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=66), nullable=True),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["block_number"], ["blocks.number"], name="fk_events_block_number"),
        sa.PrimaryKeyConstraint("event_key", name="pk_events"),
        sa.UniqueConstraint("block_number", "log_index", name="uq_events_block_number_log_index"),
    )
    op.create_index("ix_events_request_id", "events", ["request_id"])
    op.create_table(
        "leaves",
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("request_id", sa.String(length=66), nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("kind", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Integer(), nullable=False),
        sa.Column("reward_wei", sa.Text(), nullable=False),
        sa.Column("supersedes_round", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["round"], ["rounds.round"], name="fk_leaves_round"),
        sa.PrimaryKeyConstraint("round", "position", name="pk_leaves"),
    )
    op.create_table(
        "results",
        sa.Column("request_id", sa.String(length=66), nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("result_hash", sa.String(length=66), nullable=False),
        sa.Column("reward_wei", sa.Text(), nullable=False),
        sa.Column("relayer", sa.String(length=42), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("payload_hash", sa.String(length=66), nullable=False),
        sa.Column("payload_bytes", sa.BigInteger(), nullable=False),
        sa.Column("received_at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["payload_hash"], ["payloads.payload_hash"], name="fk_results_payload_hash"),
        sa.ForeignKeyConstraint(["request_id"], ["requests.request_id"], name="fk_results_request_id"),
        sa.PrimaryKeyConstraint("request_id", name="pk_results"),
    )
    op.create_index("ix_results_payload_hash", "results", ["payload_hash"])
    op.create_table(
        "timeline",
        sa.Column("entry_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("request_id", sa.String(length=66), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["requests.request_id"], name="fk_timeline_request_id"),
        sa.PrimaryKeyConstraint("entry_id", name="pk_timeline"),
    )
    op.create_index("ix_timeline_request_id", "timeline", ["request_id"])
    op.create_table(
        "decisions",
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cycle", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("request_id", sa.String(length=66), nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("kind", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Integer(), nullable=False),
        sa.Column("reward_wei", sa.Text(), nullable=False),
        sa.Column("supersedes_round", sa.BigInteger(), nullable=False),
        sa.Column("score_e9", sa.Text(), nullable=False),
        sa.Column("cost_wei", sa.Text(), nullable=False),
        sa.Column("runner_up", sa.String(length=42), nullable=False),
        sa.Column("runner_up_cost_wei", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["round", "cycle"], ["cycles.round", "cycles.cycle"], name="fk_decisions_round_cycle"),
        sa.PrimaryKeyConstraint("round", "cycle", "position", name="pk_decisions"),
    )
    op.create_index("ix_decisions_request_id_round_cycle", "decisions", ["request_id", "round", "cycle"])


def downgrade() -> None:
    """Drop them, and their indexes with them."""
    op.drop_table("decisions")
    op.drop_table("timeline")
    op.drop_table("results")
    op.drop_table("leaves")
    op.drop_table("events")
    op.drop_table("cycles")
    op.drop_table("attempts")
    op.drop_table("assignments")
    op.drop_table("snapshots")
    op.drop_table("rounds")
    op.drop_table("requests")
    op.drop_table("payloads")
    op.drop_table("intents")
    op.drop_table("blocks")
