"""Requests that their requesters signed, for the relayer to post."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "postings",
        sa.Column("request_id", sa.String(length=66), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("requester", sa.String(length=42), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("relayer_fee_wei", sa.Text(), nullable=False),
        sa.Column("valid_until_s", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("submitted_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("intent_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.ForeignKeyConstraint(["intent_id"], ["intents.intent_id"], name="fk_postings_intent_id"),
        sa.PrimaryKeyConstraint("request_id", name="pk_postings"),
    )
    op.create_index("ix_postings_intent_id", "postings", ["intent_id"])
    op.create_index("ix_postings_requester_state", "postings", ["requester", "state"])
    op.create_index("ix_postings_state_submitted_at_ms", "postings", ["state", "submitted_at_ms"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("postings")
